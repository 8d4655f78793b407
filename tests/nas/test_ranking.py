"""After a search: scores with shared weights, the best of the likely architectures, and Pareto fronts."""

# mypy: disable-error-code="index, union-attr, operator, type-var, arg-type"

import copy
import io
import math
import pickle
import sys
from functools import partial

import pytest
import torch
from torch import nn

from asng import ASNG, Categorical, Integer, RandomSearch, nas
from asng.nas import (
    Architecture,
    Flops,
    Front,
    Limit,
    OneShot,
    Value,
    Width,
    extract,
    front,
    parameters,
    recalibrate,
    rerank,
    result,
    score,
    select,
    selected,
    space_of,
    top,
)
from asng.nas.ranking import _find_nondominated
from tests.helpers.searches import Net, batches, cross_entropy, make_oneshot, pairs, run_search

pytestmark = pytest.mark.usefixtures("same_numbers")

VALUES = {"first": 0, "depth": 2}


def train_briefly(**settings):
    """A short search on a model with dropout and batch norm."""
    search = make_oneshot(Net(norm=True), **settings)
    for pair in pairs(20):
        search.step(*pair)
    return search


# One score -----------------------------------------------------------------------------------------


def test_a_score_with_recalibration_is_that_of_the_extracted_network():
    model = train_briefly().model
    network = extract(model, VALUES)
    recalibrate(network, batches(5))
    network.eval()
    with torch.no_grad():
        expected = [cross_entropy(network, batch).item() for batch in batches(3, 2)]
    got = score(model, VALUES, batches(3, 2), cross_entropy, recalibrate_on=batches(5))
    assert got == pytest.approx(sum(expected) / 3)


def test_batches_to_recalibrate_on_are_those_of_the_judge():
    model = train_briefly().model

    def judge(model, batch):
        return cross_entropy(model, batch["pair"])

    named, more = ([{"pair": pair} for pair in batches(n)] for n in (3, 5))
    expected = score(model, VALUES, batches(3), cross_entropy, recalibrate_on=batches(5))
    assert score(model, VALUES, named, judge, recalibrate_on=more) == expected
    with pytest.raises(KeyError) as caught:
        score(model, VALUES, named, judge, recalibrate_on=[{}])
    assert caught.value.__notes__ == [f"in the architecture {VALUES}"]


@pytest.mark.parametrize("recalibrate_on", [None, batches(3)])
def test_a_judge_that_calls_eval_gets_the_same_statistics(recalibrate_on):
    model = train_briefly().model

    def judge(model, batch):
        return cross_entropy(model.eval(), batch)

    scores = [score(model, VALUES, batches(2), one, recalibrate_on=recalibrate_on) for one in (judge, cross_entropy)]
    assert scores[0] == scores[1]


def test_a_search_or_its_result_is_scored_as_its_model():
    search = train_briefly()
    expected = score(search.model, VALUES, batches(2), cross_entropy)
    assert [score(one, VALUES, batches(2), cross_entropy) for one in (search, result(search))] == [expected] * 2


def test_elastic_norms_are_recalibrated_for_each_width():
    width = Width("w", [2, 5, 8])
    model = nn.Sequential(nas.Linear(4, width), nas.BatchNorm1d(width), nn.ReLU(), nas.Linear(width, 3))
    search = make_oneshot(model)
    for pair in pairs(5):
        search.step(*pair)
    for values in ({"w": 2}, {"w": 5}, {"w": 8}):
        network = extract(model, values)
        recalibrate(network, batches(3))
        network.eval()
        with torch.no_grad():
            expected = cross_entropy(network, batches(1, 2)[0]).item()
        got = score(model, values, batches(1, 2), cross_entropy, recalibrate_on=batches(3))
        assert got == pytest.approx(expected)


def test_a_score_without_recalibration_uses_batch_statistics_and_no_dropout():
    model = train_briefly().model
    twin = copy.deepcopy(model).eval()
    for module in twin.modules():
        module.train(isinstance(module, nn.BatchNorm1d))
    select(twin, VALUES)
    with torch.no_grad():
        expected = cross_entropy(twin, batches(1)[0]).item()
    assert score(model, VALUES, batches(1), cross_entropy) == pytest.approx(expected)


