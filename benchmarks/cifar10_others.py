"""Other searches of the paper's space on CIFAR-10: first-order DARTS, and the procedure of the paper's authors.

    python benchmarks/cifar10_others.py darts --out FOLDER                      25 epochs, seed 0
    python benchmarks/cifar10_others.py authors --seeds 0 1 2 --out FOLDER      8 epochs of each seed, plain PyTorch
    python benchmarks/cifar10_others.py --draw results/cifar10/others           the table again, of finished runs

Halves of the images, mini-batches, channels, cells and the learning rate of the weights are those of
`asng cifar10 search`. DARTS is in darts.py, and its steps are CUDA graphs on a GPU; the authors' procedure is in
authors_search.py. After each epoch what would be chosen is tested with its shared weights, batch statistics
re-estimated on 25 training mini-batches; of DARTS also the mixed network. Seconds are of all steps, without tests;
memory is the most that was reserved on the GPU in the first epoch, before its test.

A run is a folder, FOLDER/darts0 and the like: config.json, metrics.jsonl, a checkpoint, and at the end
architecture.json and summary.json, so that `asng cifar10 retrain FOLDER/darts0` trains what was found. After Ctrl-C or
SIGTERM the same command continues from the last epoch; finished seeds are skipped. The images are where ASNG_DATA says.
"""

import argparse
import copy
import math
import statistics
import sys
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import authors_search
import cifar10_tables
import torch
import torch.nn.functional as F
from cifar10_tables import CURE, check_settings, is_finished, make_parser
from darts import MixedNet, derive
from torch import Tensor, nn

from asng._signals import sigterm_as_interrupt
from asng._untrusted import read_json, read_json_lines
from asng.experiments._jobs import BilevelJob
from asng.experiments._settings import AMP_DTYPES, describe_machine, set_lr
from asng.experiments._train_step import TrainStep
from asng.experiments._workers import run_parallel
from asng.experiments.cifar10.space import code_of
from asng.experiments.cifar10.task import Cifar10, Cifar10DataSettings, Cifar10SearchSettings, accuracy
from asng.nas._checkpoints import Checkpoint
from asng.nas._loop import Epoch, Number, run_job
from asng.nas.architecture import to_dict
from asng.nas.result import concentration
from asng.runs import ARCHITECTURE, CHECKPOINT, METRICS, SUMMARY, Run, make_config, write_json

EPOCHS = {"darts": 25, "authors": 8}
METHODS = {"darts": "first-order DARTS", "authors": "authors' procedure"}


class Fixed(nn.Module):
    """A network that is given its architecture, as one that takes images alone."""

    def __init__(self, model: nn.Module, architecture: Any) -> None:
        super().__init__()
        self.model, self.architecture = model, architecture

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.model(images, self.architecture)
        return result


class OtherSearch(BilevelJob):
    """A search on the same halves of the images as `asng cifar10 search` has."""

    model: nn.Module

    def __init__(self, task: Cifar10, settings: Cifar10SearchSettings) -> None:
        super().__init__(task, settings, callback=lambda record: print(f"{settings.seed}: {record}", file=sys.stderr))
        self.settings = settings

    def test(self, network: nn.Module) -> float:
        """The test accuracy of a network with its own batch statistics."""
        network = copy.deepcopy(network)  # captured steps go on writing to the buffers that are there
        self._recalibrate(network)
        return accuracy(network, self._task.test, self.settings.num_test_images)

    @abstractmethod
    def find(self) -> dict[str, Any]:
        """The architecture that would be chosen now."""

    @abstractmethod
    def run_tests(self) -> dict[str, float]:
        """The test accuracies after an epoch."""

    def finish_epoch(self, epoch: Epoch) -> dict[str, Any]:
        record = {**super().finish_epoch(epoch), "architecture": code_of(self.find())}
        if self.device.type != "cuda":
            return {**record, **self.run_tests()}
        record |= {"peak_gb": torch.cuda.max_memory_reserved(self.device) / 1e9, **self.run_tests()}
        torch.cuda.empty_cache()  # so that memory of the tests does not count in the next epoch
        torch.cuda.reset_peak_memory_stats(self.device)
        return record


