"""One run of a static network on example inputs, recorded as the body of a `forward` for each of its classes.

Recorded are the calls of torch's functions, as `TorchFunctionMode` sees them, and of submodules. Python around them
runs as usual, so branches are those that the example takes. Sizes stay expressions (`x.shape[0] // 2`), so that the
source runs at other sizes, too.
"""

import inspect
import keyword
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from asng.nas._preserve import label_of
from asng.nas._static import Chain

OPERATORS = {
    **{"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "pow": "**", "__pow__": "**", "__mod__": "%"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "__floordiv__": "//", "__and__": "&"},
    **{"__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__matmul__": "@", "__or__": "|"},
}
REFLECTED = {"__radd__": "+", "__rsub__": "-", "__rmul__": "*", "__rtruediv__": "/", "__rdiv__": "/", "__rpow__": "**"}
DATA_DEPENDENT = {"__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy", "__array__"}
RESERVED = {"self", "torch", "nn", "F", "Path", "build", "load"}
LITERALS = (bool, int, float, str, type(None), type(...), torch.dtype, torch.memory_format, torch.layout)
NUMBERS_AND_TEXTS = (bool, int, float, str)


class NotRecordable(ValueError):
    """Source cannot say what a module does; the message names the module and the cure."""


class Dim(int):
    """A size of a recorded tensor: its number in the example, and its expression in the source."""

    text: str

    def __new__(cls, number: int, text: str) -> "Dim":
        dim = super().__new__(cls, number)
        dim.text = text
        return dim


def _dim_method(name: str) -> Callable[[Dim, Any], Any]:
    """A method of an int, by its name, whose result knows its expression."""

    def calculate(self: Dim, other: Any) -> Any:
        number = getattr(int, name)(int(self), other)
        if type(other) not in (int, Dim) or number is NotImplemented:
            return number
        if name in REFLECTED:
            return Dim(number, f"{_operand(other)} {REFLECTED[name]} {_operand(self)}")
        return Dim(number, f"{_operand(self)} {OPERATORS[name]} {_operand(other)}")

    return calculate


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod"):
    setattr(Dim, f"__{_name}__", _dim_method(f"__{_name}__"))


def _operand(value: int) -> str:
    text = value.text if isinstance(value, Dim) else repr(value)
    return f"({text})" if " " in text else text


class Body:
    """The body of one module's `forward`, while it runs."""

    def __init__(self, module: nn.Module, label: str) -> None:
        self.module, self.label = module, label
        self.lines: list[str] = []
        self.signature: list[str] = []
        self.arguments: dict[str, Any] = {}
        self._texts: dict[int, str] = {}  # by the id of a tensor
        self._alive: list[Tensor] = []  # no id is used twice
        self._names: set[str] = set(RESERVED)
        self._paths = {child: path for path, child in module.named_modules()}
        tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        self._tensors = {id(tensor): path for path, tensor in reversed(tensors)}
        self.read: list[Tensor] = []  # parameters and buffers that it uses itself

    def name_for(self, wish: str) -> str:
        """A name that the body does not use yet."""
        wish = "".join(letter if letter.isalnum() else "_" for letter in wish).strip("_") or "x"
        wish = f"x_{wish}" if wish[0].isdigit() or keyword.iskeyword(wish) else wish
        name = unique_name(wish, self._names, "_")
        self._names.add(name)
        return name

    def bind_arguments(self, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Name the arguments of a call as `forward` does; returns them with sizes that know their expressions."""
        parameters = inspect.signature(forward).parameters
        bound = inspect.signature(forward).bind(*args, **kwargs)
        named: dict[str, Any] = {}
        for name in bound.arguments:
            kind = parameters[name].kind
            star = {kind.VAR_POSITIONAL: "*", kind.VAR_KEYWORD: "**"}.get(kind, "")
            if kind is kind.KEYWORD_ONLY and not any(text.startswith("*") for text in self.signature):
                self.signature.append("*")
            self.signature.append(star + name)
            self._names.add(name)
            self.arguments[name] = bound.arguments[name] = self.bind(bound.arguments[name], name)
            named |= bound.arguments[name] if kind is kind.VAR_KEYWORD else {name: bound.arguments[name]}
        # By position or keyword as before: a decorator may look for keywords, as those of Hugging Face's models do.
        return bound.args[: len(args)], {name: named[name] for name in kwargs}

    def bind(self, value: Any, text: str) -> Any:
        """Let the tensors and sizes in a value have this expression; what is returned takes its place."""
        if isinstance(value, Tensor):
            if not self.lines and id(value) in self._texts:  # an argument that is given twice has two names
                with torch._C.DisableTorchFunction():
                    value = value.view_as(value)
            self._texts[id(value)] = text
            self._alive.append(value)
        elif isinstance(value, Dim):
            return Dim(value, text)
        elif type(value) in (list, tuple):
            return type(value)(self.bind(item, f"{text}[{index}]") for index, item in enumerate(value))
        elif isinstance(value, tuple):  # a named one
            for index, item in enumerate(value):
                self.bind(item, f"{text}[{index}]")
        elif type(value) is dict:
            return {key: self.bind(item, f"{text}[{key!r}]") for key, item in value.items()}
        return value

    def path_of(self, path: str) -> str:
        """The expression of a submodule, parameter or buffer."""
        text, holder = "self", self.module
        for part in path.split(".") if path else ():
            if isinstance(holder, (nn.Sequential, nn.ModuleList)) and part.isdigit():
                text += f"[{part}]"
            elif (isinstance(holder, (nn.ModuleDict, nn.ParameterDict)) and part in holder) or not part.isidentifier():
                text += f"[{part!r}]"
            else:
                text += f".{part}"
            holder = getattr(holder, part)
        return text

    def text_of(self, value: Any) -> str:
        """A value as an expression."""
        if isinstance(value, Tensor):
            return self._tensor_text(value)
        if isinstance(value, Dim):
            return value.text
        if isinstance(value, LITERALS):
            return to_literal(value)
        if isinstance(value, torch.device):  # of the inputs, wherever the module runs
            return f"{self._texts[id(self._alive[0])]}.device" if self._alive else f"torch.device({str(value)!r})"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.text_of, (value.start, value.stop, value.step)))})"
        if isinstance(value, tuple):
            items = [self.text_of(item) for item in value]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.text_of, value))}]"
        if type(value) is dict:
            return f"{{{', '.join(f'{self.text_of(key)}: {self.text_of(item)}' for key, item in value.items())}}}"
        raise NotRecordable(
            f"{self.label} passes on a {type(value).__name__}, which source cannot hold; let modules exchange tensors, "
            "numbers, texts, lists, tuples and dicts"
        )

    def _tensor_text(self, tensor: Tensor) -> str:
        if id(tensor) in self._texts:
            return self._texts[id(tensor)]
        if id(tensor) in self._tensors:
            self.read.append(tensor)
            return self.path_of(self._tensors[id(tensor)])
        raise NotRecordable(
            f"{self.label} uses a tensor that is not an input, its own parameter or buffer, or the result of a "
            "function of torch; pass it as an argument, or register it by register_buffer"
        )

    def call_text(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        named = [f"{name}={self.text_of(value)}" for name, value in kwargs.items()]
        return f"{function}({', '.join([*map(self.text_of, args), *named])})"

    def assign(self, wish: str, text: str, result: Any) -> Any:
        """Add a line that computes a result."""
        name = self.name_for(wish)
        self.lines.append(f"{name} = {text}")
        return self.bind(result, name)

    def record_function(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Add a line for a call of torch's; returns the result."""
        name = resolve_name(function)
        short = str(name).rsplit(".", 1)[-1]
        if str(name).startswith("torch.Tensor.") and short in DATA_DEPENDENT:
            raise NotRecordable(
                f"{self.label} reads numbers out of a tensor ({short}), and may compute something else for other "
                "inputs; use torch.where, or functions of torch alone"
            )
        if name in ("torch.Tensor.shape.__get__", "torch.Tensor.size"):
            text = self._tensor_text(args[0])
            sizes = [Dim(size, f"{text}.shape[{axis}]") for axis, size in enumerate(args[0].shape)]
            wanted = [*args[1:], *kwargs.values()]
            return sizes[wanted[0]] if wanted and wanted[0] is not None else torch.Size(sizes)
        if short == "__setitem__":
            self.lines.append(f"{self.text_of(args[0])}[{self._index_text(args[1])}] = {self.text_of(args[2])}")
            return result
        if not _holds_tensor(result):
            return result
        if name is None:
            raise NotRecordable(
                f"{self.label} calls {function!r}, which has no name in torch; use a function of torch's"
            )
        return self.assign(*self._function_text(name, short, args, kwargs), result)

    def _function_text(self, name: str, short: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
        """A name for the result, and the expression."""
        if not name.startswith("torch.Tensor."):
            short_path = name.replace("torch.nn.functional.", "F.").replace("torch.functional.", "torch.")
            return short, self.call_text(short_path, args, kwargs)
        texts = [self.text_of(arg) for arg in args[:2]]
        if name.endswith(".__get__"):
            attribute = name.split(".")[2]
            return attribute, f"{texts[0]}.{attribute}"
        if short == "__getitem__":
            return "item", f"{texts[0]}[{self._index_text(args[1])}]"
        if len(args) == 2 and not kwargs and short in {**OPERATORS, **REFLECTED}:
            first, second = (f"({text})" if " " in text or text[0] == "-" else text for text in texts)
            if short in REFLECTED:
                return short, f"{second} {REFLECTED[short]} {first}"
            return short, f"{first} {OPERATORS[short]} {second}"
        return short, self.call_text(f"{texts[0]}.{short}", args[1:], kwargs)

    def _index_text(self, index: Any) -> str:
        items = index if type(index) is tuple and index else (index,)
        texts = []
        for item in items:
            if isinstance(item, slice):
                parts = ["" if part is None else self.text_of(part) for part in (item.start, item.stop)]
                step = "" if item.step is None else f":{self.text_of(item.step)}"
                texts.append(":".join(parts) + step)
            else:
                texts.append("..." if item is ... else self.text_of(item))
        return ", ".join(texts) + ("," if type(index) is tuple and len(texts) == 1 else "")

    def record_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Add a line for the call of a submodule; returns the result."""
        path = self._paths.get(module)
        if path is None:
            raise NotRecordable(
                f"{self.label} calls a {type(module).__name__} that is not registered in it; make it an attribute, or "
                "an item of an nn.ModuleList"
            )
        wish = path if path.count(".") == 0 else "_".join(path.split(".")[-2:])
        return self.assign(wish, self.call_text(self.path_of(path), args, kwargs), result)

    def refuse_others(self, fixed_axes: Collection[tuple[int, int]]) -> None:
        """Add lines that refuse arguments that differ from the example in what the other lines have from there."""
        for name, value in self.arguments.items():
            for text, differs, expected in _fixed_parts(value, name, fixed_axes):
                reason = f"{text} has to be {expected}, as in the example that this network was exported with"
                self.lines += [f"if {differs}:", f"    raise ValueError({reason!r})"]

    def source(self, result: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The parameters behind self, and the lines of the body, with the last two joined where that says the same."""
        text = self.text_of(result)
        lines = self.lines
        if lines and lines[-1].startswith(f"{text} = "):
            return tuple(self.signature), (*lines[:-1], f"return {lines[-1].removeprefix(f'{text} = ')}")
        return tuple(self.signature), (*lines, f"return {text}")


def _fixed_parts(value: Any, text: str, fixed_axes: Collection[tuple[int, int]]) -> Iterator[tuple[str, str, str]]:
    """Expressions in an input, when they differ from it, and what they have to be: numbers, texts, perhaps sizes."""
    if isinstance(value, Tensor):
        for axis, size in enumerate(map(int, value.shape)):
            if (axis, size) in fixed_axes:
                yield f"{text}.shape[{axis}]", f"{text}.shape[{axis}] != {size}", str(size)
    elif isinstance(value, LITERALS):
        expected = to_literal(value)
        differs = f"{text} {'is not' if isinstance(value, bool | None) else '!='} {expected}"
        yield text, f"{text} == {text}" if value != value else differs, expected  # only NaN is not itself
    elif isinstance(value, (list, tuple)):
        yield f"len({text})", f"len({text}) != {len(value)}", str(len(value))
        for index, item in enumerate(value):
            yield from _fixed_parts(item, f"{text}[{index}]", fixed_axes)
    elif type(value) is dict:
        expected = f"{{{', '.join(map(repr, value))}}}" if value else "set()"
        yield f"set({text})", f"set({text}) != {expected}", expected
        for key, item in value.items():
            yield from _fixed_parts(item, f"{text}[{key!r}]", fixed_axes)


def to_literal(value: Any) -> str:
    """A value of `LITERALS` as Python writes it, also one of a subclass, such as NumPy's numbers.

    >>> import numpy as np
    >>> to_literal(np.float64(0.5)), to_literal(float("inf")), to_literal(True)
    ('0.5', "float('inf')", 'True')
    """
    plain = next((kind(value) for kind in NUMBERS_AND_TEXTS if isinstance(value, kind)), value)
    text = repr(plain)
    return f"float({text!r})" if text in ("inf", "-inf", "nan") and type(plain) is float else text


def unique_name(wish: str, taken: Collection[str], joint: str = "") -> str:
    """A name that is not taken: the wish itself, or with a number behind it.

    >>> unique_name("relu", {"relu", "relu2"})
    'relu3'
    """
    names = (wish if number == 1 else f"{wish}{joint}{number}" for number in count(1))
    return next(name for name in names if name not in taken)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensor, value))
    return isinstance(value, Tensor)


def _to_ints(value: Any) -> Any:
    """A value with sizes that are ints again."""
    if isinstance(value, Dim):
        return int(value)
    if type(value) in (list, tuple):
        return type(value)(map(_to_ints, value))
    if isinstance(value, torch.Size):
        return torch.Size(map(int, value))
    if isinstance(value, slice):
        return slice(*map(_to_ints, (value.start, value.stop, value.step)))
    return {key: _to_ints(item) for key, item in value.items()} if type(value) is dict else value


class Recording(TorchFunctionMode):
    """Runs a network once; afterwards `sources` holds the code of each module that torch has no class for.

    The network is changed: its modules no longer run without the recording.

    Args:
        network: A copy that nothing else uses.
        layers: Modules that are called as a whole.
        fixed_axes: Axes with their sizes in the example, in whose place the code refuses others.
    """

    def __init__(
        self, network: nn.Module, layers: Set[nn.Module], *, fixed_axes: Collection[tuple[int, int]] = ()
    ) -> None:
        super().__init__()
        self.sources: dict[nn.Module, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.used: set[nn.Module] = set()  # modules that run
        self.read: dict[int, Tensor] = {}  # parameters and buffers that functions get
        self._network, self._layers, self._fixed_axes = network, layers, fixed_axes
        self._bodies: list[Body | None] = [None]  # None: what runs is not recorded
        self._paths = {module: path for path, module in network.named_modules()}
        for module in self._paths:
            if module._forward_hooks or module._forward_pre_hooks:
                label = label_of(module, self._paths)
                raise NotRecordable(f"{label} has a forward hook, which source would not have; remove it")
            module.forward = partial(self._run, module, module.forward)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch.no_grad(), self:
            self._network(*args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*_to_ints(args), **_to_ints(kwargs))
        body = self._bodies[-1]
        return result if body is None else body.record_function(func, args, kwargs, result)

    def _run(self, module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(module, torch.jit.ScriptModule):
            label = label_of(module, self._paths)
            raise NotRecordable(f"{label} is TorchScript, which cannot be recorded; use the module it was made of")
        outer = self._bodies[-1]
        self.used.add(module)
        refuses = bool(self._fixed_axes) and module is self._network
        if module in self._layers or (is_sequence(module, args, kwargs) and not refuses):
            self._bodies.append(None)
            try:
                result = forward(*_to_ints(args), **_to_ints(kwargs))
            finally:
                self._bodies.pop()
        else:
            result = self._record(module, forward, args, kwargs)
        return result if outer is None else outer.record_call(module, args, kwargs, result)

    def _record(self, module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        label = label_of(module, self._paths)
        body = Body(module, label)
        args, kwargs = body.bind_arguments(forward, args, kwargs)
        if module is self._network:
            body.refuse_others(self._fixed_axes)
        self._bodies.append(body)
        try:
            result = forward(*args, **kwargs)
        finally:
            self._bodies.pop()
        source = body.source(result)
        if self.sources.setdefault(module, source) != source:
            raise NotRecordable(
                f"{label} computes something else at its second call than at its first; use two modules, or pass "
                "tensors"
            )
        self.read |= {id(tensor): tensor for tensor in body.read}
        return result


def is_sequence(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True where a call of a module does what `nn.Sequential` does."""
    return type(module) is nn.Sequential or (type(module) is Chain and len(args) == 1 and not kwargs)
