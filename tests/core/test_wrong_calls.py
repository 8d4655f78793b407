"""Wrong calls and settings are refused with the value and the cure, and change nothing."""
# mypy: disable-error-code="arg-type, dict-item, list-item"

import dataclasses
import itertools
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asng import (
    ASNG,
    SNG,
    Adam,
    Candidate,
    Categorical,
    CategoricalFamily,
    Custom,
    Integer,
    Joint,
    NormalFamily,
    RandomSearch,
    Real,
    family_of,
    minimize,
    rank_utilities,
)
from tests.helpers.small_space import METHODS, SPACE, Bounded, Stubborn, run

WRONG_TELLS: dict[str, Any] = {
    "fewer losses": (lambda o: o.tell(o.ask(3), [1, 2]), "3 candidates and 2 losses.*one loss for each"),
    "more losses": (lambda o: o.tell(o.ask(2), [1, 2, 3]), "2 candidates and 3 losses"),
    "one candidate": (lambda o: o.tell(o.ask(1), [1]), "1 candidates.*at least two"),
    "nothing": (lambda o: o.tell([], []), "0 candidates.*at least two"),
    "loss of text": (lambda o: o.tell(o.ask(2), [1, "3.5"]), "losses must be real numbers, got '3.5'"),
    "loss None": (lambda o: o.tell(o.ask(2), [None, 1]), "got None"),
    "loss a list": (lambda o: o.tell(o.ask(2), [1, [2]]), r"got \[2\]"),
    "loss complex": (lambda o: o.tell(o.ask(2), [1, np.complex128(1j)]), r"real numbers, got np.complex128\(1j\)"),
    "loss of two": (lambda o: o.tell(o.ask(2), [1, Stubborn()]), "real numbers, got Stubborn"),
    "losses without end": (lambda o: o.tell(o.ask(2), itertools.repeat(1.0)), "2 candidates and more than 2 losses"),
    "candidates without end": (lambda o: o.tell(itertools.count(), [1, 2]), r"candidates are more than 1,000,000, got"),
    "active of a range": (lambda o: o.tell(o.ask(2), [1, 2], active=[range(10**12)] * 2), "active names 0, which is"),
    "of another space": (
        lambda o: o.tell(ASNG({"a": Integer(0, 9)}).ask(2), [1, 2]),
        r"which must be 5 numbers, is not in this space; tell candidates that this optimizer's ask returned",
    ),
    "of another space as wide": (
        lambda o: o.tell(ASNG({str(i): Categorical(range(50)) for i in range(5)}, seed=0).ask(2), [1, 2]),
        "not in this space",
    ),
    "numbers that are none": (lambda o: o.tell([Candidate({}, [math.nan] * 5)] * 2, [1, 2]), "not in this space"),
    "text for numbers": (lambda o: o.tell([Candidate({}, ["1"] * 5)] * 2, [1, 2]), "not in this space"),
    "numbers without an array": (lambda o: o.tell([Candidate({}, Stubborn())] * 2, [1, 2]), "not in this space"),
    "a set of losses": (lambda o: o.tell(o.ask(2), {0.3, 0.1}), "order of the candidates"),
    "a dict of losses": (lambda o: o.tell(o.ask(2), {0: 1, 1: 2}), "order of the candidates"),
    "text of losses": (lambda o: o.tell(o.ask(2), "12"), "order of the candidates, got '12'"),
    "active as a number": (lambda o: o.tell(o.ask(2), [1, 2], active=5), "each of the 2 candidates, got 5"),
    "active as letters": (lambda o: o.tell(o.ask(2), [1, 2], active=["op", "n"]), "set of names"),
    "active as a tensor": (lambda o: o.tell(o.ask(2), [1, 2], active=np.array(1.0)), "each of the 2 candidates"),
    "active without end": (
        lambda o: o.tell(o.ask(2), [1, 2], active=itertools.repeat({"n"})),
        "each of the 2 candidates, got repeat",
    ),
    "active of things": (lambda o: o.tell(o.ask(2), [1, 2], active=[{"n"}, [Stubborn()]]), "not in the space"),
    "active of one": (lambda o: o.tell(o.ask(2), [1, 2], active=[{"n"}]), "each of the 2 candidates"),
    "active of nobody": (lambda o: o.tell(o.ask(2), [1, 2], active=[{"n"}, {"z"}]), "'z', which is not in the space"),
    "some of another space": (
        lambda o: o.tell([*o.ask(1), *ASNG({"a": Integer(0, 9)}).ask(1)], [1, 2]),
        "not in this space",
    ),
    "ask for none": (lambda o: o.ask(0), "n must be at least 1, got 0"),
    "ask for a half": (lambda o: o.ask(0.5), "n must be an integer, got 0.5"),
    "ask for fewer than none": (lambda o: o.ask(-2), "got -2"),
    "ask for True": (lambda o: o.ask(True), "got True"),
    "ask for a billion": (lambda o: o.ask(10**9), "n must be at most 1,000,000, got 1000000000"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("wrong", "message"), WRONG_TELLS.values(), ids=WRONG_TELLS)
def test_wrong_calls_are_refused_and_change_nothing(wrong, message, method):
    optimizer = run(method(SPACE, seed=0), 5)
    twin = run(method(SPACE, seed=0), 5)
    before, best = optimizer.state_dict(), optimizer.best
    with pytest.raises(ValueError, match=message):
        wrong(optimizer)
    after = optimizer.state_dict()
    assert {**after, "generator": None} == {**before, "generator": None}  # the wrong call may have asked
    assert optimizer.best == best
    twin.load_state_dict(after)
    assert run(twin, 3).state_dict() == run(optimizer, 3).state_dict()


NO_DRAWS: dict[str, Any] = {
    "NaN": ("x", math.nan),
    "infinity": ("n", math.inf),
    "a number far away": ("n", 1e200),
    "a real far away": ("lr", -1e11),
    "no such choice": ("op", 3.0),
    "choice below all": ("flag", -1.0),
    "half a choice": ("op", 0.5),
    "NaN for a choice": ("flag", math.nan),
    "NaN for one's own": ("own", math.nan),
    "own far away": ("own", 1e200),
}


def exchange(candidates, name, number):
    """Candidates of which the second has another number for a variable."""
    x = [number if here == name else value for here, value in zip(OWN, candidates[1].x.tolist(), strict=True)]
    return [candidates[0], dataclasses.replace(candidates[1], x=np.array(x) if isinstance(number, float) else x)]


OWN = SPACE | {"own": Custom(Bounded(5))}


@pytest.mark.parametrize("losses", [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], ids=str)
@pytest.mark.parametrize("method", [*METHODS, RandomSearch])
@pytest.mark.parametrize(("name", "number"), NO_DRAWS.values(), ids=NO_DRAWS)
def test_an_exchanged_number_in_a_candidate_is_refused_by_name(name, number, method, losses):
    optimizer = method(OWN, seed=0)
    optimizer.tell(optimizer.ask(), [1.0, 2.0])
    candidates = exchange(optimizer.ask(), name, number)
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=re.escape(f"x = {number} for '{name}' is not in this space; tell cand")):
        optimizer.tell(candidates, losses)
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("number", [10**400, 1j, "5", Stubborn()], ids=["beyond float64", "complex", "text", "object"])
@pytest.mark.parametrize("method", [*METHODS, RandomSearch])
def test_what_is_no_real_number_in_a_candidate_is_refused(number, method):
    optimizer = method(OWN, seed=0)
    candidates = exchange(optimizer.ask(), "n", number)
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"which must be 6 numbers, is not in this space"):
        optimizer.tell(candidates, [1.0, 2.0])
    assert optimizer.state_dict() == before


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda o: o.tell([c.values for c in o.ask()], [1, 2]), "candidate"),
        (lambda o: o.tell(o.ask(), 0.5), "loss"),
        (lambda o: o.tell(None, [1, 2]), "candidate"),
    ],
    ids=["values for candidates", "one loss", "no candidates"],
)
def test_arguments_of_another_kind_are_refused(call, hint):
    optimizer = run(ASNG(SPACE, seed=0), 5)
    before = optimizer.state_dict()["state"]
    with pytest.raises(ValueError, match=hint):
        call(optimizer)
    assert optimizer.state_dict()["state"] == before


