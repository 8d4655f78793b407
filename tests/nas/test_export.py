"""What is extracted leaves by several formats, and runs where asng cannot be imported."""

import re
import sys
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from asng import fused, nas
from asng.nas._comparison import are_close
from asng.nas.export import FILES
from asng.space import Integer, Real
from tests.helpers.elsewhere import WITH_ONNXRUNTIME, WITH_SOURCE, WITH_TORCH, run_elsewhere

# Third parties' warnings while exporting and saving.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
]


class Block(nn.Module):
    """A user's own module, which reads a decision in its code."""

    def __init__(self, name, width):
        super().__init__()
        self.op = nas.OneOf(name, {"conv": nas.Conv2d(width, width, 3, padding=1), "pool": nn.MaxPool2d(3, 1, 1)})
        self.norm = nas.BatchNorm2d(width)
        self.slope = nas.Value("slope", Real(0, 0.5))

    def forward(self, x):
        return x + nn.functional.leaky_relu(self.norm(self.op(x)), self.slope.value)


class Net(nn.Module):
    """Decisions of every kind."""

    def __init__(self):
        super().__init__()
        width = nas.Width("width", 4, 16)
        kernel = nas.Value("kernel", Integer(0, 2)) * 2 + 1
        self.stem = nas.Conv2d(3, width, kernel, padding=2)
        self.blocks = nas.Repeat("depth", [Block("first", width), Block("second", width), Block("third", width)])
        self.source = nas.Pick("source", 2)
        self.head = nas.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.source([x, self.blocks(x)]).mean((2, 3)))


VALUES: dict[str, Any] = {
    "width": 7,
    "kernel": 1,
    "depth": 2,
    "first": "conv",
    "second": "pool",
    "third": "conv",
    "slope": 0.25,
    "source": 1,
}
EXAMPLE = (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(1)
    model = Net().eval()
    network = nas.extract(model, VALUES)
    nas.select(model, VALUES)
    torch.testing.assert_close(network(*EXAMPLE), model(*EXAMPLE))
    nas.recalibrate(network, [torch.randn(16, 3, 8, 8) + 1 for _ in range(4)])
    return network.eval()


@pytest.fixture(scope="module")
def exported(network, tmp_path_factory):
    """A folder with all files of the network, and inputs of two sizes beside what it computes of them."""
    folder = tmp_path_factory.mktemp("exported")
    nas.export(network, folder, *EXAMPLE, values=VALUES)
    inputs = {batch: torch.randn(batch, 3, 8, 8) for batch in (1, 5)}
    for batch, x in inputs.items():
        torch.save(x, folder / f"in{batch}.pt")
        np.save(folder / f"in{batch}.npy", x.numpy())
    with torch.no_grad():
        return folder, {batch: network(x) for batch, x in inputs.items()}


@pytest.mark.long
def test_all_formats_are_written(exported):
    names = {path.name for path in exported[0].iterdir() if not path.name.startswith(("in", "out"))}
    assert names == set(FILES.values())


@pytest.mark.long
def test_the_architecture_is_read_back(exported):
    text = (exported[0] / "architecture.json").read_text()
    assert nas.from_json(text, nas.space_of(Net())) == VALUES


@pytest.mark.long
def test_weights_load_into_the_network_they_came_from(exported, network):
    from safetensors.torch import load_file

    state = load_file(exported[0] / "weights.safetensors")
    assert state.keys() == network.state_dict().keys()
    fresh = nas.extract(Net(), VALUES)
    fresh.load_state_dict(state)
    torch.testing.assert_close(fresh.eval()(*EXAMPLE), network(*EXAMPLE), rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "forbidden", "ending", "tolerance"),
    [
        (WITH_SOURCE, ["asng"], "pt", 0.0),
        (WITH_TORCH, ["asng"], "pt", 1e-6),
        (WITH_ONNXRUNTIME, ["asng", "torch"], "npy", 1e-5),
    ],
    ids=["python", "torch", "onnx"],
)
def test_an_exported_network_runs_where_asng_cannot_be_imported(exported, program, forbidden, ending, tolerance):
    folder, expected = exported
    run_elsewhere(program, folder, forbidden)
    for batch, y in expected.items():
        path = folder / f"out{batch}.{ending}"
        output = torch.load(path) if ending == "pt" else torch.from_numpy(np.load(path))
        torch.testing.assert_close(output, y, atol=tolerance, rtol=tolerance)


