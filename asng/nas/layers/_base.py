"""Elastic layers: torch's layer of the largest size, of which the slice of the selected sizes is used."""

from abc import abstractmethod
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from asng.nas._decision import Decision, Searchable, Size, SizeLike, as_int, size_and_max
from asng.nas._ties import Ties


class AnySize:
    """As many channels as the input has, up to `max`: for inputs whose size is itself searched.

    The module that holds such a layer gives the number in its own `build_static()`:
    `layer.build_static(in_channels=64)`.

    >>> from asng.nas import Linear
    >>> linear = Linear(AnySize(64), 8)
    >>> linear(torch.zeros(1, 20)).shape
    torch.Size([1, 8])
    >>> linear.build_static(in_channels=20)
    Linear(in_features=20, out_features=8, bias=True)
    """

    decision = None

    def __init__(self, max: int) -> None:
        self.max = as_int(max)
        self.last_seen = self.max  # channels of the last input

    def __call__(self) -> int:
        return self.last_seen

    def __repr__(self) -> str:
        return f"AnySize({self.max})"


InputSize = SizeLike | AnySize


def input_size_and_max(of: InputSize, what: str) -> tuple[Size | AnySize, int]:
    """`size_and_max` of an input, which may also be `AnySize`."""
    return (AnySize(of.max), of.max) if isinstance(of, AnySize) else size_and_max(of, what)


def check_fixed(**settings: Any) -> None:
    """Raise ValueError for settings, single or in pairs, that are decisions."""
    for name, setting in settings.items():
        for part in setting if isinstance(setting, (tuple, list)) else (setting,):
            if isinstance(part, (Decision, Size)):
                raise ValueError(
                    f"{name} cannot be a decision, got {part!r}; only channels, groups and kernels can. Choose among "
                    f"layers instead: OneOf(name, [one layer for each {name}])"
                )


TorchLayer = TypeVar("TorchLayer", bound=nn.Module)


def on_meta(kind: type[TorchLayer], *arguments: Any, **settings: Any) -> TorchLayer:
    """A torch layer on the device "meta", without initialization, which takes most of the time."""
    bare: Any = _without_first_values(kind)  # type: ignore[arg-type] # mypy takes types of a bound for not hashable
    layer: TorchLayer = bare(*arguments, **settings, device="meta")
    layer.__class__ = kind
    return layer


@lru_cache
def _without_first_values(kind: Any) -> Any:
    return type(kind.__name__, (kind,), {"reset_parameters": lambda self: None})


class ElasticLayer(Searchable):
    """A torch layer of the largest size that uses the slice of the selected sizes.

    Its decisions are submodules, named by their roles. `asng.nas.select` tells the layers of a model their paths,
    so that errors name both layers whose sizes do not fit together.
    """

    path: str = ""
    producers: dict[
        int, str
    ]  # number of channels -> path of the layer that last returned it, shared by a model's layers
    ties: Ties | None = None  # while a model that shares this layer's weights is extracted

    @abstractmethod
    def active_tensors(self) -> dict[str, Tensor | None]:
        """The slices of its parameters and buffers in use under the selected values."""

    @abstractmethod
    def build_meta(self) -> nn.Module:
        """The torch layer of the selected sizes, on the device "meta"."""

    def build_static(self, in_channels: int | None = None) -> nn.Module:
        """The equivalent torch layer under the selected values, with copies of the weights.

        `in_channels` is required for a layer with `AnySize` inputs, and allowed only there.
        """
        tensors = self.static_tensors(in_channels, copy=True)
        static = self.build_meta()
        for name, tensor in tensors.items():
            setattr(static, name, tensor)
        static.training = self.training
        return static

    def static_tensors(self, in_channels: int | None = None, *, copy: bool) -> dict[str, Tensor | None]:
        """The tensors of `build_static`: copies, with parameters of their own, or views of this layer's, to look at."""
        self._check_forward()
        self._set_in_channels(in_channels)
        tensors: dict[str, Tensor | None] = {}
        for name, used in self.active_tensors().items():
            tensor = used.detach().clone() if copy and used is not None else used
            if tensor is not None and name not in self._buffers:
                if copy:
                    tensor = nn.Parameter(tensor, getattr(self, name).requires_grad)
                if self.ties is not None:
                    self.ties.record(self, name, tensor)
            tensors[name] = tensor
        return tensors

    def _check_forward(self) -> None:
        kind: Any = next(kind for kind in type(self).__mro__ if "build_meta" in vars(kind))
        if type(self).forward is not kind.forward:
            raise ValueError(
                f"{self._label()} is a {type(self).__name__} with a forward() of its own, which the static layer would "
                "not have; give it a build_static() of its own, too"
            )

    def _set_in_channels(self, in_channels: int | None) -> None:
        if self._any_size is not None:
            if in_channels is None or not 1 <= in_channels <= self._any_size.max:
                raise ValueError(
                    f"{self._label()} takes any number of channels up to {self._any_size.max}, got "
                    f"in_channels={in_channels}; say how many by layer.build_static(in_channels=...) in the "
                    "build_static() of the module that holds it"
                )
            self._any_size.last_seen = in_channels
        elif in_channels is not None:
            raise ValueError(
                f"{self._label()} is told by its decisions how much it takes, not by in_channels={in_channels}"
            )

    def _register_sizes(self, **roles: Size | AnySize) -> None:
        self.producers = {}
        self._any_size = next((size for size in roles.values() if isinstance(size, AnySize)), None)
        for role, size in roles.items():
            if size.decision is not None:
                self.add_module(f"{role}_decision", size.decision)

    def _check_input(self, size: Size | AnySize, x: Tensor, axis: int, unit: str = "channels") -> int:
        """Return the selected size; RuntimeError if the input has another one on this axis."""
        if x.dim() < -axis:
            return size()  # torch says what is wrong
        got = x.shape[axis]
        if isinstance(size, AnySize):
            size.last_seen = min(got, size.max)
        in_channels = size()
        if got != in_channels:
            at_most = f"up to {in_channels}" if self._any_size else in_channels
            wanted = at_most if size.decision is None else f"{size} = {in_channels}"
            producer = f", which {self.producers[got]} last gave" if got in self.producers else ""
            raise RuntimeError(f"{self._label()} takes {wanted} {unit}, but got {got}{producer}")
        return in_channels

    def _label(self) -> str:
        return self.path or type(self).__name__

    def _record_output(self, channels: int, y: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.producers[channels] = self._label()
        return y
