"""Architectures of autoencoders (paper, section 3.3): two encodings, and the chain of layers that they stand for.

Node 0 is the image, nodes 1 to 20 are hidden layers, the node after them is the output. Each node
names the one that it continues, one of the five before it. The chain followed back from the output
is the encoder, which the decoder mirrors; layers outside of the chain are inactive. A layer either
keeps the size of its input and hands its output over to its mirror image ("skip"), or halves it
("down").

    cat   layer3.type, layer3.channels, layer3.connection: all of them choices
    int   layer3.skip and layer3.connection, choices; layer3.kernel and layer3.channels, integers
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from asng._variable import check_values
from asng.optimizer import ASNG
from asng.space import Categorical, Integer, Variable

Encoding = Literal["cat", "int"]
Values = Mapping[str, Any]
Variables = Mapping[str, Variable]

KERNELS = (1, 3, 5)  # of the integers 1, 2, 3
LAYER_KINDS = {f"{kernel}x{kernel} {way}": (kernel, way == "skip") for kernel in KERNELS for way in ("skip", "down")}
WIDTHS = {"cat": (64, 128, 256), "int": (64, 256)}
MAX_CHANNELS = 10**9
SIZE = (64, 64)  # of the images: height, width


@dataclass(frozen=True)
class Layer:
    """A hidden layer of the chain: a convolution, and the transposed one that mirrors it."""

    number: int
    kernel: int
    skip: bool
    channels: int

    @property
    def kind(self) -> str:
        """Kernel and way, by which a layer of the supernet has its own weights."""
        return f"{self.kernel}x{self.kernel} {'skip' if self.skip else 'down'}"


def search_space(
    encoding: Encoding = "cat", layers: int = 20, levels: int = 5, widths: Sequence[int] | None = None
) -> dict[str, Variable]:
    """The search space; `widths` lists the channels of "cat", and gives the least and the most of "int".

    Connections reach back `levels` nodes. The first layer has no choice and hence no variable for it.

    >>> search_space("int", layers=2, widths=(8, 32))["layer2.channels"]
    Integer(low=8, high=32)
    """
    widths = WIDTHS[encoding] if widths is None else widths
    space: dict[str, Variable] = {}
    for node in range(1, layers + 1):
        space |= {f"layer{node}.{name}": variable for name, variable in _layer_variables(encoding, widths).items()}
        if node > 1:
            space[f"layer{node}.connection"] = Categorical(range(max(0, node - levels), node))
    # An output that continued the image itself would leave nothing to search.
    space["output.connection"] = Categorical(range(max(1, layers + 1 - levels), layers + 1))
    return space


def _layer_variables(encoding: Encoding, widths: Sequence[int]) -> dict[str, Variable]:
    if min(widths, default=0) < 1:
        raise ValueError(f"a layer has at least 1 channel, got widths={widths!r}")
    if encoding == "cat":
        return {"type": Categorical(tuple(LAYER_KINDS)), "channels": Categorical(widths)}
    if len(widths) != 2:
        raise ValueError(f"widths of the encoding 'int' are the least and the most, got {widths!r}")
    kernel = Integer(1, len(KERNELS))
    return {"skip": Categorical((True, False)), "kernel": kernel, "channels": Integer(*widths)}


def layers_in(names: Mapping[str, Any]) -> int:
    """The number of hidden layers in a space or in the values of an architecture."""
    return sum(name.endswith(".channels") for name in names)


def widths_of(space: Variables) -> Sequence[int]:
    """The numbers of channels that a layer can have."""
    return space["layer1.channels"].values() or ()


def chain(values: Values) -> list[Layer]:
    """The active layers, in the order in which they follow the image.

    >>> space = search_space(layers=3, levels=2)
    >>> [layer.number for layer in chain(base_values(space, 3) | {"layer3.connection": 1})]
    [1, 3]
    """
    node, found = values["output.connection"], []
    while node:
        name = f"layer{node}"
        if f"{name}.type" in values:
            kernel, skip = LAYER_KINDS[values[f"{name}.type"]]
        else:
            kernel, skip = KERNELS[values[f"{name}.kernel"] - 1], values[f"{name}.skip"]
        found.append(Layer(node, kernel, skip, values[f"{name}.channels"]))
        node = values[f"{name}.connection"] if node > 1 else 0
    return found[::-1]


def runnable_layers(layers: Sequence[Layer], size: tuple[int, int] = SIZE) -> list[Layer]:
    """The layers of a chain that run on images of this height and width: a side of 1 cannot be halved."""
    return [layer for layer, runs, _ in sizes(layers, size) if runs]


def sizes(layers: Sequence[Layer], size: tuple[int, int]) -> Iterator[tuple[Layer, bool, tuple[int, int]]]:
    """Each layer, whether it runs, and the size after it."""
    for layer in layers:
        runs = layer.skip or min(size) > 1
        if not layer.skip:
            size = (size[0] + 1) // 2, (size[1] + 1) // 2  # 1 stays 1
        yield layer, runs, size


def depth(values: Values, size: tuple[int, int] = SIZE) -> int:
    """The number of hidden layers that run on images of this size, those of the decoder not counted."""
    return len(runnable_layers(chain(values), size))


def describe_chain(values: Values, size: tuple[int, int] = SIZE) -> str:
    """The active layers, a line each: number, kind, channels and size of the output.

    >>> values = base_values(search_space(layers=3, levels=3), 2) | {"layer2.type": "5x5 down"}
    >>> print(describe_chain(values, (64, 63)))
    1  3x3 skip   64 channels  64x63
    2  5x5 down   64 channels  32x32
    """
    layers, lines = chain(values), []
    for layer, runs, (height, width) in sizes(layers, size):
        text = f"{layer.number:{len(str(layers[-1].number))}}  {layer.kind}  "
        what = f"{layer.channels:3} channels " if runs else "left out at"
        lines.append(f"{text}{what} {height}x{width}")
    return "\n".join(lines)


def read_values(text: str) -> dict[str, Any]:
    """The architecture in a text, of either encoding; its names and channels tell the space that it is checked by.

    >>> from asng.nas.architecture import to_json
    >>> values = base_values(search_space("int", layers=3), 2, channels=100)
    >>> read_values(to_json(values)) == values
    True
    """
    from asng.nas.architecture import from_json  # here, since reports draw chains without torch

    return from_json(text, space_of_values(from_json(text)))


def space_of_values(values: Values) -> dict[str, Variable]:
    """The space of an architecture, of either encoding, by its names and channels; ValueError if there is none."""
    widths = [value for name, value in values.items() if name.endswith(".channels")]
    if len(widths) < 2 or not all(type(width) is int and width < MAX_CHANNELS for width in widths):
        raise ValueError("this is not an autoencoder: layer1.channels, layer2.channels and so on must be integers")
    if "layer1.kernel" in values:
        return search_space("int", len(widths), widths=(min(widths), max(widths) + 1))
    return search_space("cat", len(widths), widths=sorted(set(widths)))


def is_autoencoder(values: Values) -> bool:
    """Whether values are an architecture, of either encoding."""
    try:
        check_values(values, space_of_values(values))
    except ValueError:
        return False
    return True


def random_values(space: Variables, seed: int) -> dict[str, Any]:
    """An architecture drawn from the distribution with which a search begins."""
    return ASNG(space, seed=seed).ask(1)[0].values


def base_values(space: Variables, depth: int, channels: int = 64) -> dict[str, Any]:
    """The baseline BASE in a space of either encoding: `depth` equal layers, 3x3 with skip.

    >>> depth(base_values(search_space("int"), 12))
    12
    """
    return _equal_layers(space, depth, channels, kernel=3, skip=True)


def smallest_values(space: Variables) -> dict[str, Any]:
    """An architecture of the fewest parameters on any images but single pixels: the shortest chain, 1x1, narrow.

    It halves, since layers that cannot are left out.

    >>> [(layer.kind, layer.channels) for layer in chain(smallest_values(search_space("int", layers=9)))]
    [('1x1 down', 64)]
    """
    reach = max(len(v.values() or ()) for n, v in space.items() if n.endswith("connection"))
    depth = max(1, math.ceil((layers_in(space) + 1) / reach) - 1)
    return _equal_layers(space, depth, min(widths_of(space)), kernel=1, skip=False)


def _equal_layers(space: Variables, depth: int, channels: int, *, kernel: int, skip: bool) -> dict[str, Any]:
    """`depth` equal layers, spread evenly over the nodes."""
    last = layers_in(space) + 1
    nodes = [index * last // (depth + 1) for index in range(depth + 2)]
    before = {f"layer{node}" if node < last else "output": earlier for earlier, node in pairwise(nodes)}
    kind = Layer(0, kernel, skip, channels).kind
    parts = {"type": kind, "skip": skip, "kernel": KERNELS.index(kernel) + 1, "channels": channels}
    values = {}
    for name, variable in space.items():
        node, _, part = name.partition(".")
        if part != "connection":
            values[name] = parts[part]
        elif node in before:
            values[name] = before[node]
        else:
            values[name] = (variable.values() or (None,))[-1]  # inactive
    check_values(values, space)
    return values
