"""Decisions: each kind selected and extracted, found by name, and given values that fit."""
# mypy: disable-error-code="arg-type, index, list-item"
# (wrong arguments are tested, and torch's modules are looked into)

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import asng
from asng import nas
from asng.nas import Chain, Decision, OneOf, Pick, Repeat, Value, Width, extract, select, space_of
from asng.nas.supernet import Supernet
from asng.space import Categorical, Integer, Real
from tests.helpers.decisions import ONE, Counted, is_static, size_of

# Each kind of decision, selected and extracted.


def test_one_of_runs_only_the_chosen_module():
    model = OneOf("op", [Counted(1), Counted(2), Counted(3)])
    assert space_of(model) == {"op": Categorical([0, 1, 2])}
    select(model, {"op": 2})
    assert model(ONE) == 4
    assert [option.runs for option in model.options] == [0, 0, 1]
    extracted = extract(model, {"op": 1})
    assert type(extracted) is Counted
    assert extracted(ONE) == 3
    assert size_of(extracted) == 1


def test_one_of_names_chooses_by_name_and_passes_all_arguments():
    class Scaled(nn.Module):
        def forward(self, x: float, *, by: float) -> float:
            return x * by

    model = OneOf("act", {"scaled": Scaled(), "relu": nn.ReLU()})
    select(model, {"act": "scaled"})
    assert model(2.0, by=3.0) == 6.0


def test_pick_returns_one_input():
    model = Pick("from", 3)
    assert space_of(model) == {"from": Categorical([0, 1, 2])}
    select(model, {"from": 1})
    assert model(["x", "y", "z"]) == "y"
    assert extract(model, {"from": 2})(["x", "y", "z"]) == "z"
    with pytest.raises(ValueError, match="'from' chooses among 3 inputs, got 2"):
        model(["x", "y"])


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_repeat_runs_the_first_blocks(depth):
    model = Repeat("depth", [Counted(1), Counted(10), Counted(100)], low=0)
    assert space_of(model) == {"depth": Integer(0, 3)}
    select(model, {"depth": depth})
    expected = {0: 1, 1: 2, 3: 112}[depth]
    assert model(ONE) == expected
    assert [block.runs for block in model.blocks] == [int(place < depth) for place in range(3)]
    extracted = extract(model, {"depth": depth})
    assert type(extracted) is Chain
    assert size_of(extracted) == depth
    assert extracted(ONE) == expected


def test_values_of_any_variable_are_read_in_the_users_code():
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate = Value("rate", Real(0, 0.5))
            self.kind = Value("kind", Categorical([None, (1, 2), "x"]))

        def forward(self, x: float) -> tuple[float, Any]:
            return x * self.rate.value, self.kind.value

    model = Dropped()
    values = {"rate": 0.25, "kind": (1, 2)}
    select(model, values)
    assert model(2.0) == (0.5, (1, 2))
    extracted = extract(model, values)
    assert extracted(2.0) == (0.5, (1, 2))
    assert is_static(extracted)
    assert space_of(extracted) == {}


def test_a_value_may_belong_to_a_family_of_the_users_own():
    custom = asng.Custom(asng.NormalFamily([0.0], [1.0], [0.1], mirrored=True))
    model = nn.Sequential(Value("own", custom))
    select(model, {"own": 0.3})
    assert extract(model, {"own": 0.3})[0].value == 0.3


# Names.


def test_equal_names_share_one_variable():
    model = nn.Sequential(
        *[OneOf("op", [Counted(1), Counted(2)]) for _ in range(3)], OneOf("other", [Counted(), Counted()])
    )
    assert space_of(model) == {"op": Categorical([0, 1]), "other": Categorical([0, 1])}
    select(model, {"op": 1, "other": 0})
    assert model(ONE) == 1 + 3 * 2 + 1


