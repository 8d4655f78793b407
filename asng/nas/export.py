"""Static networks as files that run without asng."""

import copy
import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asng import __version__, fused
from asng._files import as_path, atomic_write, check_writable, make_folder_for
from asng._untrusted import shorten
from asng.nas._checkpoints import short_reason
from asng.nas._checks import check_module, unwrap
from asng.nas._comparison import (
    CallInputs,
    agrees,
    are_close,
    double_batch,
    flatten,
    other_cases,
    run_network,
    to_small_batch,
)
from asng.nas._devices import map_leaves
from asng.nas._recording import NotRecordable
from asng.nas._source import Source
from asng.nas.architecture import to_json
from asng.nas.supernet import Values, space_of

WEIGHTS = "weights.safetensors"
FILES = {
    "json": "architecture.json",
    "safetensors": WEIGHTS,
    "python": "network.py",
    "torch": "network.pt2",
    "onnx": "network.onnx",
}
NEEDED: dict[str, tuple[str, ...]] = {"safetensors": ("safetensors",), "onnx": ("onnx", "onnxscript", "onnxruntime")}
SOURCE_CURE = (
    "sizes that are read by len() or int(), and choices that depend on the inputs, are fixed as in the example: "
    "use x.shape"
)
FORMAT_CURE = "leave out the format {} by the argument formats"
EXPORT_CURE = f"read sizes by x.shape instead of len(), or {FORMAT_CURE}"
# In front of the reason in messages of ONNX Runtime, and a line of code in those of torch.
ONNXRUNTIME_PREFIX = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : (?:.*Status Message: )?", re.DOTALL)
CODE_LINE = re.compile(r'File "(.+)", line (\d+), in .+\n\s*(.+)')


def export(
    model: nn.Module,
    folder: str | Path,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    values: Values | None = None,
    formats: Collection[str] | None = None,
    description: str = "A network found by architecture search.",
) -> dict[str, Path]:
    """Write a static network to files that run without asng, in evaluation mode and float32, for batches of any size.

    Each file is loaded again and compared with the network before any is written. Fused layers become torch's layers.
    Modules that do not run in evaluation mode, such as auxiliary heads, are left out. If the network has the weights of
    a search, call `recalibrate` first.

    Args:
        model: A network without decisions, such as the result of `extract`; it is not changed.
        folder: The folder for the files; existing files are not overwritten.
        args: Example inputs of the network, tensors with the batch first.
        kwargs: Further example inputs, by keyword.
        values: The architecture, for the format json.
        formats: Some of `json` (architecture.json), `safetensors` (weights.safetensors), `python` (network.py, which
            builds the network from torch layers and loads weights.safetensors), `torch` (network.pt2, for
            torch.export.load) and `onnx` (network.onnx). By default all, json only with `values`.
        description: The first line of network.py.

    Returns:
        The path of each file, by format.

    Raises:
        ValueError: The model has decisions, a file exists, or a module cannot be exported; the message names it.
        ImportError: A format needs a library that is not installed (`asng[export]`).

    >>> import tempfile
    >>> network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = export(network, folder, torch.zeros(4, 2), values={"width": 8}, formats=["json", "torch"])
    ...     network = torch.export.load(files["torch"]).module()
    >>> network(torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """
    check_module(model)
    if names := list(space_of(model)):
        raise ValueError(
            f"the model has decisions ({', '.join(names[:5])}); export what nas.extract(model, values) returns"
        )
    paths = plan_files(folder, formats, values)
    network: nn.Module = fused.unfuse(copy.deepcopy(unwrap(model))).cpu().float().eval()
    if not isinstance(kwargs, Mapping | None):
        raise ValueError(f"kwargs must be a dict of example inputs, got {shorten(kwargs)}")
    if not isinstance(description, str):
        raise ValueError(f"description must be text, got {shorten(description)}")
    inputs = _to_inputs(args, kwargs or {})
    contents = _Contents(network, inputs, values, description, "python" in paths)
    made = {name: getattr(contents, f"to_{name}")() for name in paths}
    for name, path in paths.items():
        make_folder_for(path)
        with atomic_write(path) as file:
            file.write(made[name])
    return paths


def plan_files(folder: Any, formats: Collection[str] | None, values: Values | None) -> dict[str, Path]:
    """The file of each format; raises as `export` does, before anything takes long."""
    paths = {name: as_path(folder, "folder") / FILES[name] for name in _check_formats(formats, values)}
    for path in paths.values():
        if os.path.lexists(path):
            raise ValueError(f"{path} exists already and is not overwritten; choose another folder, or remove it")
        check_writable(path)
    return paths


