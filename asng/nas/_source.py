"""A static network as a Python module that needs torch alone: classes, a function that builds it, one that loads it.

Layers of torch are built by their constructors, sequences and lists of modules as such. All other modules become
classes with the `forward` that a run on example inputs recorded; equal ones share a class. A class of which only other
methods are called has no `forward`. Modules and weights that do not run are left out. The names in the state dict are
those of the network.
"""

import copy
import inspect
import keyword
import textwrap
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from asng import __version__
from asng._untrusted import escape_controls
from asng.nas._preserve import label_of
from asng.nas._recording import RESERVED, NotRecordable, Recording, unique_name

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
PARAMETERS = (nn.ParameterList, nn.ParameterDict)
INDENT = "    "
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Arguments that are not attributes of the same name, but say whether another attribute is there.
PRESENCE = {"bias": "in_proj_bias", "add_bias_kv": "bias_k"}
HEADER = '''\
"""{description}

Written by asng {version}, which it does not need. With the weights of {weights} beside this file, in evaluation mode:

    network = load()
    output = network({inputs})
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
'''
FOOTER = '''

def load(path=Path(__file__).with_name("{weights}")):
    """Build the network with the weights of a safetensors file, in evaluation mode."""
    from safetensors.torch import load_file

    network = build()
    network.load_state_dict(load_file(path))
    return network.eval()
'''


