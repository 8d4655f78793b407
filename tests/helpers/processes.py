"""Small searches in processes of their own: killed, interrupted, or several that search together."""

import copy
import faulthandler
import itertools
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import asng
from asng import ASNG, Categorical
from asng.nas import (
    BatchNorm1d,
    Latency,
    Limit,
    Linear,
    OneOf,
    OneShot,
    Repeat,
    Width,
    _distributed,
    extract,
    front,
    parameters,
    recalibrate,
    rerank,
    search,
    select,
    selected,
    space_of,
)
from asng.nas import _checkpoints as checkpoints
from asng.nas._distributed import SyncBatchNorm
from tests.helpers.searches import FailingBackward, Net, batches, cross_entropy, pairs, small_search
from tests.helpers.tasks import LONG

if not hasattr(os, "fork"):
    pytest.skip("these processes are forked", allow_module_level=True)

# One process imports torch once and every other is a quick fork of it, in which no thread runs yet.
context = multiprocessing.get_context("forkserver")
PRELOADED = ["asng.nas", "torch._dynamo", "torch.distributed"]  # what optimizers import when used
context.set_forkserver_preload(PRELOADED)


def start(target, *arguments):
    process = context.Process(target=_quietly, args=(target, arguments), daemon=True)
    process.start()
    return process


def ready(process, folder):
    """Wait until its search begins, or it has ended."""
    while process.is_alive() and not (folder / "started").exists():
        time.sleep(0.005)
    (folder / "started").unlink(missing_ok=True)


def exit_code_of(process):
    """Its exit code; it is a failure if it hangs."""
    process.join(LONG)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"still running after {LONG} seconds")
    return process.exitcode


def _quietly(target, arguments):
    torch.set_num_threads(1)
    target(*arguments)


# One process ---------------------------------------------------------------------------------------


def search_in(folder, settings, die=None):
    """Search with a checkpoint in a folder and leave the result there; `die`: at which point of which save."""
    folder = Path(folder)
    if die is not None:
        _die_while_saving(*die)
    (folder / "started").touch()
    try:
        result = small_search(folder / "checkpoint.pt", loss_fn=slow_cross_entropy, **settings)
    except KeyboardInterrupt as error:
        (folder / "stopped.txt").write_text(str(error))
        sys.exit(3)
    torch.save(result, folder / "result.new")
    os.replace(folder / "result.new", folder / "result.pt")


def search_and_wait(folder):
    """A search that stops in its third epoch until it is told to go on."""
    folder = Path(folder)

    def loss(model, batch):
        if next(calls) == 50:
            (folder / "started").touch()
            while not (folder / "go").exists():
                time.sleep(0.005)
        return cross_entropy(model, batch)

    calls = itertools.count(1)
    torch.save(small_search(folder / "checkpoint.pt", loss_fn=loss), folder / "result.pt")


def search_and_fork(folder):
    """A search that forks a child in its third epoch, which waits for the end of the test, and then waits itself."""
    folder = Path(folder)

    def loss(model, batch):
        if next(calls) == 50:
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            (folder / "child").write_text(str(child))
            (folder / "started").touch()
            time.sleep(600)
        return cross_entropy(model, batch)

    calls = itertools.count(1)
    small_search(folder / "checkpoint.pt", loss_fn=loss)


def slow_cross_entropy(model, batch):
    time.sleep(0.0005)  # so that kills and interrupts meet steps, too
    return cross_entropy(model, batch)


def _kill_self(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LONG)


POINTS = {
    "half written": ("torch", "save", "half"),
    "written, not synced": ("os", "fsync", "before"),
    "synced": ("os", "fsync", "after"),
    "second name": ("os", "link", "after"),
    "previous in place": ("os", "replace", "after"),
    "before the last rename": ("os", "replace", "before second"),
    "renamed": ("os", "replace", "after second"),
}


