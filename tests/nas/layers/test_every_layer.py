"""Every elastic layer at every size: outputs, gradients and statistics are those of the torch layer that it becomes."""
# mypy: disable-error-code="arg-type"
# (wrong arguments are given)

import copy
import pickle
from abc import ABCMeta
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from asng import Integer, nas
from asng.nas import Value, extract, parameters, select, space_of
from tests.helpers.captures import assert_same_steps
from tests.helpers.elastic_sizes import assert_like_its_static_layer, odd, randomize, width

CONVOLUTIONS: dict[str, Any] = {}
for n in (1, 2, 3):
    conv, transposed = getattr(nas, f"Conv{n}d"), getattr(nas, f"ConvTranspose{n}d")
    CONVOLUTIONS |= {
        f"Conv{n}d": (lambda kind=conv: kind(width("a"), width("b"), odd(), padding=2), "a", n),
        f"Conv{n}d in groups": (lambda kind=conv: kind(width("a") * 2, width("a") * 4, 3, groups=width("a")), "2a", n),
        f"Conv{n}d circular": (
            lambda kind=conv: kind(width("a"), 3, odd(), padding=2, padding_mode="circular", bias=False),
            "a",
            n,
        ),
        f"Conv{n}d of two": (lambda kind=conv: kind(width("a") + width("b"), width("a") * width("b"), 1), "a+b", n),
        f"ConvTranspose{n}d": (
            lambda kind=transposed: kind(width("a"), width("b"), odd(), 2, padding=2, output_padding=1),
            "a",
            n,
        ),
        f"ConvTranspose{n}d in groups": (
            lambda kind=transposed: kind(width("a") * 2, width("a"), 3, groups=width("a")),
            "2a",
            n,
        ),
    }
NORMS: dict[str, Any] = {
    "GroupNorm": (lambda: nas.GroupNorm(2, width("a") * 2), "2a", 2),
    "GroupNorm of elastic groups": (lambda: nas.GroupNorm(width("a"), width("a") * 2, bias=False), "2a", 0),
    "GroupNorm not affine": (lambda: nas.GroupNorm(1, width("a"), affine=False), "a", 1),
    "LayerNorm": (lambda: nas.LayerNorm([3, width("a")]), "last", 1),
    "RMSNorm": (lambda: nas.RMSNorm(width("a"), eps=1e-3), "last", 1),
    "RMSNorm over two axes": (lambda: nas.RMSNorm([3, width("a")], elementwise_affine=True), "last", 1),
    "PReLU": (lambda: nas.PReLU(width("a"), init=0.3), "a", 1),
    "PReLU of rows": (lambda: nas.PReLU(width("a")), "a", 0),
}
for n in (1, 2, 3):
    batch, instance = getattr(nas, f"BatchNorm{n}d"), getattr(nas, f"InstanceNorm{n}d")
    NORMS |= {
        f"BatchNorm{n}d": (lambda kind=batch: kind(width("a"), momentum=None), "a", n),
        f"InstanceNorm{n}d": (lambda kind=instance: kind(width("a"), affine=True, bias=False), "a", n),
        f"InstanceNorm{n}d with statistics": (
            lambda kind=instance: kind(width("a"), affine=True, track_running_stats=True),
            "a",
            n,
        ),
    }
LAYERS = CONVOLUTIONS | NORMS


def draw_input(channels: str, axes: int, values: dict[str, int]) -> Tensor:
    a, b = values.get("a", 1), values.get("b", 1)
    if channels == "last":
        return torch.randn(2, 3, a, dtype=torch.double)
    count = {"a": a, "2a": 2 * a, "a+b": a + b}[channels]
    return torch.randn(3, count, *(4 + n for n in range(axes)), dtype=torch.double)


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=8, derandomize=True)
@given(a=st.integers(1, 8), b=st.integers(1, 8), k=st.integers(1, 3), training=st.booleans())
def test_a_layer_equals_the_torch_layer_that_it_becomes(name, a, b, k, training):
    make, channels, axes = LAYERS[name]
    layer = make().double().train(training)
    randomize(layer)
    values = {key: {"a": a, "b": b, "k": k}[key] for key in space_of(layer)}
    select(layer, values)
    x = draw_input(channels, axes, values)
    static = assert_like_its_static_layer(layer, x)
    assert parameters(layer, values) == sum(p.numel() for p in static.parameters())
    assert list(static.state_dict()) == list(layer.state_dict())