def test_a_name_declared_twice_differently_shows_both_and_where():
    model = nn.Sequential(
        OneOf("op", [nn.ReLU(), nn.Tanh()]), nn.ModuleDict({"deep": nn.ModuleList([Value("op", Integer(1, 9))])})
    )
    for use in (space_of, lambda m: select(m, {"op": 1}), lambda m: extract(m, {"op": 1})):
        with pytest.raises(ValueError, match="declared twice") as error:
            use(model)
        assert str(error.value) == (
            "decision 'op' is declared twice, differently: Categorical(choices=(0, 1)) at 0, "
            "Integer(low=1, high=9) at 1.deep.0; give one of them another name"
        )


@pytest.mark.parametrize("kind", [np.arange, torch.arange])
def test_choices_that_are_arrays_are_compared(kind):
    one, equal, other = (Value("a", Categorical([kind(2), kind(n)])) for n in (3, 3, 4))
    assert space_of(nn.ModuleList([one, equal])) == {"a": one.variable}
    with pytest.raises(ValueError, match=r"'a' is declared twice, differently: Categorical.* at 0, Categorical.* at 1"):
        space_of(nn.ModuleList([one, other]))


def test_a_conflict_with_the_model_itself_says_the_top():
    model = OneOf("op", [OneOf("op", [nn.ReLU(), nn.Tanh(), nn.ELU()]), nn.ReLU()])
    with pytest.raises(ValueError, match=r"\(0, 1\)\) at the top, .*\(0, 1, 2\)\) at options.0;"):
        space_of(model)


def test_widths_of_one_name_conflict_across_layers():
    model = nn.Sequential(nas.Linear(3, Width("w", 4, 8)), nas.Linear(Width("w", 4, 9), 2))
    with pytest.raises(
        ValueError,
        match=r"'w' is declared twice.*high=8\) at 0.out_features_decision, .*high=9\) at 1.in_features_decision",
    ):
        space_of(model)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pick("", 3), "a decision needs a name, got ''"),
        (lambda: Pick(3, 3), "a decision needs a name, got 3; give one first, as in Width"),
        (lambda: Width(8, 16), "a decision needs a name, got 8"),
        (lambda: Repeat([nn.ReLU()], 1), r"a decision needs a name, got \[ReLU"),
        (lambda: Value("k", [1, 3]), r"'k' needs a variable, such as asng.Integer\(1, 3\), got \[1, 3\]"),
        (lambda: OneOf("op", [nn.ReLU(), torch.relu]), "'op' chooses among modules, got .*relu.* for 1"),
        (lambda: OneOf("op", {"relu": nn.ReLU(), "skip": None}), r"got None for 'skip'; nn\.Identity\(\) skips"),
        (lambda: OneOf("op", []), "OneOf 'op' chooses among modules, got none"),
        (lambda: Pick("from", 0), "the number of inputs of Pick 'from' must be at least 1, got 0"),
        (lambda: Pick("from", [1, 2]), r"Pick 'from' must be an integer, got \[1, 2\]"),
        (
            lambda: Repeat("depth", [nn.ReLU()] * 2, low=-1),
            "'depth' .*got low=-1 and 2 of them; low must be at least 0",
        ),
        (lambda: Repeat("depth", [nn.ReLU()] * 2, low=2), "'depth' .*got low=2 and 2 of them; low must be .* fewer"),
        (lambda: Repeat("depth", []), "'depth' .*got low=1 and 0 of them"),
        (lambda: Width("w", 8), "Width 'w' needs low < high, or a list of widths, got low=8 and high=None"),
        (lambda: Width("w", 8, 8), "Width 'w' needs low < high, or a list of widths, got low=8 and high=8"),
    ],
)
def test_what_cannot_be_decided_is_said_when_it_is_declared(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", [list, tuple, iter, nn.ModuleList, lambda modules: nn.Sequential(*modules)])
def test_modules_come_in_anything_that_gives_them(kind):
    assert OneOf("op", kind([nn.ReLU(), nn.Tanh()])).variable == Categorical([0, 1])
    assert Repeat("depth", kind([nn.ReLU(), nn.Tanh()])).variable == Integer(1, 2)


@pytest.mark.parametrize("kind", [dict, nn.ModuleDict])
def test_modules_in_dicts_are_chosen_by_name(kind):
    model = OneOf("op", kind({"relu": nn.ReLU(), "tanh": nn.Tanh()}))
    assert model.variable == Categorical(["relu", "tanh"])
    assert isinstance(extract(model, {"op": "tanh"}), nn.Tanh)


# Selection: complete and inside.


def every_kind() -> nn.ModuleList:
    return nn.ModuleList(
        [
            OneOf("op", {"a": nn.ReLU(), "b": nn.Tanh()}),
            Pick("from", 3),
            Repeat("depth", [nn.ReLU(), nn.ReLU()]),
            Value("rate", Real(0.0, 1.0)),
            Width("w", [4, 8]),
            Value("array", Categorical([np.arange(2), np.arange(3)])),
        ]
    )


FITTING = {"op": "b", "from": 2, "depth": 2, "rate": 0.5, "w": 4, "array": np.arange(3)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "c"}, r"'c' is outside of Categorical\(choices=\('a', 'b'\)\) of 'op'"),
        ({"op": 0}, "0 is outside of .*'op'"),
        ({"from": 3}, "3 is outside of .*'from'"),
        ({"from": -1}, "-1 is outside of .*'from'"),
        ({"from": True}, "True is outside of .*'from'"),
        ({"from": 1.0}, "1.0 is outside of .*'from'"),
        ({"depth": 0}, r"0 is outside of Integer\(low=1, high=2\) of 'depth'"),
        ({"depth": 3}, "3 is outside of .*'depth'"),
        ({"depth": 1.5}, "1.5 is outside of .*'depth'"),
        ({"depth": True}, "True is outside of .*'depth'"),
        ({"rate": 1.1}, "1.1 is outside of .*'rate'"),
        ({"rate": float("nan")}, "nan is outside of .*'rate'"),
        ({"rate": "0.5"}, "'0.5' is outside of .*'rate'"),
        ({"rate": True}, "True is outside of .*'rate'"),
        ({"w": 6}, "6 is outside of .*'w'"),
        ({"array": np.arange(4)}, "is outside of .*'array'"),
        ({"new": 1}, r"the space has no 'new'; it has op, from"),
    ],
)
def test_values_outside_are_refused_and_change_nothing(change, message):
    model = every_kind()
    select(model, FITTING)
    for use in (select, extract, lambda m, v: Supernet(m).active(v)):
        with pytest.raises(ValueError, match=message):
            use(model, {**FITTING, "depth": 1, **change})
    assert model[2].value == 2


