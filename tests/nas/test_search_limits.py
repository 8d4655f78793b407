"""Searches under limits: infeasible candidates never run, and the result is feasible, or as near as possible."""
# mypy: disable-error-code="func-returns-value, misc, method-assign"

import copy
import itertools
import json
import math
import re
from fractions import Fraction

import pytest
import torch
from torch import nn

from asng import ASNG, Categorical, nas
from asng.nas import Limit, OneShot, Value, Width, parameters, result, space_of, top
from tests.helpers.searches import Net, Scripted, Switch, cross_entropy, make_oneshot, pairs, run_search

pytestmark = pytest.mark.usefixtures("same_numbers")

# Steps ---------------------------------------------------------------------------------------------


def test_infeasible_candidates_rank_behind_all_feasible_and_never_run():
    ran, told = [], []

    def loss(model, batch):
        ran.append({m.name: m.value for m in model.modules() if hasattr(m, "variable")})
        return cross_entropy(model, batch)

    limits = [
        Limit(lambda model, values: values["depth"], 2, name="depth"),
        Limit(lambda model, values: 1 + values["first"], 2, name="first"),
    ]
    oneshot = make_oneshot(population_size=6, loss_fn=loss, limits=limits)
    tell = oneshot.arch_optimizer.tell
    oneshot.arch_optimizer.tell = lambda c, losses, active=None: told.append(list(losses)) or tell(c, losses)
    infeasible = 0
    for train, valid in pairs(15):
        ran.clear()
        step = oneshot.step(train, valid)
        by_depth = [max(0.0, values["depth"] / 2 - 1) for values in step.candidates]
        by_first = [max(0.0, (1 + values["first"]) / 2 - 1) for values in step.candidates]
        expected = [deep or first for deep, first in zip(by_depth, by_first, strict=True)]
        assert list(step.violations) == expected
        assert all(values["depth"] <= 2 and values["first"] <= 1 for values in ran)
        feasible = [values for values, violated in zip(step.candidates, expected, strict=True) if not violated]
        assert ran[len(step.train_losses) :] == feasible
        assert [loss is None for loss in step.valid_losses] == [violated > 0 for violated in expected]
        key = [
            (deep > 0, violated, 0.0 if loss is None else loss)
            for loss, violated, deep in zip(step.valid_losses, expected, by_depth, strict=True)
        ]
        order = sorted(range(6), key=lambda place: key[place])
        by_told = [told[-1][place] for place in order]
        assert by_told == sorted(by_told)
        distinct = [key[place] for place in order]
        assert [a < b for a, b in itertools.pairwise(by_told)] == [a < b for a, b in itertools.pairwise(distinct)]
        infeasible += len(expected) - len(feasible)
    assert infeasible > 5


def test_feasible_without_a_finite_loss_ranks_before_infeasible():
    told = []
    model = Switch(3)
    arch_optimizer = Scripted(space_of(model), population_size=4, seed=0)
    arch_optimizer.script = [0] * 4 + [2, 1, 0, 0]
    tell = arch_optimizer.tell
    arch_optimizer.tell = lambda c, losses, active=None: told.extend(losses) or tell(c, losses)
    limit = Limit(lambda model, values: 1 + values["which"], 2)

    def loss(model, x):
        return model(x) * (math.nan if model.which.value == 1 else 1)

    OneShot(model, arch_optimizer, torch.optim.SGD(model.parameters(), 0.1), loss, limits=[limit]).step(
        torch.ones(3), torch.full((3,), 1e37)
    )
    assert told[2] == told[3] < told[1] < told[0]  # however large a loss is


def test_the_weights_are_trained_by_as_many_candidates_as_without_limits():
    oneshot = make_oneshot(
        Switch(5), population_size=4, loss_fn=lambda model, x: model(x), limits=[Limit(lambda m, v: 1 + v["which"], 1)]
    )
    for _ in range(5):
        assert len(oneshot.step(torch.ones(3), torch.ones(3)).train_losses) == 4  # others are drawn for those outside


def test_touched_weights_rest_in_a_step_without_feasible_candidates():
    model = Switch()
    arch_optimizer = Scripted(space_of(model), seed=0)
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    limit = Limit(lambda model, values: 1 + values["which"], 1)
    oneshot = OneShot(model, arch_optimizer, weight_optimizer, lambda model, x: model(x), limits=[limit])
    arch_optimizer.script = [0] * 4
    oneshot.step(torch.ones(3), torch.ones(3))
    before = copy.deepcopy(model.state_dict())
    arch_optimizer.script = [1] * 1000
    assert oneshot.step(torch.ones(3), torch.ones(3)).train_losses == ()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_best_stays_a_loss_under_limits():
    oneshot = make_oneshot(population_size=4, limits=[Limit(lambda model, values: values["depth"], 1)])
    for train, valid in pairs(10):
        oneshot.step(train, valid)
    assert oneshot.arch_optimizer.best is not None
    assert oneshot.arch_optimizer.best.values["depth"] == 1
    assert 0 < oneshot.arch_optimizer.best.loss < 10