@pytest.mark.parametrize("recalibrate_on", [None, batches(2)])
def test_scoring_leaves_the_model_and_its_random_numbers_alone(recalibrate_on):
    model = train_briefly().model
    select(model, {"first": 2, "depth": 1})
    model.head.weight.grad = gradient = torch.ones_like(model.head.weight)
    modes = [module.training for module in model.modules()]
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    score(model, VALUES, batches(2), lambda model, batch: torch.rand(()), recalibrate_on=recalibrate_on)
    assert selected(model) == {"first": 2, "depth": 1}
    assert [module.training for module in model.modules()] == modes
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), rng)
    assert model.head.weight.grad is gradient


def test_norms_that_were_frozen_stay_so():
    model = train_briefly().model
    model.train()
    frozen = model.blocks.blocks[0][1].eval()
    seen = []

    def judge(model, batch):
        seen.append([m.training for m in model.modules() if isinstance(m, nn.BatchNorm1d)])
        return 0

    score(model, VALUES, batches(1), judge)
    assert seen == [[False, True, True]]
    before = frozen.running_mean.clone()
    means = []
    score(
        model,
        VALUES,
        batches(1),
        lambda model, batch: means.append(frozen.running_mean.clone()) or 0,  # type: ignore[func-returns-value]
        recalibrate_on=batches(2),
    )
    assert torch.equal(means[0], before)


def test_a_judge_that_scores_reads_the_values_and_returns_any_number():
    seen = []

    def judge(model, batch):
        seen.append(selected(model))
        return len(seen), {"rows": 8}

    assert score(Net(), VALUES, batches(3), judge) == 2.0
    assert seen == [VALUES] * 3


def test_wrong_values_judges_and_batches_are_refused():
    with pytest.raises(ValueError, match="no batches to score on; an iterator may be used up"):
        score(Net(), VALUES, [], cross_entropy)
    with pytest.raises(ValueError, match="'depth'"):
        score(Net(), {"first": 0}, batches(1), cross_entropy)
    with pytest.raises(ValueError, match="must return a number, the lower the better") as caught:
        score(Net(), VALUES, batches(1), lambda model, batch: None)
    assert caught.value.__notes__ == [f"in the architecture {VALUES}"]


# The second stage ----------------------------------------------------------------------------------


def test_the_likely_architectures_are_ordered_by_their_scores():
    search = train_briefly()
    ranked = rerank(search, batches(3, 2), cross_entropy, k=5, recalibrate_on=batches(3))
    assert [a.score for a in ranked] == sorted(a.score for a in ranked)
    assert {str(a.values) for a in ranked} == {str(a.values) for a in top(search, 5)}
    best = ranked[0]
    assert best.score == score(search.model, best.values, batches(3, 2), cross_entropy, recalibrate_on=batches(3))


def test_an_architecture_without_a_score_comes_last():
    ranked = rerank(
        train_briefly(), batches(1), lambda model, batch: math.nan if selected(model)["depth"] == 1 else 1.0, k=9
    )
    depths = [a.values["depth"] for a in ranked]
    assert 1 in depths
    assert 1 not in depths[: len(depths) - depths.count(1)]


def test_only_feasible_architectures_are_ranked():
    search = train_briefly(limits=[Limit(lambda model, values: values["depth"], 1, name="depth")])
    assert {a.values["depth"] for a in rerank(search, batches(1), cross_entropy, k=9)} == {1}


def test_candidates_are_scored_in_the_precision_of_the_search():
    seen = set()

    def judge(model, batch):
        seen.add(model(batch[0]).dtype)
        return 0

    rerank(make_oneshot(amp_dtype=torch.bfloat16), batches(1), judge)
    assert seen == {torch.bfloat16}


def test_batches_that_end_after_one_architecture_are_refused():
    for function in (rerank, lambda search, *rest: front(search, [parameters], *rest)):
        with pytest.raises(ValueError, match=r"the batches are an iterator \(list_iterator\), .*; pass a list"):
            function(make_oneshot(), iter(batches(2)), cross_entropy)


# Fronts --------------------------------------------------------------------------------------------


class Line(nn.Module):
    """Some numbers."""

    def __init__(self, decisions=4, high=6):
        super().__init__()
        self.units = nn.ModuleList(Value(f"units{i}", Integer(1, high)) for i in range(decisions))
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.weight * x


def total(model, values):
    return sum(values.values())


def inverses(model, batch):
    """For each total the smallest where the numbers differ by at most 1."""
    return sum(1 / value for value in selected(model).values())


