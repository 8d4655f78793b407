"""How sure a search is of its result: certainty, decisions without effect, and searches that were too short."""

# mypy: disable-error-code="index, union-attr"

import math
import random

import pytest
import torch
from torch import nn

from asng import ASNG, Bounds, Categorical, Integer, RandomSearch, Real, Variable
from asng._convergence import NOISE
from asng.nas import OneOf, OneShot, Repeat, Value, result, selected, space_of, top
from asng.nas.result import sharpest_distribution
from tests.helpers.searches import Net, Switch, run_search

pytestmark = pytest.mark.usefixtures("same_numbers")


class Values(nn.Module):
    """Decisions of any variables."""

    def __init__(self, **variables):
        super().__init__()
        self.decisions = nn.ModuleList(Value(name, variable) for name, variable in variables.items())
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.weight * x


def oneshot(model, loss=lambda values: 0.0, seed=0, **settings):
    return OneShot(
        model,
        ASNG(space_of(model), seed=seed, **settings),
        torch.optim.SGD(model.parameters(), 0.0),
        lambda model, x: model(x).sum(),
        judge=lambda model, x: loss(selected(model)),
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"a": Categorical([*"xy"])},
        {"a": Categorical([*"xyzuv"])},
        {name: Categorical([*"xyz"]) for name in "abcde"},
        {"a": Integer(1, 9), "b": Categorical([*"xy"])},
    ],
    ids=["one of two", "one of five", "five of three", "mixed"],
)
def test_certainty_goes_from_0_to_1_as_a_clear_search_converges(variables):
    def loss(values):
        return sum(value != next(iter(variables[name].values())) for name, value in values.items())

    search = oneshot(Values(**variables), loss)
    assert top(search)[0].certainty == pytest.approx(0.0, abs=1e-9)
    for _ in range(600):
        search.judge_step(torch.ones(1))
    found = result(search)
    assert found.certainty > 0.9
    assert found.probability < 0.97  # which says less


class Power(Variable):
    """1, 2, 4 or 8, with a distribution of the exponent."""

    def marginal(self):
        return Bounds(0, 3, 0.25)

    def decode(self, x):
        return 2 ** round(min(max(x, 0), 3))

    def contains(self, value):
        return value in self.values()

    def values(self):
        return [1, 2, 4, 8]

    def to_internal(self, prior):
        return prior

    def to_external(self, params):
        return params


def test_the_sharpest_distribution_is_where_projections_end():
    space = {"a": Categorical([*"xyz"]), "b": Categorical([*"uv"]), "n": Integer(1, 9), "r": Real(0.0, 1.0)}
    sharpest = sharpest_distribution(space, {"a": "y", "b": "u", "n": 7, "r": 0.1})
    assert sharpest["a"] == pytest.approx([0.25, 0.5, 0.25])  # 1 / (n (m - 1)) for the others
    assert sharpest["b"] == pytest.approx([0.75, 0.25])
    assert sharpest["n"] == (7.0, 0.25)
    for n in (0, 7, 10**6):
        assert sharpest_distribution({"n": Integer(0, 10**6)}, {"n": n})["n"] == pytest.approx((n, 0.5), rel=1e-3)
    assert sharpest_distribution({"n": Integer(10**6, 10**6 + 9)}, {"n": 10**6 + 3})["n"] == (10**6 + 3, 0.25)
    for exponent in range(4):
        assert sharpest_distribution({"w": Power()}, {"w": 2**exponent})["w"] == (exponent, 0.25)


def test_real_variables_alone_have_no_certainty():
    (found,) = top(oneshot(Values(r=Real(0.0, 1.0))))
    assert math.isnan(found.certainty)


def test_values_that_became_less_likely_have_a_certainty_of_0():
    search = oneshot(Values(a=Categorical([*"xyz"])), initial={"a": [0.6, 0.2, 0.2]})
    first, *others = top(search, k=3)
    assert first.certainty > 0
    assert [other.certainty for other in others] == [0.0, 0.0]


# Decisions without effect --------------------------------------------------------------------------


def shallow():
    """A search in which one block is likely, so that the choice of the second one has no effect."""
    blocks = [nn.Sequential(nn.Linear(4, 4), OneOf(f"op{i}", [nn.ReLU(), nn.Tanh()])) for i in range(2)]
    model = nn.Sequential(Repeat("depth", blocks), nn.Linear(4, 3))
    return oneshot(model, initial={"depth": (1, 0.25)})


def test_decisions_without_effect_are_named_in_all_results():
    search = shallow()
    (likely,) = top(search)
    assert likely.values["depth"] == 1
    assert likely.inactive == result(search).inactive == ("op1",)
    deep = next(a for a in top(search, k=8) if a.values["depth"] == 2)
    assert deep.inactive == ()


def test_a_result_is_printed_as_a_table_that_marks_them():
    found = result(shallow())
    lines = str(found).splitlines()
    assert lines[0].split() == ["decision", "value", "probability", "at", "most", "others"]
    assert lines[3].split() == ["op1", str(found.values["op1"]), "without", "effect"]
    assert [float(number) <= 1 for number in lines[1].split()[2:4]] == [True, True]
    assert lines[-1] == f"probability {found.probability:.3g}, certainty {found.certainty:.2f}"
    assert all(line == line.rstrip() for line in lines)