class Source:
    """The source of a network.

    Args:
        network: A static network in evaluation mode; it is not changed.
        args, kwargs: Example inputs.
        fixed_axes: Axes with their sizes in the example, in whose place it refuses others; other numbers, always.

    Raises:
        NotRecordable: A module does what source cannot say.
    """

    def __init__(
        self,
        network: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        fixed_axes: Collection[tuple[int, int]] = (),
    ) -> None:
        self._network, memo = network, {}  # type: ignore[var-annotated]
        recorded = copy.deepcopy(network, memo)
        self._layers = {module: text for module in network.modules() if (text := constructor_of(module)) is not None}
        layers = {memo[id(module)] for module in self._layers}
        recording = Recording(recorded, layers, fixed_axes=fixed_axes)
        recording.run(args, kwargs)
        original = {memo[id(module)]: module for module in network.modules()}
        self._bodies = {original[module]: source for module, source in recording.sources.items()}
        self._used = {original[module] for module in recording.used}
        tensors = (*network.parameters(), *network.buffers())
        self._read = {id(tensor) for tensor in tensors if id(memo.get(id(tensor))) in recording.read}
        self._paths = {module: path for path, module in network.named_modules()}
        self._classes: dict[str, str] = {}  # names by the text behind the name
        self._text = self._write()

    def build(self) -> nn.Module:
        """The network that the source builds, with the weights of the original, in evaluation mode."""
        names: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional}
        # Text of this object's own: names are identifiers, all else are literals. Nothing in it comes from a file.
        exec(compile(self._text, "network.py", "exec"), names)
        built: nn.Module = names["build"]()
        held: dict[str, Tensor] = dict(self._network.named_parameters(remove_duplicate=False))
        held |= dict(self._network.named_buffers(remove_duplicate=False))
        built.load_state_dict({name: held[name] for name in built.state_dict() if name in held})
        return built.eval()

    def describe(self, description: str, inputs: str, weights: str) -> str:
        """The text of the Python module; `inputs` are an expression, `weights` is the name of a file."""
        plain = textwrap.fill(escape_controls(description).replace("\\", "/").replace('"', "'"), 100)
        header = HEADER.format(description=plain, version=__version__, inputs=inputs, weights=weights)
        if "F." not in self._text:
            header = header.replace("from torch.nn import functional as F\n", "")
        return header + self._text + FOOTER.format(weights=weights)

    def _write(self) -> str:
        built = self._construct(self._network, 1)
        ties = "".join(f"{INDENT}{line}\n" for line in self._ties())
        ending = f"{INDENT}network = {built}\n{ties}{INDENT}return network\n" if ties else f"{INDENT}return {built}\n"
        classes = "".join(f"\n\nclass {name}{text}\n" for text, name in self._classes.items())
        return f'{classes}\n\ndef build():\n{INDENT}"""Build the network, with random weights."""\n{ending}'

    def _is_needed(self, module: nn.Module) -> bool:
        tensors = [*module._parameters.values(), *module._buffers.values()]
        return (
            module in self._used
            or any(id(tensor) in self._read for tensor in tensors)
            or any(child is not None and self._is_needed(child) for child in module._modules.values())
        )

    def _construct(self, module: nn.Module, depth: int) -> str:
        """An expression that builds a module."""
        if module in self._layers:
            return self._layers[module]
        children = {name: child for name, child in module._modules.items() if child is not None}
        tensors = self._empty_tensors(module)
        if isinstance(module, CONTAINERS):
            return self._construct_container(module, children, tensors, depth)
        if isinstance(module, PARAMETERS) and children:
            raise self._error(module, "holds lists or dicts besides its tensors; put them into an nn.ModuleList")
        if isinstance(module, PARAMETERS):  # a dict for a list, too, as items may be left out
            return f"nn.ParameterDict({{{_join([f'{name!r}: {text}' for name, text in tensors.items()], depth)}}})"
        needed = {name: self._construct(c, depth + 1) for name, c in children.items() if self._is_needed(c)} | tensors
        arguments = [f"{name}={text}" for name, text in needed.items()]
        return f"{self._class_of(module, 'nn.Module', needed)}({_join(arguments, depth)})"

    def _construct_container(
        self, module: nn.Module, children: dict[str, nn.Module], tensors: dict[str, str], depth: int
    ) -> str:
        if isinstance(module, nn.ModuleDict):
            items = [f"{name!r}: {self._construct(c, depth + 1)}" for name, c in children.items() if self._is_needed(c)]
            base, held = "nn.ModuleDict", f"{{{_join(items, depth)}}}"
        elif list(children) != [str(number) for number in range(len(children))]:
            raise self._error(module, "has items with names; give nn.Sequential its modules without a dict")
        else:
            items = [
                self._construct(c, depth + 1) if self._is_needed(c) else "nn.Identity()" for c in children.values()
            ]
            base, held = "nn.ModuleList", f"[{_join(items, depth)}]"
            if isinstance(module, nn.Sequential) and module not in self._bodies and not tensors:
                return f"nn.Sequential({_join(items, depth)})"
        if module in self._bodies or tensors:
            arguments = [held, *(f"{name}={text}" for name, text in tensors.items())]
            return f"{self._class_of(module, base, tensors)}({', '.join(arguments)})"
        return f"{base}({held})"

    def _empty_tensors(self, module: nn.Module) -> dict[str, str]:
        """Expressions of the parameters and buffers that functions get, without their numbers."""
        empty = {}
        for name, tensor in {**module._parameters, **module._buffers}.items():
            if tensor is not None and id(tensor) in self._read:
                dtype = "" if tensor.dtype == torch.float32 else f", dtype={tensor.dtype}"
                text = f"torch.empty({tuple(tensor.shape)}{dtype})"
                learns = tensor.is_floating_point() or tensor.is_complex()  # others cannot have gradients
                parameter = f"nn.Parameter({text}{'' if learns else ', requires_grad=False'})"
                empty[name] = parameter if name in module._parameters else text
        return empty

    def _class_of(self, module: nn.Module, base: str, parts: dict[str, str]) -> str:
        """The name of a module's class, which is written where there is none like it."""
        forbidden = (*keyword.kwlist, "self", "modules")  # which the constructor below has
        if wrong := [name for name in parts if not name.isidentifier() or name in forbidden]:
            raise self._error(
                module, f"has a part {wrong[0]!r}, which cannot be the name of an argument in Python; rename it"
            )
        lines = [f"({base}):"]
        if parts:
            held = "" if base == "nn.Module" else "modules"
            lines.append(f"{INDENT}def __init__({', '.join(filter(None, ['self', held, *parts]))}):")
            lines.append(f"{INDENT * 2}super().__init__({held})")
            for name in parts:
                is_buffer = name in module._buffers
                line = f"self.register_buffer({name!r}, {name})" if is_buffer else f"self.{name} = {name}"
                lines.append(INDENT * 2 + line)
            lines.append("")
        if module in self._bodies:  # where only its methods are called, their lines are in the forward that calls them
            signature, body = self._bodies[module]
            lines += [f"{INDENT}def forward({', '.join(['self', *signature])}):", *(INDENT * 2 + line for line in body)]
        text = "\n".join(lines).rstrip()
        if text not in self._classes:
            wish = type(module).__name__.strip("_")
            taken = {*RESERVED, *self._classes.values()}
            self._classes[text] = unique_name(wish if wish.isidentifier() else "Module", taken)
        return self._classes[text]

    def _ties(self) -> Iterator[str]:
        """Lines that let modules share weights as those of the network do."""
        first: dict[int, str] = {}
        for path, module in self._network.named_modules(remove_duplicate=False):
            for name, parameter in module._parameters.items():
                is_written = module in self._layers or id(parameter) in self._read
                if parameter is None or not is_written or not self._is_needed(module):
                    continue
                part = f"[{name!r}]" if isinstance(module, PARAMETERS) else f".{name}"
                here = f"network.get_submodule({path!r}){part}" if path else f"network{part}"
                if id(parameter) in first:
                    yield f"{here} = {first[id(parameter)]}"
                first.setdefault(id(parameter), here)

    def _error(self, module: nn.Module, fault: str) -> NotRecordable:
        return NotRecordable(f"{label_of(module, self._paths)} {fault}")


