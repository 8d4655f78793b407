"""Limits and Costs: each network measured once, how it violates the limits, and what is refused."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from asng import Custom, NormalFamily
from asng._violations import FEASIBLE
from asng.nas import Costs, Flops, Latency, Limit, Linear, OneOf, Repeat, Value, Width, parameters
from asng.nas.supernet import Supernet
from asng.space import Categorical, Integer, Real
from tests.helpers.counted_net import IMAGES, LARGE, SMALL, Net


def count_calls():
    calls = []

    def measure(model, values):
        calls.append(dict(values))
        return values["depth"] + 1

    return measure, calls


def test_an_architecture_is_measured_once_whatever_the_order_of_its_names():
    measure, calls = count_calls()
    costs = Costs(Supernet(Net()), [Limit(measure, 2)])
    for _ in range(3):
        assert costs.measure(LARGE) == (4.0,)
        assert costs.violation(dict(reversed(LARGE.items()))).amount == 1.0
        assert costs.measure(SMALL) == (1.0,)
    assert calls == [LARGE, SMALL]


def test_the_model_is_walked_through_once_for_all_architectures(monkeypatch):
    net = Net()
    costs = Costs(Supernet(net), [Limit(lambda model, values: values["depth"] + 1, 2)])
    for name in ("modules", "named_modules", "children", "named_children", "parameters", "named_parameters"):
        monkeypatch.setattr(nn.Module, name, lambda *_, **__: pytest.fail("walked through the model"))
    assert [costs.measure({**LARGE, "depth": depth}) for depth in (1, 2, 3)] == [(2.0,), (3.0,), (4.0,)]


def test_networks_are_measured_not_decisions_without_effect():
    calls = []

    def measure(model, values):
        calls.append(dict(values))
        return values["depth"]

    blocks = [OneOf(f"op{n}", [nn.Linear(4, 4), nn.ReLU(), nn.Tanh()]) for n in range(6)]
    costs = Costs(Supernet(nn.Sequential(Repeat("depth", blocks))), [Limit(measure, 2)])
    first = {f"op{n}": 2 for n in range(6)}
    assert costs.measure({"depth": 2, **first}) == costs.measure({"depth": 2, **first, "op2": 0, "op5": 1}) == (2.0,)
    assert calls == [{"depth": 2, "op0": 2, "op1": 2, "op2": 0, "op3": 0, "op4": 0, "op5": 0}]
    costs.measure({"depth": 2, **first, "op1": 0})
    assert len(calls) == 2


def test_limits_are_measured_in_order_up_to_the_first_violated():
    calls = []

    def measure(name):
        return lambda model, values: calls.append(name) or values[name] + 1  # type: ignore[func-returns-value]

    costs = Costs(Supernet(Net()), [Limit(measure("depth"), 2, name="depth"), Limit(measure("input"), 1, name="input")])
    assert costs.measure({"op": "none", "depth": 3, "input": 1}) == (4.0,)
    assert calls == ["depth"]
    assert costs.measure({"op": "none", "depth": 1, "input": 1}) == (2.0, 2.0)
    assert calls == ["depth", "depth", "input"]


def test_those_that_fail_at_a_later_limit_are_nearer():
    limits = [Limit(lambda model, values: values["depth"] * 10.0, 20), Limit(lambda m, v: np.int64(v["input"] * 9), 2)]
    costs = Costs(Supernet(Net()), limits)
    early, late = {"op": "none", "depth": 3, "input": 0}, {"op": "none", "depth": 2, "input": 1}
    assert costs.violation(early) == (1, 0.5)
    assert costs.violation(late) == (0, 3.5)
    assert costs.violation(late) < costs.violation(early)
    assert costs.violation({"op": "wide", "depth": 2, "input": 0}) == (0, 0.0)  # at the limit is inside
    assert all(type(cost) is float for cost in costs.measure(late))


def test_the_memory_of_costs_is_bounded(monkeypatch):
    monkeypatch.setattr("asng.nas.limits.MAX_NETWORKS", 3)
    calls = []
    model = nn.Sequential(Value("n", Integer(1, 9)))
    costs = Costs(Supernet(model), [Limit(lambda model, values: calls.append(values["n"]) or values["n"], 4)])  # type: ignore[func-returns-value]
    for n in (5, 6, 7, 5, 8, 5, 6):
        costs.measure({"n": n})
    assert calls == [5, 6, 7, 8, 6]  # those asked for last are remembered
    assert len(costs.known) == 3
    assert costs.nearest() == {"n": 5}  # also where it is forgotten


# What was measured before a pause.


def resume(limits, after):
    """Costs of one architecture, saved as JSON under some limits and loaded under others."""
    model = Net()
    costs = Costs(Supernet(model), limits)
    costs.measure(SMALL)
    again = Costs(Supernet(model), after)
    again.load_state_dict(json.loads(json.dumps(costs.state_dict())))
    return again.known


def test_costs_are_restored_for_the_same_measures():
    limits = [Limit(parameters, 10**6), Limit(Flops(IMAGES), 10**9), Limit(Latency(IMAGES), 10)]
    assert list(map(len, resume(limits, limits).values())) == [3]
    lower = [Limit(parameters, 10**5), Limit(Flops(IMAGES), 10**8), Limit(Latency(IMAGES), 9)]
    assert list(map(len, resume(limits, lower).values())) == [2]  # a latency is measured as far as its limit needs it


def test_costs_of_another_measure_are_not_restored():
    count, small, large = (
        Limit(parameters, 10**6),
        Limit(Flops(IMAGES), 10**9),
        Limit(Flops(IMAGES[:1]), 10**9),
    )
    assert list(map(len, resume([count, small], [count, large]).values())) == [1]
    assert resume([small, count], [large, count]) == {}
    own = Limit(lambda model, values: 1, 2)
    assert resume([own], [own]) == {}  # nothing says whether it is the same


@pytest.mark.parametrize("change", ["host", "threads", "repeats", "device"])
def test_latencies_of_another_machine_are_not_restored(change, monkeypatch):
    here, there = Latency(IMAGES), Latency(IMAGES, repeats=12 if change == "repeats" else 11)
    if change == "device":
        there.device = torch.device("cpu", 0)
    model = Net()
    costs = Costs(Supernet(model), [Limit(parameters, 10**6), Limit(here, 10)])
    costs.measure(SMALL)
    state = costs.state_dict()
    if change == "host":
        monkeypatch.setattr("platform.node", lambda: "another")
    elif change == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    again = Costs(Supernet(model), [Limit(parameters, 10**6), Limit(there, 10)])
    again.load_state_dict(state)
    assert [len(known) for known in again.known.values()] == [1]


def test_a_measure_of_ones_own_says_by_a_fingerprint_that_it_is_the_same():
    def energy(model, values):
        return 3.0

    energy.fingerprint = "energy of board 7"  # type: ignore[attr-defined]
    assert list(resume([Limit(energy, 5)], [Limit(energy, 5)]).values()) == [(3.0,)]


def test_the_nearest_is_known_after_a_pause():
    model = Net()
    costs = Costs(Supernet(model), [Limit(parameters, 1)])
    for values in (LARGE, SMALL, LARGE):
        costs.measure(values)
    again = Costs(Supernet(model), [Limit(parameters, 1)])
    again.load_state_dict(json.loads(json.dumps(costs.state_dict())))
    assert again.nearest() == costs.nearest() == SMALL


def test_the_nearest_under_lower_limits_is_not_taken_for_feasible():
    def inverse(model, values):
        return 1e6 / parameters(model, values)

    inverse.fingerprint = "inverse"  # type: ignore[attr-defined]
    costs, again = (Costs(Supernet(Net()), [Limit(parameters, n), Limit(inverse, 1)]) for n in (1, 10**9))
    costs.measure(SMALL)
    again.load_state_dict(costs.state_dict())
    assert again.nearest() is None
    again.measure(LARGE)
    assert again.nearest() == LARGE


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

    costs = Costs(Supernet(net), [Limit(number, 1)])
    for _ in range(2):
        numbers = [
            costs.measure({"thing": thing, "rate": r, "n": n}) for thing in things for r in (0.1, 0.2) for n in (1, 2)
        ]
        assert len(set(numbers)) == len(numbers) == len(seen) == 36


class Point:
    """A value of one's own kind."""

    def __init__(self, x):
        self.x = x

    def __index__(self):
        return self.x