def test_elsewhere_really_has_no_asng(tmp_path):
    with pytest.raises(AssertionError, match="asng is not to be had here"):
        run_elsewhere("import asng.nas._static", tmp_path, ["asng"])


@pytest.mark.slow
def test_a_batch_of_one_is_enough_for_an_example(tmp_path):
    files = nas.export(nn.Linear(3, 2), tmp_path, torch.zeros(1, 3), formats=["torch"])
    assert torch.export.load(files["torch"]).module()(torch.zeros(7, 3)).shape == (7, 2)


@pytest.mark.slow
def test_an_example_may_be_a_slice(tmp_path):
    pytest.importorskip("onnxruntime")
    network = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 32))
    tokens = torch.randint(32, (16, 33))[:, :-1]
    files = nas.export(network, tmp_path, tokens, formats=["torch", "onnx"])
    torch.testing.assert_close(torch.export.load(files["torch"]).module()(tokens), network(tokens))


@pytest.mark.slow
def test_inputs_may_be_given_by_keyword_and_outputs_be_several(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x, *, scale):
            return {"y": self.linear(x), "scaled": self.linear(x) * scale}

    files = nas.export(
        Two(), tmp_path, torch.randn(2, 3), kwargs={"scale": torch.randn(2, 2)}, formats=["python", "torch"]
    )
    assert list(files) == ["safetensors", "python", "torch"]
    assert "output = network(torch.randn(2, 3), scale=torch.randn(2, 2))" in files["python"].read_text()


@pytest.mark.slow
def test_the_model_is_not_changed_and_its_dtype_becomes_float32(tmp_path):
    from safetensors.torch import load_file

    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).double().train()
    files = nas.export(model, tmp_path, torch.randn(2, 3).double(), formats=["safetensors"])
    assert model.training
    assert model[0].weight.dtype == torch.float64
    assert {tensor.dtype for tensor in load_file(files["safetensors"]).values()} == {torch.float32}


@pytest.mark.slow
def test_fused_layers_and_parts_that_do_not_run_stay_behind(tmp_path):
    class WithHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = fused.fuse(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
            self.auxiliary = nn.Conv2d(4, 1, 1)

        def forward(self, x):
            x = self.body(x)
            return (x, self.auxiliary(x)) if self.training else x

    files = nas.export(WithHead(), tmp_path, torch.randn(2, 3, 8, 8), formats=["python", "torch"])
    assert "body=nn.Sequential(nn.Conv2d(3, 4, kernel_size=(3, 3)), nn.BatchNorm2d(4))" in files["python"].read_text()
    assert not any("auxiliary" in name for name in torch.export.load(files["torch"]).state_dict)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "architecture.json").write_text("mine")
    with pytest.raises(ValueError, match=r"architecture.json exists already and is not overwritten; choose another"):
        nas.export(nn.Linear(3, 2), tmp_path, torch.zeros(2, 3), values={}, formats=["json"])
    assert (tmp_path / "architecture.json").read_text() == "mine"


class ByLength(nn.Module):
    def forward(self, x):
        return x / len(x)


class OnlyInteger(nn.Module):
    """Does not run while it is recorded."""

    def forward(self, x):
        assert type(x.shape[0]) is int
        return x * 2


