"""Every public function refuses arguments of types and values that belong elsewhere by a ValueError."""

import warnings
from functools import partial

import pytest

from tests.fuzz.calls import ODD, call_with, calls
from tests.fuzz.mutations import is_refused

TAKES_LONG = {"minimize", "OneShot", "OneShot.load_state_dict", "rerank", "history", "probabilities", "distribution"}


@pytest.mark.slow
@pytest.mark.parametrize("name", calls())
def test_arguments_that_fit_are_taken(name, tmp_path):
    argument, value = next(iter(calls()[name][1].items()))
    assert not is_refused(partial(call_with, name, argument, value, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("name", calls())
def test_an_argument_that_belongs_elsewhere_is_taken_or_a_value_error(name, tmp_path):
    other_errors = {}
    for argument in calls()[name][1]:
        for value in ODD[:: 5 if name in TAKES_LONG else 1]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    is_refused(partial(call_with, name, argument, value, tmp_path))
                except Exception as error:
                    other_errors[argument, repr(value)] = repr(error)
    assert other_errors == {}