def line_oneshot(**settings):
    model = Line()
    weights = torch.optim.SGD(model.parameters(), 0.1)
    return OneShot(model, ASNG(space_of(model), seed=0), weights, lambda model, x: model(x).sum(), **settings)


def test_a_small_space_gives_the_whole_front():
    search = train_briefly()
    found = front(search, [parameters], batches(2), cross_entropy, k=50)
    every = [*found.points, *found.others]
    assert len(every) == 9
    for a in every:
        assert a.costs == (parameters(search.model, a.values),)
        assert a.score == score(search.model, a.values, batches(2), cross_entropy)
        is_beaten = any(
            b.score <= a.score and b.costs <= a.costs and (b.score, b.costs) != (a.score, a.costs) for b in every
        )
        assert (a in found.others) == is_beaten
    assert list(found.points) == sorted(found.points, key=lambda a: a.costs)


def area(points):
    """What a front leaves below the worst point; the more, the better."""
    corners = sorted((a.costs[0], a.score) for a in points)
    ends = [cost for cost, _ in corners[1:]] + [72]
    return sum((end - cost) * (12 - number) for (cost, number), end in zip(corners, ends, strict=True))


def test_a_front_is_better_than_that_of_random_draws():
    model = Line(decisions=12)
    weights = torch.optim.SGD(model.parameters(), 0.1)
    search = OneShot(model, ASNG(space_of(model), seed=0), weights, lambda model, x: model(x).sum(), judge=inverses)
    for _ in range(50):
        search.step(torch.ones(1), torch.ones(1))
    found = front(search, [total], [torch.ones(1)], inverses, k=200)
    assert len(found.points) + len(found.others) == 200
    drawn = [candidate.values for candidate in RandomSearch(space_of(model), seed=1).ask(200)]
    random = [
        Architecture(values, 0, True, score=sum(1 / n for n in values.values()), costs=(sum(values.values()),))
        for values in drawn
    ]
    assert area(found.points) > 1.02 * area(_find_nondominated(random))


def test_fronts_of_several_measures_keep_what_is_best_in_any():
    def small(model, values):
        return 10 - values["units0"]

    found = front(line_oneshot(), [total, small], [torch.ones(1)], inverses, k=60)
    assert found.measures == ("total", "small")
    assert min(a.costs[1] for a in found.points) == min(a.costs[1] for a in [*found.points, *found.others])


def test_a_front_meets_the_limits_and_is_the_same_again():
    search = line_oneshot(limits=[Limit(total, 12)])
    found = front(search, [total], [torch.ones(1)], inverses, k=20)
    assert max(a.costs[0] for a in [*found.points, *found.others]) <= 12
    assert repr(front(search, [total], [torch.ones(1)], inverses, k=20)) == repr(found)


def test_scores_that_are_not_finite_are_never_on_a_front():
    found = front(
        line_oneshot(), [total], [torch.ones(1)], lambda m, b: math.nan if total(m, selected(m)) < 12 else 1.0, k=40
    )
    assert [a.costs[0] >= 12 for a in found.points] == [True] * len(found.points) != []


def test_a_front_is_printed_as_a_table():
    found = front(train_briefly(), [parameters, Flops(batches(1)[0][0])], batches(1), cross_entropy)
    header, *lines = str(found).splitlines()
    assert header.split() == ["score", "parameters", "Flops", "probability", "values"]
    assert len(lines) == len(found.points)
    assert lines[0].endswith(str(found.points[0].values))


def test_a_benefit_on_a_front_is_a_negative_cost():
    found = front(
        line_oneshot(), [lambda model, values: -total(model, values)], [torch.ones(1)], lambda m, b: 1.0, k=40
    )
    (point,) = found.points
    assert point.costs[0] == min(a.costs[0] for a in [point, *found.others]) < 0


@pytest.mark.parametrize("measures", [[], parameters, None])
def test_a_front_needs_measures(measures):
    with pytest.raises(ValueError, match=r"a front needs a list of measures, such as \[nas\.parameters\]"):
        front(make_oneshot(), measures, batches(1), cross_entropy)


def test_a_result_stands_for_its_search():
    limits = [Limit(lambda model, values: values["depth"], 2, name="depth")]
    found = run_search(Net(norm=True), limits=limits, epochs=1)
    search = found.oneshot
    data = batches(2)
    assert top(found, 3) == top(search, 3)
    assert {a.values["depth"] for a in top(found, 9)} == {1, 2}
    assert rerank(found, data, cross_entropy, k=3) == rerank(search, data, cross_entropy, k=3)
    assert repr(front(found, [parameters], data, cross_entropy, k=5)) == repr(
        front(search, [parameters], data, cross_entropy, k=5)
    )
    assert result(found).values == found.values


