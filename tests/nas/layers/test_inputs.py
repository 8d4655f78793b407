"""What elastic layers take: inputs that are themselves a choice, and a clear word about what does not fit."""
# mypy: disable-error-code="arg-type"
# (wrong arguments are tested)

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
from asng.nas.supernet import Supernet
from asng.space import Categorical, Integer, Real
from tests.helpers.elastic_sizes import equal, odd, width

# Inputs that are themselves a choice: an encoder whose layers take one of the earlier ones, and its decoder.


class Layer(nn.Module):
    """A convolution and its opposite; what they take depends on their neighbors on the way."""

    def __init__(self, name: str, sources: int) -> None:
        super().__init__()
        self.width, self.source = Width(f"{name}.width", 2, 6), Pick(f"{name}.source", sources)
        kernel = Value(f"{name}.k", Integer(1, 3)) * 2 - 1
        self.conv = nas.Conv2d(nas.AnySize(6), self.width, kernel, stride=2, padding=2, bias=False)
        self.back = nas.ConvTranspose2d(nas.AnySize(6), self.width, kernel, 2, padding=2, output_padding=1, bias=False)


class Hourglass(nas.Searchable):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(f"layer{n}", n + 1) for n in range(layers))
        self.last = nas.Conv2d(nas.AnySize(6), 3, 3, padding=1)

    def way(self) -> list[Any]:
        """The layers from the last one back to the input, the first one first."""
        node, way = len(self.layers), []
        while node:
            layer: Any = self.layers[node - 1]
            way.append(layer)
            node = layer.source.value
        return way[::-1]

    def active_modules(self) -> list[nn.Module]:
        return [*self.way(), self.last]

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.way():
            x = torch.relu(layer.conv(x))
        for layer in self.way()[::-1]:
            x = torch.relu(layer.back(x))
        return self.last(x)

    def build_static(self) -> nn.Module:
        plain: list[nn.Module] = []
        channels = 3
        for layer in self.way():
            plain += [layer.conv.build_static(in_channels=channels), nn.ReLU()]
            channels = layer.width.value
        for layer in self.way()[::-1]:
            plain += [layer.back.build_static(in_channels=channels), nn.ReLU()]
            channels = layer.width.value
        return nn.Sequential(*plain, self.last.build_static(in_channels=channels))


@settings(max_examples=25, derandomize=True)
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
    assert Supernet(model).active(values) == active


def test_inputs_of_any_size_have_a_maximum_and_are_told_when_frozen():
    linear = nas.Linear(nas.AnySize(4), 2)
    assert linear.weight.shape == (2, 4)
    x = torch.randn(3, 3)
    assert equal(linear(x), F.linear(x, linear.weight[:, :3], linear.bias))
    with pytest.raises(RuntimeError, match=r"Linear takes up to 4 features, but got 5$"):
        linear(torch.zeros(1, 5))
    for in_channels in (None, 0, 5):
        with pytest.raises(
            ValueError,
            match=rf"any number of channels up to 4, got in_channels={in_channels}; pass the number by layer",
        ):
            linear.build_static(in_channels)
    with pytest.raises(ValueError, match="any number of channels up to 4"):
        extract(nn.Sequential(linear, Width("w", 2, 3)), {"w": 2})
    with pytest.raises(ValueError, match="follows its decisions"):
        nas.Linear(3, 2).build_static(in_channels=2)
    with pytest.raises(ValueError, match=r"AnySize\(8\), cannot be split into groups=2"):
        nas.Conv2d(nas.AnySize(8), 4, 3, groups=2)
    with pytest.raises(ValueError, match=r"an integer or follows a decision, got AnySize\(8\)"):
        nas.Linear(4, nas.AnySize(8))


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
        (
            lambda: nas.Linear(3, Value("v", Real(1, 2))),
            r"a size can only follow a choice among numbers, but 'v' is Real",
        ),
        (lambda: nas.Linear(3, Value("v", Categorical(["x"]))), "a choice among numbers, but 'v'"),
        (lambda: nas.Linear(3, Value("v", Categorical([1.5]))), r"an integer, but 'v' can be 1.5; .* width \* ratio"),
        (lambda: nas.Linear(16 - width("a", 8, 16), 3), "in_features must be at least 1, but 16 - 'a' can be 0"),
        (lambda: nas.Linear(width() * 0.5, 3), r"at least 1, but 0.5 \* 'a' can be 0"),
        (lambda: nas.Linear(8 // (width() - 1), 3), r"8 // \('a' - 1\) divides by 0 .*; give divisors"),
        (
            lambda: width() % 2,
            "'a' is not a number, .* remainder; use an elastic layer, such as nas.Conv2d, or read .value",
        ),
        (lambda: width().round_to(0), "a multiple of at least 1, got 0"),
        (lambda: width().round_to(0.5), "a size is an integer or follows a decision, got 0.5"),
        (lambda: width() * "2", "a size is an integer or follows a decision, got '2'"),
        (
            lambda: nas.Linear(Width("a", 1, 1001) * Width("b", 1, 1001), 3),
            r"'a' \* 'b' has more than 1,000,000 combinations; let its decisions choose among fewer numbers",
        ),
        (lambda: nas.Conv2d(3, 4, 3, stride=odd()), r"^stride cannot be a decision, got 2 \* 'k' - 1; .* OneOf\(name,"),
        (
            lambda: nas.Conv2d(3, 4, 3, stride=(1, width())),
            r"^stride cannot be a decision, got Width\('a', .*; only in_channels, ",
        ),
        (lambda: nas.Conv2d(3, width(), 3, dilation=width()), "^dilation cannot be a decision"),
        (lambda: nas.Conv2d(3, 4, 3, padding=width()), "^padding cannot be a decision"),
        (lambda: nas.Conv2d(3, 4, 3, bias=Value("b", Categorical([True, False]))), "^bias cannot be a decision"),
        (lambda: nas.ConvTranspose2d(3, 4, 3, stride=width()), "^stride cannot be a decision"),
        (lambda: nas.ConvTranspose2d(3, 4, 3, output_padding=width()), "^output_padding cannot be a decision"),
        (lambda: nas.Linear(3, 4, bias=Value("b", Categorical([True, False]))), "^bias cannot be a decision"),
        (lambda: nas.Linear("3", 3), "an integer or follows a decision, got '3'"),
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
def test_a_mismatch_names_the_layer_by_its_path(twin):
    model = Two()
    select(model, {"a": 48, "b": 16})
    model = twin(model)
    x = torch.randn(1, 3, 8, 8)
    with pytest.raises(RuntimeError) as error:
        model(x)
    assert str(error.value) == "layer body.conv2 takes 2 * 'b' = 32 channels, but got 48"
    select(model, {"a": 32, "b": 16})
    assert model(x).shape == (1, 8, 4, 4)
    with pytest.raises(RuntimeError, match=r"^BatchNorm2d takes 8 channels, but got 5$"):  # called by itself
        model.norm(torch.zeros(1, 5, 4, 4))


def test_looking_at_a_model_writes_nothing_into_it():
    model = Two()
    before = {module: dict(module.__dict__) for module in model.modules()}
    supernet = Supernet(model)
    values = {"a": 32, "b": 16}
    supernet.active(values), supernet.extract(values), supernet.num_parameters(values)
    assert {module: module.__dict__ for module in model.modules()} == before


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
    with pytest.raises(RuntimeError, match=r"^Linear takes 3 features, but got 5$"):
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
    assert ((a + 1) * 3).values() == [6, 9, 12, 15, 18, 21, 24, 27]