def test_where_none_is_feasible_weights_stay_and_violations_rank():
    model = Net()
    oneshot = make_oneshot(model, limits=[Limit(lambda model, values: 9 + values["depth"] + values["first"], 9)])
    before = copy.deepcopy(model.state_dict())
    for train, valid in pairs(150):
        step = oneshot.step(train, valid)
        assert step.train_losses == ()
        assert step.valid_losses == (None, None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert oneshot.arch_optimizer.mode() == {"first": 0, "depth": 1}
    nearest = oneshot.costs.nearest()
    assert nearest == {"first": 0, "depth": 1}


def test_costs_are_measured_once_per_architecture():
    measured = []

    def cost(model, values):
        measured.append(json.dumps(values))
        return parameters(model, values)

    cost.fingerprint = "as often as it was asked"  # type: ignore[attr-defined]
    oneshot = make_oneshot(limits=[Limit(cost, 200)])
    for train, valid in pairs(30):
        oneshot.step(train, valid)
    assert len(measured) == len(set(measured)) <= 9
    state = oneshot.state_dict()
    again = make_oneshot(limits=[Limit(cost, 200)])
    again.load_state_dict(state)
    again.is_feasible({"first": 0, "depth": 1})
    assert len(measured) == len(set(measured))  # nor after a pause: a latency would be another
    again.load_state_dict(make_oneshot(limits=[Limit(cost, 200)]).state_dict())
    assert again.costs.known == {}  # exactly what was known there


# What is found -------------------------------------------------------------------------------------


def test_the_result_meets_every_limit():
    limits = [Limit(parameters, 150), Limit(lambda model, values: values["depth"], 2, name="depth")]
    result = run_search(epochs=6, limits=limits)
    assert result.feasible
    assert sum(p.numel() for p in result.model.parameters()) <= 150
    assert result.values["depth"] <= 2
    assert all(0 < record["feasible"] <= 1 for record in result.history)


class Free(nn.Module):
    """Any combination is as good as any other."""

    def __init__(self):
        super().__init__()
        self.choices = nn.ModuleList([Value(name, Categorical([0, 1])) for name in "abc"])
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self):
        return self.weight.sum()


def test_the_most_likely_feasible_architecture_is_taken():
    model = Free()
    likely = {"a": [0.34, 0.66], "b": [0.45, 0.55], "c": [0.4, 0.6]}
    arch_optimizer = ASNG(space_of(model), initial=likely, seed=0)
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = Limit(lambda model, values: sum(values.values()), 2)
    oneshot = OneShot(model, arch_optimizer, weight_optimizer, lambda model, _: model(), limits=[limit])
    before = arch_optimizer.state_dict()
    result = nas.result(oneshot)
    assert arch_optimizer.mode() == {"a": 1, "b": 1, "c": 1}
    assert result.values == {"a": 1, "b": 0, "c": 1}  # where the zero costs least
    a, b, c = (arch_optimizer.distribution()[name] for name in "abc")
    assert result.probability == pytest.approx(a[1] * b[0] * c[1])
    assert result.feasible
    assert arch_optimizer.state_dict() == before  # looking draws nothing


def test_one_feasible_architecture_in_two_hundred_is_drawn():
    model = Free()
    model.choices = nn.ModuleList([Value(name, Categorical(range(6))) for name in "abc"])
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = Limit(lambda model, values: 15 - sum(values.values()), 0.5)
    oneshot = OneShot(model, ASNG(space_of(model), seed=0), weight_optimizer, lambda model, _: model(), limits=[limit])
    (found,) = top(oneshot)
    assert (found.values, found.feasible) == ({"a": 5, "b": 5, "c": 5}, True)
    assert top(oneshot, 5) == [found]  # infeasible ones are not listed


def test_one_met_during_the_search_serves_where_draws_find_none():
    model = Free()
    names = [f"v{i}" for i in range(8)]
    model.choices = nn.ModuleList([Value(name, Categorical(range(6))) for name in names])
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    limit = Limit(lambda model, values: sum(5 - value for value in values.values()), 1)
    oneshot = OneShot(model, ASNG(space_of(model), seed=0), weight_optimizer, lambda model, _: model(), limits=[limit])
    rare = dict.fromkeys(names, 5)
    oneshot.is_feasible(rare)
    result = nas.result(oneshot)
    assert result.values == rare
    assert result.feasible


