"""An image experiment of one's own: a network, a task and a line in the table of the command line."""

import json

import pytest

from asng import cli
from tests.helpers.commands import records_of, refusal, run, summary_of, unexplained_flags
from tests.helpers.stripes import LINE, TINY

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def table(monkeypatch, tmp_path):
    """The table of the command line with one more line, and an empty folder."""
    monkeypatch.setitem(cli.EXPERIMENTS, "stripes", LINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_search_retrain_and_evaluate_run_one_after_another(table):
    folder = table / "runs" / "stripes-asng-seed0"
    searched = run("stripes", "search", *TINY)
    assert (searched.code, searched.err) == (0, "")
    assert [record["step"] for record in records_of(folder)] == [2, 4]  # 16 images, 8 at a time
    values = summary_of(folder)["values"]
    assert searched.out.splitlines()[-2:] == [
        f"Found: width={values['width']}, pool={values['pool']}",
        "Train it from scratch: asng stripes retrain runs/stripes-asng-seed0 --device cpu",
    ]
    trained = run("stripes", "retrain", folder, *TINY)
    assert (trained.code, trained.err) == (0, "")
    inside, summary = folder / "retrain-seed0", summary_of(folder / "retrain-seed0")
    parameters = 3 * values["width"] * 9 + values["width"] + values["width"] * 2 + 2
    assert trained.out.splitlines()[-3:] == [
        f"{parameters} parameters",
        f"Test accuracy {summary['last']['test_accuracy']:.4g}",
        f"Test it: asng stripes evaluate {inside} --device cpu",
    ]
    tested = run("stripes", "evaluate", inside, "--device", "cpu")
    assert (tested.code, tested.err) == (0, "")
    report = json.loads((inside / "evaluation.json").read_text())
    assert report == {"kind": "retrain", "steps": 8, "test_accuracy": summary["last"]["test_accuracy"]}
    assert tested.out.splitlines()[-1] == f"Test accuracy {report['test_accuracy']:.4g}"
    assert run("stripes", "evaluate", folder, "--device", "cpu").code == 0


def test_its_report_says_how_to_repeat_it(table):
    assert run("stripes", "search", *TINY).code == 0
    assert run("report", table / "runs" / "stripes-asng-seed0", "--out", "page.html").code == 0
    assert "asng stripes search --" in (table / "page.html").read_text(encoding="utf-8")


def test_limits_methods_and_baselines_are_those_of_all_experiments(table):
    words = [*TINY, "--epochs", "1", "--max-params", "100", "--method", "uniform", "--num-random", "5"]
    assert run("stripes", "search", *words, "--out", table / "limited").code == 0
    assert summary_of(table / "limited")["values"]["width"] < 4
    random = ["retrain", table / "limited", "--architecture", "random", "--small", "--epochs", "1"]
    assert run("stripes", *random).code == 0
    assert (table / "limited" / "random-seed0" / "checkpoint.pt").exists()
    (table / "other.json").write_text('{"version": 1, "values": {"depth": 3}}')
    message = "other.json: the space has no 'depth'; it has width, pool"
    assert refusal("stripes", "retrain", "--architecture", "other.json") == message


def test_its_commands_are_listed_and_explained(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    listed = run("stripes").out
    for verb, purpose in (
        ("search", "which way stripes run"),
        ("retrain", "train an architecture from scratch"),
        ("evaluate", "test a run: accuracy"),
    ):
        assert f"asng stripes {verb:<12} {purpose}" in listed
        assert unexplained_flags(run("stripes", verb, "--help").out) == []
    assert "Search a network that tells which way stripes run." in run("stripes", "search", "--help").out
