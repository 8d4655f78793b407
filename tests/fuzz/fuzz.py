"""Random hostile input: whatever does not fit is a ValueError that changes nothing, and nothing else happens.

    python -m tests.fuzz.fuzz --seconds 120
    python -m tests.fuzz.fuzz --target tell --case 8571      one case again, with its traceback

Every case follows from the seed, its target and its number. Prints counts; exits with 1 if a case failed.
"""

import argparse
import copy
import dataclasses
import hashlib
import json
import math
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import asng
from asng import _state, nas
from asng.nas import _checkpoints
from tests.fuzz.calls import fuzz_calls
from tests.fuzz.mutations import SCALARS, SPACE, is_refused, mutate_bytes, mutate_json, odd_value
from tests.fuzz.run_files import fuzz_face_caches, fuzz_json_files, fuzz_reports, fuzz_results

Target = Callable[[Random, Path], bool]
METHODS = (asng.ASNG, asng.SNG, asng.Adam, asng.RandomSearch)


def check_alive(optimizer: Any) -> None:
    """All numbers are finite, and it can be used."""
    state = optimizer.state_dict()["state"]
    assert all(np.isfinite(np.array(part, dtype=float)).all() for part in state.values()), state
    candidates = optimizer.ask(3)
    assert all(set(candidate.values) == set(optimizer.space) for candidate in candidates)
    optimizer.mode(), optimizer.best, optimizer.distribution()
    optimizer.tell(candidates, [1.0, 3.0, 2.0])
    assert all(np.isfinite(np.array(part, dtype=float)).all() for part in optimizer.state_dict()["state"].values())


def fuzz_variables(rng: Random, folder: Path) -> bool:
    """Variables of any arguments: those that are made can be searched, and their values saved."""
    made: dict[str, Any] = {}

    def make() -> None:
        kinds: list[Callable[[], Any]] = [
            lambda: asng.Categorical([odd_value(rng) for _ in range(rng.randrange(1, 4))]),
            lambda: asng.Integer(rng.choice(SCALARS), rng.choice(SCALARS)),
            lambda: asng.Real(rng.choice(SCALARS), rng.choice(SCALARS), log=rng.random() < 0.5),
            lambda: asng.Integer(rng.randrange(-(10**6), 10**6), rng.randrange(-(10**6), 10**6)),
        ]
        made["v"] = rng.choice(kinds)()
        made["optimizer"] = asng.ASNG({"v": made["v"], **SPACE}, seed=0)

    if is_refused(make):
        return False
    check_alive(made["optimizer"])
    value = made["optimizer"].ask(1)[0].values["v"]
    assert made["v"].contains(value)
    if not is_refused(lambda: made.update(text=nas.to_json({"v": value}))):
        is_refused(lambda: nas.from_json(made["text"], {"v": made["v"]}))
    return True


def fuzz_tell(rng: Random, folder: Path) -> bool:
    """Candidates, losses and active variables of any kind: refused without a change, or learned from."""
    optimizer = rng.choice(METHODS)(SPACE, seed=rng.randrange(100))
    for _ in range(rng.randrange(3)):
        optimizer.tell(optimizer.ask(2), [1.0, 2.0])
    candidates: Any = optimizer.ask(rng.choice([2, 2, 3, 5]))
    losses: Any = [rng.gauss(0, 1) for _ in candidates]
    active: Any = None
    for _ in range(rng.randint(1, 2)):
        index = rng.randrange(len(candidates)) if isinstance(candidates, list) and candidates else 0
        match rng.randrange(7):
            case 0:
                losses = odd_value(rng)
            case 1 if isinstance(losses, list) and losses:
                losses[index % len(losses)] = odd_value(rng)
            case 2 if isinstance(candidates, list) and candidates:
                x: Any = [rng.choice([0.0, 1.0, 0.3, 7.0, rng.choice(SCALARS)]) for _ in SPACE]
                candidates[index] = asng.Candidate({}, rng.choice([x, odd_value(rng)]))
            case 3 if isinstance(candidates, list) and candidates:
                candidates[index] = odd_value(rng)
            case 4:
                active = [rng.sample(list(SPACE), rng.randrange(5)) for _ in range(3)]
            case 5:
                active = odd_value(rng)
            case _ if isinstance(candidates, list) and candidates and hasattr(candidates[index], "x"):
                candidates[index] = dataclasses.replace(candidates[index], x=odd_value(rng))
    before = optimizer.state_dict()
    if is_refused(lambda: optimizer.tell(candidates, losses, active=active)):
        assert optimizer.state_dict() == before, "a refusal changed the state"
        return False
    check_alive(optimizer)
    return True