class Darts(OtherSearch):
    """In turns, the logits on validation images and the weights on training images."""

    def __init__(self, task: Cifar10, settings: Cifar10SearchSettings) -> None:
        super().__init__(task, settings)
        self.model = self.mixed = MixedNet(task.build_supernet(settings)).to(task.device)  # type: ignore[arg-type]
        self._format = torch.channels_last if task.kernels == "fused" else torch.preserve_format
        on_gpu, amp_dtype = task.device.type == "cuda", AMP_DTYPES[settings.amp_dtype]
        sgd = torch.optim.SGD(
            self.mixed.weights(), lr=settings.lr, momentum=0.9, weight_decay=task.weight_decay, fused=on_gpu
        )
        adam = torch.optim.Adam(
            self.mixed.alphas.parameters(), 3e-4, (0.5, 0.999), weight_decay=1e-3, fused=on_gpu, capturable=on_gpu
        )
        self._weight_step = TrainStep(
            self.mixed, sgd, partial(self._loss, frozen="alphas"), max_grad_norm=5.0, amp_dtype=amp_dtype
        )
        self._alpha_step = TrainStep(
            self.mixed, adam, partial(self._loss, frozen="net"), max_grad_norm=math.inf, amp_dtype=amp_dtype
        )

    def _loss(self, model: nn.Module, batch: tuple[Tensor, ...], frozen: str) -> Tensor:
        """Of a mini-batch, with gradients for one of both kinds of parameters."""
        with without_gradients(getattr(model, frozen)):
            return F.cross_entropy(model(batch[0].contiguous(memory_format=self._format)), batch[1])

    def step(self, index: int) -> dict[str, Number]:
        set_lr(self._weight_step.optimizer, self.settings.lr_at(self._fraction_done(index)))
        valid_loss = self._alpha_step(self.valid_batches(index))
        return {"train_loss": self._weight_step(self.train_batches(index)), "valid_loss": valid_loss}

    def find(self) -> dict[str, Any]:
        return derive(self.mixed.alphas)

    def status(self, epoch: Epoch) -> dict[str, float]:
        weights = [alphas.detach().softmax(1).max(1).values.mean().item() for alphas in self.mixed.alphas.values()]
        return {"largest_probability": statistics.mean(weights), **super().status(epoch)}

    def run_tests(self) -> dict[str, float]:
        return {"test_mixed": self.test(self.mixed), "test_accuracy": self.test(Fixed(self.mixed, self.find()))}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self._weight_step.state_dict(), "alphas": self._alpha_step.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._weight_step.load_state_dict(state["weights"])
        self._alpha_step.load_state_dict(state["alphas"])


@contextmanager
def without_gradients(module: nn.Module) -> Iterator[None]:
    """Passes inside ask for no gradients of a module's parameters."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


class Judged(authors_search.Search):
    """The authors' procedure, which also notes accuracies: those of the candidates that were judged are the last."""

    def __init__(self, model: authors_search.Net, seed: int) -> None:
        super().__init__(model, seed)
        self.accuracies: deque[Tensor] = deque(maxlen=self.arch_optimizer.population_size)

    def loss(self, values: Mapping[str, Any], batch: tuple[Tensor, Tensor]) -> Tensor:
        scores = self.model(batch[0], code_of(values))
        self.accuracies.append((scores.argmax(1) == batch[1]).double().mean())
        return F.cross_entropy(scores, batch[1])


class Authors(OtherSearch):
    """The procedure of the paper's authors, in float32."""

    def __init__(self, task: Cifar10, settings: Cifar10SearchSettings) -> None:
        super().__init__(task, settings)
        net = authors_search.Net(settings.channels, settings.cells).to(task.device)
        self.model, self.search = net, Judged(net, settings.seed)

    def step(self, index: int) -> dict[str, Number]:
        set_lr(self.search.weight_optimizer, self.settings.lr_at(self._fraction_done(index)))
        pairs: Any = self.train_batches(index), self.valid_batches(index)
        losses = self.search.step(*pairs)
        return {"valid_loss": statistics.mean(losses), "valid_accuracy": torch.stack([*self.search.accuracies]).mean()}

    def status(self, epoch: Epoch) -> dict[str, float]:
        return {**concentration(self.search.arch_optimizer), **super().status(epoch)}

    def find(self) -> dict[str, Any]:
        return self.search.arch_optimizer.mode()

    def run_tests(self) -> dict[str, float]:
        return {"test_accuracy": self.test(Fixed(self.model, code_of(self.find())))}

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "weights": self.search.weight_optimizer.state_dict(),
            "distribution": self.search.arch_optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.search.weight_optimizer.load_state_dict(state["weights"])
        for parameter in self.search.weight_optimizer.state:  # weights once touched go on moving
            parameter.grad = torch.zeros_like(parameter)
        self.search.arch_optimizer.load_state_dict(state["distribution"])


JOBS = {"darts": Darts, "authors": Authors}


