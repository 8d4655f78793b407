"""Models whose layers are made fused ones, and torch's again."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("triton")

from asng import fused, nas
from asng.experiments.cifar10.network import Net
from asng.fused import _dispatch
from tests.helpers.fused_layers import assert_close, channels_last, error, run


def separable(channels):
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)]
        layers += [nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)]
    return layers


def test_a_fused_network_has_the_same_state_and_classes_come_back():
    net = Net(channels=4, cells=3)
    fused_net = fused.fuse(copy.deepcopy(net))
    assert fused_net.state_dict().keys() == net.state_dict().keys()
    kinds = {type(module) for module in fused_net.modules()}
    assert {fused.SeparableConv2d, fused.BatchNorm2d, fused.MaxPool2d} <= kinds
    assert [type(m) for m in fused.unfuse(fused_net).modules()] == [type(m) for m in net.modules()]


def test_a_fused_network_computes_what_torchs_does():
    torch.manual_seed(0)
    net: Any = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.MaxPool2d(3, 2, 1),
        nn.Sequential(*separable(8)),
        nn.AvgPool2d(3, 2, 1),
    )
    net = net.to(memory_format=torch.channels_last)
    x = channels_last((2, 3, 13, 13), torch.float32)
    assert_close(run(fused.fuse(copy.deepcopy(net)), x), run(net.double(), x.double()), torch.float32)


def test_layers_of_other_classes_stay_as_they_are():
    class Pool(nn.MaxPool2d):
        pass

    model = fused.fuse(nn.Sequential(Pool(3), nas.BatchNorm2d(4), nn.Sequential(nn.ReLU())))
    assert [type(module) for module in model.modules()] == [
        nn.Sequential,
        Pool,
        nas.BatchNorm2d,
        nn.Sequential,
        nn.ReLU,
    ]


def test_counters_of_flops_see_torchs_functions():
    x = channels_last((2, 4, 8, 8), torch.float32)
    layer = fused.SeparableConv2d(*separable(4))
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 2 * (2 * 64 * 4 * 9 + 2 * 64 * 4 * 4)


@pytest.mark.parametrize("kind", ["AvgPool2d", "MaxPool2d"])
def test_transforms_of_functions_see_torchs(kind):
    def total(module, x):
        return getattr(module, kind)(3, 1, 1)(x).square().sum()

    x = channels_last((2, 4, 6, 6), torch.float32)
    got, expected = (torch.func.grad(total, argnums=1)(module, x) for module in (fused, nn))
    assert torch.equal(got, expected)


POOLS_AND_NORM = [("AvgPool2d", (3, 1, 1)), ("MaxPool2d", (3, 1, 1)), ("BatchNorm2d", (4,))]


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # by torch itself
@pytest.mark.parametrize(("kind", "arguments"), POOLS_AND_NORM)
def test_derivatives_in_forward_mode_are_torchs(kind, arguments):
    x, tangent = (channels_last((2, 4, 6, 6), torch.float32, seed) for seed in (0, 1))
    derivatives = []
    for module in (fused, nn):
        with forward_ad.dual_level():
            y = getattr(module, kind)(*arguments)(forward_ad.make_dual(x, tangent))
            derivatives.append(forward_ad.unpack_dual(y).tangent)
    assert torch.equal(*derivatives)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")  # likewise
@pytest.mark.parametrize(("kind", "arguments"), POOLS_AND_NORM)
def test_traces_have_torchs_functions(kind, arguments):
    x = channels_last((2, 4, 6, 6), torch.float32)
    traced = torch.jit.trace(getattr(fused, kind)(*arguments), x, check_trace=False)
    assert not [node for node in traced.inlined_graph.nodes() if node.kind() == "prim::PythonOp"]
    assert torch.equal(traced(x), getattr(nn, kind)(*arguments)(x))


def test_hooks_of_layers_are_called():
    layer = fused.SeparableConv2d(*separable(4))
    shapes = []
    layer[5].register_forward_hook(lambda module, inputs, output: shapes.append(output.shape))
    layer(channels_last((2, 4, 8, 8), torch.float32))
    assert shapes == [(2, 4, 8, 8)]


@pytest.mark.parametrize("layers", [separable(4), [nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)]])
def test_hooks_of_all_modules_see_layers(layers):
    layer, seen = fused.fuse(nn.Sequential(*layers)), []
    with register_module_forward_hook(lambda module, inputs, output: seen.append(module)):
        layer(channels_last((2, 4, 8, 8), torch.float32))
    assert seen == [*layer, layer]


@pytest.mark.parametrize("layers", [separable(4), [nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)]])
def test_functions_in_the_place_of_forward_are_called(layers):
    layer = fused.fuse(nn.Sequential(*layers))
    for index in range(len(layers)):
        replaced = copy.deepcopy(layer)
        replaced[index].forward = lambda x: torch.zeros_like(x).requires_grad_()
        x = channels_last((2, 4, 8, 8), torch.float32)
        assert torch.equal(replaced(x), nn.Sequential(*replaced)(x))


NORMED = {
    "batch norm": lambda: nn.BatchNorm2d(4),
    "pointwise": lambda: nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)),
    "separable": lambda: nn.Sequential(*separable(4)),
}


def stop_tracking(norm):
    norm.track_running_stats = False


def forget_statistics(norm):
    norm.running_mean = norm.running_var = None
    norm.eval()


def leave_out_bias(norm):
    norm.bias = None


def leave_gaps_between_weights(norm):
    norm.weight, norm.bias = (nn.Parameter(torch.linspace(0.5, 2, 8)[::2]) for _ in range(2))


def leave_gaps_between_statistics(norm):
    norm.running_mean, norm.running_var = torch.zeros(8)[::2], torch.ones(8)[::2]


CHANGES = [
    stop_tracking,
    forget_statistics,
    leave_out_bias,
    leave_gaps_between_weights,
    leave_gaps_between_statistics,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", NORMED)
def test_changed_batch_norms_compute_what_torchs_do(kind, change):
    torch.manual_seed(0)
    plain = NORMED[kind]()
    layer = fused.fuse(copy.deepcopy(plain))
    for model in (layer, plain):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                change(module)
    x = channels_last((2, 4, 6, 5), torch.float32)
    assert_close(run(layer, x), run(plain, x), torch.float32)
    assert all(error(left, right) < 1e-6 for left, right in zip(layer.buffers(), plain.buffers(), strict=True))


@pytest.mark.parametrize("kind", NORMED)
def test_kernels_may_follow_torchs_function_before_the_gradient_is_taken(kind):
    plain = NORMED[kind]()
    x = channels_last((2, 4, 6, 5), torch.float32)
    gradients = []
    for layer in (fused.fuse(copy.deepcopy(plain)), plain):
        maps = [x.contiguous().requires_grad_(), x.clone().requires_grad_()]  # the first has torch's function
        outputs = [layer(each) for each in maps]
        sum(y.square().mul(y).sum() for y in outputs).backward()
        gradients.append([leaf.grad for leaf in (*maps, *layer.parameters())])
    assert all(error(left, right) < 1e-4 for left, right in zip(*gradients, strict=True))


# Two images of 6x5 pixels: the input is small enough, but not what the kernels write, 8 elements for each pixel.
@pytest.mark.parametrize("kind", ["pointwise", "separable"])
def test_maps_with_more_elements_than_kernels_count_go_to_torch(kind, monkeypatch):
    plain = NORMED[kind]()
    layer, x = fused.fuse(copy.deepcopy(plain)), channels_last((2, 4, 6, 5), torch.float32)
    assert run(layer, x).used.endswith("FunctionBackward")
    monkeypatch.setattr(_dispatch, "MAX_NUMEL", 2 * 8 * 6 * 5)
    assert not run(layer, x).used.endswith("FunctionBackward")


def test_longer_rows_than_the_channels_count(monkeypatch):
    x = _dispatch.to_rows(channels_last((2, 4, 6, 5), torch.float32), 8)
    assert _dispatch.is_supported(x)
    monkeypatch.setattr(_dispatch, "MAX_NUMEL", 2 * 8 * 6 * 5)
    assert not _dispatch.is_supported(x)
