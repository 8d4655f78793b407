"""Exported networks in a process where asng cannot be imported."""

import subprocess
import sys

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
WITH_SOURCE = """
import torch
spec = importlib.util.spec_from_file_location("network", folder + "/network.py")
network = importlib.util.module_from_spec(spec)
spec.loader.exec_module(network)
net = network.load()
for batch in (1, 5):
    with torch.no_grad():
        torch.save(net(torch.load(f"{folder}/in{batch}.pt")), f"{folder}/out{batch}.pt")
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


def run_elsewhere(program, folder, forbidden):
    """Run a program on a folder, without some packages; what it says on an error is the AssertionError's."""
    command = [sys.executable, "-I", "-c", ELSEWHERE + program, ",".join(forbidden), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