class BySign(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (nas.OneOf("act", [nn.ReLU(), nn.Tanh()]), {}, r"has decisions \(act\); export what nas.extract"),
        (nn.Linear(3, 2), {"formats": ["pickle"]}, "formats must be some of json, safetensors.*got 'pickle'"),
        (nn.Linear(3, 2), {"formats": "onnx"}, r"formats must be a list, got 'onnx'; give \['onnx'\]$"),
        (nn.Linear(3, 2), {"formats": []}, r"formats must be some of .*got \[\]"),
        (nn.Linear(3, 2), {"formats": ["json"]}, "give its values, or leave the format out"),
        (nn.Sequential(BySign()), {"formats": ["python"]}, r"0 \(BySign\) reads numbers.*leave out the format python"),
        (
            OnlyInteger(),
            {"formats": ["python"]},
            r"network.py cannot be written \(.*or leave out the format python$",
        ),
        (nn.Sequential(ByLength()), {"formats": ["python"]}, "other numbers than the network for a batch of 4.*len"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_the_cure(model, given, message, tmp_path):
    pytest.importorskip("safetensors")
    with pytest.raises(ValueError, match=message):
        nas.export(model, tmp_path / "new", torch.ones(2, 3), **given)
    assert not (tmp_path / "new").exists()


class Projects(nn.Module):
    """ONNX Runtime refuses what torch makes of it."""

    def __init__(self, layers):
        super().__init__()
        self.lstm = nn.LSTM(3, 5, layers, batch_first=True, proj_size=4)

    def forward(self, x):
        return self.lstm(x)[0]


class Decomposes(nn.Module):
    def forward(self, x):
        return torch.linalg.svdvals(x)


WITHOUT_ONNX = ".*leave out the format onnx by the argument formats$"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    ("model", "format", "message"),
    [
        (Projects(1), "onnx", r"network.onnx does not run .*\(Input initial_c must have shape" + WITHOUT_ONNX),
        (Projects(2), "onnx", r"onnxruntime cannot export the network \(Node .* must have same rank" + WITHOUT_ONNX),
        (Decomposes(), "onnx", "torch.onnx.export cannot .*No ONNX function found for .*linalg_svd" + WITHOUT_ONNX),
        (
            BySign(),
            "torch",
            r"torch.export cannot .*test_export.py, line \d+: return x if x.sum\(\) > 0 .*format torch",
        ),
    ],
    ids=["when it runs", "when it is loaded", "when it is made", "in code of the network"],
)
def test_the_reason_of_a_refusal_is_named_with_the_format(model, format, message, tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match=message):
        nas.export(model, tmp_path / "new", torch.ones(2, 6, 3), formats=[format])
    assert not (tmp_path / "new").exists()


class Buffers(nn.Module):
    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x):
        return tuple(x * buffer for buffer in self.buffers())


def test_weights_may_be_nan_or_complex(tmp_path):
    pytest.importorskip("safetensors")
    model = Buffers(a=torch.tensor([float("nan"), 1, 2]), b=torch.randn(3, dtype=torch.complex64))
    x = torch.randn(2, 3)
    built = load_source(nas.export(model, tmp_path, x, formats=["python"]))
    torch.testing.assert_close(built(x), model(x), rtol=0, atol=0, equal_nan=True)


def test_weights_that_safetensors_does_not_know_are_refused(tmp_path):
    pytest.importorskip("safetensors")
    model = Buffers(a=torch.randn(3, dtype=torch.complex128))
    with pytest.raises(
        ValueError, match=r"safetensors cannot export .*complex128.*leave out the format safetensors, and"
    ):
        nas.export(model, tmp_path, torch.ones(2, 3), formats=["python"])


def test_imaginary_parts_are_compared():
    x = torch.randn(3, dtype=torch.complex64)
    assert are_close([x.conj()], [x.conj()])
    assert not are_close([x], [x.conj()])
    assert not are_close([x.real], [x])


@pytest.mark.parametrize(
    ("given", "call"),
    [
        ([], "folder, x)"),
        ([(torch.ones(2, 3), torch.ones(2))], "folder, *batch)"),
        ([{"input": torch.ones(2, 3)}], "folder, kwargs=batch)"),
    ],
    ids=["nothing", "tuple", "dict"],
)
def test_example_inputs_are_needed_one_by_one(given, call, tmp_path):
    cure = re.escape(f"give example inputs, tensors with the batch first, as in nas.export(model, {call}")
    with pytest.raises(ValueError, match=cure):
        nas.export(nn.Linear(3, 2), tmp_path, *given, formats=["torch"])


def test_an_example_that_the_network_does_not_take_is_named(tmp_path):
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes") as raised:
        nas.export(nn.Linear(3, 2), tmp_path, torch.ones(2, 4), formats=["torch"])
    assert raised.value.__notes__ == ["in the network, called with the example inputs that nas.export was given"]


class MeanOverTime(nn.Module):
    def forward(self, x):
        return x.sum(1) * (1 / x.shape[1])  # a number of the example


class PadsToFours(nn.Module):
    def forward(self, x):
        missing = -x.shape[1] % 4
        return (F.pad(x, (0, 0, 0, missing)) if missing else x).mean(1)


class CutsAtEight(nn.Module):
    def forward(self, x):
        return (x[:, :8] if x.shape[1] > 8 else x).mean(1)