def run_seed(method: str, out: Path, where: Cifar10DataSettings, flags: Mapping[str, Any], seed: int) -> None:
    """Search, or continue; leaves architecture and summary in the folder of the seed."""
    folder = out / f"{method}{seed}"
    settings = Cifar10SearchSettings(seed=seed, **flags)
    if is_finished(folder):
        check_settings(folder, {"experiment": "cifar10", "kind": method, **vars(settings)})
        return
    task = Cifar10.load(where)
    job = JOBS[method](task, settings)
    with Run(folder, make_config("cifar10", method, settings), METRICS) as run:
        checkpoint = Checkpoint(folder / CHECKPOINT, run.config, run)
        records = run_job(job, epochs=settings.epochs, checkpoint=checkpoint)
        values = job.find()
        write_json(folder / ARCHITECTURE, to_dict(values))
        task.draw(values, folder)
        found = {"values": values, **task.summarize(settings, values), "machine": describe_machine(job.device)}
        write_json(folder / SUMMARY, {**found, "last": records[-1]})


def show_table(folder: Path) -> str:
    """A Markdown table of the runs that are finished."""
    heads = ["search", "seed", "epochs", "valid loss", "valid accuracy", "test accuracy of what is chosen"]
    heads += ["of the mixed network", "mean largest probability", "seconds", "memory, first epoch", "operations found"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for method, text in METHODS.items():
        for path in filter(is_finished, sorted(folder.glob(f"{method}[0-9]"))):
            records = read_json_lines(path / METRICS, CURE)
            last, values = records[-1], read_json(path / SUMMARY, CURE, dict[str, Any])["values"]
            counts = Counter(value for name, value in values.items() if ".op" in name)
            cells = [
                text,
                path.name[-1],
                len(records),
                f"{last['valid_loss']:.3f}",
                *(
                    f"{100 * last[n]:.1f} %" if n in last else ""
                    for n in ("valid_accuracy", "test_accuracy", "test_mixed")
                ),
                f"{last['largest_probability']:.3f}",
                f"{sum(record['seconds'] for record in records):,.0f}",
                f"{records[0]['peak_gb']:.1f} GB" if "peak_gb" in last else "",
                ", ".join(f"{count} {name}" for name, count in counts.most_common()),
            ]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) if len(lines) > 2 else f"there are no finished runs in {folder}"


def parse_flags(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, "method", METHODS, "runs/cifar10-others")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="a run of each (default: 0)")
    parser.add_argument("--epochs", type=int, help="by default 25 of DARTS, 8 of the authors' procedure")
    parser.add_argument("--amp-dtype", choices=["off", "bfloat16"], default="off", help="of DARTS (default: off)")
    parser.add_argument("--kernels", choices=["fused", "torch"], default="fused", help="of DARTS (default: fused)")
    parser.add_argument("--channels", type=int, default=16, help="of the first cell (default: 16)")
    parser.add_argument("--cells", type=int, default=8, help="of the network (default: 8)")
    parser.add_argument("--max-images", type=int, help="use the first ones only, for a quick look")
    parser.add_argument("--data", type=Path, help="folder of the data; default: ASNG_DATA, or the user's cache")
    parser.add_argument("--device", default="auto", help="cpu, cuda; auto is the GPU where there is one")
    given = cifar10_tables.parse_flags(parser, "method", arguments)
    if given.method == "authors" and given.amp_dtype != "off":
        parser.error("the authors' procedure computes in float32; leave --amp-dtype out")
    return given


def run_seeds(given: argparse.Namespace) -> None:
    """Run all seeds, some side by side."""
    flags = {name: getattr(given, name) for name in ("channels", "cells", "amp_dtype")}
    flags["epochs"] = EPOCHS[given.method] if given.epochs is None else given.epochs
    if given.max_images is not None:
        flags |= dict.fromkeys(("num_train_images", "num_test_images"), given.max_images)
    where = Cifar10DataSettings(given.data, given.device, given.kernels)
    function = partial(run_seed, given.method, given.out, where, flags)
    with closing(run_parallel(function, list(dict.fromkeys(given.seeds)), given.workers)) as done:
        for seed, _ in done:
            print(f"seed {seed} is finished", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse_flags(arguments)
    try:
        if given.draw is None:
            with sigterm_as_interrupt():
                run_seeds(given)
    except (ValueError, OSError) as error:
        sys.exit(f"cifar10_others: {error}")
    except KeyboardInterrupt:
        print(f"\nInterrupted. Finished parts are in {given.out}; the same command continues.", file=sys.stderr)
        sys.exit(130)
    print(show_table(given.draw or given.out))


if __name__ == "__main__":
    main()