def _die_while_saving(point, nth):
    """At a point of the nth save."""
    where, name, when = POINTS[point]
    module = {"os": os, "torch": torch}[where]
    real, save, saves, calls = getattr(module, name), checkpoints.save, itertools.count(1), itertools.count(1)
    current = 0

    def count_save(*arguments):
        nonlocal current, calls
        current, calls = next(saves), itertools.count(1)
        save(*arguments)

    def wrap_and_die(*arguments, **named):
        if current != nth:
            return real(*arguments, **named)
        call = next(calls)
        if when == "half":
            real({"half": arguments[0]}, arguments[1])
            arguments[1].truncate(arguments[1].tell() // 2)
            arguments[1].flush()
            _kill_self()
        if when == "before" or (when == "before second" and call == 2):
            _kill_self()
        result = real(*arguments, **named)
        if when == "after" or (when == "after second" and call == 2):
            _kill_self()
        return result

    checkpoints.save = count_save
    setattr(module, name, wrap_and_die)


# Several ranks -------------------------------------------------------------------------------------


def crowd(target, folder, *arguments, world_size=2, backend="gloo"):
    """Processes of one group, each running target(rank, folder, *arguments)."""
    rest = backend, target, str(folder), arguments
    return [start(_member, rank, world_size, *rest) for rank in range(world_size)]


def _member(rank, world_size, backend, target, folder, arguments):
    faulthandler.enable()
    assert "torch.distributed.nn" in sys.modules  # so that no optimizer loads it after the group is there
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sys.stderr = open(Path(folder, f"stderr{rank}.txt"), "w", buffering=1)  # noqa: SIM115 - as long as the process
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{folder}/group", rank=rank, world_size=world_size)
    target(rank, folder, *arguments)
    dist.destroy_process_group()


LIMIT = 200  # parameters: about half of the architectures


def step_oneshots(rank, folder, kinds, steps=30):
    """Several OneShots after another, their results in one file per rank."""
    results = {}
    for population_size, limited in kinds:
        torch.manual_seed(17 + rank)  # the first one's weights are taken
        model = Net(dropout=0, norm=True).double()  # so that rounding decides no ranking
        arch_optimizer = ASNG(space_of(model), population_size=population_size, seed=5 + rank)
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        measured: list[str] = []

        def cost(model, values, measured=measured):
            measured.append(str(values))
            return parameters(model, values)

        limits = [Limit(cost, LIMIT)] if limited else []
        oneshot = OneShot(model, arch_optimizer, weight_optimizer, cross_entropy, max_grad_norm=1.0, limits=limits)
        records = [oneshot.step(*pair) for pair in pairs(steps, torch.double)]
        results[f"{population_size} {limited}"] = {
            "weights": {name: value for name, value in model.state_dict().items() if "running" not in name},
            "optimizer": arch_optimizer.state_dict(),
            "train": [list(record.train_losses) for record in records],
            "valid": [list(record.valid_losses) for record in records],
            "measured": measured,
        }
    torch.save(results, Path(folder, f"rank{rank}.pt"))


def step_halves(rank, folder):
    """Halves of steps with a judge, micro-batches and two weight optimizers; the outcome in one file per rank."""
    torch.manual_seed(17 + rank)
    model = Net(dropout=0).double()
    head, rest = model.head.parameters(), [*model.first.parameters(), *model.blocks.parameters()]
    weight_optimizer = [torch.optim.SGD(head, 0.1, momentum=0.9), torch.optim.AdamW(rest, 0.01)]
    arch_optimizer = ASNG(space_of(model), population_size=3, seed=5 + rank)

    def judge(model, batch):
        return (model(batch[0]).argmax(1) != batch[1]).double().mean().item(), {"depth": selected(model)["depth"]}

    oneshot = OneShot(model, arch_optimizer, weight_optimizer, cross_entropy, judge=judge)
    records = []
    for train, valid in pairs(15, torch.double):
        records += [oneshot.train_step(train, valid), oneshot.judge_step(valid)]
    result = {
        "weights": dict(model.state_dict()),
        "optimizer": arch_optimizer.state_dict(),
        "train": [list(record.train_losses) for record in records[::2]],
        "scores": [list(record.scores) for record in records[1::2]],
        "metrics": [list(record.valid_metrics) for record in records[1::2]],
        "ranked": [[str(a.values), a.score] for a in rerank(oneshot, batches(2, dtype=torch.double), judge, k=4)],
        "front": repr(front(oneshot, [parameters], batches(2, dtype=torch.double), judge, k=6)),
    }
    torch.save(result, Path(folder, f"rank{rank}.pt"))


def step_with_capture(rank, folder):
    """Two steps that are to be captured, and are not."""
    model = Net()
    weight_optimizer = torch.optim.SGD(model.parameters(), 0.1)
    oneshot = OneShot(model, ASNG(space_of(model), seed=0), weight_optimizer, cross_entropy, capture=True)
    for train, valid in pairs(2):
        oneshot.step(train, valid)


def normed_net(norm):
    """A network with torch's and elastic norms, and without a kink, which would decide by rounding."""
    width = Width("width", [2, 4, 8])

    def block():
        norms = (BatchNorm1d(width), nn.BatchNorm1d(8)) if norm else (nn.Identity(), nn.Identity())
        return nn.Sequential(Linear(8, width), norms[0], nn.Tanh(), Linear(width, 8), norms[1])

    act = OneOf("act", [nn.Tanh(), nn.SiLU(), nn.Identity()])
    return nn.Sequential(nn.Linear(4, 8), Repeat("depth", [block() for _ in range(3)]), act, nn.Linear(8, 3)).double()


def step_groups(rank, folder, kinds, device="cpu"):
    """OneShots of two candidates in any number of processes, their results in one file per rank."""
    results = {}
    for name, (norm, fails_on, options) in kinds.items():
        torch.manual_seed(17 + rank)
        model = normed_net(norm).to(device)
        arch_optimizer = ASNG(space_of(model), seed=5 + rank)
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)

        def loss(model, batch, fails_on=fails_on):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            if rank in fails_on and selected(model)["depth"] == 3:
                raise MemoryError("too large")
            y = model(batch["x"])
            metrics = {"errors": (y.argmax(1) != batch["y"]).double().mean()}
            return nn.functional.cross_entropy(y, batch["y"]), metrics

        limits = [Limit(lambda model, values: values["depth"], 2)] if options.pop("limited", False) else []
        oneshot = OneShot(model, arch_optimizer, weight_optimizer, loss, max_grad_norm=1.0, limits=limits, **options)
        records = []
        data = [{"x": x, "y": y} for x, y in batches(30, 1, size=9, dtype=torch.double)]
        for first, second, valid in zip(data[::3], data[1::3], data[2::3], strict=True):
            records += [oneshot.step(first, valid), oneshot.train_step(first, second), oneshot.judge_step(valid)]
        results[name] = {
            "weights": dict(model.state_dict()),
            "optimizer": arch_optimizer.state_dict(),
            "train": [loss for record in records for loss in record.train_losses],
            "valid": [loss for record in records for loss in record.valid_losses],
            "metrics": [m.get("errors") for r in records for m in (*r.train_metrics, *r.valid_metrics)],
        }
    torch.save(results, Path(folder, f"rank{rank}.pt"))


