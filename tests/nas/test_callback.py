"""The callback of a search sees every step and every epoch, and may end it."""

import itertools

import numpy as np
import pytest
import torch

from asng.nas import Step, selected
from tests.helpers.searches import Net, interrupt_at, outcome, run_search, same, small_search

pytestmark = pytest.mark.usefixtures("same_numbers")


def test_a_callback_gets_all_steps_and_the_records_of_all_epochs():
    seen: list = []
    history = run_search(callback=seen.append, epochs=3).history
    assert [isinstance(record, Step) for record in seen] == [*[True] * 5, False] * 3
    assert seen[5::6] == history
    assert history[0]["valid_loss"] == pytest.approx(sum(step.valid_loss for step in seen[:5]) / 5)


def test_a_callback_that_returns_no_true_changes_nothing():
    assert same(small_search(None, callback=lambda record: 1), small_search(None))


@pytest.mark.parametrize("true", [True, np.True_, torch.tensor(True)])
def test_true_after_an_epoch_ends_the_search_with_the_result_so_far(true):
    found = run_search(model := Net(), callback=lambda r: isinstance(r, dict) and true, epochs=9)
    assert len(found.history) == 1
    assert selected(model) == found.values


def test_true_after_a_step_leaves_the_epoch_without_a_record():
    steps = []

    def callback(record):
        steps.append(record)
        return len(steps) == 8  # the second of the second epoch

    found = run_search(callback=callback, epochs=9)
    assert len(steps) == 8
    assert len(found.history) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 6, 8])
def test_a_search_that_was_ended_continues_bit_for_bit(tmp_path, whole, stop):
    calls = itertools.count(1)
    small_search(tmp_path / "search.pt", callback=lambda record: next(calls) == stop)
    assert next(calls) == stop + 1
    assert same(small_search(tmp_path / "search.pt"), whole[False])


@pytest.mark.slow
def test_ctrl_c_is_not_hidden_by_a_callback(tmp_path, whole):
    with pytest.raises(KeyboardInterrupt):
        small_search(tmp_path / "search.pt", loss_fn=interrupt_at(3), callback=lambda record: True)
    assert same(small_search(tmp_path / "search.pt"), whole[False])


@pytest.mark.slow
@pytest.mark.parametrize("call", [4, 6])
def test_an_error_in_a_callback_is_raised_after_a_save(tmp_path, whole, call):
    seen: list = []

    def callback(record):
        seen.append(record)
        if len(seen) == call:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        small_search(tmp_path / "search.pt", callback=callback)
    assert "the same call continues from there" in caught.value.__notes__[0]
    assert same(small_search(tmp_path / "search.pt"), whole[False])


def test_a_callback_may_use_the_model():
    def evaluate(record):
        if isinstance(record, dict):
            model.eval()
            with torch.no_grad():
                model(torch.zeros(2, 4))

    torch.manual_seed(0)
    model = Net()
    model.blocks.choose(1)
    model.first.choose(0)
    found = outcome(model, run_search(model, callback=evaluate))
    torch.manual_seed(0)
    other = Net()
    assert same(found, outcome(other, run_search(other)))


def test_a_callback_that_is_no_function_is_refused():
    with pytest.raises(ValueError, match="callback must be a function of a step or a record, got 3"):
        run_search(callback=3)
