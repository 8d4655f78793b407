"""Captured steps make the weights views of one tensor, and move them as torch does: what users notice of that."""

# mypy: disable-error-code="attr-defined, index, union-attr"

import copy
import inspect
import io
import math
from functools import partial

import pytest
import torch
from torch import nn

from asng import nas
from asng.nas._capture.update import CAPTURABLE, WeightUpdate
from tests.helpers.captures import Body, Choosy, iteration, oneshot, step
from tests.helpers.searches import batches, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def bytes_held(module):
    """The memory behind the parameters."""
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in module.parameters()}
    return sum(storages.values())


def to_bytes(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def test_weights_become_views_and_keep_values_and_layout():
    conv = nn.Conv2d(3, 5, 3)
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    before = copy.deepcopy(conv)
    WeightUpdate(torch.optim.SGD(conv.parameters(), 0.1), math.inf, 2)
    assert conv.weight.untyped_storage().data_ptr() == conv.bias.untyped_storage().data_ptr()
    torch.testing.assert_close(conv.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert conv.weight.stride() == before.weight.stride()


def test_memory_with_gaps_or_of_others_stays_where_it_is():
    whole = torch.randn(6, 6)
    parameters = [nn.Parameter(whole[:, ::2]), nn.Parameter(whole[2:4]), nn.Parameter(torch.randn(6))]
    before = [p.data_ptr() for p in parameters]
    update = WeightUpdate(torch.optim.SGD(parameters, 1.0), math.inf, 1)
    assert [p.data_ptr() == old for p, old in zip(parameters, before, strict=True)] == [True, True, False]
    with torch.no_grad():
        parameters[1].fill_(3.0)  # between steps
    update.begin()
    update.weights[0].gradients[id(parameters[1])].fill_(1.0)
    update.step(update.lrs)
    assert (whole[2:4] == 2.0).all()


def test_weights_that_are_views_move_to_a_second_update():
    model = Choosy()
    searches = oneshot(model), oneshot(copy.deepcopy(model))
    opened = [iteration(search, batches(1)[0]) for search in searches]
    for number, (train, valid) in enumerate(pairs(6)):
        if number == 3:
            opened[1].update.store()
            opened[1] = iteration(searches[1], batches(1)[0])
        assert step(searches[0], opened[0], train, valid) == step(searches[1], opened[1], train, valid)
    assert bytes_held(searches[0].model) == bytes_held(searches[1].model)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.double(),
        lambda m: setattr(m.stem.bias, "data", torch.ones(8)),
        lambda m: m.stem.bias.requires_grad_(False),
    ],
    ids=["dtype", "memory", "frozen"],
)
def test_weights_that_are_moved_or_frozen_are_noticed(change):
    model = Choosy()
    update = WeightUpdate(torch.optim.SGD(model.parameters(), 0.1), math.inf, 2)
    assert update.find_change() is None
    change(model)
    assert update.find_change() == "the weights' memory or requires_grad"


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16])
def test_weights_that_are_written_between_steps_are_taken_over(amp_dtype):
    model = Choosy()
    plain, other = (oneshot(m, amp_dtype=amp_dtype) for m in (model, copy.deepcopy(model)))
    opened = iteration(other, batches(1)[0], amp_dtype=amp_dtype)
    state = copy.deepcopy(model.state_dict())
    for number, (train, valid) in enumerate(pairs(6)):
        expected = plain.step(train, valid)
        assert (list(expected.train_losses), list(expected.valid_losses)) == step(other, opened, train, valid)
        for search in (plain, other):
            if number == 2:
                search.model.load_state_dict(state)
            with torch.no_grad():
                search.model.head.weight.mul_(0.5)


def test_a_checkpoint_of_views_holds_each_number_once():
    model = Choosy()
    before = to_bytes(model.state_dict())
    opened = iteration(oneshot(model), batches(1)[0])
    after = to_bytes(model.state_dict())
    assert len(after) < len(before) + 4 * len(opened.update.groups[0].values)
    torch.testing.assert_close(torch.load(io.BytesIO(after), weights_only=True), model.state_dict(), rtol=0, atol=0)


def test_copies_and_extracted_networks_have_memory_of_their_own():
    model = Choosy()
    values = {"op": 0, "inner": 0, "depth": 1, "source": 0, "last": 0}
    size, of_network = bytes_held(copy.deepcopy(model)), bytes_held(nas.extract(model, values))
    before = len(to_bytes(nas.extract(model, values)))
    iteration(oneshot(model), batches(1)[0])
    assert bytes_held(copy.deepcopy(model)) == size
    assert bytes_held(nas.extract(model, values)) == of_network < size
    assert len(to_bytes(nas.extract(model, values))) == before


def test_a_module_that_changes_views_is_named():
    class Halves(Body):
        def build_static(self):
            next(self.blocks[1].parameters()).data.mul_(0.5)
            return super().build_static()

    model = nn.Sequential(Halves(), nn.Linear(4, 3))
    WeightUpdate(torch.optim.SGD(model.parameters(), 0.1), math.inf, 2)
    with pytest.raises(ValueError, match=r"of 0 \(Halves\) changed the numbers of 0\.blocks\.1 \(Linear\)"):
        nas.extract(model, {"depth": 2})


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD,
        partial(torch.optim.SGD, momentum=0.9),
        partial(torch.optim.SGD, momentum=0.9, nesterov=True),
        *(getattr(torch.optim, name) for name in CAPTURABLE),
        partial(torch.optim.Adam, amsgrad=True),
        partial(torch.optim.RMSprop, momentum=0.9, centered=True),
        partial(torch.optim.ASGD, t0=2),
        partial(torch.optim.NAdam, decoupled_weight_decay=True),
    ],
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_flat_gradients_move_weights_as_torch_does(optimizer, weight_decay):
    settings = {"lr": 0.1} | ({} if optimizer is torch.optim.Rprop else {"weight_decay": weight_decay})
    ours = [
        nn.Parameter(torch.randn(())),
        nn.Parameter(torch.randn(3, 5)),
        nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.randn(4, 70)[:, ::2]),
    ]
    theirs = copy.deepcopy(ours)
    made = [optimizer(p, **settings) for p in (ours, theirs)]
    flat = WeightUpdate(made[0], math.inf, 1)
    for number in range(8):
        flat.begin()
        for index, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            if number >= index:  # the others are touched later
                gradient = torch.randn_like(one)
                flat.weights[0].gradients[id(one)].copy_(gradient)
                two.grad = gradient
        flat.step(flat.lrs)
        made[1].step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        for one in made:
            one.param_groups[0]["lr"] *= 0.7  # with which the state of some begins


def test_all_of_torchs_capturable_optimizers_are_captured():
    kinds = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)]
    assert sorted(k.__name__ for k in kinds if "capturable" in inspect.signature(k).parameters) == sorted(CAPTURABLE)