def communicate_alone(rank, folder, kinds, device="cpu"):
    """Steps and a search in a group of one process, first without and then by all of their collectives."""
    for together in (False, True):
        _distributed.is_distributed = [lambda: False, lambda: True][together]
        of_steps = Path(folder, f"together {together}")
        of_steps.mkdir()
        step_groups(rank, of_steps, copy.deepcopy(kinds), device)
        torch.manual_seed(17)
        model = normed_net(norm=True).to(device)
        data = [(x.to(device), y.to(device)) for x, y in batches(6, 1, dtype=torch.double)]
        found = search(model, data, [*data], cross_entropy, epochs=2, progress=False, checkpoint=of_steps / "search.pt")
        ranked = [a.score for a in rerank(found, data, cross_entropy, k=3)]
        torch.save({"history": [h["valid_loss"] for h in found.history], "ranked": ranked}, of_steps / "search")
    group = SyncBatchNorm(dist.new_group([0]))
    x = torch.randn(7, 3, 2, 5, dtype=torch.double, device=device)
    plain = nn.BatchNorm2d(3).double().to(device)
    synchronized = copy.deepcopy(plain)
    of_plain, of_synchronized = (x.clone().requires_grad_() for _ in range(2))
    plain(of_plain).square().mul(x).sum().backward()
    with group:
        synchronized(of_synchronized).square().mul(x).sum().backward()
    torch.testing.assert_close(of_synchronized.grad, of_plain.grad)
    torch.testing.assert_close(synchronized.state_dict(), plain.state_dict())
    before = copy.deepcopy(plain.state_dict())
    _distributed.broadcast_tensors(plain.state_dict().values())
    torch.testing.assert_close(plain.state_dict(), before)


