"""What minimize returns and shows: the result in one line and in several, and lines of progress."""

from typing import Any

from asng import Categorical, Normal, Real, _progress, minimize
from tests.helpers.black_boxes import LINE, WIDE, sphere
from tests.helpers.trajectories import run


def test_a_result_prints_all_values_and_nothing_of_a_million_letters():
    space: dict[str, Any] = {"text": Categorical(["a" * 10**6]), **{f"v{i}": Real(0, 1) for i in range(40)}}
    result = minimize(lambda values: 0.25, space, evaluations=1200, seed=0)
    first, text, *rest = str(result).splitlines()
    assert first == f"loss 0.25, {result.evaluations:,} evaluations, stopped: {result.stopped}"
    assert text.startswith("text  'aaa")
    assert len(text) < 50
    assert rest == [f"{name:<4}  {result.values[name]:.6g}" for name in space if name != "text"]


def test_a_result_is_shown_in_one_short_line():
    space: dict[str, Any] = {f"v{i}": Categorical(["a" * 500, "b"]) for i in range(40)}
    text = repr(minimize(lambda values: 0.25, space, evaluations=300, seed=0))
    assert text.startswith("Result(values={'v0': ")
    assert text.endswith("...}, loss=0.25, evaluations=300, stopped='evaluations')")
    assert len(text) < 500


def test_the_optimizer_of_a_result_can_go_on():
    result = minimize(sphere, LINE, evaluations=10, seed=0)
    run(result.optimizer, 5)
    assert isinstance(result.optimizer.distribution()["n"], Normal)


def test_a_log_has_a_line_a_minute(monkeypatch, capsys):
    minimize(sphere, WIDE, evaluations=20, seed=0)
    assert capsys.readouterr().err == ""
    for name in ("LOG_INTERVAL", "FIRST_REPORT", "REPORT_INTERVAL"):
        monkeypatch.setattr(_progress, name, -1.0)
    result = minimize(sphere, WIDE, evaluations=20, seed=0)
    *_, last = capsys.readouterr().err.splitlines()
    assert last == f"{result.evaluations / 20:.1%}: evaluation {result.evaluations} of 20, best {result.loss:g}"
    minimize(sphere, WIDE, evaluations=20, seed=0, progress=False)
    assert capsys.readouterr().err == ""