@pytest.mark.parametrize("name", LAYERS)
def test_copies_and_pickles_compute_the_same(name):
    make, channels, axes = LAYERS[name]
    layer = make().double().eval()
    values = dict.fromkeys(space_of(layer), 2)
    select(layer, values)
    x = draw_input(channels, axes, values)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), layer(x))
        select(twin, dict.fromkeys(values, 1))
        assert torch.equal(layer(x), layer.build_static()(x))  # the original has its own values


PLAIN: list[tuple[Any, Any]] = [
    (lambda m: m.Conv2d(4, 6, 3, 2, 1, 1, 2), (2, 4, 7, 7)),
    (lambda m: m.Conv2d(4, 6, (3, 1), padding="same", padding_mode="reflect", bias=False), (2, 4, 7, 7)),
    (lambda m: m.Conv2d(4, 6, 3, padding="valid"), (2, 4, 7, 7)),
    (lambda m: m.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2), (2, 4, 7, 7)),
    (lambda m: m.Linear(4, 6), (2, 4)),
    (lambda m: m.BatchNorm1d(4), (2, 4)),
    (lambda m: m.BatchNorm2d(4, momentum=None), (2, 4, 7, 7)),
    (lambda m: m.LayerNorm([3, 4]), (2, 3, 4)),
    (lambda m: m.Conv1d(4, 6, 3, 2, 1, 1, 2), (2, 4, 7)),
    (lambda m: m.Conv3d(4, 6, (3, 1, 2), padding="same", padding_mode="reflect", bias=False), (2, 4, 5, 5, 5)),
    (lambda m: m.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2), (2, 4, 7)),
    (lambda m: m.ConvTranspose3d(4, 6, 3, 2, 1, 1), (2, 4, 3, 3, 3)),
    (lambda m: m.BatchNorm3d(4, momentum=None), (2, 4, 3, 3, 3)),
    (lambda m: m.InstanceNorm1d(4), (4, 7)),
    (lambda m: m.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 7, 7)),
    (lambda m: m.InstanceNorm3d(4), (2, 4, 3, 3, 3)),
    (lambda m: m.GroupNorm(2, 4), (2, 4, 7)),
    (lambda m: m.RMSNorm([3, 4]), (2, 3, 4)),
    (lambda m: m.PReLU(), (2, 3, 4)),
    (lambda m: m.PReLU(3), (2, 3, 4)),
]


@pytest.mark.parametrize(("make", "shape"), PLAIN)
def test_plain_numbers_make_torchs_layer(make, shape):
    torch.manual_seed(0)
    layer = make(nas)
    torch.manual_seed(0)
    plain = make(nn)
    assert repr(layer) == repr(plain)
    torch.testing.assert_close(layer.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert layer.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(tensor, plain.state_dict()[name]) for name, tensor in layer.state_dict().items())
    x = torch.randn(shape)
    assert torch.equal(layer(x), plain(x))
    assert space_of(layer) == {}
    assert type(extract(nn.Sequential(layer), {})[0]) is type(plain)  # type: ignore[index]


# Layers of the user's.


class GRUCell(nas.ElasticLayer, nn.GRUCell):
    """Its weights are those of three gates, one below the other; torch's forward runs on the slices."""

    torch_layer, elastic = nn.GRUCell, ("input_size", "hidden_size")

    def active_tensors(self) -> dict[str, Tensor | None]:
        inputs, hidden = self.sizes["input_size"](), self.sizes["hidden_size"]()

        def gates(tensor: Any) -> Any:
            return None if tensor is None else tensor.unflatten(0, (3, -1))[:, :hidden].flatten(0, 1)

        return {
            "weight_ih": gates(self.weight_ih)[:, :inputs],
            "weight_hh": gates(self.weight_hh)[:, :hidden],
            "bias_ih": gates(self.bias_ih),
            "bias_hh": gates(self.bias_hh),
        }