def normalize_together(rank, folder):
    """Batch norms of uneven shares of a batch, beside those of all of it; what differs is an error."""
    group = SyncBatchNorm(dist.group.WORLD)
    for shape, affine in [((7, 3), True), ((7, 3, 4), False), ((7, 3, 2, 5), True), ((7, 3, 2, 2, 2), True)]:
        torch.manual_seed(1)
        x, gradient = torch.randn(2, *shape, dtype=torch.double) + 3
        whole = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[len(shape) - 2](3, affine=affine)
        whole = whole.double()
        split = copy.deepcopy(whole)
        rows = slice(0, 5) if rank == 0 else slice(5, 7)
        of_all, of_some = (tensor.clone().requires_grad_() for tensor in (x, x[rows]))
        expected = whole(of_all)
        (expected * gradient).sum().backward()
        with group:
            got = split(of_some)
            (got * gradient[rows]).sum().backward()
        torch.testing.assert_close(got, expected[rows])
        torch.testing.assert_close(of_some.grad, of_all.grad[rows])
        torch.testing.assert_close(split.state_dict(), whole.state_dict())
        for one, other in zip(split.parameters(), whole.parameters(), strict=True):
            dist.all_reduce(one.grad)
            torch.testing.assert_close(one.grad, other.grad)
        with group:
            torch.testing.assert_close(split.eval()(x[rows]), whole.eval()(x)[rows])
    halves = torch.randn(4, 3).bfloat16()
    with group:
        assert nn.BatchNorm1d(3).bfloat16()(halves).dtype is torch.bfloat16


def resume_apart(rank, folder):
    """Processes on hosts of several names go on under a limit on latency; the outcome in one file per rank."""
    platform.node = lambda: f"host{rank}"
    results: list[dict] = []
    for state in (None, "saved"):
        torch.manual_seed(17)
        model = Net(dropout=0).double()
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        latency = Latency(pairs(1, torch.double)[0][0][0], repeats=1)
        limits = [Limit(parameters, LIMIT), Limit(latency, 10)]
        oneshot = OneShot(model, ASNG(space_of(model), seed=5), weight_optimizer, cross_entropy, limits=limits)
        if state is not None:
            oneshot.load_state_dict(results[0]["state"])
            results.append({"known": dict(oneshot.costs.known)})
        for pair in pairs(10, torch.double):
            oneshot.step(*pair)
        results.append({"state": oneshot.state_dict(), "known": dict(oneshot.costs.known)})
        box = [results[0]["state"]]
        dist.broadcast_object_list(box, 0)  # all go on from the state of the first
        results[0]["state"] = box[0]
    torch.save([result["known"] for result in results], Path(folder, f"rank{rank}.pt"))


def fail_together(rank, folder, half):
    """OneShot where the deepest networks, and in the end all, run out of memory; the outcome in one file per rank."""
    torch.manual_seed(17)
    model = Net(dropout=0).double()
    every = False

    def loss(model, batch):
        x, y = batch
        if every or (selected(model)["depth"] == 3 and (half == "forward" or not torch.is_grad_enabled())):
            raise torch.OutOfMemoryError
        if selected(model)["depth"] == 3:
            x = FailingBackward.apply(
                x.clone().requires_grad_(), MemoryError
            )  # when the gradients of all weights are there
        return cross_entropy(model, (x, y)), {"depth": torch.tensor(selected(model)["depth"]), "rows": len(x)}

    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    oneshot = OneShot(
        model, ASNG(space_of(model), population_size=3, seed=5), weight_optimizer, loss, max_grad_norm=1.0
    )
    records = [oneshot.step(*pair) for pair in pairs(20, torch.double)]
    result = {
        "weights": dict(model.state_dict()),
        "optimizer": oneshot.arch_optimizer.state_dict(),
        "train": [list(record.train_losses) for record in records],
        "valid": [list(record.valid_losses) for record in records],
        "metrics": [[*record.train_metrics, *record.valid_metrics] for record in records],
    }
    every, done = True, 0
    try:
        while done < 9:
            done += 1
            oneshot.step(*pairs(1, torch.double)[0])
    except RuntimeError as error:
        result["error"] = f"{type(error).__name__} after {done} steps"
    torch.save(result, Path(folder, f"rank{rank}.pt"))