ONE = Categorical([1, 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASNG({}), "space is empty.*at least one"),
        (lambda: ASNG([ONE]), "dict of names"),
        (lambda: ASNG({1: ONE}), "strings, got 1"),
        (lambda: ASNG({"a": [1, 2]}), r"'a'.*Categorical.*got \[1, 2\]"),
        (lambda: ASNG({"a": Categorical}), "'a'.*Categorical"),
        (lambda: Categorical([]), "empty.*at least one"),
        (lambda: Categorical(["a", "b", "a"]), "'a' is repeated.*once"),
        (lambda: Categorical([[1], [1]]), r"\[1\] is repeated"),
        (lambda: Categorical("ab"), "list, got 'ab'"),
        (lambda: Categorical(range(10**29)), r"choices are more than 100,000, got range\(0, 1000"),
        (lambda: Categorical(itertools.count()), r"list, got count\(0\), which ends after one use; make a list"),
        (lambda: Categorical(map(str, [1, 2])), "list, got <map.*make a list"),
        (
            lambda: ASNG(SPACE, initial={"op": range(10**12)}),
            r"initial.'op'.*one probability for each of the 3 choices",
        ),
        (lambda: ASNG(SPACE, population_size=10**29), "population_size must be at most 1,000,000, got 1000"),
        (lambda: minimize(abs, SPACE, evaluations=9, population_size=10**29), "population_size must be at most 1,000,"),
        (lambda: minimize(abs, SPACE, evaluations=9, executor=ThreadPoolExecutor), "executor must be a.*got <class"),
        (lambda: CategoricalFamily([2, 10**12]), r"from 1 to 100,000, got \[2, 1000"),
        (lambda: NormalFamily(["x"], [1], [1], mirrored=True), r"bounds and std_min must be numbers, got \['x'\]"),
        (lambda: NormalFamily([0], [1], [0.1], mirrored="no"), "mirrored must be True or False, got 'no'"),
        (lambda: Joint(itertools.repeat((CategoricalFamily([2]), [0]))), "list of pairs .*, got repeat"),
        (lambda: Joint([5]), r"list of pairs \(family, columns\), got \[5\]"),
        (lambda: Joint([]), r"list of pairs .*, got \[\]"),
        (lambda: family_of([ONE]), "a space is a dict of names and variables, got"),
        (lambda: family_of({"a": 5}), "variable 'a' must be a Categorical, .*, got 5"),
        (lambda: rank_utilities(0.5), "at least two losses, got 0.5"),
        (lambda: rank_utilities(["a", "b"]), r"at least two losses, got \['a', 'b'\]"),
        (lambda: Custom(Bounded(5), value=3), "value must be a function.*got 3"),
        (lambda: Categorical(3), "list, got 3"),
        (lambda: Integer(3, 3), "low < high.*low=3"),
        (lambda: Integer(4, 3), "low < high.*low=4.*swap"),
        (lambda: Integer(0, 1.5), "high must be an integer, got 1.5.*Real"),
        (lambda: Integer(0, math.inf), "high must be an integer, got inf"),
        (lambda: Integer(0, 2**60), "2\\*\\*53"),
        (lambda: Real(1, 0), "low < high.*low=1"),
        (lambda: Real(0, 0), "low < high"),
        (lambda: Real(0, math.inf), "finite.*high=inf"),
        (lambda: Real(math.nan, 1), "finite.*low=nan"),
        (lambda: Real("a", 1), "low must be a number, got 'a'"),
        (lambda: Real(0, 1, log=True), "above 0.*got 0.*drop log"),
        (lambda: Real(-1e308, 1e308), "too wide"),
        (lambda: ASNG(SPACE, alpha=1.0), "alpha must be a number above 1 .*got 1.0"),
        (lambda: ASNG(SPACE, alpha=math.inf), r"alpha.*at most 1e\+09, got inf"),
        (lambda: ASNG(SPACE, alpha=math.nan), "alpha.*got nan"),
        (lambda: ASNG(SPACE, alpha="x"), "alpha must be a number above 1 .*got 'x'"),
        (lambda: ASNG(SPACE, delta_init=0), "delta_init must be a number above 0 .*got 0"),
        (lambda: ASNG(SPACE, delta_init=-1.0), "got -1.0"),
        (lambda: ASNG(SPACE, delta_init=math.inf), "delta_init.*got inf"),
        (lambda: ASNG(SPACE, delta_init=10**400), r"delta_init.*at most 1e\+06, got 1000"),
        (lambda: ASNG(SPACE, mirrored="no"), "mirrored must be True or False, got 'no'"),
        (lambda: ASNG(SPACE, initial={"n": (10**400, 1)}), "initial.'n'.*must be numbers"),
        (lambda: ASNG(SPACE, delta_init=None), "delta_init must be a number above 0 .*got None"),
        (lambda: ASNG(SPACE, delta_max=0), "delta_max must be a number above 0, got 0"),
        (lambda: ASNG(SPACE, delta_max=math.nan), "delta_max.*got nan"),
        (lambda: ASNG(SPACE, delta_max=0.5), "delta_max must be at least 1 .*got 0.5"),
        (lambda: ASNG(SPACE, population_size=1), "population_size must be at least 2, got 1"),
        (lambda: ASNG(SPACE, population_size=2.0), "population_size must be an integer, got 2.0"),
        (lambda: ASNG(SPACE, population_size=True), "population_size must be an integer, got True"),
        (lambda: ASNG(SPACE, seed=-1), "seed.*got -1"),
        (lambda: ASNG(SPACE, seed=1.5), "seed.*got 1.5"),
        (lambda: ASNG(SPACE, seed="x"), "seed.*got 'x'"),
        (lambda: ASNG(SPACE, initial=[0.5, 0.5]), r"initial.*dict.*got \[0.5, 0.5\]"),
        (lambda: SNG(SPACE, delta=0), "delta must be a number above 0 .*got 0"),
        (lambda: SNG(SPACE, delta=math.inf), "delta.*got inf"),
        (lambda: SNG(SPACE, population_size=1), "population_size must be at least 2"),
        (lambda: Adam(SPACE, lr=-0.1), "lr must be a number above 0 .*got -0.1"),
        (lambda: Adam(SPACE, lr="fast"), "lr must be a number above 0 .*got 'fast'"),
    ],
)
def test_wrong_settings_are_refused_with_value_and_cure(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.long
@settings(max_examples=100)
@given(st.integers(0, 5), st.lists(st.floats() | st.text(max_size=3) | st.none() | st.integers(), max_size=5))
def test_a_tell_learns_or_changes_nothing(candidates, losses):
    optimizer = ASNG(SPACE, seed=0)
    asked = optimizer.ask(5)[:candidates]
    before, best = optimizer.state_dict(), optimizer.best

    def number(loss):
        try:
            return not isinstance(loss, str) and isinstance(float(loss), float)
        except OverflowError:
            return True
        except (TypeError, ValueError):
            return False

    if len(asked) == len(losses) >= 2 and all(map(number, losses)):
        optimizer.tell(asked, losses)
        assert np.isfinite(optimizer.theta).all()
    else:
        with pytest.raises(ValueError, match=r"candidates|losses"):
            optimizer.tell(asked, losses)
        assert optimizer.state_dict() == before
        assert optimizer.best == best
