"""What cells compute: their entries, their nodes, each the sum of two paths, and the join of loose ends."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asng import fused
from asng.experiments.cifar10.layers import FactorizedReduce, concatenate
from asng.fused._dispatch import have_hooks
from asng.fused._pointwise import conv_norm, join_maps

STREAMS = 8  # on which paths of a cell run side by side
FanOut = Callable[[Tensor, int], Iterable[Tensor]]  # a tensor for a number of users
Modules = Sequence[Sequence[tuple[int, nn.Module]]]  # of each node two paths: a source and what it goes through


def is_fused(norm: nn.Module) -> bool:
    """Whether a batch norm, as all of its network, is fused: cells then take maps that are not rectified."""
    return isinstance(norm, fused.BatchNorm2d)


def enter(
    entries: nn.ModuleList, inputs: Sequence[Tensor | None], sources: Iterable[int], norm: nn.Module
) -> dict[int, Tensor]:
    """What a cell makes of those of its inputs that it looks at; fused entries rectify them while they read."""
    entered = {}
    for source in sources:
        entry, x = entries[source], cast(Tensor, inputs[source])
        if not is_fused(norm):
            entered[source] = entry(x)
        elif isinstance(entry, FactorizedReduce):
            entered[source] = entry(x, relu=True)
        elif isinstance(entry, fused.PointwiseConv2d) and not have_hooks(entry, entry[0]):
            entered[source] = conv_norm(x, entry[0].weight, entry[1], relu=True)  # type: ignore[arg-type]
        else:
            entered[source] = entry(F.relu(x))
    return entered


def draw_masks(keep: float | Tensor, like: Tensor, *shape: int) -> Tensor:
    """Factors of both paths to each node and of each image: 1 / keep with the probability keep, or else 0.

    Of the nodes of one cell, with the shape (nodes,), or of several ones, (cells, nodes).
    """
    return like.new_empty(*shape, 2, len(like), 1, 1, 1).bernoulli_(keep).div_(keep)


def run_nodes(
    entered: Mapping[int, Tensor],
    nodes: Modules,
    ends: Sequence[int],
    masks: Tensor | None = None,
    add: Callable[..., Tensor] = torch.add,
    fan_out: FanOut = repeat,
) -> list[Tensor]:
    """What the ends among the nodes of a cell hold; node i is source 2 + i, behind the inputs.

    A module applied twice to the same gives the same, so it is computed once. Every path
    except an identity is multiplied by its mask, if there are masks.
    """
    wanted = [path for pair in nodes for path in pair]
    paths = dict.fromkeys(wanted)
    users = [source for source, _ in paths] + [2 + end for end in ends]
    sources = {source: iter(fan_out(x, users.count(source))) for source, x in entered.items()}
    running: dict[tuple[int, nn.Module], Running] = {}
    fork = Fork(next(iter(entered.values())).device)
    for node, pair in enumerate(nodes):
        for path in paths if fork.is_captured else pair:  # side by side each begins as soon as its source is there
            if path not in running and path[0] in sources:
                running[path] = fork.run(path[1], next(sources[path[0]]), fan_out, wanted.count(path))
        scales: list[Tensor | None] = []
        if masks is not None:
            scales = [None if isinstance(module, nn.Identity) else masks[node, i] for i, (_, module) in enumerate(pair)]
        result = add(*[running[path].join() for path in pair], *scales)
        sources[2 + node] = iter(fan_out(result, users.count(2 + node)))
    return [next(sources[2 + end]) for end in ends]


class Running(NamedTuple):
    """The result of a module for its users, where a stream of its own may still compute it."""

    results: Iterator[Tensor]
    event: Any = None

    def join(self) -> Tensor:
        """Let the current stream wait; return the result for the next user."""
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)
        return next(self.results)


class Fork:
    """Runs modules side by side on a GPU while a CUDA graph is captured, and elsewhere one after another.

    What runs on behalf of different users has different streams.
    """

    _streams: ClassVar[dict[tuple[torch.device, str], list[Any]]] = {}

    def __init__(self, device: torch.device, user: str = "cell") -> None:
        self._cuda: Any = torch.cuda
        self._key, self._runs = (device, user), 0
        self.is_captured = device.type == "cuda" and self._cuda.is_current_stream_capturing()
        if self.is_captured and self._key not in self._streams:
            self._streams[self._key] = [self._cuda.Stream(device) for _ in range(STREAMS)]

    def run(self, module: nn.Module, x: Tensor, fan_out: FanOut = repeat, users: int = 1) -> Running:
        """Start a module, whose result has some users."""
        if not self.is_captured or isinstance(module, nn.Identity):
            return Running(iter(fan_out(module(x), users)))
        stream, outer = self._streams[self._key][self._runs % STREAMS], self._cuda.current_stream()
        self._runs += 1
        stream.wait_stream(outer)
        with self._cuda.stream(stream):
            result: Tensor = module(x)
            results = iter(fan_out(result, users))  # here, so that gradients of the users are added up on this stream
        x.record_stream(stream)  # so that no memory is used again before both streams are done with it
        result.record_stream(outer)
        return Running(results, stream.record_event())


def join_ends(ends: Sequence[Tensor], weight: Tensor, norm: nn.Module) -> Tensor:
    """A 1x1 convolution of rectified maps side by side, normalized."""
    if is_fused(norm):
        return join_maps(ends, weight, norm)  # type: ignore[arg-type]
    return norm(F.conv2d(F.relu(concatenate(ends)), weight))  # type: ignore[no-any-return]