def _check_formats(formats: Collection[str] | None, values: Values | None) -> list[str]:
    """The formats in their order, with those that they need; raises as `export` does."""
    if formats is not None and not isinstance(formats, (list, tuple, set, frozenset)):
        cure = f"; give [{formats!r}]" if isinstance(formats, str) else ""
        raise ValueError(f"formats must be a list, got {shorten(formats)}{cure}")
    given = [name for name in FILES if name != "json" or values is not None] if formats is None else list(formats)
    unknown = [name for name in given if not isinstance(name, str) or name not in FILES]
    if not given or unknown:
        raise ValueError(
            f"formats must be some of {', '.join(FILES)}, got {shorten(unknown[0] if unknown else formats)}"
        )
    wanted = set(given)
    if "json" in wanted and values is None:
        raise ValueError("the format json is the architecture; give its values, or leave the format out")
    if "python" in wanted:
        wanted.add("safetensors")  # which it loads
    for name in sorted(wanted & NEEDED.keys()):
        for library in NEEDED[name]:
            try:
                import_module(library)
            except ImportError as error:
                raise ImportError(
                    f"the format {name} needs {library} ({error}): pip install 'asng[export]', or choose other formats"
                ) from None
    return [name for name in FILES if name in wanted]


def _to_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallInputs:
    """Examples on the CPU, in float32, with a batch of at least two, as a single one would be taken for fixed.

    They are contiguous: torch's exporters fail on slices, such as a language model's `batch[:, :-1]`.
    """
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim]
    if not tensors:
        first = args[0] if args else None
        example = "*batch" if isinstance(first, (tuple, list)) else "kwargs=batch" if isinstance(first, dict) else "x"
        raise ValueError(
            f"give example inputs, tensors with the batch first, as in nas.export(model, folder, {example})"
        )
    moved: CallInputs = map_leaves(_to_example, (args, kwargs))
    return double_batch(moved) if any(len(tensor) == 1 for tensor in tensors) else moved


