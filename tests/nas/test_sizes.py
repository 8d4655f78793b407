"""Sizes by arithmetic: what they are under every selection is what Python computes, and layers take them."""

import copy
import operator
import pickle
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import nn

from asng import Categorical, Integer, nas
from asng.nas import OneOf, Pick, Repeat, Value, Width, extract, parameters, select, space_of
from tests.helpers.captures import assert_same_steps
from tests.helpers.elastic_sizes import equal, width

OPERATORS = [operator.add, operator.sub, operator.mul, operator.floordiv]  # exact for the numbers below
NAMES = {"a": (1, 2, 3, 5), "b": (2, 4, 6), "r": (0.25, 0.5, 1.5)}

leaves = st.sampled_from(list(NAMES)) | st.integers(1, 9)
formulas = st.recursive(leaves, lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner), max_leaves=5)


def decision(name: str) -> Value:
    return Value(name, Categorical(NAMES[name]))  # another object each time, as in different layers


def build(formula: Any) -> Any:
    if isinstance(formula, tuple):
        calculate, *sides = formula
        return calculate(*map(build, sides))
    return decision(formula) if isinstance(formula, str) else formula


def compute(formula: Any, values: dict[str, float]) -> float:
    if isinstance(formula, tuple):
        calculate, *sides = formula
        return float(calculate(*(compute(side, values) for side in sides)))
    return values[formula] if isinstance(formula, str) else formula


def compute_or_reject(formula: Any, values: dict[str, float]) -> float:
    try:
        return compute(formula, values)
    except ZeroDivisionError:
        reject()


@settings(max_examples=200)
@given(formula=formulas)
def test_all_sizes_are_those_that_python_computes(formula):
    assignments = [dict(zip(NAMES, row, strict=True)) for row in product(*NAMES.values())]
    formula = operator.add, formula, "a"  # so that there is a decision in it
    expected = {int(compute_or_reject(formula, values)) for values in assignments}
    size = build(formula)
    assert size.values() == sorted(expected)
    assert size.max == max(expected)


@settings(max_examples=100)
@given(formula=formulas, row=st.sampled_from(list(product(*NAMES.values()))))
def test_a_size_is_computed_from_the_selected_values(formula, row):
    values = dict(zip(NAMES, row, strict=True))
    formula = operator.add, formula, "a"
    expected, size = int(compute_or_reject(formula, values)), build(formula)
    model = nn.ModuleList(size.decisions)
    select(model, {name: values[name] for name in space_of(model)})
    assert size() == expected
    for twin in (copy.deepcopy(size), pickle.loads(pickle.dumps(size))):
        assert (repr(twin), twin()) == (repr(size), expected)


