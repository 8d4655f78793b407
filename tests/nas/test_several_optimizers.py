"""Several torch optimizers that share the weights out: one update, one state, a schedule for each."""

# mypy: disable-error-code="index, union-attr"

import copy
import math

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, StepLR

from tests.helpers.captures import Choosy, oneshot
from tests.helpers.searches import (
    Net,
    batches,
    cross_entropy,
    interrupt_at,
    make_oneshot,
    outcome,
    pairs,
    run_search,
    same,
)

pytestmark = pytest.mark.usefixtures("same_numbers")

SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def split(model, first=torch.optim.SGD, second=torch.optim.SGD, settings=SGD):
    """One optimizer for the head, another for the rest."""
    head = list(model.head.parameters())
    rest = [p for p in model.parameters() if all(p is not q for q in head)]
    return [first(head, **settings), second(rest, **settings)]


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16, torch.float16])
def test_two_optimizers_of_a_kind_are_one_of_all_weights(amp_dtype):
    model = Net(dropout=0)
    other = copy.deepcopy(model)
    one = make_oneshot(model, max_grad_norm=0.3, amp_dtype=amp_dtype)
    two = make_oneshot(other, max_grad_norm=0.3, amp_dtype=amp_dtype, weight_optimizer=split(other))
    for pair in pairs(10):
        assert two.step(*pair).train_losses == pytest.approx(one.step(*pair).train_losses, rel=1e-4)
    torch.testing.assert_close([*other.parameters()], [*model.parameters()], rtol=1e-4, atol=1e-5)


def test_optimizers_of_two_kinds_move_their_own_weights():
    model = Net(dropout=0)
    search = make_oneshot(model, weight_optimizer=split(model, torch.optim.Adam, torch.optim.SGD, {"lr": 0.1}))
    before = copy.deepcopy(model.state_dict())
    search.step(*batches(2))
    moved = (model.head.bias - before["head.bias"]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.1), rtol=1e-3, atol=0)  # Adam's first step
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters() if name[:4] != "head")
    assert [type(one) for one in search.weight_optimizer] == [torch.optim.Adam, torch.optim.SGD]


@pytest.mark.parametrize("amp_dtype", [None, torch.float16])
def test_a_gradient_that_is_not_finite_moves_no_weight_of_any(amp_dtype):
    def loss_fn(model, batch):
        logits = model(batch[0])
        return logits.sum() + (math.nan if torch.is_grad_enabled() else 1.0) * model.head.bias.sum()

    model = Net(dropout=0)
    before = copy.deepcopy(model.state_dict())
    search = make_oneshot(model, loss_fn=loss_fn, weight_optimizer=split(model), amp_dtype=amp_dtype)
    for pair in pairs(3):
        search.step(*pair)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_the_state_of_all_optimizers_is_restored():
    def make():
        torch.manual_seed(0)
        model = Net(dropout=0)
        return make_oneshot(model, weight_optimizer=split(model, torch.optim.Adam, torch.optim.SGD, {"lr": 0.1}))

    whole, first, second = make(), make(), make()
    data = pairs(6)
    for pair in data:
        whole.step(*pair)
    for pair in data[:3]:
        first.step(*pair)
    second.load_state_dict(first.state_dict())
    for pair in data[3:]:
        second.step(*pair)
    torch.testing.assert_close(second.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    with pytest.raises(ValueError, match="the state does not fit: it has 2 weight optimizers, this one 1"):
        make_oneshot(Net(dropout=0)).load_state_dict(first.state_dict())


def search_with_two(checkpoint, loss_fn=cross_entropy, schedules=True, **settings):
    torch.manual_seed(0)
    model = Net()
    optimizers = split(model, torch.optim.AdamW, torch.optim.SGD, {"lr": 0.05})
    schedulers = [StepLR(optimizers[0], 1, gamma=0.5), ExponentialLR(optimizers[1], 0.9)] if schedules else None
    options = {"weight_optimizer": optimizers, "lr_scheduler": schedulers, "checkpoint": checkpoint, **settings}
    found = run_search(model, loss_fn=loss_fn, epochs=4, **options)
    return outcome(model, found) | {"lrs": [one.param_groups[0]["lr"] for one in optimizers]}


@pytest.mark.parametrize("schedules", [True, False])
def test_a_search_with_several_optimizers_resumes_bit_for_bit(tmp_path, schedules):
    whole = search_with_two(None, schedules=schedules)
    with pytest.raises(KeyboardInterrupt):
        search_with_two(tmp_path / "search.pt", interrupt_at(47), schedules=schedules)
    assert same(search_with_two(tmp_path / "search.pt", schedules=schedules), whole)
    assert whole["lrs"] == pytest.approx([0.05 / 2**4, 0.05 * 0.9**4] if schedules else [0, 0], abs=1e-12)


def test_a_checkpoint_of_other_optimizers_is_refused(tmp_path):
    search_with_two(tmp_path / "search.pt")
    with pytest.raises(ValueError, match=r"weight_optimizer\.0"):
        run_search(Net(), checkpoint=tmp_path / "search.pt", epochs=4)


def test_several_optimizers_run_as_usual_after_one_warning():
    torch.manual_seed(0)
    model = Choosy()
    other = copy.deepcopy(model)
    plain = oneshot(model, weight_optimizer=split(model))
    captured = oneshot(other, weight_optimizer=split(other), capture=True)
    first, second = pairs(2)
    with pytest.warns(UserWarning, match="runs as usual: there are several weight optimizers$") as caught:
        assert captured.step(*first) == plain.step(*first)
    assert caught[0].filename == __file__
    assert captured.step(*second) == plain.step(*second)