@pytest.mark.parametrize("name", list(FITTING))
def test_leaving_one_out_is_refused(name):
    model = every_kind()
    values = {key: value for key, value in FITTING.items() if key != name}
    for use in (select, extract):
        with pytest.raises(ValueError, match=f"no value for '{name}'; the space needs one for each of its names"):
            use(model, values)


@pytest.mark.parametrize("name", list(FITTING))
def test_a_misspelled_name_is_the_one_that_is_named(name):
    values = {f"{key}s" if key == name else key: value for key, value in FITTING.items()}
    for use in (select, extract):
        with pytest.raises(ValueError, match=f"the space has no '{name}s'; it has "):
            use(every_kind(), values)


def test_values_for_an_extracted_network_are_refused():
    with pytest.raises(ValueError, match=r"the space has no 'op', .*; it is empty, as that of an extracted network"):
        extract(extract(every_kind(), FITTING), FITTING)


def test_a_model_that_was_never_selected_says_so():
    with pytest.raises(RuntimeError, match=r"'from' has no value yet; call asng.nas.select\(model, values\)"):
        Pick("from", 2)([1, 2])


def test_what_the_optimizer_asks_fits():
    model = nn.ModuleList(list(every_kind())[:5])
    optimizer = asng.ASNG(space_of(model), seed=0)
    supernet = Supernet(model)
    for candidate in optimizer.ask(20):
        supernet.select(candidate.values)
        selected = {m.name: m.value for m in model.modules() if isinstance(m, Decision)}
        assert selected == candidate.values


def test_a_value_that_is_read_while_the_model_is_built_is_too_early():
    with pytest.raises(RuntimeError, match=r"'n' has no value yet; .*; __init__ is too early to read it"):
        nn.Linear(4, nas.Value("n", Categorical([8, 16])).value)
