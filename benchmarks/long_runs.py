"""Long runs: do memory, time and handles stay constant over many asks and tells, and many steps with limits?

    python benchmarks/long_runs.py                                   # a million tells, 50,000 steps: about an hour
    python benchmarks/long_runs.py --tells 100000 --steps 2000       # minutes

Each part runs in ten blocks. The first warms up; the others are compared: the memory of the last with that of the
second, the handles and threads of all, and the time. Since a busy machine is slower at one moment than at another, the
long run takes turns with a short one of the same kind, which begins again with the same seed in every block: work that
is the same in every block, at nearly the same moments. A block's time is the processor time of the long run divided by
that of the short one. Exits with 1 if memory grows by more than 4 MiB, if the number of handles or threads changes, or
if the last blocks take more than 1.25 times as long as the first ones.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from asng import ASNG, Categorical, Integer, Real, nas

BLOCKS = 10
TURNS = 50  # in a block, of the long run and the short one
SHORT = 4  # the long run makes as many calls for each one of the short run
MAX_GROWTH = 4096  # KiB of resident memory
MAX_SLOWER = 1.25  # the time of the last four blocks by that of the first four
SPACE = {
    **{f"op{number}": Categorical(["a", "b", "c", "d"]) for number in range(20)},
    **{f"n{number}": Integer(1, 64) for number in range(5)},
    **{f"x{number}": Real(1e-4, 1.0, log=True) for number in range(5)},
}


def resident_kib() -> int:
    """The resident memory of this process, in KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def handles() -> tuple[int, int]:
    """Open files and threads."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def make_tell() -> Callable[[], object]:
    """One ask and tell over 30 variables, whose losses never stop moving."""
    optimizer = ASNG(SPACE, population_size=2, seed=0)
    count = 0

    def tell() -> None:
        nonlocal count
        count += 1
        candidates = optimizer.ask()
        target = (count // 1000) % 64  # so that the distribution never settles
        optimizer.tell(candidates, [abs(each.values["n0"] - target) + each.values["x0"] for each in candidates])

    return tell


def make_step() -> Callable[[], object]:
    """One step of a search under two limits, of which many candidates miss one, among 60,000 networks."""
    torch.manual_seed(0)
    width, hidden = nas.Width("width", 4, 64), nas.Width("hidden", 4, 64)
    ops = nas.OneOf("op", [nas.Linear(width, width), nn.ReLU(), nn.Tanh()])
    depth = nas.Repeat("depth", [nas.Linear(width, width) for _ in range(6)])
    model = nn.Sequential(nas.Linear(8, width), ops, depth, nas.Linear(width, hidden), nas.Linear(hidden, 1))
    limits = [nas.Limit(nas.parameters, 8000), nas.Limit(nas.Flops(torch.zeros(1, 8)), 16_000)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    arch_optimizer = ASNG(nas.space_of(model), seed=0)
    oneshot = nas.OneShot(
        model, arch_optimizer, optimizer, lambda net, x: net(x).square().mean(), max_grad_norm=5.0, limits=limits
    )
    batch = torch.randn(16, 8)
    return lambda: oneshot.step(batch, batch)


def seconds_of(once: Callable[[], object], count: int) -> float:
    """The processor time of some calls."""
    begin = time.process_time()
    for _ in range(count):
        once()
    return time.process_time() - begin


def measure(name: str, make: Callable[[], Callable[[], object]], total: int) -> bool:
    """Run in blocks and print what each took; returns whether memory, handles and time stayed constant."""
    calls = max(1, total // BLOCKS // TURNS)
    print(f"{name}: {calls * TURNS * BLOCKS:,} in {BLOCKS} blocks")
    print("   microseconds   of the short run   ratio   resident KiB   files   threads")
    long_run, rows = make(), []
    for _ in range(BLOCKS):
        short_run, few = make(), max(1, calls // SHORT)
        times = [(seconds_of(long_run, calls) / calls, seconds_of(short_run, few) / few) for _ in range(TURNS)]
        one, other = (1e6 * statistics.mean(each) for each in zip(*times, strict=True))
        rows.append((one, other, statistics.median(a / b for a, b in times), resident_kib(), *handles()))
        print("   {:12.1f}   {:16.1f}   {:5.3f}   {:12,}   {:5}   {:7}".format(*rows[-1]), flush=True)
    growth = rows[-1][3] - rows[1][3]
    first, last = (statistics.median(row[2] for row in part) for part in (rows[1:5], rows[-4:]))
    is_constant = growth <= MAX_GROWTH and len({row[4:] for row in rows[1:]}) == 1 and last <= MAX_SLOWER * first
    print(f"   memory {growth:+,} KiB; the last four blocks took {last / first:.3f} of the time of the first four")
    print(f"   {'constant' if is_constant else 'GROWS'}", flush=True)
    return is_constant


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tells", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=50_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    parts = [("asks and tells", make_tell, given.tells), ("steps with limits", make_step, given.steps)]
    constant = [measure(*part) for part in parts]
    return 0 if all(constant) else 1


if __name__ == "__main__":
    sys.exit(main())