@pytest.mark.parametrize(
    ("make", "text", "sizes"),
    [
        (lambda a, b: a * b, "'a' * 'b'", [2, 4, 6, 8, 12]),
        (lambda a, b: a + b, "'a' + 'b'", [3, 4, 5, 6, 7]),
        (lambda a, b: (a + b) * a, "('a' + 'b') * 'a'", [3, 5, 8, 12, 15, 21]),
        (lambda a, b: (a * 4) // b, "(4 * 'a') // 'b'", [1, 2, 3, 4, 6]),
        (lambda a, b: 16 - a, "16 - 'a'", [13, 14, 15]),
        (lambda a, b: 16 - a * 2, "16 - 2 * 'a'", [10, 12, 14]),
        (lambda a, b: 2 + a * 3 - 1, "3 * 'a' + 1", [4, 7, 10]),
        (lambda a, b: 12 // a, "12 // 'a'", [4, 6, 12]),
        (lambda a, b: b * 0.75, "0.75 * 'b'", [1, 3]),
        (lambda a, b: b * 12 / 4, "(12 * 'b') / 4", [6, 12]),
        (lambda a, b: (a * 10).round_to(8), "(10 * 'a').round_to(8)", [8, 24, 32]),
        (lambda a, b: (a * 0.1).round_to(8), "(0.1 * 'a').round_to(8)", [8]),
    ],
)
def test_sizes_are_written_as_they_were_computed(make, text, sizes):
    size = make(Width("a", 1, 3), Width("b", [2, 4]))
    assert repr(size) == text
    assert size.values() == sizes


def test_a_size_that_cancels_out_is_what_is_left():
    a = Width("a", 1, 500)
    assert (a * 2 - a + a // 500 - a // 500).values() == list(range(1, 501))
    assert (a - Width("a", 1, 500) + 3).values() == [3]  # the same decision by its name


def test_many_sums_are_listed_quickly():
    total: Any = sum((Width(f"w{n}", 1, 64) for n in range(20)), start=0)
    assert total.values() == list(range(20, 20 * 64 + 1))


class Attention(nn.Module):
    """Heads, their dimension, a hidden layer by a ratio, and a squeezed one."""

    def __init__(self) -> None:
        super().__init__()
        heads, dim = Width("heads", [1, 2, 4]), Width("dim", [4, 8])
        ratio = Value("ratio", Categorical([0.5, 1.5, 4]))
        self.qkv = nas.Linear(6, heads * dim * 3)
        self.mix = nas.Conv2d(heads * dim, heads * dim, 1, groups=heads)
        self.norm = nas.LayerNorm(heads * dim)
        self.up = nas.Linear(heads * dim, (heads * dim * ratio).round_to(4))
        self.down = nas.Linear((heads * dim * ratio).round_to(4), heads * dim // 2)
        self.head = nas.Linear(heads * dim // 2, 3)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads.value, -1)).unbind(-3)
        x = (q * k.softmax(-1) + v).flatten(-2)
        x = self.mix(x[..., None, None]).flatten(-3)
        return self.head(self.down(self.up(self.norm(x)).relu()))


def test_layers_take_sizes_of_several_decisions():
    model = Attention().double()
    x = torch.randn(5, 6, dtype=torch.double)
    for heads, dim, ratio in product([1, 2, 4], [4, 8], [0.5, 1.5, 4]):
        values = {"heads": heads, "dim": dim, "ratio": ratio}
        select(model, values)
        extracted: Any = extract(model, values)
        assert equal(extracted(x), model(x))
        hidden = max(int(heads * dim * ratio + 2) // 4, 1) * 4
        assert extracted.up.out_features == extracted.down.in_features == hidden
        assert extracted.mix.groups == heads
        assert parameters(model, values) == sum(p.numel() for p in extracted.parameters())


def test_gradients_of_groups_of_two_decisions_are_those_of_the_static_layer():
    heads, dim = Width("heads", [1, 2, 4]), Width("dim", [2, 3])
    layer = nas.Conv2d(heads * dim, heads * 2, 1, groups=heads).double()
    select(layer, {"heads": 2, "dim": 2})
    static: Any = layer.build_static()
    x = torch.randn(3, 4, 2, 2, dtype=torch.double)
    for module in (layer, static):
        module(x).square().sum().backward()
    whole: Any = layer.weight.grad
    assert equal(whole.unflatten(0, (4, 2))[:2, :, :2].flatten(0, 1), static.weight.grad)
    assert torch.count_nonzero(whole) == torch.count_nonzero(static.weight.grad)


def test_concatenated_widths_add_up():
    first, second = width("a", 2, 4), width("b", 3, 6)
    model = nn.ModuleDict(
        {"one": nas.Linear(2, first), "two": nas.Linear(2, second), "both": nas.Linear(first + second, 3)}
    )
    select(model, {"a": 3, "b": 5})
    x = torch.randn(4, 2)
    assert model["both"](torch.cat([model["one"](x), model["two"](x)], 1)).shape == (4, 3)
    assert repr(extract(model)["both"]) == repr(nn.Linear(8, 3))  # type: ignore[index]


def test_a_wrong_input_is_told_with_the_whole_expression():
    layer = nas.Linear(width("a") * width("b"), 3)
    select(layer, {"a": 2, "b": 3})
    with pytest.raises(RuntimeError, match=r"Linear takes 'a' \* 'b' = 6 features, but got 5"):
        layer(torch.zeros(1, 5))


@pytest.mark.slow
@pytest.mark.usefixtures("same_numbers")
def test_layers_with_sizes_of_several_decisions_are_captured():
    heads, dim = Width("heads", [1, 2]), Value("dim", Integer(2, 3))
    block = nn.Sequential(nas.Linear(4, heads * dim), nn.Tanh(), nas.Linear(heads * dim, 4))
    assert_same_steps(nn.Sequential(Repeat("depth", [block, nn.Linear(4, 4)]), nn.Linear(4, 3)))


@pytest.mark.parametrize(
    "chosen",
    [OneOf("n", [nn.ReLU(), nn.Tanh()]), OneOf("n", {"a": nn.ReLU()}), Repeat("n", [nn.ReLU()] * 3), Pick("n", 2)],
)
def test_a_decision_on_what_runs_is_no_size_and_the_cure_works(chosen):
    kind = type(chosen).__name__
    for use in (lambda: nas.Linear(2, chosen), lambda: chosen * 2):
        with pytest.raises(ValueError, match=rf"but the {kind} 'n' is not; .* nas\.Value\('n', "):
            use()


def test_a_size_follows_a_depth_by_a_value_of_its_name():
    depth = Repeat("n", [nn.ReLU()] * 3)
    model = nn.Sequential(depth, nas.Linear(2, Value("n", depth.variable) * 4))
    assert extract(model, {"n": 2}).get_submodule("1").out_features == 8
