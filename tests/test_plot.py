"""Figures of results: what they draw."""

# mypy: disable-error-code="union-attr"

import io
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from asng import ASNG, Categorical, Custom, Integer, NormalFamily, Real, plot

pytest.importorskip("matplotlib")
nas = pytest.importorskip("asng.nas")


class Net(nn.Module):
    """Decisions of all kinds, of which the second operation may be without effect."""

    def __init__(self):
        super().__init__()
        self.width = nas.Value("width", Integer(1, 9))
        self.rate = nas.Value("rate", Real(0.001, 1.0, log=True))
        blocks = [nas.OneOf(f"op{index}", {"tanh": nn.Tanh(), "none": nn.Identity()}) for index in range(2)]
        self.body = nas.Repeat("depth", blocks)
        self.linear = nn.Linear(2, 1)

    def forward(self, x):
        return self.linear(self.body(x)) * self.rate.value * self.width.value


INITIAL = {"width": (3.0, 4.0), "rate": (0.01, 1.0), "depth": (1.2, 0.3), "op0": [0.7, 0.3], "op1": [0.4, 0.6]}


def loss_fn(model, x):
    return model(x).square().mean(), {"largest": x.max()}


def make_result(history=()):
    """A search that has not begun."""
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return nas.result(nas.OneShot(model, ASNG(nas.space_of(model), initial=INITIAL, seed=0), sgd, loss_fn), history)


def run_search(**settings):
    """A search of two epochs."""
    batches = [torch.ones(3, 2)] * 2
    return nas.search(Net(), batches, [*batches], loss_fn, epochs=2, progress=False, **settings)