def test_a_copied_or_loaded_result_has_no_search():
    found = result(make_oneshot(loss_fn=lambda model, batch: model(batch[0]).sum()))
    for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert (other.values, repr(other)) == (found.values, repr(found))
        with pytest.raises(ValueError, match="does not hold its search; pass the one"):
            top(other)


def test_networks_that_sizes_are_rounded_to_are_listed_once():
    size = (Width("width", [8, 16]) * Value("ratio", Categorical([0.5, 0.6, 1.0]))).round_to(8)
    search = make_oneshot(nn.Sequential(nas.Linear(4, size), nn.ReLU(), nas.Linear(size, 3)))
    found = front(search, [parameters], batches(1), cross_entropy, k=9)
    for listed in (top(search, 9), rerank(search, batches(1), cross_entropy, k=9), [*found.points, *found.others]):
        sizes = [extract(search.model, a.values)[0].out_features for a in listed]
        assert sorted(sizes) == [8, 16]


def test_architectures_print_rounded_and_without_what_is_not_set():
    architecture = Architecture({"rate": 1 / 3, "op": "relu"}, 0.1 + 0.2, True, certainty=2 / 3, costs=(10.0,))
    shown = "{'rate': 0.333333, 'op': 'relu'}, probability=0.3, feasible=True, certainty=0.666667, costs=(10.0,)"
    assert repr(architecture) == f"Architecture(values={shown})"
    table = str(Front((architecture._replace(score=0.5),), (), ("parameters",)))
    assert table.endswith("{'rate': 0.333333, 'op': 'relu'}")


def test_a_front_recalibrates_each_architecture_where_told_to():
    oneshot, data = train_briefly(), batches(2)
    found = front(oneshot, [parameters], data, cross_entropy, k=3, recalibrate_on=batches(3))
    scored = [*found.points, *found.others]
    for recalibrate_on, is_equal in ((batches(3), True), (None, False)):
        scores = [score(oneshot.model, a.values, data, cross_entropy, recalibrate_on=recalibrate_on) for a in scored]
        assert ([a.score for a in scored] == scores) is is_equal


def test_a_front_without_feasible_architectures_is_an_error():
    search = line_oneshot(limits=[Limit(total, 1)])
    with pytest.raises(ValueError, match="no architecture was found that meets the limits; widen them"):
        front(search, [total], [torch.ones(1)], inverses, k=5)


def test_a_search_goes_on_as_if_nothing_was_ranked():
    model = Net(norm=True, dropout=0)
    plain, ranked = make_oneshot(model), make_oneshot(copy.deepcopy(model))
    for pair in pairs(5):
        assert ranked.step(*pair) == plain.step(*pair)
        rng = torch.get_rng_state()
        rerank(ranked, batches(1), cross_entropy, k=2, recalibrate_on=batches(1))
        front(ranked, [parameters], batches(1), cross_entropy, k=3)
        assert torch.equal(torch.get_rng_state(), rng)
    torch.testing.assert_close(ranked.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


# Progress ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("progress", [True, False])
@pytest.mark.parametrize(("rank_by", "title"), [(rerank, "rerank"), (partial(front, measures=[parameters]), "front")])
def test_progress_is_shown_after_a_second_if_wanted(rank_by, title, progress, is_terminal, monkeypatch):
    text, now = io.StringIO(), 0.0
    monkeypatch.setattr(text, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", text)
    monkeypatch.setitem(sys.modules, "rich.console", None)  # lines instead of a bar
    monkeypatch.setattr("time.monotonic", lambda: now)

    def third_of_a_second(model, batch):
        nonlocal now
        now += 1 / 3
        return cross_entropy(model, batch)

    rank_by(train_briefly(), batches=batches(1), judge=third_of_a_second, k=6, progress=progress)
    assert text.getvalue().splitlines() == ([f"{title}: {tenth} %" for tenth in (50, 60, 80, 100)] if progress else [])


@pytest.mark.parametrize("rank_by", [rerank, partial(front, measures=[parameters])])
def test_progress_is_true_or_false(rank_by):
    with pytest.raises(ValueError, match="progress must be True or False, got 1"):
        rank_by(make_oneshot(), batches=batches(1), judge=cross_entropy, progress=1)