def test_where_none_is_feasible_a_warning_says_how_near_it_came(tmp_path):
    limits = [Limit(parameters, 50), Limit(lambda model, values: values["depth"], 2, name="depth")]
    smallest = parameters(Net(), {"first": 2, "depth": 1})
    message = rf"no architecture met all limits; the nearest has parameters {smallest} of at most 50\. Raise the limits"
    with pytest.warns(UserWarning, match="limits") as caught:
        result = run_search(epochs=8, limits=limits)
    first, last = caught  # after the first epoch, and at the end
    assert re.match(
        "no candidate of the first epoch met all limits, .*; the nearest has parameters", str(first.message)
    )
    assert re.match(message, str(last.message))
    assert last.filename == run_search.__code__.co_filename  # the caller's
    assert not result.feasible
    assert result.values == {"first": 2, "depth": 1}
    assert sum(p.numel() for p in result.model.parameters()) == smallest
    assert all(record["feasible"] == 0 for record in result.history)
    assert [limit["cost"] for limit in result.limits] == [smallest, None]  # the second one was never measured
    nearest = f"infeasible, the nearest to the limits of all measured: parameters {smallest} of at most 50"
    assert nearest in str(result).splitlines()


def test_a_result_prints_its_costs_without_measuring_them_again():
    measured = []

    def cost(model, values):
        measured.append(values)
        return values["depth"] / 8

    oneshot = make_oneshot(limits=[Limit(parameters, 200, at_least=10), Limit(cost, 0.3)])
    found = result(oneshot)
    measured.clear()
    line = f"feasible: parameters {parameters(oneshot.model, found.values)} of at least 10 and at most 200, "
    line += f"cost {found.values['depth'] / 8:g} of at most 0.3"
    assert line in str(found).splitlines()
    assert line in str(copy.deepcopy(found)).splitlines()  # which has no search to ask
    assert f"<p>{line}</p>" in found._repr_html_()
    assert found.limits[1] == {"name": "cost", "at_least": None, "at_most": 0.3, "cost": found.values["depth"] / 8}
    assert measured == []
    assert result(make_oneshot()).limits == []


def test_a_printed_latency_has_its_unit():
    batch = rows, _ = pairs(1)[0][0]
    found = result(make_oneshot(limits=[Limit(nas.Latency(rows), 60)]))
    assert re.search(r"^feasible: Latency \(s\) [\d.e-]+ of at most 60$", str(found), flags=re.MULTILINE)
    assert "Latency (s)" in str(nas.front(found, [nas.Latency(rows)], [batch], cross_entropy, k=1)).splitlines()[0]
    oneshot = make_oneshot(limits=[Limit(nas.Latency(rows), 1e-9)])
    with pytest.warns(UserWarning, match=r"no architecture met all limits; the nearest has Latency \(s\) "):
        result(oneshot)


def test_printed_costs_have_the_digits_that_decide():
    limits = [Limit(lambda model, values: 1_000_001, 1_000_000, name="cost"), Limit(parameters, Fraction(401, 2))]  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="the nearest has cost 1000001 of at most 1000000"):
        found = result(make_oneshot(limits=limits))
    nearest = "infeasible, the nearest to the limits of all measured: cost 1000001 of at most 1000000"
    assert nearest in str(found).splitlines()
    assert "of at most 200.5" in str(result(make_oneshot(limits=limits[1:])))


def test_a_target_is_met_from_both_sides():
    target = Limit(parameters, 200, at_least=150)
    oneshot = make_oneshot(limits=[target])
    for pair in pairs(20):
        step = oneshot.step(*pair)
        for values, violation in zip(step.candidates, step.violations, strict=True):
            assert (violation == 0) == (150 <= parameters(oneshot.model, values) <= 200)
    assert 150 <= parameters(oneshot.model, top(oneshot)[0].values) <= 200


def test_a_relation_between_decisions_is_a_limit():
    first, second = Width("first", 1, 9), Width("second", 1, 9)
    model = nn.Sequential(nas.Linear(4, first), nas.Linear(first, second), nas.Linear(second, 3))
    ordered = Limit(lambda model, values: values["second"] / values["first"], 1, name="second at most first")
    oneshot = make_oneshot(model, limits=[ordered])
    steps = [oneshot.step(*pair) for pair in pairs(20)]
    pairs_seen = [
        (v["first"], v["second"], s is None)
        for step in steps
        for v, s in zip(step.candidates, step.scores, strict=True)
    ]
    assert {is_infeasible for *_, is_infeasible in pairs_seen} == {True, False}
    assert all((second > first) == is_infeasible for first, second, is_infeasible in pairs_seen)


def test_an_unreachable_target_names_both_bounds():
    oneshot = make_oneshot(limits=[Limit(parameters, 1001, at_least=1000)])
    oneshot.step(*pairs(1)[0])
    with pytest.warns(UserWarning, match=r"the nearest has parameters \d+ of at least 1000 and at most 1001\. Widen"):
        assert not result(oneshot).feasible
