"""Elastic layers: torch's layer of the largest size, of which the slice of the selected sizes is used."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, lru_cache
from inspect import signature
from itertools import chain
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from asng._untrusted import shorten
from asng.nas._size import AnySize, Size, check_fixed, map_sizes, to_sizes
from asng.nas.decisions import Searchable

COMPUTING = ("forward", "_conv_forward", "_output_padding", "merge_masks", "_apply_instance_norm")  # of torch's layers


def build_on_meta(kind: Any, **settings: Any) -> nn.Module:
    """A torch layer on the device "meta"; the constructor runs once for equal settings, which are hashable."""
    return _copy_layer(kind, *_prototype(kind, tuple(settings.items())))


def _copy_layer(kind: Any, attributes: dict[str, Any], containers: list[str]) -> nn.Module:
    layer: nn.Module = kind.__new__(kind)
    layer.__dict__.update(attributes)
    for name in containers:
        layer.__dict__[name] = attributes[name].copy()
    if attributes["_modules"]:
        for name, child in attributes["_modules"].items():
            layer._modules[name] = _copy_layer(type(child), child.__dict__, _containers(child.__dict__))
    return layer


@lru_cache(maxsize=1024)
def _prototype(kind: Any, settings: tuple[tuple[str, Any], ...]) -> tuple[dict[str, Any], list[str]]:
    """The attributes of a layer, made without the slow initialization, and the names of those to copy."""
    bare = type(kind.__name__, (kind,), {"reset_parameters": lambda self: None})
    with torch.device("meta"):  # constructors of other libraries have no argument for it
        attributes = bare(**dict(settings)).__dict__
    return attributes, _containers(attributes)


def _containers(attributes: dict[str, Any]) -> list[str]:
    return [name for name, value in attributes.items() if isinstance(value, (dict, list, set))]


def owner_of(layer: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that has a parameter or buffer, and its name there."""
    inner, _, name = path.rpartition(".")
    return (layer.get_submodule(inner) if inner else layer), name


@cache
def has_own_forward(kind: Any) -> bool:
    """True if a subclass of an elastic layer has another forward()."""
    layer = next(base for base in kind.__mro__ if "torch_layer" in vars(base))
    return kind.forward is not layer.forward


def is_own_hook(hook: Any) -> bool:
    """True for a hook of the user: not asng's, nor one by which torch's weight_norm or pruning computes weights."""
    return not type(hook).__module__.startswith(("torch.nn.utils.", "asng."))


def has_own_hooks(module: nn.Module, direction: str = "forward") -> bool:
    """True if the user hooked a module; the direction is "forward" or "backward"."""
    hooks = (getattr(module, f"_{direction}{when}_hooks").values() for when in ("", "_pre"))
    return any(map(is_own_hook, chain.from_iterable(hooks)))


def _own_method(layer: nn.Module, torch_layer: Any) -> tuple[str, str] | None:
    """A method that computes outputs in which a layer differs from torch's, and whether it or its class has it."""
    for name in COMPUTING:
        if name in vars(layer):
            return name, "layer"
        if getattr(type(layer), name, None) is not getattr(torch_layer, name, None):
            return name, "class"
    return None


class Build(NamedTuple):
    """An extraction in progress, as elastic layers see it."""

    copies: bool  # layers copy their weights; otherwise their static layers hold views, which are copied later
    tied_slice: Callable[["ElasticLayer", str, Tensor], nn.Parameter | None]  # that of a parameter that layers share
    paths: Mapping[nn.Module, str]  # of the model's modules


current_build: ContextVar[Build | None] = ContextVar("current_build", default=None)