@pytest.mark.parametrize("kind", [int, Point])
def test_the_nearest_is_the_newest_with_the_smallest_violation(kind):
    own = Custom(NormalFamily([0.0], [1.0], [0.1], mirrored=True), value=Point)
    net = nn.Sequential(Value("n", Integer(1, 5) if kind is int else own), nn.Linear(1, 1))
    costs = Costs(Supernet(net), [Limit(lambda model, values: int(values["n"]), 1)])
    assert costs.nearest() is None
    values = [kind(n) for n in (3, 2, 4, 2, 5)]
    for value in values:
        costs.measure({"n": value})
    assert costs.nearest() == {"n": values[3]}


def test_without_limits_everything_is_feasible():
    costs = Costs(Supernet(Net()), [])
    assert costs.measure(LARGE) == ()
    assert costs.violation(LARGE) == (0, 0.0)


@pytest.mark.parametrize("cost", [float("nan"), -float("inf"), "many", None, torch.zeros(2)])
def test_a_cost_that_is_none_names_the_limit_and_the_value(cost):
    costs = Costs(Supernet(Net()), [Limit(lambda model, values: cost, 1, name="energy")])
    with pytest.raises(ValueError, match=r"energy must be .*'depth': 0"):
        costs.violation(SMALL)


def test_an_error_in_a_measure_says_in_which_and_of_which_architecture():
    wrong_channels = torch.zeros(1, 3, 6, 6)
    costs = Costs(Supernet(Net()), [Limit(Flops(wrong_channels), 100)])
    with pytest.raises(RuntimeError) as error:
        costs.violation(SMALL)
    assert error.value.__notes__ == [
        "in a forward on the example inputs that Flops was given: [(1, 3, 6, 6) torch.float32]",
        f"in Flops of the architecture {SMALL}",
    ]
    costs = Costs(Supernet(Net()), [Limit(Latency(kwargs={"x": wrong_channels}), 100)])
    with pytest.raises(RuntimeError) as error:
        costs.violation(SMALL)
    assert error.value.__notes__[0].endswith("that Latency was given: [], {x: (1, 3, 6, 6) torch.float32}")