@pytest.mark.parametrize("bias", [True, False])
@settings(max_examples=8, derandomize=True)
@given(a=st.integers(1, 8), b=st.integers(1, 8))
def test_an_own_layer_says_its_slices_and_torch_computes_with_them(bias, a, b):
    layer = GRUCell(width("a"), width("b"), bias).double()
    select(layer, {"a": a, "b": b})
    rows, state = (torch.randn(3, n, dtype=torch.double) for n in (a, b))
    static: Any = assert_like_its_static_layer(layer, rows, state)
    assert (static.input_size, static.hidden_size, static.bias) == (a, b, bias)


class NamedGRU(nn.GRU):
    """The constructor of torch's takes any arguments."""

    def __init__(self, input_size, hidden_size, num_layers=1):
        super().__init__(input_size, hidden_size, num_layers=num_layers)


class GRU(nas.ElasticLayer, NamedGRU):  # type: ignore[misc]  # both have a check_input
    torch_layer, elastic = NamedGRU, ("input_size", "hidden_size")

    def active_tensors(self) -> dict[str, Tensor | None]:
        inputs, hidden = self.sizes["input_size"](), self.sizes["hidden_size"]()

        def part(name: str, tensor: Tensor) -> Tensor:
            rows = tensor.unflatten(0, (3, -1))[:, :hidden].flatten(0, 1)
            return rows if tensor.ndim == 1 else rows[:, : inputs if name == "weight_ih_l0" else hidden]

        return {name: part(name, tensor) for name, tensor in self.named_parameters()}


def test_a_recurrent_layer_is_elastic_by_a_class_that_names_its_arguments():
    layer = GRU(width("a"), width("b"), num_layers=2).double()
    select(layer, {"a": 3, "b": 2})
    static: Any = assert_like_its_static_layer(layer, torch.randn(4, 2, 3, dtype=torch.double))
    assert (static.input_size, static.hidden_size, static.num_layers) == (3, 2, 2)
    unnamed = type("Unnamed", (nas.ElasticLayer, nn.GRU), {**vars(GRU), "torch_layer": nn.GRU})
    with pytest.raises(TypeError, match=r"the arguments of GRU are args, kwargs; let torch_layer be a class of yours"):
        unnamed(3, 2)


def test_statistics_of_an_own_layer_reach_the_layer():
    class Norm(nas.ElasticLayer, nn.BatchNorm1d):
        torch_layer, elastic = nn.BatchNorm1d, ("num_features",)

        def active_tensors(self) -> dict[str, Tensor | None]:
            features = self.sizes["num_features"]()
            parts = {name: tensor[:features] for name, tensor in self.state_dict().items() if tensor.dim()}
            return {**parts, "num_batches_tracked": self.num_batches_tracked}

    layer, known = Norm(width()), nas.BatchNorm1d(width())
    x = torch.randn(4, 3)
    for norm in (layer, known):
        select(norm, {"a": 3})
        norm(x)
    torch.testing.assert_close(layer.state_dict(), known.state_dict())
    assert torch.equal(layer.eval()(x), known.eval()(x))


class Bilinear(nas.ElasticLayer, nn.Bilinear):
    torch_layer, elastic = nn.Bilinear, ("in1_features",)

    def active_tensors(self) -> dict[str, Tensor | None]:
        return {"weight": self.weight[:, : self.sizes["in1_features"]()], "bias": self.bias}


COMPLETE = {"torch_layer": nn.Bilinear, "elastic": ("in1_features",)}


@pytest.mark.parametrize(
    ("bases", "attributes", "message"),
    [
        ((nas.ElasticLayer, nn.Bilinear), {}, "Own needs the class attributes torch_layer and elastic, such as"),
        ((nas.ElasticLayer,), COMPLETE, r"class Own\(nas\.ElasticLayer, Bilinear\)"),
        ((nn.Bilinear, nas.ElasticLayer), COMPLETE, "must derive from ElasticLayer first"),
        ((Bilinear,), {"elastic": ("in_features",)}, "elastic of Own names 'in_features', but the arguments of Bilin"),
    ],
)
def test_an_own_layer_that_lacks_something_is_told_what(bases, attributes, message):
    own: Any = ABCMeta("Own", bases, {"active_tensors": Bilinear.active_tensors, **attributes})
    with pytest.raises(TypeError, match=message):
        own(width(), 3, 5)


