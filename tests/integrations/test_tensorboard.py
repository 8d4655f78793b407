"""The TensorBoard logger: what it writes is read back from the event files."""

import doctest
import math
import sys
from typing import Any

import pytest
import torch
from torch import nn

from asng import nas
from asng.integrations import tensorboard
from asng.integrations.tensorboard import TensorBoard
from tests.helpers.commands import run

pytestmark = pytest.mark.slow

accumulators: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def events_of(folder):
    return accumulators.EventAccumulator(str(folder)).Reload()


def values_of(log, tag):
    return [(event.step, event.value) for event in log.Scalars(tag)]


def texts_of(log):
    tensors = log.Tensors("architecture/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in tensors]


def search(callback, **options):
    torch.manual_seed(0)
    width = nas.Width("width", 2, 8)
    model = nn.Sequential(
        nas.Linear(1, width), nas.OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()}), nas.Linear(width, 1)
    )
    batches = [torch.rand(16, 1) for _ in range(3)]

    def loss_fn(model, x):
        loss = nn.functional.mse_loss(model(x), torch.sin(3 * x))
        return loss, {"error": loss.detach().sqrt()}

    return nas.search(model, batches, [*batches], loss_fn, callback=callback, progress=False, **options)


def test_losses_metrics_step_size_probabilities_and_the_architecture_are_read_back(tmp_path):
    logger = TensorBoard(tmp_path)
    history = search(logger, epochs=4).history
    logger.close()
    log = events_of(tmp_path)
    for name in ("train_loss", "valid_loss", "valid_error", "delta", "seconds"):
        expected = [(record["epoch"], pytest.approx(record[name])) for record in history]
        assert values_of(log, name) == expected
    for choice in ("relu", "tanh"):
        expected = [(r["epoch"], pytest.approx(r["distribution"]["act"][choice])) for r in history]
        assert values_of(log, f"probability/act/{choice}") == expected
    means = [(r["epoch"], pytest.approx(r["distribution"]["width"]["mean"])) for r in history]
    assert values_of(log, "distribution/width/mean") == means
    choices = [record["distribution"]["act"].values() for record in history]
    entropies = [-sum(p * math.log2(p) for p in each) for each in choices]
    assert [value for _, value in values_of(log, "entropy")] == pytest.approx(entropies)
    likely = max(history[0]["distribution"]["act"], key=history[0]["distribution"]["act"].get)
    assert texts_of(log)[0][0] == 1
    assert f"| act | {likely} |" in texts_of(log)[0][1]


def test_a_search_that_is_resumed_goes_on_behind_what_was_written(tmp_path):
    def interrupt(record):
        logger(record)
        if isinstance(record, dict) and record["epoch"] == 2:
            raise KeyboardInterrupt

    logger = TensorBoard(tmp_path / "log")
    with pytest.raises(KeyboardInterrupt):
        search(interrupt, epochs=4, checkpoint=tmp_path / "search.pt")
    logger.close()
    logger = TensorBoard(tmp_path / "log")
    search(logger, epochs=4, checkpoint=tmp_path / "search.pt")
    logger.close()
    assert [step for step, _ in values_of(events_of(tmp_path / "log"), "train_loss")] == [1, 2, 3, 4]


def test_a_step_is_passed_over_and_nothing_ends_the_search(tmp_path):
    logger = TensorBoard(tmp_path / "log")
    records: list[Any] = [
        nas.Step(),
        {"epoch": 1, "train_loss": math.nan, "distribution": {"own": {"parameters": "x"}}},
    ]
    assert [*map(logger, records)] == [None, None]
    logger.close()
    assert math.isnan(values_of(events_of(tmp_path / "log"), "train_loss")[0][1])


def test_names_of_any_kind_are_written_as_one_line_of_a_table(tmp_path):
    logger = TensorBoard(tmp_path)
    logger({"epoch": 1, "distribution": {"a\udcff\n": {"x|y\x1b[2J": 0.75, "z": 0.25}}})
    logger.close()
    log = events_of(tmp_path)
    assert r"| a\udcff\n | x\|y\x1b[2J |" in texts_of(log)[0][1].splitlines()
    assert r"probability/a\udcff\n/x|y\x1b[2J" in log.Tags()["scalars"]


@pytest.mark.parametrize("folder", [5, None, "run\udcff"])
def test_a_folder_that_tensorboard_cannot_write_is_refused_at_once(folder):
    with pytest.raises(ValueError, match=r"folder must be a path|writes to no folder like run\udcff; give it a name"):
        TensorBoard(folder)


def test_without_the_package_the_cure_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'asng\[tensorboard\]'"):
        TensorBoard(tmp_path)
    words = ["--epochs", "1", "--training-epochs", "1", "--tensorboard", "--out", tmp_path / "run"]
    done = run("digits", "search", *words)
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert done.err.endswith("TensorBoard needs pip install 'asng[tensorboard]'\n")


@pytest.mark.long
def test_a_command_writes_into_the_folder_of_its_run(tmp_path):
    words = ["--epochs", "2", "--training-epochs", "2", "--tensorboard", "--out", tmp_path]
    assert run("digits", "search", *words).code == 0
    log = events_of(tmp_path / "tensorboard")
    assert [step for step, _ in values_of(log, "train_loss")] == [1, 2]
    assert "probability/op10/conv3" in log.Tags()["scalars"]


def test_the_example_of_the_documentation_runs():
    assert doctest.testmod(tensorboard) == (0, 2)
