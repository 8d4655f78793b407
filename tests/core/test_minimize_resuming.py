"""minimize with a checkpoint: what was interrupted, killed or finished continues as if nothing had happened."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asng import Categorical, EvaluationError, Integer, Real, minimize
from asng._files import lock_checkpoint, previous_path
from tests.helpers.trajectories import BLEND, inner

CHOICES: dict[str, Any] = {"layer": Categorical([sum, max, [1], (2, 3), np.ones(2)]), **BLEND}


def loss(values):
    return values["n"] + values["x"] ** 2 + abs(values["lr"] - 0.01) + (values["op"] != "b")


def conditional_loss(values):
    """Where op is "a", n has no effect; where it is "b", layer has none."""
    return loss(values) + (values["op"] == "c"), values.keys() - {{"a": "n", "b": "layer", "c": "none"}[values["op"]]}


class Crash(Exception):
    pass


class Interrupted:
    """A function that is interrupted at some calls."""

    def __init__(self, *calls, f=loss, error=KeyboardInterrupt):
        self.calls, self.f, self.error, self.count = calls, f, error, 0

    def __call__(self, values):
        self.count += 1
        if self.count in self.calls:
            raise self.error
        return self.f(values)


SETTINGS: dict[str, Any] = {"evaluations": 90, "seed": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"noisy": True},
        {"limits": [lambda values: values["n"] - 40]},
        {"initial": {"op": [0.3, 0.3, 0.4], "n": (30, 10)}},
        {"seed": np.random.SeedSequence(7, spawn_key=(3,))},
        {"seed": np.random.SeedSequence(np.int64(7))},
        {"population_size": 5},
    ],
    ids=["plain", "noisy", "limits", "initial", "sequence", "integer of NumPy", "population"],
)
@pytest.mark.parametrize("given", [loss, conditional_loss])
def test_interrupted_and_continued_equals_uninterrupted(tmp_path, changes, given):
    settings = {**SETTINGS, **changes}
    whole = minimize(given, CHOICES, **settings)
    f, path = Interrupted(3, 20, 21, 50, f=given), tmp_path / "state.json"
    stops = [minimize(f, CHOICES, checkpoint=path, **settings).stopped for _ in range(5)]
    assert stops == ["interrupted"] * 4 + ["evaluations"]
    continued = minimize(f, CHOICES, checkpoint=path, **settings)
    assert f.count == 90 + 4  # finished: it is not called again
    assert [str(each) for each in continued.history] == [str(each) for each in whole.history]
    assert inner(continued.optimizer) == inner(whole.optimizer)
    assert (continued.loss, str(continued.mode)) == (whole.loss, str(whole.mode))


def test_interrupted_limits_lose_no_evaluation(tmp_path):
    limit, f = Interrupted(30, 31, 80, f=lambda values: values["n"] - 40), Interrupted()
    settings: dict[str, Any] = {"limits": [limit], "checkpoint": tmp_path / "state.json", **SETTINGS}
    assert [minimize(f, BLEND, **settings).stopped for _ in range(4)] == ["interrupted"] * 3 + ["evaluations"]
    assert f.count == 90


def test_more_evaluations_continue_what_was_finished_with_its_population(tmp_path):
    whole = minimize(loss, BLEND, **SETTINGS | {"evaluations": 300, "population_size": 4})
    for evaluations in (2, 33, 90, 300):
        part = minimize(loss, BLEND, **SETTINGS | {"evaluations": evaluations}, checkpoint=tmp_path / "state.json")
        assert part.evaluations == evaluations
    assert part.history == whole.history
    assert inner(part.optimizer) == inner(whole.optimizer)


def test_restarts_continue_where_they_were(tmp_path):
    settings: dict[str, Any] = {"evaluations": 600, "restarts": 4}
    space, bowl = {"x": Real(0, 1)}, lambda values: (values["x"] - 0.3) ** 2
    for seed in (5, None):
        f, path = Interrupted(*range(50, 600, 90), f=bowl), tmp_path / f"{seed}.json"
        results = [minimize(f, space, checkpoint=path, seed=seed, **settings) for _ in range(8)]
        assert results[-1].evaluations == 600
        if seed is not None:
            whole = minimize(bowl, space, seed=seed, **settings)
            assert results[-1].history == whole.history
            assert inner(results[-1].optimizer) == inner(whole.optimizer)


def test_the_rest_of_a_small_space_continues_where_it_was(tmp_path):
    space, parity = {"n": Integer(0, 60)}, lambda values: values["n"] * 31 % 61
    f = Interrupted(10, 40, 50, 55, 60, f=parity)
    results = [minimize(f, space, evaluations=100, checkpoint=tmp_path / "state.json", seed=0) for _ in range(6)]
    assert results[-1].history == minimize(parity, space, evaluations=100, seed=0).history
    assert [result.stopped for result in results] == ["interrupted"] * 5 + ["nothing new"]


def test_reasons_to_stop_survive_in_the_file(tmp_path):
    def never(values):
        raise AssertionError("evaluated")

    line = {"n": Integer(0, 5)}
    first = minimize(lambda values: values["n"], line, evaluations=100, checkpoint=tmp_path / "state.json", seed=0)
    again = minimize(never, line, evaluations=100, checkpoint=tmp_path / "state.json", seed=0)
    assert again.stopped == first.stopped == "nothing new"
    assert again.history == first.history


@pytest.mark.filterwarnings("ignore:evaluation|minimize ends early")
@pytest.mark.parametrize("first", [0, 7], ids=["none finite", "some finite"])
def test_what_failures_ended_stays_ended_until_it_is_given_more_evaluations(tmp_path, first):
    f = Interrupted(*range(first + 1, 1000), f=loss, error=OSError("license server down"))
    settings: dict[str, Any] = {"seed": 1, "checkpoint": tmp_path / "state.json", "population_size": 4}

    def call(evaluations):
        try:
            result = minimize(f, BLEND, evaluations=evaluations, **settings)
        except EvaluationError as error:
            return str(error), len(error.history)
        return result.stopped, result.evaluations

    ended = call(60)
    assert f.count == ended[1] == first + 20
    assert [call(60), call(59), call(60)] == [ended] * 3
    assert f.count == first + 20
    assert call(61)[1] == f.count == first + 40  # five populations more, which failed, too
    assert call(61)[1] == f.count == first + 40
    f.calls = ()  # it works again
    assert call(62) == ("evaluations", 62)


@pytest.mark.filterwarnings("ignore:evaluation|minimize ends early")
def test_an_extension_after_failures_has_all_of_its_populations(tmp_path, capsys):
    """Also where the call that extends it is interrupted before its first evaluation, or in the middle."""
    f = Interrupted(*range(8, 1000), f=loss, error=OSError("license server down"))
    settings: dict[str, Any] = {"seed": 1, "checkpoint": tmp_path / "state.json", "population_size": 4}

    def call(evaluations):
        result = minimize(f, BLEND, evaluations=evaluations, **settings)
        return result.stopped, result.evaluations

    with pytest.warns(UserWarning, match="the last 20 .*; to continue, call it again with more evaluations"):
        assert call(60) == ("failures", 27)
    f.error = KeyboardInterrupt
    assert call(100) == ("interrupted", 27)
    f.error = OSError
    assert call(30) == ("evaluations", 30)
    capsys.readouterr()
    assert call(100) == ("failures", 47)
    assert "continues after evaluation 30 of 100" in capsys.readouterr().err
    assert call(100) == ("failures", 47)
    assert capsys.readouterr().err == ""  # it does not continue
    f.calls = ()
    assert call(101) == ("evaluations", 101)


@pytest.mark.filterwarnings("ignore:evaluation")
def test_where_all_failed_the_error_says_how_to_continue(tmp_path):
    def fail(values):
        raise OSError("down")

    with pytest.raises(EvaluationError, match="down; to continue, call it again with more evaluations"):
        minimize(fail, BLEND, evaluations=100, checkpoint=tmp_path / "state.json", seed=0)
    with pytest.raises(EvaluationError, match=r"down$"):
        minimize(fail, BLEND, evaluations=100, seed=0)


def test_a_checkpoint_can_be_given_another_target(tmp_path):
    path = tmp_path / "state.json"
    first = minimize(loss, BLEND, **SETTINGS, target=20, checkpoint=path)
    second = minimize(loss, BLEND, **SETTINGS, target=20, checkpoint=path)
    third = minimize(loss, BLEND, **SETTINGS, target=2, checkpoint=path)
    assert first.evaluations == second.evaluations < third.evaluations
    assert third.loss <= 2


def test_failures_are_restored_with_their_errors(tmp_path):
    f = Interrupted(4, f=loss, error=OSError("gone"))
    with pytest.warns(UserWarning, match=r"evaluation 4, \{.*\}, failed and ranks last: OSError: gone"):
        minimize(f, BLEND, **SETTINGS | {"evaluations": 10}, checkpoint=tmp_path / "state.json")
    restored = minimize(f, BLEND, **SETTINGS | {"evaluations": 20}, checkpoint=tmp_path / "state.json")
    assert [each.error for each in restored.history] == ["", "", "", "OSError: gone"] + [""] * 16


def test_an_error_in_a_callback_loses_no_evaluation(tmp_path):
    def fail(evaluation):
        seen.append(evaluation)
        if len(seen) == 13:
            raise Crash

    seen: list[Any] = []
    path = tmp_path / "state.json"
    with pytest.raises(Crash) as error:
        minimize(loss, BLEND, **SETTINGS, callback=fail, checkpoint=path)
    assert error.value.__notes__ == [f"the 13 evaluations so far are in {path}: the same call continues there"]
    result = minimize(loss, BLEND, **SETTINGS, checkpoint=tmp_path / "state.json")
    assert result.history[:13] == seen
    assert result.history == minimize(loss, BLEND, **SETTINGS).history


def test_an_error_in_a_limit_names_the_values_and_loses_no_evaluation(tmp_path):
    def limit(values):
        if values["n"] == broken.get("n", values["n"] + 1):
            raise ZeroDivisionError
        return values["n"] - 40

    broken: dict[str, Any] = {}
    settings: dict[str, Any] = {"limits": [limit], **SETTINGS}
    whole = minimize(loss, BLEND, **settings)
    broken.update(next(each.values for each in whole.history[30:] if each.values["n"] not in (3, 4)))
    path = tmp_path / "state.json"
    with pytest.raises(ZeroDivisionError) as error:
        minimize(loss, BLEND, **settings, checkpoint=path)
    of_limit, of_checkpoint = error.value.__notes__
    assert of_limit.startswith("in limit limit of the values {")
    assert f"'n': {broken['n']}" in of_limit
    assert of_checkpoint.endswith(f" evaluations so far are in {path}: the same call continues there")
    broken.clear()
    assert minimize(loss, BLEND, **settings, checkpoint=path).history == whole.history


PROGRAM = """
import sys, time
from asng import minimize
from tests.core.test_minimize_resuming import BLEND, SETTINGS, loss