def _to_example(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return (value.cpu().float() if value.is_floating_point() else value.cpu()).contiguous()


class _Contents:
    """The contents of the files of one network, each checked against it."""

    def __init__(
        self, network: nn.Module, inputs: CallInputs, values: Values | None, description: str, needs_source: bool
    ) -> None:
        self._values, self._description, self._inputs = values, description, inputs
        try:
            self._cases = [(inputs, flatten(run_network(network, inputs)))]
        except Exception as error:
            error.add_note("in the network, called with the example inputs that nas.export was given")
            raise
        try:
            self._cases.append((twice := double_batch(inputs), flatten(run_network(network, twice))))
        except Exception:  # a network, or an input such as a mask, of a fixed size
            warnings.warn("the network runs only with the batch size of the example", stacklevel=3)
        self._network = network
        try:
            self._source, self._network = self._write_source(network, needs_source)  # without what does not run
        except ValueError as error:
            if needs_source:
                raise ValueError(f"{error}; or leave out the format python") from None

    def _write_source(self, network: nn.Module, needs_source: bool) -> tuple[Source, nn.Module]:
        """The source of the network, and what it builds; it refuses sizes at which it would compute something else."""
        source, built = self._checked_source(network)
        if needs_source and (fixed := self._axes_to_fix(network, built)):
            warnings.warn(
                "network.py refuses inputs of other sizes than those of the example, on axes of size "
                f"{', '.join(map(str, sorted({size for _, size in fixed})))}; {SOURCE_CURE}",
                stacklevel=4,
            )
            return self._checked_source(network, fixed)
        return source, built

    def _checked_source(
        self, network: nn.Module, fixed_axes: Collection[tuple[int, int]] = ()
    ) -> tuple[Source, nn.Module]:
        try:
            source = Source(network, *self._inputs, fixed_axes=fixed_axes)
            built = source.build()
        except NotRecordable:
            raise
        except Exception as error:  # whatever code leads to that was not written to be recorded
            raise ValueError(f"network.py cannot be written ({_reason_of(error)})") from None
        self._check("network.py", lambda inputs: run_network(built, inputs), SOURCE_CURE)
        return source, built

    def _axes_to_fix(self, network: nn.Module, built: nn.Module) -> set[tuple[int, int]]:
        """Axes with their sizes in whose place the network takes others, but what its source builds does not agree."""
        takes_batches = len(self._cases) > 1  # others than that of the example
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the network about inputs that its user has not given
            inputs = to_small_batch(network, self._inputs) if takes_batches else self._inputs
            cases = other_cases(network, inputs, first_axis=int(takes_batches))
            differ = (axes for axes, resized, expected in cases if not agrees(built, resized, expected))
            return set().union(*differ)

    def to_json(self) -> bytes:
        assert self._values is not None
        return to_json(self._values).encode()

    def to_safetensors(self) -> bytes:
        from safetensors.torch import load, save

        with _silence("safetensors", "safetensors, and python, which needs it,"):
            state = {name: tensor.detach().clone().contiguous() for name, tensor in self._network.state_dict().items()}
            content: bytes = save(state, {"format": "pt", "asng": __version__})
            loaded = load(content)
        if not all(torch.equal(_to_bytes(tensor), _to_bytes(state[name])) for name, tensor in loaded.items()):
            raise ValueError(f"{WEIGHTS} holds other numbers than the network; leave out the format safetensors")
        return content

    def to_python(self) -> bytes:
        args, kwargs = self._inputs
        texts = [_example_text(value) for value in args]
        texts += [f"{name}={_example_text(value)}" for name, value in kwargs.items()]
        return self._source.describe(self._description, ", ".join(texts), WEIGHTS).encode()

    def to_torch(self) -> bytes:
        file = io.BytesIO()
        with _silence("torch.export", "torch"):
            torch.export.save(self._program(), file)
            file.seek(0)
            module = torch.export.load(file).module()
        self._check(FILES["torch"], lambda inputs: run_network(module, inputs), EXPORT_CURE.format("torch"))
        return file.getvalue()

    def to_onnx(self) -> bytes:
        import onnxruntime  # type: ignore[import-untyped]

        with _silence("torch.onnx.export", "onnx"):
            made: Any = torch.onnx.export(self._program(), dynamo=True, verbose=False)
            content: bytes = made.model_proto.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it prints of errors is in those that it raises, too
        with _silence("onnxruntime", "onnx"):
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]

        def run(inputs: CallInputs) -> list[Tensor]:
            given = zip(names, (tensor.numpy() for tensor in flatten(inputs)), strict=True)
            return [torch.from_numpy(each) for each in session.run(None, dict(given))]

        self._check(FILES["onnx"], run, EXPORT_CURE.format("onnx"))
        return content

    def _program(self) -> Any:
        args, kwargs = self._inputs
        shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
        for tensor in flatten(self._inputs):
            if tensor.ndim:
                shapes[tensor] = {0: torch.export.Dim.AUTO}
        dynamic = shapes.dynamic_shapes(self._network, args, kwargs)
        return torch.export.export(self._network, args, kwargs, dynamic_shapes=dynamic)

    def _check(self, name: str, run: Callable[[CallInputs], Any], cure: str) -> None:
        """Compare outputs with those of the network; raises ValueError."""
        for inputs, expected in self._cases:
            batch = len(flatten(inputs)[0])
            try:
                outputs = flatten(run(inputs))
            except Exception as error:
                raise ValueError(f"{name} does not run with a batch of {batch} ({_reason_of(error)}); {cure}") from None
            if not are_close(outputs, expected):
                raise ValueError(f"{name} computes other numbers than the network for a batch of {batch}; {cure}")


@contextmanager
def _silence(what: str, name: str) -> Iterator[None]:
    """Silence the warnings and logs of the exporter of a format, and turn its errors into ValueErrors in one line."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # whatever a network leads to
        cure = FORMAT_CURE.format(name)
        raise ValueError(f"{what} cannot export the network ({_reason_of(error)}); {cure}") from None
    finally:
        logging.disable(before)


def _reason_of(error: Exception) -> str:
    """A sentence on what an exporter or a runtime failed at, and the line of code that it names."""
    while isinstance(error.__cause__, Exception):  # torch's exporters wrap the reason into advice on how to report it
        error = error.__cause__
    text, count = ONNXRUNTIME_PREFIX.subn("", str(error))
    reason = short_reason(Exception(text) if count else error)
    places = CODE_LINE.findall(text)
    if not places:
        return reason
    path, line, code = places[-1]
    return f"{reason}, {Path(path).name}, line {line}: {shorten(code, str, 100)}"


def _to_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, in which NaN equals itself."""
    return tensor.reshape(-1).view(torch.uint8)


def _example_text(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    if value.is_floating_point():
        return f"torch.randn{tuple(value.shape)}" if value.ndim else "torch.tensor(0.5)"
    return f"torch.zeros({tuple(value.shape)}, dtype={value.dtype})"