def points_of(axes):
    """The points of each line of a panel, by label."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def panels(figure):
    """The panels of a figure by what their titles begin with."""
    return {axes.get_title().split(":")[0]: axes for axes in figure.axes}


# Over the epochs ------------------------------------------------------------------------------------


def test_a_history_has_a_panel_for_each_loss_metric_and_certainty():
    result = run_search()
    axes = panels(plot.history(result))
    assert list(axes) == ["loss", "largest", "largest probability"]
    for half in ("train", "valid"):
        assert points_of(axes["loss"])[half] == [[r["epoch"], r[f"{half}_loss"]] for r in result.history]
        assert points_of(axes["largest"])[half] == [[1, 1.0], [2, 1.0]]
    assert list(points_of(axes["largest probability"]).values()) == [
        [[r["epoch"], r["largest_probability"]] for r in result.history]
    ]


def test_a_history_shows_a_judges_score_and_the_feasible_share():
    result = run_search(judge=lambda model, x: model(x).abs().mean(), limits=[nas.Limit(nas.parameters, 100)])
    axes = panels(plot.history(result))
    assert points_of(axes["score"])["score"] == [[r["epoch"], r["score"]] for r in result.history]
    assert points_of(axes["feasible"])["feasible"] == [[1, 1.0], [2, 1.0]]
    assert list(points_of(axes["loss"])) == ["train"]


def test_an_epoch_without_a_number_is_a_gap():
    (axes,) = plot.history(make_result([{"train_loss": 3.0}, {}, {"train_loss": 1.0}])).axes
    (first, gap, last) = points_of(axes)["train"]
    assert [first, last] == [[1, 3.0], [3, 1.0]]
    assert math.isnan(gap[1])


def test_a_result_without_a_history_says_how_to_have_one():
    with pytest.raises(ValueError, match=r"history is empty; .* nas\.result\(oneshot, history\)"):
        plot.history(make_result())


def test_probabilities_are_drawn_over_the_epochs():
    result = run_search()
    axes = panels(plot.probabilities(result))
    assert list(axes) == list(result.values)
    for choice in ("tanh", "none"):
        assert points_of(axes["op0"])[choice] == [
            [r["epoch"], r["distribution"]["op0"][choice]] for r in result.history
        ]
    (mean,) = points_of(axes["width"]).values()
    assert mean == [[r["epoch"], r["distribution"]["width"]["mean"]] for r in result.history]
    last = result.arch_optimizer.distribution()
    assert mean[-1][1] == last["width"].mean
    assert points_of(axes["op0"])["tanh"][-1][1] == last["op0"][0]


def test_records_of_an_own_loop_may_hold_the_distributions_of_the_optimizer(tmp_path):
    result = make_result([{"distribution": make_result().arch_optimizer.distribution()}] * 2)
    axes = panels(plot.probabilities(result))
    assert points_of(axes["op0"])["tanh"] == [[1, pytest.approx(0.7)], [2, pytest.approx(0.7)]]
    assert list(points_of(axes["width"]).values()) == [[[1, 3.0], [2, 3.0]]]
    result.save(tmp_path / "run")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_history_without_distributions_is_refused():
    with pytest.raises(ValueError, match=r"no distributions; .*'distribution': arch_optimizer.distribution\(\)"):
        plot.probabilities(make_result([{"train_loss": 3.0}]))


# The distribution -----------------------------------------------------------------------------------


def test_choices_are_bars_with_the_chosen_one_in_color():
    axes = panels(plot.distribution(make_result()))["op0"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.7, 0.3])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["tanh", "none"]
    chosen, other = (bar.get_facecolor() for bar in axes.patches)
    assert chosen != other


def test_numbers_are_a_mean_and_a_spread_within_their_bounds():
    axes = panels(plot.distribution(make_result()))
    spread, mean = (line.get_xdata() for line in axes["width"].lines)
    assert (list(spread), list(mean)) == ([1, 7.0], [3.0])  # from -1, which is clipped
    spread, mean = (line.get_xdata() for line in axes["rate"].lines)
    assert list(spread) == pytest.approx([0.01 / math.e, 0.01 * math.e])
    assert (list(mean), axes["rate"].get_xscale()) == (pytest.approx([0.01]), "log")


def test_a_decision_without_effect_is_gray():
    result = make_result()
    assert result.inactive == ("op1",)
    axes = panels(plot.distribution(result))
    assert len({bar.get_facecolor() for bar in axes["op1"].patches}) == 1
    assert axes["op1"].title.get_color() != axes["op0"].title.get_color()


def test_many_decisions_and_those_of_ones_own_are_drawn():
    variables = {f"v{index}": Categorical(list(range(30))) for index in range(9)}
    own = Custom(NormalFamily([0.0], [1.0], [0.1], mirrored=True))
    model = nn.ModuleList(nas.Value(name, variable) for name, variable in {**variables, "own": own}.items())
    model.weight = nn.Parameter(torch.ones(()))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    figure = plot.distribution(nas.result(nas.OneShot(model, ASNG(nas.space_of(model), seed=0), sgd, loss_fn)))
    assert list(panels(figure)) == [*variables, "own"]
    assert [text.get_text() for text in panels(figure)["own"].texts] == ["Normal(mean=0.5, std=0.5)"]
    figure.savefig(file := io.BytesIO(), format="png")
    assert file.getvalue()[:4] == b"\x89PNG"


# A front --------------------------------------------------------------------------------------------


def small_front(measures=("parameters",)):
    def at(score, *costs):
        return nas.Architecture({"n": 1}, 0.5, True, score=score, costs=costs[: len(measures)])

    return nas.Front((at(0.9, 10.0, 3.0), at(0.5, 20.0, 2.0)), (at(0.95, 20.0, 3.0),), measures)


def test_a_figure_of_a_front_shows_all_points_over_each_cost():
    figure = plot.front(small_front(("parameters", "Latency")))
    assert [axes.get_xlabel() for axes in figure.axes] == ["parameters", "Latency"]
    others, points = figure.axes[1].lines
    assert points.get_xydata().tolist() == [[3.0, 0.9], [2.0, 0.5]]
    assert others.get_xydata().tolist() == [[3.0, 0.95]]


def test_the_front_of_one_cost_is_a_line_of_steps():
    figure = plot.front(small_front())
    *_, line = figure.axes[0].lines
    assert line.get_drawstyle() == "steps-post"
    assert line.get_xydata().tolist() == [[10.0, 0.9], [20.0, 0.5]]
    figure.savefig(file := io.BytesIO(), format="png")
    assert file.getvalue()[:4] == b"\x89PNG"


def test_a_result_in_the_place_of_a_front_is_refused_with_the_cure():
    with pytest.raises(ValueError, match=r"got a SearchResult; pass nas\.front\(result, .* by plot\.history"):
        plot.front(make_result())


@pytest.mark.parametrize("draw", [lambda: plot.front(small_front()), lambda: plot.distribution(make_result())])
def test_without_matplotlib_there_is_a_cure(monkeypatch, draw):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"figures need matplotlib .*: pip install 'asng\[plot\]'"):
        draw()


def test_figures_leave_pyplot_alone():
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    plot.distribution(make_result())
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize(
    ("draw", "given", "message"),
    [
        (plot.history, 5, "a result of asng.nas.search or asng.nas.result, got 5"),
        (plot.history, nn.Sequential(nn.ReLU(), nn.Tanh()), r"got Sequential\( \(0\): ReLU\(\) \(1\): Tanh\(\) \)$"),
        (plot.history, SimpleNamespace(history=[5]), r"a list of records, .*, got \[5\]"),
        (plot.history, SimpleNamespace(history=[{}]), "the history is empty; pass the records"),
        (plot.distribution, {}, "a result of asng.nas.search or asng.nas.result, got {}"),
        (plot.probabilities, 5, "a result of asng.nas.search or asng.nas.result, got 5"),
        (plot.front, [], "this draws what nas.front returns, got a list; pass"),
    ],
)
def test_what_is_no_result_is_refused(draw, given, message):
    with pytest.raises(ValueError, match=message):
        draw(given)
