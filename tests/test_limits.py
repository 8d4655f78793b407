"""Limits and Costs: each architecture measured once, its excess over the limits, and what is refused."""

import json

import numpy as np
import pytest
import torch
from counted_net import BLOCK, HEAD, IMAGES, LARGE, SMALL, STEM, Net
from torch import nn

from asng import Custom, NormalFamily
from asng.nas import Costs, Flops, Latency, Limit, Value, parameters
from asng.space import Categorical, Integer, Real


def counting():
    calls = []

    def measure(model, values):
        calls.append(dict(values))
        return values["depth"] + 1

    return measure, calls


def test_an_architecture_is_measured_once_whatever_the_order_of_its_names():
    measure, calls = counting()
    costs = Costs(Net(), [Limit(measure, 2)])
    for _ in range(3):
        assert costs.of(LARGE) == (4.0,)
        assert costs.excess(dict(reversed(LARGE.items()))) == 1.0
        assert costs.of(SMALL) == (1.0,)
    assert calls == [LARGE, SMALL]


def test_the_model_is_walked_through_once_for_all_architectures(monkeypatch):
    net = Net()
    costs = Costs(net, [Limit(lambda model, values: values["depth"] + 1, 2)])
    for name in ("modules", "named_modules", "children", "named_children", "parameters", "named_parameters"):
        monkeypatch.setattr(nn.Module, name, lambda *_, **__: pytest.fail("walked through the model"))
    monkeypatch.setattr("asng.nas.selection.paths_of", lambda model: pytest.fail("walked through the model"))
    assert [costs.of({**LARGE, "depth": depth}) for depth in (1, 2, 3)] == [(2.0,), (3.0,), (4.0,)]


def test_what_is_known_can_be_saved_as_json_and_put_back():
    measure, calls = counting()
    costs = Costs(Net(), [Limit(measure, 2)])
    costs.of(LARGE)
    again = Costs(Net(), [Limit(measure, 2)])
    again.known.update({key: tuple(numbers) for key, numbers in json.loads(json.dumps(costs.known)).items()})
    assert again.of(LARGE) == (4.0,)
    assert len(calls) == 1


def test_choices_of_any_kind_are_told_apart():
    class Thing:
        def __repr__(self):
            return "thing"

    things = [np.zeros(2), np.ones(2), Thing(), Thing(), [1, 2], (1, 2), torch.relu, None, "None"]
    net = nn.Sequential(Value("thing", Categorical(things)), Value("rate", Real(0, 1)), Value("n", Integer(1, 3)))
    seen = []

    def number(model, values):
        seen.append(values)
        return len(seen)

    costs = Costs(net, [Limit(number, 1)])
    for _ in range(2):
        numbers = [
            costs.of({"thing": thing, "rate": r, "n": n}) for thing in things for r in (0.1, 0.2) for n in (1, 2)
        ]
        assert len(set(numbers)) == len(numbers) == len(seen) == 36


def test_the_excess_is_relative_and_summed_over_the_limits():
    costs = Costs(
        Net(),
        [
            Limit(lambda model, values: values["depth"] * 10.0, 20),
            Limit(lambda model, values: np.int64(values["input"] * 3), 2.0),
            Limit(parameters, 10**9),
        ],
    )
    assert costs.of({"op": "none", "depth": 3, "input": 1}) == (30.0, 3.0, STEM + 3 * BLOCK + HEAD)
    assert costs.excess({"op": "none", "depth": 3, "input": 1}) == pytest.approx(0.5 + 0.5)
    assert costs.excess({"op": "none", "depth": 3, "input": 0}) == pytest.approx(0.5)
    assert costs.excess({"op": "none", "depth": 2, "input": 0}) == 0.0  # at the limit is inside
    assert costs.excess({"op": "wide", "depth": 0, "input": 0}) == 0.0
    assert all(type(cost) is float for cost in costs.of(SMALL))


class Point:
    """A value of one's own kind."""

    def __init__(self, x):
        self.x = x

    def __index__(self):
        return self.x


@pytest.mark.parametrize("kind", [int, Point])
def test_the_nearest_is_the_newest_with_the_smallest_excess_whatever_its_values_are(kind):
    own = Custom(NormalFamily([0.0], [1.0], [0.1], mirrored=True), value=Point)
    net = nn.Sequential(Value("n", Integer(1, 5) if kind is int else own), nn.Linear(1, 1))
    costs = Costs(net, [Limit(lambda model, values: int(values["n"]), 1)])
    assert costs.nearest() is None
    values = [kind(n) for n in (3, 2, 4, 2, 5)]
    for value in values:
        costs.of({"n": value})
    assert costs.nearest() == {"n": values[3]}


def test_without_limits_everything_is_inside():
    costs = Costs(Net(), [])
    assert costs.of(LARGE) == ()
    assert costs.excess(LARGE) == 0.0


@pytest.mark.parametrize("cost", [float("nan"), -1, -float("inf"), "many", None, torch.zeros(2)])
def test_a_cost_that_is_none_names_the_limit_and_the_value(cost):
    costs = Costs(Net(), [Limit(lambda model, values: cost, 1, name="energy")])
    with pytest.raises(ValueError, match=r"energy must be .*'depth': 0"):
        costs.excess(SMALL)


def test_an_error_in_a_measure_says_in_which_and_of_which_architecture():
    costs = Costs(Net(), [Limit(Flops(torch.zeros(1, 3, 6, 6)), 100)])  # as many channels as the model does not take
    with pytest.raises(RuntimeError) as error:
        costs.excess(SMALL)
    assert error.value.__notes__ == [f"in Flops of the architecture {SMALL}"]


def test_an_infinite_cost_is_infinitely_far_outside():
    assert Costs(Net(), [Limit(lambda model, values: float("inf"), 1)]).excess(SMALL) == float("inf")


@pytest.mark.parametrize("at_most", [0, -1, float("nan"), float("inf"), "10", None])
def test_a_limit_is_a_number_above_zero(at_most):
    with pytest.raises(ValueError, match=r"the limit of parameters must be a number above 0"):
        Limit(parameters, at_most)


@pytest.mark.parametrize("limits", [Limit(parameters, 10), [(parameters, 10)], [parameters], 10, None])
def test_limits_are_a_list_of_limits(limits):
    with pytest.raises(ValueError, match=r"limits must be a list, such as \[Limit\(parameters, 100_000\)\], got "):
        Costs(Net(), limits)


def test_a_limit_needs_a_function():
    with pytest.raises(ValueError, match=r"a limit needs a function \(model, values\) -> number, got 100"):
        Limit(100, 100)  # type: ignore[arg-type]


def test_limits_are_named_after_their_measure():
    assert [Limit(measure, 1).name for measure in (parameters, Flops(IMAGES), Latency(IMAGES))] == [
        "parameters",
        "Flops",
        "Latency",
    ]
    assert Limit(parameters, 1, name="size").name == "size"