@pytest.mark.parametrize("use", [lambda layer: layer(torch.ones(1, 2), torch.ones(1, 3)), extract])
@pytest.mark.parametrize(
    ("rename", "message"),
    [
        (lambda weight, bias: {"wieght": weight, "bias": bias}, r"weight \(5, 2, 3\), bias \(5,\); got wieght"),
        (lambda weight, bias: {"weight": weight}, r"\(in1_features=2, .*, bias \(5,\); got weight \(5, 2, 3\)\."),
        (
            lambda weight, bias: {"weight": weight[:, :1], "bias": bias},
            r": weight \(5, 2, 3\), .*; got weight \(5, 1, 3\), .* Slice them by the selected sizes",
        ),
    ],
)
def test_slices_of_an_own_layer_are_those_of_torchs(use, rename, message):
    class Own(Bilinear):
        def active_tensors(self) -> dict[str, Tensor | None]:
            return rename(**super().active_tensors())

    layer = Own(width(), 3, 5)
    select(layer, {"a": 2})
    with pytest.raises(TypeError, match=message):
        use(layer)


# What does not fit, and what capturing makes of it.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nas.Embedding(width(), 3), "num_embeddings cannot be a decision, .*; only embedding_dim can"),
        (
            lambda: nas.Embedding(3, nas.AnySize(3)),
            r"embedding_dim is an integer or follows a decision, got AnySize\(3\)",
        ),
        (lambda: nas.Embedding(3, width(), sparse=True), "slices have no sparse gradients; give sparse=False"),
        (lambda: nas.GroupNorm(2, width()), "divisible by num_groups, but 'a' is not by 2 .*; let the width be"),
        (lambda: nas.GroupNorm(width(), 8), "divisible by num_groups, but 8 is not by 'a'"),
        (lambda: nas.GroupNorm(2, nas.AnySize(4)), r"AnySize\(4\), cannot be split into num_groups=2"),
        (lambda: nas.MultiheadAttention(width(), 2), r"but 'a' is not by 2 .*; let it be a product, such as heads \*"),
        (lambda: nas.MultiheadAttention(8, 2, dropout=Value("p", Integer(0, 1))), "dropout cannot be a decision"),
        (
            lambda: nas.Conv2d(3, 4, odd(), padding=odd() // 2),
            "padding cannot .* Give the number for the largest kernel",
        ),
        (lambda: nas.Conv1d(3, 4, 3, groups=2), "in_channels must be divisible by groups"),
        (lambda: nas.Conv3d(3, 4, odd(), padding=(2, 2, 1)), r"padding=\(2, 2, 1\) is too small"),
    ],
)
def test_what_cannot_work_is_said_when_the_layer_is_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_wrong_width_is_told_with_the_path_of_the_layer():
    model = nn.Sequential(nas.Conv1d(3, width("a"), 3), nas.GroupNorm(1, width("b")))
    select(model, {"a": 3, "b": 4})
    with pytest.raises(RuntimeError, match=r"^layer 1 takes 'b' = 4 channels, but got 3"):
        model(torch.zeros(1, 3, 8))


class Everything(nn.Module):
    """Rows through new layers, one after another."""

    def __init__(self) -> None:
        super().__init__()
        heads, dim = nas.Width("heads", [1, 2]), nas.Width("dim", [2, 4])
        self.conv = nas.Conv1d(1, heads * dim, 3, padding=1)
        self.norm = nas.GroupNorm(heads, heads * dim)
        self.attention = nas.MultiheadAttention(heads * dim, heads, batch_first=True)
        self.act, self.scale = nas.PReLU(heads * dim), nas.RMSNorm(heads * dim)
        self.head = nas.Linear(heads * dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x[:, None])).transpose(1, 2)
        x = self.scale(x + self.attention(x, x, x, need_weights=False)[0])
        logits: Tensor = self.head(self.act(x.mean(1)))
        return logits


@pytest.mark.slow
@pytest.mark.usefixtures("same_numbers")
def test_new_layers_are_captured_as_the_old_ones_are():
    assert_same_steps(Everything(), n=10)
