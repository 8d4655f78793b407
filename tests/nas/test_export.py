"""What is extracted leaves by torch's own exporters and runs where asng cannot be imported."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asng import nas
from asng.space import Integer, Real

# Third parties' warnings while exporting and saving.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
]

# Runs an artifact on saved inputs, with nothing of asng in reach, and saves what comes out.
ELSEWHERE = """
import importlib, importlib.util, sys

class Never:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in FORBIDDEN:
            raise ImportError(f"{name} is not to be had here")

FORBIDDEN = sys.argv[1].split(",")
sys.meta_path.insert(0, Never())
for name in FORBIDDEN:
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported")

folder = sys.argv[2]
"""
WITH_TORCH = """
import torch
network = torch.export.load(folder + "/network.pt2").module()
for batch in (1, 5):
    x = torch.load(f"{folder}/in{batch}.pt")
    torch.save(network(x).detach(), f"{folder}/out{batch}.pt")
"""
WITH_ONNXRUNTIME = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession(folder + "/network.onnx", providers=["CPUExecutionProvider"])
for batch in (1, 5):
    (y,) = session.run(None, {session.get_inputs()[0].name: numpy.load(f"{folder}/in{batch}.npy")})
    numpy.save(f"{folder}/out{batch}.npy", y)
"""


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
BATCH = ({0: torch.export.Dim.DYNAMIC},)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(1)
    model = Net().eval()
    network = nas.extract(model, VALUES)
    nas.select(model, VALUES)
    torch.testing.assert_close(network(*EXAMPLE), model(*EXAMPLE))
    nas.recalibrate(network, [torch.randn(16, 3, 8, 8) + 1 for _ in range(4)])
    return network.eval()


def run_elsewhere(program, folder, forbidden):
    command = [sys.executable, "-I", "-c", ELSEWHERE + program, ",".join(forbidden), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_an_exported_program_runs_without_asng(network, tmp_path):
    program = torch.export.export(network, EXAMPLE, dynamic_shapes=BATCH)
    torch.export.save(program, tmp_path / "network.pt2")
    inputs = {batch: torch.randn(batch, 3, 8, 8) for batch in (1, 5)}
    for batch, x in inputs.items():
        torch.save(x, tmp_path / f"in{batch}.pt")
    run_elsewhere(WITH_TORCH, tmp_path, ["asng"])
    for batch, x in inputs.items():
        output = torch.load(tmp_path / f"out{batch}.pt")
        assert output.shape == (batch, 10)
        torch.testing.assert_close(output, network(x).detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.long
def test_an_onnx_file_runs_without_asng_and_torch(network, tmp_path):
    torch.onnx.export(
        network, EXAMPLE, tmp_path / "network.onnx", dynamic_shapes=BATCH, dynamo=True, external_data=False
    )
    inputs = {batch: torch.randn(batch, 3, 8, 8) for batch in (1, 5)}
    for batch, x in inputs.items():
        np.save(tmp_path / f"in{batch}.npy", x.numpy())
    run_elsewhere(WITH_ONNXRUNTIME, tmp_path, ["asng", "torch"])
    for batch, x in inputs.items():
        output = torch.from_numpy(np.load(tmp_path / f"out{batch}.npy"))
        assert output.shape == (batch, 10)
        torch.testing.assert_close(output, network(x).detach(), atol=1e-5, rtol=1e-5)


def test_elsewhere_really_has_no_asng(tmp_path):
    with pytest.raises(AssertionError, match="asng is not to be had here"):
        run_elsewhere("import asng.nas._static", tmp_path, ["asng"])