class ElasticLayer(Searchable):
    """Base class of elastic layers: a torch layer of the largest size that uses the slice of the selected sizes.

    A subclass also derives from the torch layer, and its constructor takes the same arguments. Sizes among them may
    follow decisions, which become submodules. Its `active_tensors` defines the slices. `forward` runs that of the torch
    layer on the slices; your own `forward`, with `check_input` and a function of torch, is faster by some microseconds.

    Args:
        args, kwargs: The arguments of the torch layer's constructor; those in `elastic` may follow decisions.

    Attributes:
        torch_layer: The torch layer that replaces it in an extracted network.
        elastic: The arguments of the constructor that may follow decisions, beginning with the size of the input.
        sizes: These arguments by name, as a `Size`, or a tuple of them; calling one gives the selected size.

    Raises:
        TypeError: The class lacks one of these attributes or bases, or names arguments that the torch layer does not
            have.
        ValueError: A size can be less than 1, or another argument is a decision.

    >>> import torch
    >>> from asng import nas
    >>> class Bilinear(nas.ElasticLayer, nn.Bilinear):
    ...     torch_layer, elastic = nn.Bilinear, ("in1_features", "in2_features", "out_features")
    ...     def active_tensors(self):
    ...         first, second, out = (self.sizes[name]() for name in self.elastic)
    ...         return {"weight": self.weight[:out, :first, :second], "bias": self.bias[:out]}
    >>> layer = Bilinear(3, nas.Width("inputs", [4, 8]), nas.Width("outputs", [16, 32]))
    >>> nas.select(layer, {"inputs": 4, "outputs": 16})
    >>> layer(torch.ones(2, 3), torch.ones(2, 4)).shape
    torch.Size([2, 16])
    >>> nas.extract(layer)
    Bilinear(in1_features=3, in2_features=4, out_features=16, bias=True)
    """

    torch_layer: ClassVar[Any]
    elastic: ClassVar[tuple[str, ...]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _check_class(type(self))
        expected = signature(self.torch_layer)
        bound = expected.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        sizes = {
            name: to_sizes(arguments[name], name, index == 0, expected.parameters[name].annotation in (int, "int"))
            for index, name in enumerate(self.elastic)
        }
        fixed = {name: argument for name, argument in arguments.items() if name not in sizes}
        check_fixed(self.elastic, **fixed)
        maxima = {name: map_sizes(lambda size: size.max, size) for name, size in sizes.items()}
        try:
            self.check_sizes(sizes, arguments)
            super().__init__(**{**arguments, **maxima})
        except torch.OutOfMemoryError:
            raise
        except (TypeError, RuntimeError, LookupError, ArithmeticError, AssertionError) as error:  # torch's refusals
            shown = ", ".join(f"{name}={shorten(argument)}" for name, argument in arguments.items())
            raise ValueError(f"{type(self).__name__}({shown}) cannot be made: {str(error).splitlines()[0]}") from error
        self.sizes: dict[str, Any] = sizes
        self._any_size: Any = None
        for name, size in sizes.items():
            for axis, part in enumerate(size if isinstance(size, tuple) else (size,)):
                if isinstance(part, AnySize):
                    self._any_size = part
                for number, decision in enumerate(part.decisions):
                    self.add_module(f"{name}_decision{axis or ''}{f'_{number}' if number else ''}", decision)

    @abstractmethod
    def active_tensors(self) -> dict[str, Tensor | None]:
        """Slice the parameters and buffers to the selected sizes.

        Returns:
            Views by name, as in `state_dict()`; None for tensors that the layer does not have, such as a bias.
        """

    def check_sizes(self, sizes: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Check whether sizes fit together, before the torch layer is created.

        Args:
            sizes: As in the attribute `sizes`.
            arguments: All arguments of the constructor by name.

        Raises:
            ValueError: They do not; the message says what to change.
        """

    @classmethod
    def settings_of(cls, layer: nn.Module) -> dict[str, Any]:
        """Read the arguments of the torch layer's constructor that cannot be elastic.

        torch's layers store them as attributes of the same names, or have a parameter `bias`. Override this method for
        a layer that does not, such as one of another library.

        Args:
            layer: A `torch_layer`, or this one.

        Returns:
            Hashable arguments by name, without device and dtype.

        Raises:
            TypeError: The layer does not store an argument.
        """
        kind, names = cls.torch_layer.__name__, _fixed_names(cls)
        if missing := [name for name in names if not hasattr(layer, name)]:
            raise TypeError(
                f"{cls.__name__} needs a method settings_of(cls, layer) that returns arguments of {kind}(), such as "
                f"{missing[0]}, as {kind} has no attribute of that name"
            )
        settings = {name: getattr(layer, name) for name in names}
        if not isinstance(settings.get("bias", True), bool):
            settings["bias"] = settings["bias"] is not None
        return settings

    @classmethod
    def from_torch(cls, layer: nn.Module, **sizes: Any) -> Self:
        """Make an elastic layer with the settings and the weights of a torch layer.

        Args:
            layer: A `torch_layer` of the largest size.
            sizes: Decisions, or arithmetic with them, for arguments in `elastic`; the largest values must be those of
                the layer.

        Returns:
            The elastic layer. It shares its parameters and buffers with `layer`, so tied weights stay tied.

        Raises:
            ValueError: The layer has another class or size, its own forward method, hooks, or settings that
                `settings_of` does not read.

        >>> from asng import nas
        >>> conv = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        >>> elastic = nas.Conv2d.from_torch(conv, out_channels=nas.Width("channels", [16, 32, 64]))
        >>> elastic.weight is conv.weight
        True
        """
        if not isinstance(layer, cls.torch_layer):
            kind = cls.torch_layer.__name__
            raise ValueError(f"nas.{cls.__name__} is made from a torch.nn.{kind}, got {shorten(layer)}")
        settings = cls.settings_of(layer)
        if unknown := [name for name in sizes if name not in {*cls.elastic, *settings}]:
            known = ", ".join(cls.elastic)
            raise ValueError(f"nas.{cls.__name__} has no argument {unknown[0]!r}; decisions are for {known}")
        given = {**settings, **sizes}
        old = {name: getattr(layer, name) for name in cls.elastic if name not in given}
        with torch.device("meta"):
            made = cls(**old, **given)
        made.adopt_weights(layer)
        if sizes.keys() <= set(cls.elastic) and (lost := _lost_setting(made, layer, settings)):
            raise ValueError(
                f"{type(layer).__name__} has {lost[0]}, but nas.{cls.__name__} made of its settings has {lost[1]}; "
                "return the missing argument from settings_of(cls, layer)"
            )
        return made

    def adopt_weights(self, layer: nn.Module) -> None:
        """Take the parameters, buffers and train/eval modes of a torch layer of the largest size.

        Args:
            layer: A `torch_layer`; its tensors are shared from now on.

        Raises:
            ValueError: It has its own forward method, hooks, other parameters, or not the largest size.
        """
        kind: Any = type(layer)
        shown = shorten(layer)
        if own := _own_method(layer, self.torch_layer):
            cure = f"make an elastic layer of it: class Elastic{kind.__name__}(nas.ElasticLayer, {kind.__name__})"
            raise ValueError(
                f"{kind.__name__} has a {own[0]} method of its own, which nas.{type(self).__name__} would not have; "
                f"{cure if own[1] == 'class' else f'it was set on this layer: del layer.{own[0]}'}"
            )
        for direction in ("forward", "backward"):
            if has_own_hooks(layer, direction):
                raise ValueError(
                    f"{shown} has a {direction} hook, which nas.{type(self).__name__} would not have; remove it first, "
                    "or hook the surrounding module"
                )
        for name in self.elastic:
            old, new = getattr(layer, name, None), getattr(self, name, None)
            if old != new:
                size = self.sizes[name]
                raise ValueError(
                    f"{shown} has {name}={old}, but the largest {name} of {size} is {new}; the largest size "
                    "must be that of the layer"
                )
        mine, given = ({name: tuple(p.shape) for name, p in module.named_parameters()} for module in (self, layer))
        if mine.keys() != given.keys():
            different = ", ".join(sorted(mine.keys() ^ given.keys()))
            raise ValueError(
                f"{shown} and nas.{type(self).__name__} differ in their parameters ({different}); give both the same "
                "settings, and remove parametrizations first"
            )
        if name := next((name for name in mine if mine[name] != given[name]), ""):
            raise ValueError(
                f"{shown} has a {name} of shape {given[name]}, but the largest one of nas.{type(self).__name__} is "
                f"{mine[name]}; the largest sizes must be those of the layer"
            )
        theirs = dict(layer.named_modules())
        for path, module in self.named_modules():
            if path in theirs:
                module._parameters.update(theirs[path]._parameters)
                module._buffers.update(theirs[path]._buffers)
                module.training = theirs[path].training

    def static_settings(self) -> dict[str, Any]:
        """Return the arguments of the torch layer's constructor under the selected values.

        Returns:
            Hashable arguments by name, without device and dtype.
        """
        settings = self.settings_of(self)
        for name, size in self.sizes.items():
            settings[name] = tuple([part() for part in size]) if isinstance(size, tuple) else size()
        return settings

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call torch's layer of the selected sizes, made of the slices."""
        static, tensors = build_on_meta(self.torch_layer, **self.static_settings()), self.active_tensors()
        self._check_tensors(static, tensors)
        for name, tensor in tensors.items():
            owner, key = owner_of(static, name)
            (owner._buffers if key in owner._buffers else owner._parameters)[key] = tensor  # type: ignore[assignment]
        return static.train(self.training)(*args, **kwargs)

    def build_static(self, in_channels: int | None = None) -> nn.Module:
        """Build the equivalent torch layer under the selected values, with copies of the weights.

        Args:
            in_channels: The size of the input; only for a layer with `AnySize` inputs, which requires it.

        Returns:
            A `torch_layer`.

        Raises:
            ValueError: `in_channels` does not fit, or the class has its own `forward`.
            TypeError: `active_tensors` has other names or shapes than the torch layer.
        """
        self._check_static(in_channels)
        parts = _parametrizations(self)
        computed = self._any_size is not None or self._forward_pre_hooks or parts
        with self._prepare(in_channels, parts) if computed else nullcontext():
            static, tensors = build_on_meta(self.torch_layer, **self.static_settings()), self.active_tensors()
        self._check_tensors(static, tensors)
        build = current_build.get()
        copies = build is None or build.copies
        for name, used in tensors.items():
            (mine, key), (owner, _) = owner_of(self, name), owner_of(static, name)
            tensor = used.detach().clone() if copies and used is not None else used
            if key in mine._buffers:
                owner._buffers[key] = tensor
            elif used is None or tensor is None:
                owner._parameters[key] = None
            else:
                tied = None if build is None else build.tied_slice(self, name, used)
                whole = mine._parameters.get(key)  # none where a parametrization computes it
                trains = any(p.requires_grad for p in (self.parameters() if whole is None else (whole,)))
                owner._parameters[key] = nn.Parameter(tensor, trains) if tied is None else tied
        return static.train(self.training)

    def _check_tensors(self, static: nn.Module, tensors: Mapping[str, Tensor | None]) -> None:
        """Raise TypeError for slices that are not those of the static layer; of its submodules nothing is checked."""
        slots = {**static._parameters, **static._buffers}
        held = {name: tensor for name, tensor in slots.items() if tensor is not None}
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None and "." not in name}
        fits = all(name in tensors and given.get(name, whole).shape == whole.shape for name, whole in held.items())
        if not fits or any(name not in slots for name in given):
            expected, got = (
                ", ".join(f"{name} {tuple(t.shape)}" for name, t in part.items()) for part in (held, given)
            )
            raise TypeError(
                f"active_tensors() of {type(self).__name__} must have the tensors of {self.torch_layer.__name__}("
                f"{static.extra_repr()}): {expected}; got {got or 'none'}. Slice them by the selected sizes, "
                "self.sizes[...]()"
            )

    @contextmanager
    def _prepare(self, in_channels: int | None, parts: list[nn.Module]) -> Iterator[None]:
        """Set the size of the input, and the weights that hooks and `parts` compute as the layer runs; restore both."""
        attributes, last_seen = dict(self.__dict__), getattr(self._any_size, "last_seen", None)
        modes = {module: module.training for module in parts}
        if self._any_size is not None:
            self._any_size.last_seen = in_channels
        for module in (self, *modes):
            module.__dict__["training"] = False  # in which hooks and parametrizations write no buffers
        try:
            for hook in self._forward_pre_hooks.values():
                if not is_own_hook(hook):
                    hook(self, ())
            yield
        finally:
            self.__dict__.update(attributes)
            for module, mode in modes.items():
                module.__dict__["training"] = mode
            if self._any_size is not None:
                self._any_size.last_seen = last_seen

    def _check_static(self, in_channels: int | None) -> None:
        kind: Any = type(self)
        if has_own_forward(kind):
            raise ValueError(
                f"{name_of(self)} is a {kind.__name__} with a forward() of its own, which the static layer would "
                "not have; give it a build_static() of its own, too"
            )
        if self._any_size is None:
            if in_channels is not None:
                raise ValueError(
                    f"the input size of {name_of(self)} follows its decisions; leave out in_channels={in_channels}"
                )
        elif in_channels is None or not 1 <= in_channels <= self._any_size.max:
            raise ValueError(
                f"{name_of(self)} takes any number of channels up to {self._any_size.max}, got "
                f"in_channels={in_channels}; pass the number by layer.build_static(in_channels=...) in the "
                "build_static() of the module that holds it"
            )

    def check_input(self, size: Size | AnySize, x: Tensor, axis: int, unit: str = "channels") -> None:
        """Check the size of an input on one axis.

        Args:
            size: The size that the input has to have.
            x: The input.
            axis: The axis, counted from either end.
            unit: What is counted on this axis, for the message.

        Raises:
            TypeError: The input is not a tensor.
            RuntimeError: It has another size, or is a nested tensor.
        """
        if not isinstance(x, Tensor):
            cure = "is the batch unpacked before the model is called?"
            if hasattr(x, "__array__"):
                cure = "convert it by torch.as_tensor"
            raise TypeError(f"{name_of(self)} takes a tensor, but got a {type(x).__name__}; {cure}")
        if x.is_nested:
            raise RuntimeError(
                f"{name_of(self)} got a nested tensor, as nn.TransformerEncoder makes it in evaluation mode; set "
                "use_nested_tensor = False on the encoder"
            )
        if -x.dim() <= axis < x.dim():  # otherwise torch says what is wrong
            got = x.shape[axis]
            if isinstance(size, AnySize):
                size.last_seen = min(got, size.max)
            if got != size():
                expected = size() if not size.decisions else f"{size} = {size()}"
                up_to = "up to " if isinstance(size, AnySize) else ""
                raise RuntimeError(f"{name_of(self)} takes {up_to}{expected} {unit}, but got {got}")


def _parametrizations(layer: nn.Module) -> list[nn.Module]:
    """The modules that compute the weights of a layer and of those in it, as spectral_norm does."""
    owners = (layer, *layer._modules.values())
    lists = [owner._modules["parametrizations"] for owner in owners if owner and "parametrizations" in owner._modules]
    return [module for each in lists if each is not None for module in each.modules()]


@cache
def _check_class(kind: Any) -> None:
    """Raise TypeError for a subclass of ElasticLayer that is not as its docstring says."""
    if not all(hasattr(kind, name) for name in ("torch_layer", "elastic")):
        raise TypeError(
            f"{kind.__name__} needs the class attributes torch_layer and elastic, such as torch_layer, elastic = "
            'nn.GRUCell, ("input_size", "hidden_size")'
        )
    bases, layer = kind.__mro__, kind.torch_layer
    if layer not in bases or bases.index(layer) < bases.index(ElasticLayer):
        raise TypeError(
            f"{kind.__name__} must derive from ElasticLayer first, then from its torch_layer: "
            f"class {kind.__name__}(nas.ElasticLayer, {layer.__name__})"
        )
    arguments = signature(layer).parameters
    if unknown := [name for name in kind.elastic if name not in arguments]:
        cure = ""
        if any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values()):
            cure = f"; let torch_layer be a class of yours that derives from {layer.__name__} and names its arguments"
        raise TypeError(
            f"elastic of {kind.__name__} names {', '.join(map(repr, unknown))}, but the arguments of "
            f"{layer.__name__} are {', '.join(arguments)}{cure}"
        )