def fuzz_states(rng: Random, folder: Path) -> bool:
    """Mutated states, also with the right checksum: refused without a change, or good to go on from."""
    optimizer = rng.choice(METHODS)(SPACE, seed=1)
    for _ in range(rng.randrange(4)):
        optimizer.tell(optimizer.ask(2), [1.0, 2.0])
    state = mutate_json(optimizer.state_dict(), rng)
    if rng.random() < 0.8 and isinstance(state, dict) and {"space", "settings", "state", "best"} <= state.keys():
        with suppress(TypeError, ValueError):
            state["checksum"] = _state.checksum(state)
    if rng.random() < 0.1 and isinstance(state, dict) and state:
        state[rng.choice(list(state))] = odd_value(rng)
    before = optimizer.state_dict()
    if is_refused(lambda: optimizer.load_state_dict(state)):
        assert optimizer.state_dict() == before, "a refusal changed the state"
        return False
    check_alive(optimizer)
    return True


def loss(values: dict[str, Any]) -> float:
    return float(values["n"] + values["x"] ** 2 + (values["op"] != "b"))


def fuzz_minimize_checkpoints(rng: Random, folder: Path) -> bool:
    """Mutated checkpoints of minimize, also with the right checksum: refused, or continued to the end."""
    path = folder / "state.json"

    def go(evaluations: int) -> None:
        asng.minimize(loss, SPACE, evaluations=evaluations, seed=0, checkpoint=path, progress=False)

    go(12)
    if rng.random() < 0.3:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    else:
        content = json.loads(path.read_text())
        state = content["state"] = mutate_json(content["state"], rng)
        with suppress(Exception):  # where it is no longer there, or no longer a state
            for optimizer in state["optimizers"] if rng.random() < 0.8 else ():
                optimizer["checksum"] = _state.checksum(optimizer)
        content["checksum"] = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps(content))
    return not is_refused(lambda: go(16))


def make_search(path: Path, epochs: int) -> nas.SearchResult:
    torch.manual_seed(0)
    model = torch.nn.Sequential(nas.OneOf("op", [torch.nn.Linear(2, 2), torch.nn.Tanh()]), torch.nn.Linear(2, 1))
    batches = [torch.ones(4, 2)] * 2
    settings: dict[str, Any] = {"checkpoint": path, "progress": False, "max_grad_norm": None}
    weights = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(weights, 1)
    settings |= {"weight_optimizer": weights, "lr_scheduler": schedule}
    return nas.search(model, batches, [*batches], lambda net, x: net(x).square().mean(), epochs=epochs, **settings)


def fuzz_checkpoints(rng: Random, folder: Path) -> bool:
    """Mutated checkpoints of searches, as bytes or in their content: refused, or continued to finite numbers."""
    path = folder / "search.pt"
    make_search(path, 1)
    if rng.random() < 0.5:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    else:
        state = mutate_state(_checkpoints.load(path), rng)
        _checkpoints.save(path, state)
    return not is_refused(lambda: make_search(path, 2))


def mutate_state(state: dict[str, Any], rng: Random) -> dict[str, Any]:
    """A copy of a checkpoint's content with a value replaced or removed, wherever it lies."""
    state = copy.deepcopy(state)
    holder: Any = state
    while True:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        value = holder[key]
        if isinstance(value, (dict, list)) and value and rng.random() < 0.8:
            holder = value
        elif isinstance(holder, dict) and rng.random() < 0.3:
            del holder[key]
            return state
        else:
            tensors = [torch.zeros(3), torch.full((2, 2), math.nan), torch.zeros(0, dtype=torch.uint8)]
            holder[key] = rng.choice([None, "a", -1, 10**6, 0.5, [], {}, [1, 2], *tensors])
            return state


TARGETS: dict[str, Target] = {
    "variables": fuzz_variables,
    "tell": fuzz_tell,
    "states": fuzz_states,
    "calls": fuzz_calls,
    "json files": fuzz_json_files,
    "results": fuzz_results,
    "reports": fuzz_reports,
    "caches of faces": fuzz_face_caches,
    "minimize checkpoints": fuzz_minimize_checkpoints,
    "checkpoints": fuzz_checkpoints,
}


def run_case(target: str, seed: int, case: int) -> bool:
    """One case in a folder of its own; returns whether the input was taken."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TARGETS[target](Random(f"{seed} {target} {case}"), Path(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="how long, shared by all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS, help="this one alone")
    parser.add_argument("--case", type=int, help="this case of the target alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.case is not None:
        print("taken" if run_case(given.target, given.seed, given.case) else "refused")
        return 0
    failures = 0
    targets = [given.target] if given.target else list(TARGETS)
    for target in targets:
        counts: Counter[str] = Counter()
        end = time.monotonic() + given.seconds / len(targets)
        while time.monotonic() < end:
            try:
                counts["taken" if run_case(target, given.seed, counts.total()) else "refused"] += 1
            except Exception:
                print(f"--target {target!r} --seed {given.seed} --case {counts.total()}", file=sys.stderr)
                traceback.print_exc(limit=-4)
                counts["failed"] += 1
        failures += counts["failed"]
        print(f"{target}: {counts.total():,} cases, {counts['refused']:,} refused, {counts['taken']:,} taken, ", end="")
        print(f"{counts['failed']:,} failed", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