def slowly(values):
    time.sleep(0.1)
    return loss(values)

minimize(slowly, BLEND, **SETTINGS, checkpoint=sys.argv[1], callback=lambda e: print(e.loss, flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_loses_a_second_at_most(tmp_path, number):
    path = tmp_path / "state.json"
    arguments = [sys.executable, "-c", PROGRAM, str(path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        for _ in range(30):
            process.stdout.readline()
        with pytest.raises(ValueError, match=r"state.json is in use by process \d+ .*; wait until it ends"):
            minimize(loss, BLEND, **SETTINGS, checkpoint=path)
        process.send_signal(number)
        process.communicate()
    f = Interrupted()
    result = minimize(f, BLEND, **SETTINGS, checkpoint=path)
    assert 90 - 30 - 3 <= f.count <= 90 - 30 + (15 if number == signal.SIGKILL else 1)
    assert result.history == minimize(loss, BLEND, **SETTINGS).history
    assert sorted(os.listdir(tmp_path)) == ["state.asng-previous.json", "state.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2}, "another run .seed: 1 there, 2 here.; use another path"),
        ({"population_size": 3}, "population_size: default there, 3 here"),
        ({"noisy": True}, "noisy: False there, True here"),
        ({"limits": [loss]}, r"limits: \[\] there, \['loss'\] here"),
        ({"initial": {"n": (3, 1)}}, r"initial.n: None there, \[3, 1\] here"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, changes, message):
    path = tmp_path / "state.json"
    minimize(loss, BLEND, **SETTINGS | {"evaluations": 10}, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        minimize(loss, BLEND, **{**SETTINGS, **changes}, checkpoint=path)
    assert path.read_bytes() == before


def test_the_checkpoint_of_another_space_is_refused(tmp_path):
    minimize(loss, BLEND, **SETTINGS | {"evaluations": 10}, checkpoint=tmp_path / "state.json")
    with pytest.raises(ValueError, match=r"state.json is of another run .space: "):
        minimize(loss, {**BLEND, "n": Integer(1, 65)}, **SETTINGS, checkpoint=tmp_path / "state.json")


def damage_loss(content):
    content["state"]["history"][0][2] = -1e9
    return json.dumps(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: "{", "is damaged or no checkpoint .JSONDecodeError.*rename it to state.json to continue"),
        (lambda content: "[1]", "is damaged or no checkpoint .*rename it"),
        (lambda content: json.dumps({**content, "format": "asng minimize 0"}), "'asng minimize 0', not 'asng minimize"),
        (damage_loss, "is damaged: it is not as it was saved.*rename it"),
        (lambda content: json.dumps({**content, "state": 3}), "is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_previous_offered(tmp_path, damage, message):
    path = tmp_path / "state.json"
    for evaluations in (10, 20):
        minimize(loss, BLEND, **SETTINGS | {"evaluations": evaluations}, checkpoint=path)
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(ValueError, match=message):
        minimize(loss, BLEND, **SETTINGS, checkpoint=path)
    os.replace(previous_path(path), path)
    assert minimize(loss, BLEND, **SETTINGS, checkpoint=path).history == minimize(loss, BLEND, **SETTINGS).history


def forge(path, change):
    """Change the state of a checkpoint, with the checksum that belongs to it."""
    content = json.loads(path.read_text())
    change(content["state"])
    text = json.dumps(content["state"], sort_keys=True).encode()
    path.write_text(json.dumps({**content, "checksum": hashlib.sha256(text).hexdigest()}))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("queue"),
        lambda state: state.update(evaluations=None),
        lambda state: state.update(population_size=1),
        lambda state: state.update(history=5),
        lambda state: state["history"][0].__setitem__(0, ["x"]),
        lambda state: state["history"][0].__setitem__(0, [1e300]),
        lambda state: state["history"][0].__setitem__(1, 7),
        lambda state: state["history"][0].__setitem__(2, "low"),
        lambda state: state["history"][0].__setitem__(4, ["m"]),
        lambda state: state["history"][0].__setitem__(4, [3]),
        lambda state: state.update(stopping=["a", 0, 0, 0, 0]),
        lambda state: state.update(is_listing=1),
        lambda state: state.update(optimizers=[{}]),
        lambda state: state.update(optimizers=[], history=[]),
        lambda state: state.update(entropy=["a", []]),
        lambda state: state.update(queue=[[0.0]]),
    ],
)
def test_a_forged_state_is_refused_and_the_file_stays(tmp_path, change):
    path = tmp_path / "state.json"
    minimize(loss, BLEND, **SETTINGS | {"evaluations": 10}, checkpoint=path)
    forge(path, change)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"state\.json is damaged \("):
        minimize(loss, BLEND, **SETTINGS, checkpoint=path)
    assert path.read_bytes() == before


def test_a_pipe_in_place_of_the_checkpoint_is_refused(tmp_path):
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(ValueError, match=r"state\.json is not a regular file; remove it, or use another path"):
        minimize(loss, BLEND, **SETTINGS, checkpoint=tmp_path / "state.json")


def test_a_file_where_a_folder_belongs_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/file is a file, not a folder; choose another path than .*x\.json"
    ):
        minimize(loss, BLEND, **SETTINGS, checkpoint=tmp_path / "file" / "x.json")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", r"is a folder; give the path of a file, such as .*search\.json"),
        ("state.asng-previous.json", r"is kept by another search; rename it to state\.json"),
    ],
)
def test_a_path_that_cannot_be_a_checkpoint_is_refused(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        minimize(loss, BLEND, **SETTINGS, checkpoint=tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_refused_checkpoint_is_not_locked_afterwards(tmp_path):
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ValueError, match="or delete it to start over"):
        minimize(loss, BLEND, **SETTINGS, checkpoint=tmp_path / "state.json")
    lock_checkpoint(tmp_path / "state.json").release()


@pytest.mark.parametrize("progress", [True, False])
def test_a_continued_minimization_says_where_if_progress_is_wanted(progress, tmp_path, capsys):
    def run(evaluations):
        minimize(loss, BLEND, evaluations=evaluations, seed=0, checkpoint=tmp_path / "state.json", progress=progress)
        return capsys.readouterr()

    assert run(20) == ("", "")  # it begins
    assert run(30) == ("", "minimize: continues after evaluation 20 of 30\n" if progress else "")
    assert run(30) == ("", "")  # it was finished
