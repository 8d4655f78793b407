"""Results of kernels go where a caller has memory for them, and captured switches use it."""

# mypy: disable-error-code="call-overload, dict-item"

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from asng import fused
from asng.experiments.cifar10.layers import separable
from asng.fused._placement import Placement
from asng.nas import OneOf
from asng.nas._capture.branch import find_direct
from asng.nas._capture.trace import add_up
from tests.helpers.captures import assert_same_steps, iteration, oneshot

LAYERS = {
    "3x3": lambda: separable(8, 3, 1, affine=True),
    "5x5, stride 2": lambda: separable(8, 5, 2, affine=True),
    "12 channels": lambda: separable(12, 3, 1, affine=True),
    "1x1": lambda: nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16)),
    "average pool": lambda: nn.AvgPool2d(3, 1, 1),
    "average pool, stride 2": lambda: nn.AvgPool2d(3, 2, 1),
    "max pool": lambda: nn.MaxPool2d(3, 1, 1),
    "max pool, stride 2": lambda: nn.MaxPool2d(3, 2, 1),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return fused.fuse(LAYERS[request.param]())


def images(layer):
    channels = next((m.in_channels for m in layer.modules() if isinstance(m, nn.Conv2d)), 8)
    return torch.randn(2, channels, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()


def gradients(layer, x, placement):
    y = layer(x)
    leaves = [x, *(p for m in layer.modules() if isinstance(m, nn.Conv2d) for p in m.parameters())]
    with placement:
        return torch.autograd.grad(y, leaves, torch.ones_like(y))


def test_a_result_is_written_where_it_is_placed(layer):
    x = images(layer)
    with Placement() as first:
        expected = layer(x)
    number = first.find(expected)
    target = copy.deepcopy(expected.detach()).fill_(torch.nan)  # with rows as long as those of the result
    with Placement({number: target}):
        result = layer(x)
    assert result.data_ptr() == target.data_ptr()
    assert torch.equal(target, expected)


def test_a_result_is_added_where_it_is_placed(layer):
    x = images(layer)
    with Placement() as first:
        expected = layer(x)
    target = copy.deepcopy(expected.detach()).fill_(3.0)
    with Placement({first.find(expected): target}, adds=True):
        result = layer(x)
    assert result.data_ptr() == target.data_ptr()
    torch.testing.assert_close(target, expected + 3)
    (gradient,) = torch.autograd.grad(result, x, torch.ones_like(result))
    assert torch.equal(gradient, torch.autograd.grad(expected, x, torch.ones_like(expected))[0])


def test_others_may_write_there_before_the_gradient_is_computed():
    """As the other options of a switch do while it is captured."""
    x = images(LAYERS["max pool"]())
    pool = fused.MaxPool2d(3, 1, 1)
    target = torch.empty_like(x)
    with Placement({0: target}):
        result = pool(x)
    target.zero_()
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert gradient.sum() == x.numel()


def test_gradients_are_added_where_they_are_placed(layer):
    x = images(layer)
    first = Placement()
    expected = gradients(layer, x, first)
    placed = {
        number: torch.full_like(gradient, 3.0) for gradient in expected if (number := first.find(gradient)) is not None
    }
    second = Placement(placed, adds=True)
    results = gradients(layer, x, second)
    pairs = [(got, want) for got, want in zip(results, expected, strict=True) if first.find(want) is not None]
    assert len(pairs) == len(placed) >= 1
    for got, want in pairs:
        assert torch.equal(got, want + 3)
    left = second.leave_out_placed(results)
    assert left.count(None) == len(pairs)


def test_a_tensor_that_does_not_fit_stays_as_it_is(layer):
    x = images(layer)
    with Placement() as first:
        expected = layer(x)
    for target in (torch.zeros(1), torch.zeros_like(expected, dtype=torch.double), torch.zeros(expected.shape)):
        with Placement({first.find(expected): target}):
            assert torch.equal(layer(x), expected)
        assert not target.any()


def test_a_placed_gradient_that_is_not_returned_is_an_error():
    placement = Placement({0: torch.zeros(3)}, adds=True)
    placement.place(torch.empty(3))
    with pytest.raises(RuntimeError, match="placed"):
        placement.leave_out_placed([torch.zeros(3), None])


def test_memory_that_is_used_again_is_no_result():
    placement = Placement()
    for _ in range(10):
        placement.place(torch.empty(1000))
        assert placement.find(torch.empty(1000)) is None


def test_a_result_that_is_looked_at_in_another_way_is_not_that_result():
    with Placement() as placement:
        result = fused.MaxPool2d(3, 1, 1)(images(LAYERS["max pool"]()))
    assert placement.find(result) == 0
    assert placement.find(result.transpose(2, 3)) is None


def test_a_gradient_that_others_see_is_not_placed():
    x, y = images(LAYERS["max pool"]()), images(LAYERS["max pool"]())
    pool = fused.MaxPool2d(3, 1, 1)
    assert find_direct([pool(x)], [x]) == {0}
    assert find_direct([pool(x) + pool(x)], [x]) == set()
    assert find_direct([pool(fused.ScaledSum()(x, y))], [x, y]) == set()  # it is that of both
    x.register_hook(torch.Tensor.zero_)
    assert find_direct([pool(x)], [x]) == set()


class Twice(nn.Module):
    """Adds up what two layers make of the same input."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1)])

    def forward(self, x):
        return self.layers[0](x) + self.layers[1](x)


class Node(nn.Module):
    """A node of two choices that read the same, as in a cell."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 1), nn.Linear(8, 3)
        two = nn.Sequential(nn.MaxPool2d(3, 1, 1), separable(8, 3, 1, affine=True))  # the second gives the result
        self.first = OneOf("first", [nn.Identity(), two])
        self.second = OneOf("second", [nn.MaxPool2d(3, 1, 1), nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.ReLU()), Twice()])

    def forward(self, x):
        x = self.stem(x)
        return self.head((self.first(x) + self.second(x)).mean((2, 3)))