def wrap_together(rank, folder):
    """What is said of models that are wrapped for several processes, by each function, in one file per rank."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), OneOf("op", [nn.Linear(4, 3), nn.Linear(4, 3)]))

    def shard(model):
        fully_shard(model)
        return model

    def inside(wrap):
        def wrap_second(model):
            model[1] = wrap(model[1])
            return model

        return wrap_second

    kinds = {
        "plain": lambda model: model,
        "DDP": DistributedDataParallel,
        "DDP inside": inside(DistributedDataParallel),
        "FSDP": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
        "fully_shard": shard,
        "fully_shard inside": inside(shard),
    }
    values, data = {"op": 1}, batches(1)

    def one_shot(model):
        OneShot(model, ASNG({"op": Categorical([0, 1])}), torch.optim.SGD(model.parameters()), cross_entropy)

    def recalibrate_on_data(model):
        select(model, values)
        recalibrate(model, data)
        return [statistic.tolist() for statistic in model.buffers()]

    calls = {
        "OneShot": one_shot,
        "search": lambda model: search(model, data, [*data], cross_entropy, epochs=1, progress=False).values,
        "space_of": space_of,
        "select": lambda model: select(model, values),
        "parameters": lambda model: parameters(model, values),
        "extract": lambda model: extract(model, values),
        "recalibrate": recalibrate_on_data,
    }
    told = {}
    for kind, wrap in kinds.items():
        wrapped = wrap(model())
        for name, call in calls.items():
            try:
                told[f"{kind} {name}"] = str(call(wrapped))
            except Exception as error:
                told[f"{kind} {name}"] = f"{type(error).__name__}: {error}"
    torch.save(told, Path(folder, f"rank{rank}.pt"))


def die_in_step(rank, folder, moment):
    """The second process is killed in its tenth step, or after it."""
    model = Net(dropout=0)
    calls = itertools.count()

    def loss(model, batch):
        if rank == 1 and moment == "inside" and next(calls) == 19:
            _kill_self()
        return cross_entropy(model, batch)

    oneshot = OneShot(
        model, ASNG(space_of(model), seed=0), torch.optim.SGD(model.parameters(), lr=0.1), loss, max_grad_norm=1.0
    )
    for place, pair in enumerate(pairs(40)):
        oneshot.step(*pair)
        if rank == 1 and moment == "between" and place == 9:
            _kill_self()
    Path(folder, f"finished{rank}").touch()


def torchrun(folder, *arguments, world_size=2):
    """This file as a script in several processes, started as users start theirs; what they print is in log.txt."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world_size),
        __file__,
    ]
    package = str(Path(asng.__file__).parents[1])
    with open(Path(folder, "log.txt"), "w") as log:
        return subprocess.Popen(
            [*command, str(folder), *arguments],
            env={**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def search_together(rank, folder, settings):
    """A search in several processes, with other seeds in each."""
    settings = dict(settings)
    interrupt_at, stop_at = settings.pop("interrupt_at", None), settings.pop("stop_at", None)
    calls, records = itertools.count(), itertools.count(1)
    if stop_at is not None:  # the second process alone ends it
        settings["callback"] = lambda record: next(records) == stop_at and rank == 1

    def loss(model, batch):
        if rank == 1 and interrupt_at is not None and next(calls) == interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        return cross_entropy(model, batch)

    try:
        result = small_search(Path(folder, "checkpoint.pt"), seed=3 + rank, loss_fn=loss, **settings)
    except KeyboardInterrupt as error:
        Path(folder, f"stopped{rank}.txt").write_text(str(error))
        return
    torch.save(result, Path(folder, f"rank{rank}.pt"))


def _under_torchrun(folder, killed_at=None):
    """A search as in a user's script; `killed_at`: the loss in which the second process is killed."""
    dist.init_process_group("gloo")
    rank, calls = dist.get_rank(), itertools.count(1)

    def loss(model, batch):
        if rank == 1 and killed_at is not None and next(calls) == int(killed_at):
            _kill_self()
        return cross_entropy(model, batch)

    result = small_search(Path(folder, "checkpoint.pt"), seed=3 + rank, loss_fn=loss, epochs=4, dropout=0.0)
    torch.save(result, Path(folder, f"rank{rank}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    _under_torchrun(*sys.argv[1:])
