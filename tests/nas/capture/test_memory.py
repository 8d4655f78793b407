"""The memory of captures: nothing of one that failed, was replaced or deleted is alive when steps go on."""

# mypy: disable-error-code="attr-defined, union-attr, var-annotated"

import gc
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from asng.nas import OneOf
from asng.nas._capture import trace
from asng.nas._capture.cases import close_frames
from tests.helpers.captures import Choosy, oneshot
from tests.helpers.searches import batches, cross_entropy, pairs, run_search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers", "graphless")]


class Tensors(TorchDispatchMode):
    """Knows the storages of all tensors that are made inside, as long as they are alive."""

    def __init__(self):
        super().__init__()
        self._storages: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._storages[tensor.untyped_storage()] = f"{function} {tuple(tensor.shape)}"
        return result

    def alive(self, *, except_for):
        """What made the storages that are alive, except for those of some tensors."""
        known = {tensor.untyped_storage()._cdata for tensor in except_for}
        return [made_by for storage, made_by in self._storages.items() if storage._cdata not in known]


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory")


class Large(nn.Module):
    """Keeps a tensor for its gradient; may run out of memory where the architecture is open."""

    def __init__(self, fails=""):
        super().__init__()
        self.fails = fails

    def forward(self, x):
        x = x.repeat(1, 64).exp().view(len(x), -1, x.shape[1]).mean(1)
        if trace.is_open() and torch.is_grad_enabled():
            if self.fails == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory")
            if self.fails == "backward":
                return x.exp() + FailsBackward.apply(x)  # which leaves a part in autograd's queue
        return x


def failing_model(fails):
    ends = [nn.Sequential(nn.Linear(4, 4), OneOf("inner", [Large(), Large(which)])) for which in ("", fails)]
    return nn.Sequential(nn.Linear(4, 4), OneOf("op", ends), OneOf("last", [nn.Tanh(), Large()]), nn.Linear(4, 3))


@pytest.mark.parametrize("cases", [64, 2], ids=["flat", "nested"])
@pytest.mark.parametrize("fails", ["forward", "backward", "loss", "backward of the loss", "no gradient"])
def test_plain_steps_find_the_memory_of_a_failed_capture_free(fails, cases, monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", cases)
    tensors, found = Tensors(), []

    def loss_fn(model, batch):
        if not trace.is_open():
            found.append(tensors.alive(except_for=model.parameters()))
            return cross_entropy(model, batch)
        loss = cross_entropy(model, batch)
        if fails == "loss":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if fails == "backward of the loss":
            return FailsBackward.apply(loss)
        return loss.detach() if fails == "no gradient" else loss

    search = oneshot(failing_model(fails), loss_fn=loss_fn, capture=True)
    batch = batches(1)[0]
    with tensors, pytest.warns(UserWarning, match="out of memory|no gradient") as caught:
        search.step(batch, batch)
    assert len(caught) == 1
    assert found[0] == []


class Widens(nn.Module):
    """Gives as many columns as its option says: the surrounding module has to be the switch."""

    def __init__(self):
        super().__init__()
        self.op = OneOf("op", [nn.Linear(4, width) for width in (2, 3)])

    def forward(self, x):
        return self.op(x).mean(1, keepdim=True) * x


def test_a_repeated_discovery_finds_the_memory_of_the_first_free():
    tensors, found, made = Tensors(), [], []

    def loss_fn(model, batch):
        if trace.is_open() and not made:
            found.append(len(tensors.alive(except_for=())))
        loss = cross_entropy(model, batch)
        made.append(loss)
        return loss

    search = oneshot(nn.Sequential(nn.Linear(4, 4), Large(), Widens(), nn.Linear(4, 3)), loss_fn=loss_fn, capture=True)
    batch = batches(1)[0]
    with tensors:
        search.step(batch, batch)
    assert len(found) == 2
    assert found[1] == found[0]


def test_the_memory_of_a_capture_is_free_before_the_next_one():
    captures, found = [], []

    def loss_fn(model, batch):
        found.extend(capture() for capture in captures)
        return cross_entropy(model, batch)

    model = Choosy()
    search = oneshot(model, loss_fn=loss_fn, capture=True)
    batch = batches(1)[0]
    search.step(batch, batch)
    captures.append(ref(search._captured._iteration))
    model.stem.requires_grad_(False)
    search.step(batch, batch)
    assert found
    assert set(found) == {None}


@pytest.mark.parametrize("kind", [partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW], ids=["sgd", "adamw"])
def test_gradients_and_states_of_another_capture_are_freed(kind):
    model = Choosy()
    search = oneshot(model, weight_optimizer=kind(model.parameters(), lr=0.01), capture=True)
    batch = batches(1)[0]
    tensors = Tensors()
    with tensors:
        search.step(batch, batch)
    model.stem.requires_grad_(False)
    search.step(batch, batch)
    gc.collect()  # torch's optimizers are cycles
    assert tensors.alive(except_for=model.buffers()) == []


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16])
def test_a_deleted_search_frees_the_memory_of_its_capture(amp_dtype):
    model = Choosy()
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    search = oneshot(model, weight_optimizer=weight_optimizer, capture=True, amp_dtype=amp_dtype)
    batch = batches(1)[0]
    tensors = Tensors()
    with tensors:
        search.step(batch, batch)
        search.state_dict()
    assert search.capture_cost
    del search
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    momentum = [tensor for state in weight_optimizer.state.values() for tensor in state.values()]
    assert tensors.alive(except_for=[*model.parameters(), *model.buffers(), *gradients, *momentum]) == []


def test_the_result_of_a_search_keeps_no_capture_and_its_steps_go_on():
    model, twin = Choosy(), Choosy()
    twin.load_state_dict(model.state_dict())
    found, plain = (run_search(m, epochs=1, capture=capture) for m, capture in ((model, True), (twin, False)))
    search, other = found.oneshot, plain.oneshot
    assert search.capture_cost
    assert search._captured._iteration is None
    assert [search.step(*pair) for pair in pairs(3)] == [other.step(*pair) for pair in pairs(3)]


def test_functions_that_an_error_has_ended_leave_no_variables():
    kept = []

    def fail(error):
        layer = nn.Linear(1, 1)
        kept.append(ref(layer))
        raise error

    def fail_twice():
        try:
            fail(ValueError("first"))
        except ValueError:
            fail(TypeError("second"))

    with pytest.raises(TypeError) as caught:
        fail_twice()
    assert [made() is None for made in kept] == [False, False]
    close_frames(caught.value)
    assert [made() is None for made in kept] == [True, True]
