"""Elastic convolutions: equal to torch's at every width, kernel, padding and number of groups, and frozen into them."""
# mypy: disable-error-code="union-attr, arg-type"
# (torch's layers are looked into)

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from asng import nas
from asng.nas import Value, extract, select
from asng.space import Integer
from tests.helpers.elastic_sizes import equal, odd, width

# A convolution by hand, from the definition of each part.


def of_groups(weight: torch.Tensor, largest_sizes: int, groups: int, first: int, second: int) -> torch.Tensor:
    """The first channels of each of the first groups, group by group."""
    per_group = len(weight) // largest_sizes
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
@pytest.mark.parametrize(("declared", "largest_sizes", "small"), CONVOLUTIONS)
@settings(max_examples=12, derandomize=True)
@given(
    a=st.integers(1, 8),
    b=st.integers(1, 8),
    k=st.integers(1, 3),
    stride=st.sampled_from([1, 2, (2, 1)]),
    dilation=st.sampled_from([1, 2, (1, 2)]),
    bias=st.booleans(),
)
def test_a_convolution_is_torchs_of_the_small_size(
    transposed, declared, largest_sizes, small, a, b, k, stride, dilation, bias
):
    down, across = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    kind, plain_kind = (nas.ConvTranspose2d, nn.ConvTranspose2d) if transposed else (nas.Conv2d, nn.Conv2d)
    in_channels, out_channels, groups = declared()
    layer = kind(
        in_channels,
        out_channels,
        odd(),
        stride,
        padding=(2 * down, 2 * across + 1),
        groups=groups,
        bias=bias,
        dilation=dilation,
    )
    max_in, max_out, max_groups = largest_sizes
    largest = plain_kind(max_in, max_out, 5, groups=max_groups, bias=bias)
    assert {n: t.shape for n, t in layer.state_dict().items()} == {n: t.shape for n, t in largest.state_dict().items()}

    values = {name: value for name, value in {"a": a, "b": b, "k": k}.items() if name in nas.space_of(layer)}
    select(layer, values)
    kernel = 2 * k - 1
    less = (5 - kernel) // 2
    in_channels, out_channels, groups = small(a, b)
    plain = plain_kind(
        in_channels,
        out_channels,
        kernel,
        stride,
        padding=(2 * down - less * down, 2 * across + 1 - less * across),
        groups=groups,
        bias=bias,
        dilation=dilation,
    )
    first, second = (in_channels, out_channels) if transposed else (out_channels, in_channels)
    with torch.no_grad():
        center = layer.weight[..., less : less + kernel, less : less + kernel]
        plain.weight.copy_(of_groups(center, max_groups, groups, first // groups, second // groups))
        if bias:
            shape = (max_out, 1)
            plain.bias.copy_(of_groups(layer.bias.view(shape), max_groups, groups, out_channels // groups, 1).flatten())
    x = torch.randn(2, in_channels, 12, 9)
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
def test_a_smaller_kernel_is_the_largest_with_zeros_around_its_center(kind, k, dilation):
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
    largest_sizes = max(sizes)
    for k, size in enumerate(sizes, start=1):
        select(layer, {"k": k})
        plain = nn.Conv2d(2, 3, largest_sizes, padding=padding, padding_mode=mode)
        less = (largest_sizes - size) // 2
        inside = slice(less, less + size)
        with torch.no_grad():
            plain.weight.zero_()[..., inside, inside] = layer.weight[..., inside, inside]
            plain.bias.copy_(layer.bias)
        assert equal(layer(x), plain(x))
        assert equal(extract(layer, {"k": k})(x), plain(x))


def test_a_kernel_may_follow_a_decision_on_one_axis_only():
    layer = nas.Conv2d(2, 3, (odd(), 1), padding=(2, 0))
    select(layer, {"k": 2})
    frozen = layer.build_static()
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
    assert torch.equal(layer.build_static().weight, weight)


def test_a_transposed_convolution_reaches_the_size_that_is_asked_for():
    layer = nas.ConvTranspose2d(2, 3, odd(), stride=2, padding=2)
    x = torch.randn(1, 2, 5, 5)
    for k in (1, 2, 3):
        select(layer, {"k": k})
        assert layer(x).shape == (1, 3, 9, 9)
        assert layer(x, output_size=[10, 9]).shape == (1, 3, 10, 9)
        assert torch.equal(layer.build_static()(x, output_size=[10, 9]), layer(x, output_size=[10, 9]))