class MeanOfFeatures(nn.Module):
    """Of a fixed number of features, and any number of times."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x).sum(1) / len(x[0])


class MeanOfNeighbours(nn.Module):
    """Of a graph: its nodes are no batch."""

    def forward(self, x, neighbours):
        return neighbours @ x / len(x)


class Grey(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x)


class Deviation(nn.Module):
    def forward(self, x):
        return x.std(1)  # NaN of a single time


def load_source(files: dict[str, Any]) -> nn.Module:
    names: dict[str, Any] = {"__file__": str(files["python"])}
    exec(files["python"].read_text(), names)
    return names["load"]()


@pytest.mark.parametrize(
    ("model", "example", "other", "fixed"),
    [
        (nn.Sequential(MeanOverTime()), [(2, 6, 3)], [(4, 5, 3)], r"shape\[1\] has to be 6"),
        (PadsToFours(), [(2, 8, 3)], [(2, 7, 3)], r"shape\[1\] has to be 8"),
        (CutsAtEight(), [(2, 8, 3)], [(2, 12, 3)], r"shape\[1\] has to be 8"),
        (MeanOfFeatures(), [(2, 6, 6)], [(2, 5, 6)], r"shape\[1\] has to be 6"),
        (Grey(), [(2, 3, 8, 8)], [(2, 1, 8, 8)], r"shape\[1\] has to be 3"),
    ],
)
def test_source_refuses_sizes_at_which_it_would_compute_something_else(model, example, other, fixed, tmp_path):
    pytest.importorskip("safetensors")
    inputs = [torch.randn(shape) for shape in example]
    with pytest.warns(UserWarning, match="refuses inputs of other sizes than those of the example, on axes of size"):
        built = load_source(nas.export(model, tmp_path, *inputs, formats=["python"]))
    more = [torch.randn(5, *shape[1:]) for shape in example]
    torch.testing.assert_close(built(*more), model(*more))
    with pytest.raises(ValueError, match=fixed):
        built(*(torch.randn(shape) for shape in other))


@pytest.mark.filterwarnings("ignore:network.py refuses")
def test_sizes_of_other_axes_than_those_that_it_refuses_are_free(tmp_path):
    pytest.importorskip("safetensors")
    model, x = Grey(), torch.randn(2, 3, 9, 5)
    built = load_source(nas.export(model, tmp_path, torch.randn(2, 3, 8, 8), formats=["python"]))
    torch.testing.assert_close(built(x), model(x))


class Records(nn.Module):
    shapes: ClassVar[list[tuple[int, ...]]] = []

    def forward(self, x):
        self.shapes.append(tuple(map(int, x.shape)))
        return x * 2


def test_other_sizes_are_tried_with_few_rows(tmp_path):
    pytest.importorskip("safetensors")
    nas.export(Records(), tmp_path, torch.randn(1000, 6, 3), formats=["python"])
    others = [shape for shape in Records.shapes if shape[1:] != (6, 3)]
    assert {shape[1:] for shape in others} >= {(12, 3), (6, 6)}
    assert {shape[0] for shape in others} == {2}


def test_source_refuses_other_first_sizes_where_they_are_not_those_of_batches(tmp_path):
    pytest.importorskip("safetensors")
    model, example = MeanOfNeighbours(), (torch.randn(6, 3), torch.rand(6, 6))
    with (
        pytest.warns(UserWarning, match="the network runs only with the batch size of the example"),
        pytest.warns(UserWarning, match="network.py refuses .* on axes of size 6"),
    ):
        built = load_source(nas.export(model, tmp_path, *example, formats=["python"]))
    torch.testing.assert_close(built(*example), model(*example))
    with pytest.raises(ValueError, match=r"x\.shape\[0\] has to be 6"):
        built(torch.randn(5, 3), torch.rand(5, 5))


def test_sizes_at_which_a_network_has_no_numbers_are_free(tmp_path):
    pytest.importorskip("safetensors")
    x = torch.randn(2, 7, 4)
    built = load_source(nas.export(Deviation(), tmp_path, torch.randn(2, 3, 4), formats=["python"]))
    torch.testing.assert_close(built(x), Deviation()(x))


@pytest.mark.parametrize("part", [ByLength(), OnlyInteger()], ids=lambda part: type(part).__name__)
def test_what_source_cannot_say_does_not_hinder_other_formats(part, tmp_path):
    pytest.importorskip("safetensors")
    model = nn.Sequential(nn.Linear(3, 2), part)
    files = nas.export(model, tmp_path, torch.ones(2, 3), formats=["safetensors"])
    assert list(tmp_path.iterdir()) == [files["safetensors"]]


def test_a_library_that_is_missing_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"format safetensors needs safetensors .*pip install 'asng\[export\]'"):
        nas.export(nn.Linear(3, 2), tmp_path, torch.zeros(2, 3), formats=["python"])