def test_an_infinite_cost_is_an_infinite_violation():
    assert Costs(Supernet(Net()), [Limit(lambda model, values: float("inf"), 1)]).violation(SMALL) == (0, float("inf"))


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -float("inf"), "10"])
def test_a_limit_is_a_finite_number(bound):
    for bounds in ({"at_most": bound}, {"at_least": bound}):
        with pytest.raises(ValueError, match=r"the limit of parameters must be a finite number"):
            Limit(parameters, **bounds)


def test_a_limit_needs_a_bound():
    with pytest.raises(ValueError, match="the limit of parameters has no bound; give at_most, at_least or both"):
        Limit(parameters)


def test_bounds_that_nothing_meets_are_refused():
    with pytest.raises(ValueError, match="no cost can be at least 20 and at most 10; swap the bounds of parameters"):
        Limit(parameters, 10, at_least=20)


@pytest.mark.parametrize(
    ("bounds", "cost", "violation"),
    [
        ({"at_least": 10}, 5, 0.5),
        ({"at_least": 10}, 10, 0.0),
        ({"at_least": 10}, 1e9, 0.0),
        ({"at_least": 10}, math.inf, math.inf),  # what could not be measured is infeasible
        ({"at_least": 10, "at_most": 20}, 8, 0.2),
        ({"at_least": 10, "at_most": 20}, 15, 0.0),
        ({"at_least": 10, "at_most": 20}, 30, 0.5),
        ({"at_least": 10, "at_most": 10}, 10, 0.0),
        ({"at_least": 0}, -3, 3.0),  # as in a relation between two decisions
        ({"at_most": 0}, 2, 2.0),
        ({"at_most": -10}, -5, 0.5),
        ({"at_most": -10}, -20, 0.0),
    ],
)
def test_a_violation_is_relative_to_the_bound_that_is_missed(bounds, cost, violation):
    assert Limit(parameters, **bounds).violation(cost) == pytest.approx(violation)


