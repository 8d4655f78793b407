"""Updates of weights in captured steps on a GPU: optimizers, kernels, weights that are moved or frozen."""

# mypy: disable-error-code="misc, var-annotated"

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from asng.nas._capture import update as _update
from asng.nas._capture.update import WeightUpdate
from tests.helpers.captures import Choosy, assert_same_losses, gpu_pairs, oneshot
from tests.helpers.searches import Net, cross_entropy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_weights_that_are_moved_are_captured_again():
    torch.manual_seed(0)
    model = Choosy().cuda()
    twin = copy.deepcopy(model)
    plain, captured = oneshot(model), oneshot(twin, capture=True)
    for number, (train, valid) in enumerate(gpu_pairs(9)):
        if number == 3:
            for weight in (model.head.weight, twin.head.weight):
                weight.data = weight.data * 0.5
        if number == 6:
            model.double().float(), twin.double().float()
        expected, got = plain.step(train, valid), captured.step(train, valid)
        torch.testing.assert_close(got.valid_losses, expected.valid_losses)
    torch.testing.assert_close([*twin.parameters()], [*model.parameters()])


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16])
def test_weights_that_are_frozen_for_a_while_are_captured_again(amp_dtype):
    torch.manual_seed(0)
    model = Choosy().cuda()
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    search = oneshot(model, weight_optimizer=weight_optimizer, amp_dtype=amp_dtype, capture=True)
    moved = []
    for number, (train, valid) in enumerate(gpu_pairs(9)):
        model.stem.requires_grad_(not 3 <= number < 6)
        before = model.stem.weight.detach().clone()
        search.step(train, valid)
        moved.append(not torch.equal(before, model.stem.weight))
    assert moved == [True] * 3 + [False] * 3 + [True] * 3


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_the_update_by_kernels_equals_that_by_torchs_functions(low, monkeypatch):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size, device="cuda")) for size in ((3, 5, 7), (1000, 777), (1,), (64,))]
    made = []
    for kind, own in ((_update.FusedSGDRule, parameters), (_update.SGDRule, copy.deepcopy(parameters))):
        monkeypatch.setattr(_update, "has_kernels_for", lambda values, kind=kind: kind is _update.FusedSGDRule)
        optimizer = torch.optim.SGD(own, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True)
        update = WeightUpdate(optimizer, 5.0, 2)
        if low:
            update.build(torch.bfloat16, {id(p) for p in own[:2]})
        assert {type(rule) for rule in update._rules} == {kind}
        made.append((update, own))
    for number in range(5):
        gradients = torch.randn(2, 1000 * 777, device="cuda")
        for update, own in made:
            update.begin()
            for row, index in ((0, 0), (1, 0), (number % 2, number % 3)):  # the last parameter is never touched
                target = update.weights[row].gradients[id(own[index])]
                target.copy_(gradients[row, : target.numel()].view(target.shape))
            update.step([torch.tensor(0.1, dtype=torch.float64, device="cuda")] * len(update.groups))
            update.store()
        found = [[(p, p.grad, update._optimizer.state[p].get("momentum_buffer")) for p in own] for update, own in made]
        torch.testing.assert_close(*found)
        assert found[0][-1][1] is None


def test_kernels_reach_gradients_beyond_32_bits():
    pytest.importorskip("triton")
    parameter = nn.Parameter(torch.zeros(110_000_000, device="cuda"))
    update = WeightUpdate(torch.optim.SGD([parameter], 1.0), math.inf, 20)
    update.build(torch.bfloat16, {id(parameter)})
    update.begin()
    update.weights[19].gradients[id(parameter)][-1] = 2.0
    update.step([torch.tensor(1.0, dtype=torch.float64, device="cuda")])
    assert parameter[-2:].tolist() == [0.0, -2.0]
    assert not update.groups[0].rows[19, -64:].any()


@pytest.mark.parametrize("name", ["AdamW", "RMSprop", "Adadelta", "ASGD", "NAdam"])
def test_other_optimizers_are_captured(name):
    torch.manual_seed(0)
    model = Choosy().double().cuda()  # in which a bias before a batch norm has no gradient of rounding errors
    optimizer = partial(getattr(torch.optim, name), lr=0.01, weight_decay=0.01, capturable=True)
    assert_same_losses(
        model, copy.deepcopy(model), gpu_pairs(12, torch.double), weight_optimizer=optimizer, loss_fn=cross_entropy
    )


def test_rprop_is_captured():
    torch.manual_seed(0)
    model = Net(dropout=0).double().cuda()  # without batch norms: of rounding errors, too, the sign counts
    optimizer = partial(torch.optim.Rprop, lr=0.01, capturable=True)
    assert_same_losses(
        model, copy.deepcopy(model), gpu_pairs(12, torch.double), weight_optimizer=optimizer, loss_fn=cross_entropy
    )


@pytest.mark.parametrize("name", ["ASGD", "NAdam", "Rprop"])
@pytest.mark.filterwarnings("error")
def test_states_that_begin_with_other_numbers_than_zero_are_captured(name):
    torch.manual_seed(0)
    model = Choosy().cuda()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, capturable=True)
    search = oneshot(model, weight_optimizer=optimizer, amp_dtype=torch.bfloat16, capture=True)
    steps = [search.step(*pair) for pair in gpu_pairs(5)]
    assert search.capture_cost
    assert all(math.isfinite(loss) for step in steps for loss in step.train_losses)