@cache
def _fixed_names(kind: Any) -> list[str]:
    """The arguments of a torch layer's constructor that cannot be elastic, and are kept as attributes."""
    names = signature(kind.torch_layer).parameters
    return [name for name in names if name not in (*kind.elastic, "device", "dtype") and not name.startswith("_")]


def _lost_setting(made: nn.Module, layer: nn.Module, settings: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a layer and one made of its settings have, where they differ, as in the probability of a dropout.

    The settings themselves may: of a stride of 2 the constructor makes (2, 2).
    """
    parts = dict(made.named_modules())
    for path, theirs in layer.named_modules():
        mine = parts.get(path)
        if path and type(mine) is not type(theirs):
            return f"{path} = {shorten(theirs)}", shorten(mine)
        for name, value in vars(theirs).items():
            is_compared = _is_setting(name, value) and (path or name not in settings) and value == value  # not NaN
            if is_compared and getattr(mine, name, value) != value:
                return f"{path}.{name}".removeprefix(".") + f" = {value!r}", repr(getattr(mine, name))
    return None


def _is_setting(name: str, value: Any) -> bool:
    return isinstance(value, (bool, int, float, str)) and name != "training" and not name.startswith("_")


def name_of(layer: nn.Module) -> str:
    """A layer by its path in the model that is extracted or, for its own calls, in the outermost one; else by class.

    A module does not know where it is, but when it raises an error, the calls of the modules around it are on the
    stack. So nothing has to be written into layers beforehand.
    """
    build = current_build.get()
    path = "" if build is None else build.paths.get(layer, "")
    frame = sys._getframe(1).f_back
    while build is None and frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, nn.Module):
            path = next((path for path, module in caller.named_modules() if module is layer), path)
        frame = frame.f_back
    return f"layer {path}" if path else type(layer).__name__


def trim(tensor: Tensor | None, *sizes: int) -> Tensor | None:
    """A view of the first entries on each axis; None for a tensor that a layer does not have."""
    return None if tensor is None else tensor[tuple(map(slice, sizes))]


def trim_groups(tensor: Tensor, all_groups: int, groups: int, channels: int) -> Tensor:
    """The first channels of each of the first groups, on the first axis; a copy, unless there is one group."""
    if all_groups == 1:
        return tensor[:channels]
    by_group: Tensor = tensor.unflatten(0, (all_groups, -1))  # type: ignore[no-untyped-call]
    return by_group[:groups, :channels].flatten(0, 1)
