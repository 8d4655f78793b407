"""Architectures as JSON come back as they were; whatever does not fit is an error that says why."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asng.nas import Value, select, space_of
from asng.nas.architecture import from_dict, from_json, to_dict, to_json
from asng.optimizer import ASNG
from asng.runs import write_json
from asng.space import Categorical, Integer, Real

SPACE: dict[str, Any] = {
    "op": Categorical(["conv", "pool", None]),
    "kernel": Categorical([(3, 3), (3, 5), ((1, 2), (3,))]),
    "mixed": Categorical([1, 2.5, "1", False, {"a": (1, 2)}]),
    "depth": Integer(-2, 9),
    "rate": Real(1e-4, 1.0, log=True),
}
VALUES = {"op": "pool", "kernel": (3, 5), "mixed": 2.5, "depth": 7, "rate": 0.1 + 0.2}


def test_the_text_is_a_version_with_names_and_values():
    assert json.loads(to_json(VALUES)) == {"version": 1, "values": {**VALUES, "kernel": [3, 5]}}
    assert to_dict(VALUES) == json.loads(to_json(VALUES))
    assert to_json(VALUES).endswith("}\n")


def test_every_architecture_of_a_space_comes_back_with_its_types():
    for candidate in ASNG(SPACE, seed=1).ask(200):
        for values in (
            from_json(to_json(candidate.values), SPACE),
            from_dict(to_dict(candidate.values), SPACE),
        ):
            assert repr(values) == repr(candidate.values)


def test_choices_come_back_as_the_choices_themselves():
    kernel = SPACE["kernel"].choices[2]
    assert from_json(to_json({**VALUES, "kernel": kernel}), SPACE)["kernel"] is kernel


def test_without_a_space_the_values_are_what_json_holds():
    assert from_json(to_json(VALUES)) == {**VALUES, "kernel": [3, 5]}


def test_the_order_is_that_of_the_space():
    assert list(from_json(to_json(dict(reversed(VALUES.items()))), SPACE)) == list(SPACE)


def test_it_can_be_selected():
    kernel = Value("kernel", SPACE["kernel"])
    select(kernel, from_json(to_json({"kernel": (3, 5)}), space_of(kernel)))
    assert kernel.value == (3, 5)


def test_files_of_version_1_are_read_by_every_later_asng():
    text = (Path(__file__).parent / "architecture-version-1.json").read_text()
    assert from_json(text, SPACE) == VALUES
    assert to_json(VALUES) == text


def test_it_goes_through_a_file(tmp_path):
    write_json(tmp_path / "architecture.json", to_dict(VALUES))
    assert from_json((tmp_path / "architecture.json").read_text(), SPACE) == VALUES


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("conv"), "conv"),
        ((np.int8(1), [np.float64(2.0)]), [1, [2.0]]),
        ({"a": (np.int64(1),)}, {"a": [1]}),
    ],
)
def test_numpy_scalars_become_plain(value, plain):
    assert repr(to_dict({"x": value})["values"]["x"]) == repr(plain)


@pytest.mark.parametrize(
    "value", [object(), print, math.nan, math.inf, np.zeros(2), {1, 2}, b"conv", 1j, {1: 2}, (1, [object()]), int]
)
def test_what_json_cannot_hold_is_an_error_that_names_it(value):
    with pytest.raises(ValueError, match=r"JSON, which holds names, numbers .* \(variable 'op'\)"):
        to_json({"depth": 3, "op": value})


def test_names_are_strings():
    with pytest.raises(ValueError, match="names of decisions are strings, got 3"):
        to_json({3: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("text", ["", "{", "conv", '{"version": 1, "values": {"a": 1}', "\x00" * 200])
def test_what_is_not_json_is_an_error_that_shows_it(text):
    with pytest.raises(ValueError, match="an architecture is JSON, got ") as refused:
        from_json(text)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "data", [[], 3, None, {}, {"version": 1}, {"values": {}}, {"version": 1, "values": [1]}, {"op": "conv"}]
)
def test_other_json_is_an_error_that_says_what_an_architecture_is(data):
    with pytest.raises(ValueError, match=r'an architecture is \{"version": 1, "values": \{\.\.\.\}\}, got '):
        from_json(json.dumps(data))


@pytest.mark.parametrize("version", [2, 0, "1", None])
def test_another_version_is_refused(version):
    with pytest.raises(ValueError, match=rf"of version {version!r}, but this asng reads version 1"):
        from_json(json.dumps({"version": version, "values": {}}))


def json_with(**changes):
    data = to_dict(VALUES)
    data["values"] |= changes
    return json.dumps(data)


def test_missing_and_unknown_names_are_named():
    data = to_dict(VALUES)
    del data["values"]["depth"]
    with pytest.raises(ValueError, match="no value for 'depth'"):
        from_dict(data, SPACE)
    with pytest.raises(ValueError, match="the space has no 'deep'"):
        from_json(json_with(deep=3), SPACE)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "con"},
        {"op": 0},
        {"kernel": [3, 4]},
        {"kernel": [3, 5, 5]},
        {"kernel": "[3, 5]"},
        {"mixed": True},
        {"mixed": 1.0},
        {"mixed": 0},
        {"depth": 10},
        {"depth": 7.0},
        {"depth": True},
        {"depth": "7"},
        {"rate": 1.5},
        {"rate": True},
        {"rate": "0.1"},
        {"rate": math.nan},
        {"rate": None},
    ],
    ids=str,
)
def test_a_value_outside_is_refused_with_its_name_and_variable(change):
    ((name, _),) = change.items()
    with pytest.raises(
        ValueError, match=rf"is outside of {type(SPACE[name]).__name__}\(.*(of '{name}'|variable '{name}')"
    ):
        from_json(json_with(**change), SPACE)


def test_a_whole_number_is_a_real_one():
    assert repr(from_json(json_with(rate=1), SPACE)["rate"]) == "1.0"


def test_choices_that_json_cannot_tell_apart_are_refused():
    space = {"kernel": Categorical([(1, 2), [1, 2], 3])}
    assert from_json(to_json({"kernel": 3}), space) == {"kernel": 3}
    with pytest.raises(ValueError, match=r"\[1, 2\] may be any of \[\(1, 2\), \[1, 2\]\].* \(variable 'kernel'\)"):
        from_json(to_json({"kernel": [1, 2]}), space)


def test_choices_that_json_cannot_hold_do_not_hinder_the_others():
    space = {"op": Categorical([print, "conv"])}
    assert from_json(to_json({"op": "conv"}), space) == {"op": "conv"}


@pytest.mark.parametrize("wrong", [None, 5, "x", [], {1, 2}, range(3)])
def test_what_is_no_architecture_is_refused_by_what_it_should_be(wrong):
    with pytest.raises(ValueError, match="an architecture is a dict of values by their names, got"):
        to_json(wrong)
    with pytest.raises(ValueError, match="an architecture is JSON, got"):
        from_json(wrong)
    if wrong is not None:
        with pytest.raises(ValueError, match="space must be a dict of names and variables, as space_of returns, got"):
            from_json(to_json({"op": "conv"}), wrong)


def test_json_that_is_nested_without_end_is_refused():
    with pytest.raises(ValueError, match=r"an architecture is JSON, got .* \(it is nested too deeply\)"):
        from_json("[" * 10**5)
