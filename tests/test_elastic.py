"""Elastic layers: equal to torch's at every size, frozen into torch's, and clear about what does not fit."""

# mypy: disable-error-code="union-attr, index, arg-type"
# (torch's layers are looked into, and wrong arguments tested)

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import asng
from asng import nas
from asng.nas import Pick, Value, Width, extract, select
from asng.space import Categorical, Integer, Real

torch.set_num_threads(1)


def width(name: str = "a", low: int = 1, high: int = 8) -> Width:
    return Width(name, low, high)


def odd(name: str = "k", high: int = 3) -> Any:
    return Value(name, Integer(1, high)) * 2 - 1


def equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-5)


# A convolution by hand, from the definition of each part.


def of_groups(weight: torch.Tensor, most: int, groups: int, first: int, second: int) -> torch.Tensor:
    """The first channels of each of the first groups, group by group."""
    per_group = len(weight) // most
    return torch.cat([weight[g * per_group : g * per_group + first, :second] for g in range(groups)])


CONVOLUTIONS = [
    # in, out, groups: of the largest; a function of the selected a, b to the small ones
    (lambda: (width("a"), width("b"), 1), (8, 8, 1), lambda a, b: (a, b, 1)),
    (lambda: (3, width("b"), 1), (3, 8, 1), lambda a, b: (3, b, 1)),
    (lambda: (width("a"), 5, 1), (8, 5, 1), lambda a, b: (a, 5, 1)),
    (lambda: (width("a") * 2, width("b") * 4, 2), (16, 32, 2), lambda a, b: (2 * a, 4 * b, 2)),
    (lambda: (width("a"), width("a"), width("a")), (8, 8, 8), lambda a, b: (a, a, a)),
    (lambda: (width("a"), width("a") * 3, width("a")), (8, 24, 8), lambda a, b: (a, 3 * a, a)),
    (lambda: (width("a") * 2, width("a") * 4, width("a")), (16, 32, 8), lambda a, b: (2 * a, 4 * a, a)),
    (lambda: (4, 6, 2), (4, 6, 2), lambda a, b: (4, 6, 2)),
]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("declared", "most", "small"), CONVOLUTIONS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    a=st.integers(1, 8),
    b=st.integers(1, 8),
    k=st.integers(1, 3),
    stride=st.sampled_from([1, 2, (2, 1)]),
    dilation=st.sampled_from([1, 2, (1, 2)]),
    bias=st.booleans(),
)
def test_a_convolution_is_torchs_of_the_small_size(transposed, declared, most, small, a, b, k, stride, dilation, bias):
    down, across = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    kind, plain_kind = (nas.ConvTranspose2d, nn.ConvTranspose2d) if transposed else (nas.Conv2d, nn.Conv2d)
    takes, gives, groups = declared()
    layer = kind(
        takes, gives, odd(), stride, padding=(2 * down, 2 * across + 1), groups=groups, bias=bias, dilation=dilation
    )
    most_in, most_out, most_groups = most
    largest = plain_kind(most_in, most_out, 5, groups=most_groups, bias=bias)
    assert {n: t.shape for n, t in layer.state_dict().items()} == {n: t.shape for n, t in largest.state_dict().items()}

    values = {name: value for name, value in {"a": a, "b": b, "k": k}.items() if name in nas.space_of(layer)}
    select(layer, values)
    kernel = 2 * k - 1
    less = (5 - kernel) // 2
    takes, gives, groups = small(a, b)
    plain = plain_kind(
        takes,
        gives,
        kernel,
        stride,
        padding=(2 * down - less * down, 2 * across + 1 - less * across),
        groups=groups,
        bias=bias,
        dilation=dilation,
    )
    first, second = (takes, gives) if transposed else (gives, takes)
    with torch.no_grad():
        centre = layer.weight[..., less : less + kernel, less : less + kernel]
        plain.weight.copy_(of_groups(centre, most_groups, groups, first // groups, second // groups))
        if bias:
            shape = (most_out, 1)
            plain.bias.copy_(of_groups(layer.bias.view(shape), most_groups, groups, gives // groups, 1).flatten())
    x = torch.randn(2, takes, 12, 9)
    expected = plain(x)
    assert equal(layer(x), expected)
    assert equal(layer(x[0]), expected[0])  # without a batch, as torch allows
    frozen = extract(layer, values)
    assert type(frozen) is plain_kind
    assert repr(frozen) == repr(plain)
    assert all(torch.equal(t, plain.state_dict()[n]) for n, t in frozen.state_dict().items())
    assert torch.equal(frozen(x), expected)


@pytest.mark.parametrize("kind", [nas.Conv2d, nas.ConvTranspose2d])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_a_smaller_kernel_is_the_largest_with_zeros_around_its_centre(kind, k, dilation):
    layer = kind(3, 4, odd(), stride=2, padding=2 * dilation, dilation=dilation)
    largest = kind(3, 4, 5, stride=2, padding=2 * dilation, dilation=dilation)
    select(layer, {"k": k})
    zeros = torch.zeros_like(layer.weight)
    inside = slice(3 - k, 2 + k)
    with torch.no_grad():
        zeros[..., inside, inside] = layer.weight[..., inside, inside]
        largest.weight.copy_(zeros)
        largest.bias.copy_(layer.bias)
    x = torch.randn(2, 3, 11, 10)
    assert equal(layer(x), largest(x))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's, for torch's layer too
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [2, (3, 2), "same"])
@pytest.mark.parametrize(("kernel", "sizes"), [(odd, [1, 3, 5]), (lambda: Value("k", Integer(1, 2)) * 2, [2, 4])])
def test_padding_of_every_kind_shrinks_with_the_kernel(mode, padding, kernel, sizes):
    layer = nas.Conv2d(2, 3, kernel(), padding=padding, padding_mode=mode)
    x = torch.randn(2, 2, 9, 8)
    most = max(sizes)
    for k, size in enumerate(sizes, start=1):
        select(layer, {"k": k})
        plain = nn.Conv2d(2, 3, most, padding=padding, padding_mode=mode)
        less = (most - size) // 2
        inside = slice(less, less + size)
        with torch.no_grad():
            plain.weight.zero_()[..., inside, inside] = layer.weight[..., inside, inside]
            plain.bias.copy_(layer.bias)
        assert equal(layer(x), plain(x))
        assert equal(extract(layer, {"k": k})(x), plain(x))


def test_a_kernel_may_follow_a_decision_on_one_axis_only():
    layer = nas.Conv2d(2, 3, (odd(), 1), padding=(2, 0))
    select(layer, {"k": 2})
    frozen = layer.freeze()
    assert isinstance(frozen, nn.Conv2d)
    assert frozen.kernel_size == (3, 1)
    assert frozen.padding == (1, 0)


@pytest.mark.parametrize("h", [1, 2, 3])
@pytest.mark.parametrize("w", [1, 2, 3])
def test_both_axes_of_a_kernel_may_follow_decisions_of_their_own(h, w):
    layer = nas.Conv2d(2, 3, (odd("h"), odd("w")), padding=2)
    select(layer, {"h": h, "w": w})
    weight = layer.weight[:, :, 3 - h : 2 + h, 3 - w : 2 + w]
    x = torch.randn(1, 2, 6, 7)
    assert equal(layer(x), F.conv2d(x, weight, layer.bias, padding=(h - 1, w - 1)))
    assert torch.equal(layer.freeze().weight, weight)


def test_a_transposed_convolution_reaches_the_size_that_is_asked_for():
    layer = nas.ConvTranspose2d(2, 3, odd(), stride=2, padding=2)
    x = torch.randn(1, 2, 5, 5)
    for k in (1, 2, 3):
        select(layer, {"k": k})
        assert layer(x).shape == (1, 3, 9, 9)
        assert layer(x, output_size=[10, 9]).shape == (1, 3, 10, 9)
        assert torch.equal(layer.freeze()(x, output_size=[10, 9]), layer(x, output_size=[10, 9]))


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs_of_the_small_size(bias):
    layer = nas.Linear(width("a"), width("b") * 2, bias=bias)
    assert layer.weight.shape == (16, 8)
    for a, b in [(1, 1), (5, 3), (8, 8)]:
        select(layer, {"a": a, "b": b})
        x = torch.randn(4, 2, a)
        expected = F.linear(x, layer.weight[: 2 * b, :a], layer.bias[: 2 * b] if bias else None)
        assert equal(layer(x), expected)
        frozen = layer.freeze()
        assert type(frozen) is nn.Linear
        assert repr(frozen) == repr(nn.Linear(a, 2 * b, bias=bias))
        assert equal(frozen(x), expected)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_torchs_of_the_small_size(affine, bias):
    layer = nas.LayerNorm((3, width()), eps=1e-3, elementwise_affine=affine, bias=bias)
    if affine:
        nn.init.normal_(layer.weight)
    for a in (2, 5, 8):
        select(layer, {"a": a})
        plain = nn.LayerNorm((3, a), eps=1e-3, elementwise_affine=affine, bias=bias)
        with torch.no_grad():
            for name, parameter in plain.named_parameters():
                parameter.copy_(getattr(layer, name)[:, :a])
        x = torch.randn(4, 3, a)
        assert equal(layer(x), plain(x))
        frozen = layer.freeze()
        assert type(frozen) is nn.LayerNorm
        assert repr(frozen) == repr(plain)
        assert equal(frozen(x), plain(x))


@pytest.mark.parametrize(
    ("kind", "plain_kind", "shape"),
    [
        (nas.BatchNorm1d, nn.BatchNorm1d, ()),
        (nas.BatchNorm1d, nn.BatchNorm1d, (5,)),
        (nas.BatchNorm2d, nn.BatchNorm2d, (3, 4)),
    ],
)
@pytest.mark.parametrize("momentum", [0.1, 0.0, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
def test_batch_norm_is_torchs_of_the_small_size(kind, plain_kind, shape, momentum, affine, tracks):
    layer = kind(width(), eps=1e-3, momentum=momentum, affine=affine, track_running_stats=tracks)
    if affine:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    select(layer, {"a": 5})
    plain = plain_kind(5, eps=1e-3, momentum=momentum, affine=affine, track_running_stats=tracks)
    plain.load_state_dict({name: tensor[:5] if tensor.dim() else tensor for name, tensor in layer.state_dict().items()})
    for _ in range(3):
        x = torch.randn(6, 5, *shape) * 3 + 1
        assert equal(layer(x), plain(x))
    frozen = layer.freeze()
    assert type(frozen) is plain_kind
    assert repr(frozen) == repr(plain)
    assert frozen.state_dict().keys() == plain.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        assert equal(frozen.state_dict()[name].float(), tensor.float())
    if tracks:
        assert torch.equal(layer.running_mean[5:], torch.zeros(3))
        assert torch.equal(layer.running_var[5:], torch.ones(3))
        assert (layer.running_mean[:5] != 0).all() == (momentum != 0.0)
        assert int(layer.num_batches_tracked) == 3
    before = copy.deepcopy(layer.state_dict())
    layer.eval(), plain.eval()
    x = torch.randn(6, 5, *shape)
    assert equal(layer(x), plain(x))
    assert equal(layer.freeze()(x), plain(x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize("tracks", [True, False])
def test_statistics_rest_where_they_are_switched_off_later(tracks):
    layer, plain = nas.BatchNorm1d(width()), nn.BatchNorm1d(8)
    select(layer, {"a": 8})
    x = torch.randn(4, 8)
    for norm in (layer, plain):
        norm(x)
        norm.track_running_stats = tracks
        norm(x)
    assert all(torch.equal(tensor, plain.state_dict()[name]) for name, tensor in layer.state_dict().items())
    assert equal(layer(x), plain(x))
    assert equal(layer.eval()(x), plain.eval()(x))
    assert equal(layer.freeze()(x), plain(x))


def test_a_batch_norm_may_do_without_a_bias():
    layer = nas.BatchNorm2d(width(), bias=False)
    select(layer, {"a": 3})
    assert list(layer.state_dict()) == ["weight", "running_mean", "running_var", "num_batches_tracked"]
    frozen = layer.freeze()
    assert list(frozen.state_dict()) == list(layer.state_dict())
    x = torch.randn(2, 3, 4, 4)
    assert equal(frozen(x), nn.functional.batch_norm(x, None, None, layer.weight[:3], None, training=True))


def test_a_parametrised_weight_is_frozen_as_it_is():
    layer = nn.utils.parametrizations.weight_norm(nas.Linear(width(), width("b")))
    nas.select(layer, {"a": 3, "b": 4})
    frozen = extract(layer, {"a": 3, "b": 4})
    assert type(frozen) is nn.Linear
    x = torch.randn(2, 3)
    assert equal(frozen(x), layer(x))


def test_batch_norms_still_check_their_input():
    norm = nas.BatchNorm2d(width())
    select(norm, {"a": 3})
    with pytest.raises(ValueError, match="expected 4D input"):
        norm(torch.zeros(2, 3))


# Plain numbers: torch's layers.


PLAIN = [
    (lambda m: m.Conv2d(4, 6, 3, 2, 1, 1, 2), (2, 4, 7, 7)),
    (lambda m: m.Conv2d(4, 6, (3, 1), padding="same", padding_mode="reflect", bias=False), (2, 4, 7, 7)),
    (lambda m: m.Conv2d(4, 6, 3, padding="valid"), (2, 4, 7, 7)),
    (lambda m: m.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2), (2, 4, 7, 7)),
    (lambda m: m.Linear(4, 6), (2, 4)),
    (lambda m: m.BatchNorm1d(4), (2, 4)),
    (lambda m: m.BatchNorm2d(4, momentum=None), (2, 4, 7, 7)),
    (lambda m: m.LayerNorm([3, 4]), (2, 3, 4)),
]


@pytest.mark.parametrize(("make", "shape"), PLAIN)
def test_plain_numbers_make_torchs_layer(make, shape):
    torch.manual_seed(0)
    layer = make(nas)
    torch.manual_seed(0)
    plain = make(nn)
    assert repr(layer) == repr(plain)
    assert layer.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(tensor, plain.state_dict()[name]) for name, tensor in layer.state_dict().items())
    x = torch.randn(shape)
    assert torch.equal(layer(x), plain(x))
    assert nas.space_of(layer) == {}
    assert type(extract(nn.Sequential(layer), {})[0]) is type(plain)


def test_the_largest_size_is_initialised_as_torch_does():
    torch.manual_seed(0)
    layer = nas.Conv2d(width("a"), width("b"), odd(), padding=2)
    torch.manual_seed(0)
    assert torch.equal(layer.weight, nn.Conv2d(8, 8, 5, padding=2).weight)


# Slices, gradients, copies.


EVERY = [
    (lambda: nas.Conv2d(width(), width("b"), odd(), padding=2), {"a": 3, "b": 4, "k": 2}, (2, 3, 6, 6)),
    (lambda: nas.Conv2d(width(), width() * 2, 3, groups=width()), {"a": 3}, (2, 3, 6, 6)),
    (lambda: nas.Conv2d(width() * 2, 6, 3, groups=2), {"a": 3}, (2, 6, 6, 6)),
    (lambda: nas.ConvTranspose2d(width(), width("b"), odd(), padding=2), {"a": 3, "b": 4, "k": 2}, (2, 3, 6, 6)),
    (lambda: nas.Linear(width(), width("b")), {"a": 3, "b": 4}, (2, 3)),
    (lambda: nas.BatchNorm1d(width()), {"a": 3}, (2, 3)),
    (lambda: nas.BatchNorm2d(width()), {"a": 3}, (2, 3, 4, 4)),
    (lambda: nas.LayerNorm(width()), {"a": 3}, (2, 3)),
]


@pytest.mark.parametrize(("make", "values", "shape"), EVERY)
def test_gradients_reach_only_the_slice_and_equal_those_of_the_frozen_layer(make, values, shape):
    layer = make()
    select(layer, values)
    frozen = layer.freeze()
    x = torch.randn(shape)
    layer(x).square().sum().backward()
    frozen(x).square().sum().backward()
    grads = copy.deepcopy(layer)
    for name, parameter in layer.named_parameters():
        grads.get_parameter(name).data = parameter.grad
    for name, part in grads.freeze().named_parameters():
        torch.testing.assert_close(part.data, frozen.get_parameter(name).grad, rtol=1e-4, atol=1e-4)
        whole = layer.get_parameter(name).grad
        assert torch.count_nonzero(whole) == torch.count_nonzero(part)  # so there is none outside


@pytest.mark.parametrize(("make", "values", "shape"), EVERY)
def test_copies_and_pickles_keep_their_decisions_together(make, values, shape):
    layer = make()
    select(layer, values)
    x = torch.randn(shape)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin.eval(), layer.eval()
        assert equal(twin(x), layer(x))
        lowest = {name: variable.low for name, variable in nas.space_of(twin).items()}  # type: ignore[attr-defined]
        select(twin, lowest)
        assert twin.freeze().state_dict().keys() == layer.state_dict().keys()
        assert sum(p.numel() for p in twin.freeze().parameters()) < sum(p.numel() for p in layer.freeze().parameters())
        assert equal(layer(x), layer.freeze()(x))  # the original has its own values
        assert twin.given is not layer.given


@pytest.mark.parametrize(("make", "values", "shape"), EVERY)
def test_a_frozen_layer_keeps_dtype_mode_and_what_trains(make, values, shape):
    layer = make().double().eval()
    layer.weight.requires_grad_(False)
    select(layer, values)
    state = torch.get_rng_state()
    frozen = layer.freeze()
    assert torch.equal(torch.get_rng_state(), state)  # no number is drawn for it
    assert frozen.weight.dtype == torch.float64
    assert frozen.weight.device == layer.weight.device
    assert not frozen.weight.requires_grad
    assert frozen.bias.requires_grad
    assert not frozen.training
    frozen.weight.zero_()
    assert (layer.weight != 0).all()  # copies, not views
    assert frozen.weight.is_contiguous()
    assert all(buffer.device.type != "meta" for buffer in frozen.buffers())


def test_layers_on_another_device_freeze_there():
    layer = nas.Conv2d(3, width(), 3, device="meta", dtype=torch.bfloat16)
    select(layer, {"a": 3})
    assert layer.freeze().weight.device.type == "meta"
    assert layer.freeze().weight.dtype == torch.bfloat16


def test_decisions_add_nothing_to_the_state():
    shared = width()
    model = nn.Sequential(nas.Conv2d(3, shared, 3), nas.BatchNorm2d(shared), nas.Conv2d(shared, 4, 1))
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1))
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())
    select(model, {"a": 8})
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(model(x), plain(x))


# Inputs that are themselves a choice: an encoder whose layers take one of the earlier ones, and its decoder.


class Layer(nn.Module):
    """A convolution and its opposite; what they take depends on their neighbours on the way."""

    def __init__(self, name: str, sources: int) -> None:
        super().__init__()
        self.width, self.source = Width(f"{name}.width", 2, 6), Pick(f"{name}.source", sources)
        kernel = Value(f"{name}.k", Integer(1, 3)) * 2 - 1
        self.conv = nas.Conv2d(nas.UpTo(6), self.width, kernel, stride=2, padding=2, bias=False)
        self.back = nas.ConvTranspose2d(nas.UpTo(6), self.width, kernel, 2, padding=2, output_padding=1, bias=False)


class Hourglass(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(f"layer{n}", n + 1) for n in range(layers))
        self.last = nas.Conv2d(nas.UpTo(6), 3, 3, padding=1)

    def way(self) -> list[Any]:
        """The layers from the last one back to the input, the first one first."""
        node, way = len(self.layers), []
        while node:
            layer: Any = self.layers[node - 1]
            way.append(layer)
            node = layer.source.value
        return way[::-1]

    def running(self) -> list[nn.Module]:
        return [*self.way(), self.last]

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.way():
            x = torch.relu(layer.conv(x))
        for layer in self.way()[::-1]:
            x = torch.relu(layer.back(x))
        return self.last(x)

    def freeze(self) -> nn.Module:
        plain: list[nn.Module] = []
        channels = 3
        for layer in self.way():
            plain += [layer.conv.freeze(takes=channels), nn.ReLU()]
            channels = layer.width.value
        for layer in self.way()[::-1]:
            plain += [layer.back.freeze(takes=channels), nn.ReLU()]
            channels = layer.width.value
        return nn.Sequential(*plain, self.last.freeze(takes=channels))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_inputs_that_are_a_choice_are_taken_as_they_come(seed):
    model = Hourglass()
    values = asng.ASNG(nas.space_of(model), seed=seed).ask(1)[0].values
    select(model, values)
    x = torch.randn(2, 3, 16, 16)
    extracted = extract(model, values)
    assert {type(module) for module in extracted.children()} == {nn.Conv2d, nn.ConvTranspose2d, nn.ReLU}
    assert equal(extracted(x), model(x))
    assert extracted(x).shape == x.shape
    node, way = 4, list[int]()
    while node:
        way.insert(0, node - 1)
        node = values[f"layer{node - 1}.source"]
    widths = [values[f"layer{n}.width"] for n in way]
    areas = [(2 * values[f"layer{n}.k"] - 1) ** 2 for n in way]
    there = sum(a * b * area for a, b, area in zip([3, *widths], widths, areas, strict=False))
    back = sum(a * b * area for a, b, area in zip([widths[-1], *widths[::-1]], widths[::-1], areas[::-1], strict=False))
    assert sum(p.numel() for p in extracted.parameters()) == there + back + widths[0] * 3 * 9 + 3
    active = {f"layer{n}.{what}" for n in way for what in ("width", "source", "k")}
    assert nas.Decisions(model).active(values) == active


def test_inputs_as_they_come_have_a_most_and_are_told_when_frozen():
    linear = nas.Linear(nas.UpTo(4), 2)
    assert linear.weight.shape == (2, 4)
    x = torch.randn(3, 3)
    assert equal(linear(x), F.linear(x, linear.weight[:, :3], linear.bias))
    with pytest.raises(RuntimeError, match=r"Linear takes up to 4 features, but got 5$"):
        linear(torch.zeros(1, 5))
    for takes in (None, 0, 5):
        with pytest.raises(
            ValueError, match=rf"any number of channels up to 4, got takes={takes}; say how many by layer"
        ):
            linear.freeze(takes)
    with pytest.raises(ValueError, match="any number of channels up to 4"):
        extract(nn.Sequential(linear, Width("w", 2, 3)), {"w": 2})
    with pytest.raises(ValueError, match="told by its decisions"):
        nas.Linear(3, 2).freeze(takes=2)
    with pytest.raises(ValueError, match=r"UpTo\(8\), cannot be dealt out to groups=2"):
        nas.Conv2d(nas.UpTo(8), 4, 3, groups=2)
    with pytest.raises(ValueError, match=r"whole number or follows a decision, got UpTo\(8\)"):
        nas.Linear(4, nas.UpTo(8))


# What does not fit.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nas.Conv2d(width() * 3, 4, 3, groups=2),
            r"divisible by groups=2, but 3 \* 'a' can be 3; use a Width times 2",
        ),
        (lambda: nas.Conv2d(4, width(), 3, groups=4), "divisible by groups=4, but 'a' can be 1"),
        (lambda: nas.ConvTranspose2d(4, width(), 3, groups=4), "divisible by groups=4"),
        (lambda: nas.Conv2d(8, width(), 3, groups=width()), "groups follow 'a', so channels must be a multiple.*got 8"),
        (
            lambda: nas.Conv2d(width("b"), width(), 3, groups=width()),
            "multiple of the same, got 'b'; write groups=width",
        ),
        (lambda: nas.Conv2d(width() + 1, width(), 3, groups=width()), r"multiple of the same, got 'a' \+ 1"),
        (lambda: nas.Conv2d(width(), width(), 3, groups=width() * 2), "multiple of the same, got 'a'"),
        (
            lambda: nas.Conv2d(3, 4, Value("k", Integer(1, 3))),
            r"all must be odd or all even, got \[1, 2, 3\]; use .* \* 2 - 1",
        ),
        (
            lambda: nas.Conv2d(3, 4, (Value("k", Categorical([5, 2])), 1)),
            r"all odd|all must be odd or all even, got \[2, 5\]",
        ),
        (lambda: nas.Conv2d(3, 4, odd()), "padding=0 is too small for kernels from 1 to 5.*give at least 2"),
        (lambda: nas.Conv2d(3, 4, odd(), padding=(2, 1)), r"padding=\(2, 1\) is too small"),
        (lambda: nas.Conv2d(3, 4, odd(), padding=2, dilation=2), "at least 4, or 4 to keep"),
        (lambda: nas.Conv2d(3, 4, odd(), padding="valid"), "padding='valid' is too small"),
        (lambda: nas.ConvTranspose2d(3, 4, odd(), padding=1), "padding=1 is too small"),
        (lambda: nas.Conv2d(3, width() - 1, 3), "out_channels must be at least 1, but 'a' - 1 can be 0"),
        (lambda: nas.Conv2d(3, 4, Value("k", Integer(1, 3)) * 2 - 3, padding=2), "kernel_size must be at least 1"),
        (lambda: nas.Linear(3, Value("v", Real(1, 2))), r"a size follows whole numbers, but 'v' is Real"),
        (lambda: nas.Linear(3, Value("v", Categorical(["x"]))), "a size follows whole numbers, but 'v'"),
        (lambda: nas.Linear(width() * 0.5, 3), "whole number or follows a decision, got 0.5"),  # type: ignore[operator]
        (lambda: nas.Linear("3", 3), "whole number or follows a decision, got '3'"),
        (lambda: Width("a", 0, 4), "a width must be at least 1, but 'a' can be 0"),
        (lambda: Width("a", [4, -1]), "a width must be at least 1"),
        (lambda: nas.Conv2d(3, 4, 3, groups=2), "in_channels must be divisible by groups"),
        (lambda: nas.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), 'Only "zeros" padding mode'),
        (lambda: nas.Conv2d(3, 4, 3, padding_mode="edge"), "padding_mode must be one of"),
    ],
)
def test_what_cannot_work_is_said_when_the_layer_is_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Two(nn.Module):
    """Two convolutions that forget to share a width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nas.Conv2d(3, Width("a", 16, 64), 3)
        self.body = nn.ModuleDict({"conv2": nas.Conv2d(Width("b", 16, 64) * 2, 8, 3)})
        self.norm = nas.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.body["conv2"](torch.relu(self.conv1(x))))


@pytest.mark.parametrize("twin", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_mismatch_names_both_layers_by_their_paths(twin):
    model = Two()
    decisions = nas.Decisions(model)
    decisions.select({"a": 48, "b": 16})
    model = twin(model)
    x = torch.randn(1, 3, 8, 8)
    with pytest.raises(RuntimeError) as error:
        model(x)
    assert str(error.value) == "body.conv2 takes 2 * 'b' = 32 channels, but got 48, which conv1 last gave"
    select(model, {"a": 32, "b": 16})
    assert model(x).shape == (1, 8, 4, 4)
    with pytest.raises(RuntimeError, match=r"^norm takes 8 channels, but got 5$"):
        model.norm(torch.zeros(1, 5, 4, 4))
    with pytest.raises(RuntimeError, match=r"^norm takes 8 channels, but got 32, which conv1 last gave$"):
        model.norm(torch.zeros(1, 32, 4, 4))


def test_what_layers_gave_is_forgotten_with_the_next_selection():
    model = Two()
    decisions = nas.Decisions(model)
    decisions.select({"a": 32, "b": 16})
    model(torch.randn(1, 3, 8, 8))
    assert model.conv1.given is model.norm.given
    assert model.norm.given == {32: "conv1", 8: "norm"}
    decisions.select({"a": 33, "b": 16})
    assert model.conv1.given == {}


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (lambda: nas.Linear(width(), 2), (2, 4), r"Linear takes 'a' = 3 features, but got 4$"),
        (lambda: nas.LayerNorm(width()), (2, 4), r"LayerNorm takes 'a' = 3 features, but got 4$"),
        (lambda: nas.BatchNorm1d(width()), (2, 4), r"BatchNorm1d takes 'a' = 3 channels, but got 4$"),
        (
            lambda: nas.ConvTranspose2d(width(), 2, 1),
            (2, 4, 5, 5),
            r"ConvTranspose2d takes 'a' = 3 channels, but got 4$",
        ),
        (lambda: nas.Conv2d(width(), 2, 1), (2, 4, 5, 5), r"Conv2d takes 'a' = 3"),
    ],
)
def test_every_layer_says_what_it_takes(layer, shape, message):
    layer = layer()
    select(layer, {"a": 3})
    with pytest.raises(RuntimeError, match=message):
        layer(torch.zeros(shape))


def test_a_layer_outside_of_a_model_is_named_by_its_kind():
    layer = nas.Linear(3, 5)
    y = layer(torch.zeros(1, 3))
    with pytest.raises(RuntimeError, match=r"^Linear takes 3 features, but got 5, which Linear last gave$"):
        layer(y)


def test_without_a_value_a_layer_says_how_to_give_one():
    with pytest.raises(RuntimeError, match=r"'a' has no value yet; call asng.nas.select"):
        nas.Conv2d(3, width(), 3)(torch.zeros(1, 3, 5, 5))


def test_sizes_print_as_they_are_written():
    a = width()
    assert [repr(s) for s in (a * 2 - 1, 2 * a, 1 + a, a - 0, (a + 1) * 3)] == [
        "2 * 'a' - 1",
        "2 * 'a'",
        "'a' + 1",
        "'a'",
        "3 * 'a' + 3",
    ]
    assert ((a + 1) * 3).all() == [6, 9, 12, 15, 18, 21, 24, 27]