def test_a_table_shows_real_numbers_by_their_distribution():
    found = result(oneshot(Values(rate=Real(0.0, 1.0)), initial={"rate": (0.12345678, 0.5)}))
    assert str(found).splitlines()[1].split() == ["rate", "0.123457", "mean", "0.1235,", "std", "0.5"]


def test_a_table_shows_the_other_choices_the_likeliest_first():
    model = Values(op=Categorical(["a", "b", "c", "d", "e"]), size=Integer(1, 5))
    initial = {"op": [0.1, 0.2, 0.4, 0.15, 0.15], "size": (2.0, 1.5)}
    found = result(oneshot(model, initial=initial))
    op, size = str(found).splitlines()[1:3]
    assert op.endswith("b 0.200, d 0.150, e 0.150, ...")
    assert size.endswith("mean 2, std 1.5")


def test_a_result_prints_its_epochs_of_many_ten_with_first_and_last():
    history = [{"epoch": number, "train_loss": 1 / number} for number in range(1, 101)]
    search = shallow()
    tables = repr(result(search, history)).split("\n\n")
    header, *lines = tables[-2].splitlines()
    assert header == "epoch  train loss"
    assert (len(lines), lines[0].split(), lines[-1].split()) == (10, ["1", "1"], ["100", "0.01"])
    assert tables[-1] == "10 of 100 epochs; result.history has all"
    assert f"<p>{tables[-1]}</p>" in result(search, history)._repr_html_()
    assert repr(result(search)) == "\n\n".join(tables[:-2])
    assert len(repr(result(search, history[:10])).split("\n\n")[-1].splitlines()) == 11


def test_a_result_with_batch_norms_says_what_evaluation_needs_until_its_network_is_in_evaluation_mode():
    note = "before model.eval() call nas.recalibrate(model, batches)"
    found = result(oneshot(nn.Sequential(nn.BatchNorm1d(1), *Net().children())))
    assert note in repr(found)
    assert note in found._repr_html_()
    found.model.eval()
    assert note not in repr(found)
    without = oneshot(nn.Sequential(nn.BatchNorm1d(1, track_running_stats=False), *Net().children()))
    assert note not in repr(result(without))


# Searches that are too short -----------------------------------------------------------------------


def test_a_search_that_is_too_short_is_warned_of():
    message = r"too short: its certainty is 0\.\d\d of 1 after 5 steps, and 2 decisions such as these take at least 20;"
    with pytest.warns(UserWarning, match=message) as caught:
        run_search(epochs=1)
    assert caught[0].filename.endswith("searches.py")  # where search was called


def test_a_search_whose_candidates_all_had_the_same_score_is_warned_of():
    """More epochs would not help."""
    message = (
        "the distribution has not moved: in each of 5 steps all candidates had the same score; check that the loss"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        run_search(epochs=1, judge=lambda model, batch: (model(batch[0]), 0.5)[1])
    assert len(caught) == 1


@pytest.mark.filterwarnings("error:the search was too short")
def test_longer_searches_stopped_ones_and_random_ones_are_not_warned_of():
    run_search(epochs=4)
    run_search(epochs=9, callback=lambda record: isinstance(record, dict))
    model = Net()
    run_search(model, arch_optimizer=RandomSearch(space_of(model), seed=0), epochs=1)
    four, judge = [torch.ones(3)] * 4, lambda model, x: selected(model)["which"]
    found = run_search(Switch(), four, [*four], lambda model, x: model(x), judge=judge, epochs=1)
    assert found.certainty == 1  # a short one, but sure


# Noise ---------------------------------------------------------------------------------------------


def certainty_and_delta(score, seed):
    """Of a search of 600 steps on three decisions of three choices."""
    search = oneshot(Values(**{name: Categorical([*"xyz"]) for name in "abc"}), score, seed=seed)
    for _ in range(600):
        search.judge_step(torch.ones(1))
    return top(search)[0].certainty, search.arch_optimizer.delta


def test_noise_makes_certain_and_the_step_size_tells_it():
    dice = random.Random(0)
    found = [certainty_and_delta(lambda values: dice.random(), seed) for seed in range(6)]
    clear = certainty_and_delta(lambda values: sum(value != "x" for value in values.values()), 0)
    assert sum(number for number, _ in found) / 6 > 0.4
    assert sorted(delta * 600 / math.sqrt(6) for _, delta in found)[3] < NOISE < clear[1] * 600 / math.sqrt(6)


def noisy_search(judge):
    ten = [torch.ones(3)] * 10
    return run_search(Switch(), ten, [*ten], lambda model, x: model(x), judge=judge, epochs=10)


def test_a_search_on_noise_is_warned_of_and_one_with_a_difference_is_not():
    dice = random.Random(0)
    with pytest.warns(
        UserWarning,
        match=r"mostly noise: the step size delta fell to 0\.0\d+ in 100 steps, .* population_size=4\), or use",
    ):
        noisy_search(lambda model, x: dice.random())
    noisy_search(lambda model, x: dice.random() + 2 * selected(model)["which"])  # a warning would be an error


def test_top_of_a_model_is_refused_with_the_cure():
    for given in (Net(), None):
        with pytest.raises(
            ValueError, match=rf"what nas\.search or nas\.result returned, got a {type(given).__name__}$"
        ):
            top(given)  # type: ignore[arg-type]