def batches(n):
    torch.manual_seed(1)
    maps = [torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last) for _ in range(2 * n)]
    pairs = [(x, torch.randint(3, (2,))) for x in maps]
    return list(zip(pairs[::2], pairs[1::2], strict=True))


def test_steps_with_open_switches_equal_plain_ones_bit_for_bit():
    torch.manual_seed(0)
    assert_same_steps(fused.fuse(Node().to(memory_format=torch.channels_last)), data=batches(2))


class Pooled(nn.Module):
    """The maxima of what a function makes of two maps."""

    def __init__(self, function):
        super().__init__()
        self.function, self.pool = function, nn.MaxPool2d(3, 1, 1)

    def forward(self, a, b):
        return self.pool(self.function(a, b))


class NormedSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = fused.BatchNorm2d(8)

    def forward(self, a, b):
        return fused.batch_norm(a, self.norm, add=b)


class Turned(nn.Module):
    """A view of a result."""

    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(3, 1, 1)

    def forward(self, a, b):
        return self.pool(a).transpose(2, 3)


class TwoInputs(nn.Module):
    """A choice that is made of two maps, twice, so that each has several gradients."""

    def __init__(self, options):
        super().__init__()
        self.stem, self.pool, self.head = nn.Conv2d(3, 8, 1), nn.AvgPool2d(3, 1, 1), nn.Linear(128, 3)
        self.choice = OneOf("choice", options)

    def forward(self, x):
        a = self.stem(x)
        b = self.pool(a)
        return self.head((self.choice(a, b) + self.choice(b, a)).flatten(1))


OPTIONS = {
    "a gradient is read by another function": lambda: [Pooled(NormedSum()) for _ in range(2)],
    "a view of a result": lambda: [Pooled(lambda a, b: a), *(Turned() for _ in range(3))],
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_steps_are_the_plain_ones_where(options):
    torch.manual_seed(0)
    assert_same_steps(fused.fuse(TwoInputs(options()).to(memory_format=torch.channels_last)), data=batches(1))


class Sum(nn.Module):
    """Pools of a map added up, each of which a choice chooses."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 1), nn.Linear(128, 3)
        pools = [[nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)] for _ in range(2)]
        self.terms = nn.ModuleList(OneOf(name, options) for name, options in zip("ab", pools, strict=True))

    def forward(self, x):
        return self.head(add_up(list(self.terms), self.stem(x)).flatten(1))


@torch.no_grad()
def note_mean(module, inputs, output):
    module.mean.copy_(output.mean())


@pytest.mark.parametrize("hooked", [False, True])
def test_kernels_add_to_the_result_of_another_choice_unless_a_hook_reads_theirs(hooked):
    torch.manual_seed(0)
    model = fused.fuse(Sum().to(memory_format=torch.channels_last))
    for pool in model.terms[1].modules() if hooked else ():
        if isinstance(pool, nn.MaxPool2d | nn.AvgPool2d):
            pool.register_buffer("mean", torch.zeros(()))
            pool.register_forward_hook(note_mean)
    assert_same_steps(model, data=batches(2))


@pytest.mark.parametrize(("option", "copies"), [("identity", 4), ("pool", 0), ("separable", 0), ("rectified", 4)])
def test_switches_copy_only_what_no_kernel_can_write_there(option, copies, monkeypatch):
    """Each of four passes has a switch."""
    options = {
        "identity": nn.Identity(),
        "pool": nn.MaxPool2d(3, 1, 1),
        "separable": separable(8, 3, 1, affine=True),
        "rectified": nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.ReLU()),
    }
    torch.manual_seed(0)
    choice = OneOf("choice", {option: options[option], "other": nn.AvgPool2d(3, 1, 1)})
    model = nn.Sequential(nn.Conv2d(3, 8, 1), choice, nn.Conv2d(8, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = fused.fuse(model.to(memory_format=torch.channels_last))
    train, valid = batches(1)[0]
    opened = iteration(oneshot(model), train)
    copied, copy_ = [], torch.Tensor.copy_

    def record(target, *args, **named):
        copied.append(target.shape)
        return copy_(target, *args, **named)

    monkeypatch.setattr(torch.Tensor, "copy_", record)
    opened.step(2 * [{"choice": option}], train, 2 * [{"choice": option}], valid)
    assert copied.count((2, 8, 4, 4)) == copies
