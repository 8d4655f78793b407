"""The supernet of the inpainting search, which runs only the active chain, and the autoencoder extracted from it.

Every hidden layer has weights of its own for each kernel, with and without skip, and others for its
mirror image in the decoder. Numbers of channels share them: the first few channels are used, and
nothing is computed with the others, but for a few on GPUs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from asng import nas
from asng.experiments.inpainting import encoding
from asng.experiments.inpainting.encoding import SIZE, Layer, Values, Variables
from asng.fused._chain import FIELDS, ChainLayer, Chains
from asng.nas._capture import trace as _trace  # no public name sends a chain, or adds to gradients by address

IMAGE_CHANNELS = 3

Model = TypeVar("Model", bound=nn.Module)
Make = Callable[..., nn.Module]


class Net(nas.Searchable):
    """Autoencoders of up to 20 layers and as many in the decoder: images (n, 3, h, w) to images of the same shape.

    `space` is that of `search_space`. Images may have any size: a layer that halves is left out, on both
    sides, where it meets a height or width of 1. What is extracted, and what counts as active, is for
    images of `size`.

    >>> space = encoding.search_space("int", layers=4, widths=(4, 8))
    >>> net = Net(space, size=(8, 8))
    >>> values = encoding.base_values(space, depth=2, channels=6)
    >>> nas.extract(net, values)
    Autoencoder(
      (encoder): ModuleList(
        (0): Conv2d(3, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
        (1): Conv2d(6, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
      )
      (decoder): ModuleList(
        (0-1): 2 x ConvTranspose2d(6, 6, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
      )
      (last): ConvTranspose2d(6, 3, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    )
    """

    decisions: nn.ModuleList
    encoder: nn.ModuleList
    decoder: nn.ModuleList
    last: nas.ConvTranspose2d

    def __init__(self, space: Variables, size: tuple[int, int] = SIZE) -> None:
        super().__init__()
        self.size = size
        decisions = [nas.Value(name, variable) for name, variable in space.items()]
        channels = [decision for decision in decisions if decision.name.endswith(".channels")]
        self.decisions = nn.ModuleList(decisions)
        # The image may come into any of the first layers: all take as much as comes, and begin alike.
        in_channels = nas.AnySize(max(IMAGE_CHANNELS, *encoding.widths_of(space)))
        self.encoder = nn.ModuleList(_make_each_kind(_conv, nas.Conv2d, in_channels, width) for width in channels)
        self.decoder = nn.ModuleList(
            _make_each_kind(_mirror, nas.ConvTranspose2d, in_channels, width) for width in channels
        )
        self.last = nas.ConvTranspose2d(in_channels, IMAGE_CHANNELS, 3, padding=1, bias=False)
        self._bounds = Chains(
            len(channels), in_channels.max, max(encoding.widths_of(space)), IMAGE_CHANNELS, max(encoding.KERNELS)
        )
        reset(self)

    def forward(self, images: Tensor) -> Tensor:
        if _trace.is_open():
            return self._forward_open(images)
        height, width = images.shape[-2:]
        return autoencode(images, *self._layers(self._chain((height, width))), self.last)

    def _forward_open(self, images: Tensor) -> Tensor:
        """The same in a captured step, by kernels that read the chain from device memory."""
        size = images.shape[-2], images.shape[-1]
        geometry = _trace.read_numbers(self._geometry, size, length=self._bounds.rows * FIELDS)
        parts: Any = (*self.encoder, *self.decoder)
        weights = [part[kind].weight for part in parts for kind in encoding.LAYER_KINDS] + [self.last.weight]
        if not all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights):
            raise ValueError("the weights are not channels last; call model.to(memory_format=torch.channels_last)")
        return self._bounds.run(images, geometry, *_trace.address_weights(weights))

    def _geometry(self, values: Values, size: tuple[int, int]) -> list[int]:
        kinds, layers = list(encoding.LAYER_KINDS), []
        for layer in encoding.runnable_layers(encoding.chain(values), size):
            weight = (layer.number - 1) * len(kinds) + kinds.index(layer.kind)
            mirror = len(self.encoder) * len(kinds) + weight
            layers.append(ChainLayer(weight, mirror, layer.channels, layer.kernel, 1 if layer.skip else 2))
        return self._bounds.geometry(layers, 2 * len(self.encoder) * len(kinds), size)

    def _selected_values(self) -> dict[str, Any]:
        decisions: Any = self.decisions
        return {decision.name: decision.value for decision in decisions}

    def _chain(self, size: tuple[int, int]) -> list[Layer]:
        return encoding.runnable_layers(encoding.chain(self._selected_values()), size)

    def _layers(self, run: Sequence[Layer]) -> tuple[list[Any], list[Any]]:
        """The elastic layers of the encoder and of the decoder, both in the order of the encoder."""
        parts: Any = (self.encoder, self.decoder)
        encoder, decoder = ([part[layer.number - 1][layer.kind] for layer in run] for part in parts)
        return encoder, decoder

    def active_modules(self) -> list[nn.Module]:
        run = self._chain(self.size)
        # A layer that is left out hands its input on, whatever its kernel and channels.
        read = {f"layer{layer.number}.{part}" for layer in run for part in ("kernel", "channels")}
        for layer in encoding.chain(self._selected_values()):
            read |= {f"layer{layer.number}.{part}" for part in ("type", "skip", "connection")}
        decisions = [decision for decision in self.decisions if decision.name in {*read, "output.connection"}]
        encoder, decoder = self._layers(run)
        return [*decisions, *encoder, *decoder, self.last]

    def build_static(self) -> "Autoencoder":
        run = self._chain(self.size)
        encoder, decoder = self._layers(run)
        into_encoder, into_decoder, into_last = input_channels(run)
        return Autoencoder(
            [layer.build_static(in_channels) for layer, in_channels in zip(encoder, into_encoder, strict=True)],
            [layer.build_static(in_channels) for layer, in_channels in zip(decoder, into_decoder, strict=True)],
            self.last.build_static(into_last),
        )


class Autoencoder(nn.Module):
    """A static symmetric autoencoder; images (n, 3, h, w), best of the size that it was made for.

    Layers with stride 1 have a skip connection to their mirror image. Other sizes run too, but then
    a layer that halves a side of 1, to 1, is not left out.
    """

    encoder: nn.ModuleList
    decoder: nn.ModuleList
    last: nn.Module

    def __init__(self, encoder: Sequence[nn.Module], decoder: Sequence[nn.Module], last: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder, self.last = nn.ModuleList(encoder), nn.ModuleList(decoder), last

    def forward(self, images: Tensor) -> Tensor:
        return autoencode(images, list(self.encoder), list(self.decoder), self.last)


def autoencode(images: Tensor, encoder: Sequence[Any], decoder: Sequence[Any], last: nn.Module) -> Tensor:
    """Down the encoder and back up its mirror image, `decoder`, which stands in the same order as the encoder.

    The decoder is told the sizes that it has to come back to, as those of odd sides cannot be
    guessed; for even sides that is an output padding of stride - 1.
    """
    nodes = [images]
    for conv in encoder:
        nodes.append(torch.relu(conv(nodes[-1])))
    x = nodes[-1]
    for mirror in reversed(decoder):
        beside, before = nodes.pop(), nodes[-1]
        x = mirror(x, output_size=before.shape[-2:])
        if mirror.stride == (1, 1):
            x = x + beside
        x = torch.relu(x)
    result: Tensor = last(x)
    return result


def input_channels(run: Sequence[Layer]) -> tuple[list[int], list[int], int]:
    """The channels that come into the layers of the encoder, those of the decoder in the same order, and the last.

    >>> input_channels([Layer(1, 3, True, 64), Layer(4, 5, False, 128), Layer(9, 1, True, 256)])
    ([3, 64, 128], [128, 256, 256], 64)
    """
    channels = [layer.channels for layer in run]
    return (
        [IMAGE_CHANNELS, *channels][: len(channels)],
        [*channels[1:], *channels[-1:]],
        channels[0] if channels else IMAGE_CHANNELS,
    )


def new_autoencoder(values: Values, size: tuple[int, int] = SIZE) -> Autoencoder:
    """The autoencoder of an architecture, its own channels exactly, newly initialized for training from scratch."""
    run = encoding.runnable_layers(encoding.chain(values), size)
    into_encoder, into_decoder, into_last = input_channels(run)
    encoder = [_conv(nn.Conv2d, n, to.channels, to.kernel, to.skip) for n, to in zip(into_encoder, run, strict=True)]
    decoder = [
        _mirror(nn.ConvTranspose2d, n, to.channels, to.kernel, to.skip) for n, to in zip(into_decoder, run, strict=True)
    ]
    model = Autoencoder(encoder, decoder, nn.ConvTranspose2d(into_last, IMAGE_CHANNELS, 3, padding=1, bias=False))
    reset(model)
    return model


def to_device_format(model: Model, device: torch.device) -> Model:
    """A model on a device; the kernels of GPUs want the channels of a pixel side by side."""
    moved: Any = model.to(device)  # whose types do not know of formats
    return moved.to(memory_format=torch.channels_last) if device.type == "cuda" else moved  # type: ignore[no-any-return]


def _conv(make: Make, in_channels: Any, out_channels: Any, kernel: int, skip: bool, **more: Any) -> nn.Module:
    return make(in_channels, out_channels, kernel, stride=1 if skip else 2, padding=kernel // 2, bias=False, **more)


def _mirror(make: Make, in_channels: Any, out_channels: Any, kernel: int, skip: bool) -> nn.Module:
    return _conv(make, in_channels, out_channels, kernel, skip, output_padding=0 if skip else 1)


def _make_each_kind(layer: Make, *arguments: Any) -> nn.ModuleDict:
    return nn.ModuleDict(
        {kind: layer(*arguments, kernel, skip) for kind, (kernel, skip) in encoding.LAYER_KINDS.items()}
    )


def reset(model: nn.Module) -> None:
    """Initialize all convolutions of both sorts, uniformly within 1/sqrt(in_channels k^2).

    The weights of a supernet count the most channels that they can take, also where fewer come.
    Numbers are drawn where the weights are: on the CPU, before a model is moved, they are the same
    for every device.
    """
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            bound = 1 / math.sqrt(module.in_channels * math.prod(module.kernel_size))
            nn.init.uniform_(module.weight, -bound, bound)