def test_a_latency_with_a_lower_bound_is_measured_in_full():
    latency = Latency(IMAGES)
    upper, both = (Costs(Supernet(Net()), [Limit(latency, 1e-9, at_least=low)]) for low in (None, 1e-10))
    fingerprints = [costs.state_dict()["measures"][0] for costs in (upper, both)]
    assert fingerprints == [f"{latency.fingerprint}, under 1e-09", latency.fingerprint]


@pytest.mark.parametrize("limits", [Limit(parameters, 10), [(parameters, 10)], [parameters], 10, None])
def test_limits_are_a_list_of_limits(limits):
    with pytest.raises(
        ValueError, match=r"limits must be a list of limits, such as \[Limit\(parameters, 100_000\)\], got "
    ):
        Costs(Supernet(Net()), limits)


def test_a_limit_needs_a_function():
    with pytest.raises(ValueError, match=r"a limit needs a function \(model, values\) -> number, got 100"):
        Limit(100, 100)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got the class Flops; make one, such as Flops\(example_input\)"):
        Limit(Flops, 100)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^measure is called as measure\(model, values\), but takes \(values\)$"):
        Limit(lambda values: values["depth"], 3)  # type: ignore[arg-type, misc]


def test_a_fingerprint_is_text():
    def energy(model, values):
        return 1.0

    energy.fingerprint = object()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"the fingerprint of energy must be text, got <object"):
        Limit(energy, 1)


def test_limits_are_named_after_their_measure():
    assert [Limit(measure, 1).name for measure in (parameters, Flops(IMAGES), Latency(IMAGES))] == [
        "parameters",
        "Flops",
        "Latency (s)",
    ]
    assert Limit(parameters, 1, name="size").name == "size"


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_out_of_memory_in_a_measure_is_infeasible(error):
    class Hungry(nn.Module):
        def forward(self, x):
            raise error("no memory")

    model = nn.Sequential(OneOf("op", {"small": nn.Identity(), "large": Hungry()}))
    costs = Costs(Supernet(model), [Limit(Flops(torch.zeros(1, 3)), 10)])
    assert costs.violation({"op": "small"}) == FEASIBLE
    with pytest.warns(UserWarning, match=r"Flops of the architecture \{'op': 'large'\} ran out of memory"):
        assert costs.violation({"op": "large"}).amount == math.inf


def test_a_measure_that_writes_into_its_values_changes_no_candidate():
    def measure(model, values):
        width = values["w"]
        values["w"] = 4
        return width

    costs = Costs(Supernet(Linear(3, Width("w", [2, 4]))), [Limit(measure, 4)])
    values = {"w": 2}
    assert costs.measure(values) == (2.0,)
    assert values == {"w": 2}


BUFFERS = {
    "expanded": lambda: torch.arange(4.0).expand(3, -1),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "of inference mode": torch.inference_mode()(lambda: torch.ones(3)),
}


@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
def test_models_with_any_buffers_are_measured(buffer):
    model = nn.Sequential(Linear(3, Width("w", [2, 4])), nn.ReLU(inplace=True))
    model.register_buffer("b", buffer(), persistent=False)
    limits = [Limit(lambda model, values: values["w"], 4), Limit(Flops(torch.ones(1, 3)), 100)]
    assert Costs(Supernet(model), limits).measure({"w": 2})[0] == 2.0
