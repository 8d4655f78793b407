"""For the same seeds everything computes the same numbers as before, to the bit where the machine is the same, too.

`python -m tests.helpers.golden_files` computes the fixtures in `golden/` again, where numbers are meant to change.
"""

import json

import pytest

from asng.experiments import digits
from tests.helpers.golden_files import changes, differences, machine_of, path_of
from tests.helpers.golden_values import QUICK, SLOW, Missing, nas_search_in_parts, pack

CASES = [*QUICK, *(pytest.param(case, marks=pytest.mark.long) for case in SLOW)]


@pytest.fixture(autouse=True)
def _one_thread():
    with digits.one_thread():
        yield


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_the_fixture(case):
    try:
        values = {**QUICK, **SLOW}[case]()
    except Missing as missing:
        pytest.skip(str(missing))
    assert changes(case, values) == []


@pytest.mark.long
def test_a_search_that_is_stopped_and_continued_gives_the_same_numbers(tmp_path):
    assert changes("nas_search", nas_search_in_parts(tmp_path, (2, 1001, 77, 3000))) == []


@pytest.mark.parametrize("case", [*QUICK, *SLOW])
def test_every_bit_is_compared_on_this_machine(case):
    fixture, here = json.loads(path_of(case).read_text()), machine_of(case)
    assert any(fixture["values"].values()), "the file holds nothing to compare"
    there = fixture["machine"]
    if there != here:
        pytest.skip(f"compared up to rounding: {'; '.join(differences(there, here))}")


# The comparison itself


def test_a_difference_in_the_last_bit_is_found_and_named():
    there, here = pack({"theta": [0.5, 1.0]}), pack({"theta": [0.5, 1.0 + 2**-52]})
    assert differences(there, there) == []
    assert differences(there, here) == [
        "/theta[1]: 0x1.0000000000000p+0 (1) there, 0x1.0000000000001p+0 (1) here",
    ]


def test_elsewhere_floats_may_differ_by_rounding_and_nothing_else_may():
    there = pack({"loss": 0.5, "count": 7, "op": "conv"})
    assert differences(there, pack({"loss": 0.5 * (1 + 1e-7), "count": 7, "op": "conv"}), 1e-4) == []
    other = pack({"loss": 0.51, "count": 8, "op": "pool"})
    assert [line.split(":")[0] for line in differences(there, other, 1e-4)] == ["/loss", "/count", "/op"]
    assert differences(there, pack({"loss": 0.5, "count": 7}), 1e-4) != []
    assert differences(pack([1.0]), pack([1]), 1e-4) != []