def constructor_of(module: nn.Module) -> str | None:
    """The call that makes a layer like this one, without its weights; None for what is no layer of torch's.

    >>> constructor_of(nn.Conv2d(3, 8, 3, bias=False))
    'nn.Conv2d(3, 8, kernel_size=(3, 3), bias=False)'
    """
    kind = type(module)
    if getattr(nn, kind.__name__, None) is not kind or kind in CONTAINERS or kind is nn.Module:
        return None
    is_recurrent = isinstance(module, nn.RNNBase)  # the signature is that of the base class, behind the mode
    initializer: Any = nn.RNNBase.__init__ if is_recurrent else kind.__init__
    arguments: dict[str, Any] = {}
    texts: list[str] = []
    for name, parameter in list(inspect.signature(initializer).parameters.items())[2 if is_recurrent else 1 :]:
        if name in ("device", "dtype") or name.startswith("_") or parameter.kind in VARIADIC:
            continue
        default = parameter.default
        value = getattr(module, PRESENCE[name] if hasattr(module, PRESENCE.get(name, "")) else name, default)
        if isinstance(default, bool) and (value is None or isinstance(value, Tensor)):
            value = value is not None
        if not _is_literal(value):
            return None
        is_default = value == default or (isinstance(value, tuple) and value == (default,) * len(value))
        if not is_default:
            arguments[name] = value
            is_needed = default is parameter.empty and len(texts) < 2
            texts.append(repr(value) if is_needed else f"{name}={value!r}")
    return f"nn.{kind.__name__}({', '.join(texts)})" if _is_made_by(kind, arguments, module) else None


def _is_literal(value: Any) -> bool:
    """True for what Python writes as it is; subclasses may have another repr."""
    if type(value) is tuple:
        return all(map(_is_literal, value))
    return type(value) in (bool, int, float, str, type(None))


def _is_made_by(kind: Any, arguments: dict[str, Any], module: nn.Module) -> bool:
    """True if a call makes a layer with the same settings, and weights of the same shapes."""
    try:
        with torch.device("meta"):
            made = kind(**arguments)
    except Exception:  # whatever a constructor raises for what are not its arguments
        return False
    shapes, others = ({n: p.shape for n, p in each.named_parameters()} for each in (made, module))
    return repr(made) == repr(module) and shapes == others


def _join(items: list[str], depth: int) -> str:
    """Items of a call, each on its own line where they are long."""
    short = ", ".join(items)
    if len(short) + len(INDENT) * depth < 80 and "\n" not in short:
        return short
    return "".join(f"\n{INDENT * (depth + 1)}{item}," for item in items) + f"\n{INDENT * depth}"
