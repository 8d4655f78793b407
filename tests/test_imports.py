"""Parts of the package import only downward, and the core is light to import."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "asng"

# From top to bottom: a part may import those that stand below it, and itself.
CORE = [
    "minimize",
    "_blackbox",
    "_stopping",
    "_covariance",
    "_evaluation",
    "baselines",
    "optimizer",
    "_asktell",
    "_state",
    "_decoding",
]
CORE += ["space", "_variable", "families", "_values", "_ragged", "_checks", "_html", "_violations"]
CHAIN = ["cli", "experiments", "nas", *CORE]
MAY_IMPORT = {part: set(CHAIN[position:]) for position, part in enumerate(CHAIN)}
MAY_IMPORT["cli"] |= {"_signals", "report", "runs", "integrations", "asng"}
MAY_IMPORT["experiments"] |= {"_signals", "runs", "fused", "asng"}
MAY_IMPORT["integrations"] = {"integrations", "_files", "_untrusted", *CORE}
MAY_IMPORT["_html"] |= {"_untrusted"}
MAY_IMPORT["report"] = {
    "report",
    "_convergence",
    "_html",
    "experiments",
    "runs",
    "_checks",
    "_files",
    "_untrusted",
    "asng",
}  # never torch
MAY_IMPORT["plot"] = {"plot"}
MAY_IMPORT["_files"] = {"_files", "_untrusted"}
MAY_IMPORT["_untrusted"] = {"_untrusted"}
MAY_IMPORT["_json_checkpoint"] = {"_json_checkpoint", "_files", "_untrusted"}
MAY_IMPORT["_signals"] = {"_signals"}
MAY_IMPORT["_convergence"] = {"_convergence"}
MAY_IMPORT["minimize"] |= {"_json_checkpoint", "_progress", "_signals"}
for part in ("_blackbox", "_variable", "_values"):
    MAY_IMPORT[part] |= {"_untrusted"}
MAY_IMPORT["fused"] = {"fused"}
MAY_IMPORT["runs"] = {"runs", "_checks", "_files", "_untrusted", "asng"}  # the package: its version
for part in ("cli", "experiments", "nas"):
    MAY_IMPORT[part] |= {"_files", "_progress", "_untrusted"}
MAY_IMPORT["nas"] |= {"fused", "_convergence", "_signals", "asng"}  # the package itself: its version
MAY_IMPORT["_progress"] = {"_progress"}
MAY_IMPORT["asng"] = {"asng", *CORE}  # the package itself: the public names of the core
MAY_IMPORT["__main__"] = {"cli"}

THIRD_PARTY = {part: {"numpy"} for part in ("asng", *CORE)} | {
    "nas": {"numpy", "torch", "onnxruntime", "safetensors"},  # the latter two in exports alone
    "fused": {"torch", "triton"},
    # and no command-line parsing
    "experiments": {"numpy", "torch", "matplotlib", "sklearn", "PIL", "pooch", "requests"},
    "runs": set(),
    "_files": set(),
    "_untrusted": set(),
    "_signals": set(),
    "_convergence": set(),
    "_json_checkpoint": set(),
    "_progress": {"rich"},
    "report": set(),
    "plot": {"numpy", "matplotlib"},
}


def part_of(module: str) -> str:
    """The part of the package that a dotted name belongs to; "asng" for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and is_part(parts[1]) else "asng"


def is_part(name: str) -> bool:
    return name in MAY_IMPORT


def imports_of(source: str) -> set[str]:
    """All modules that a source text imports, anywhere in it, as dotted names."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            # `from asng import runs` may name a module as well as a value
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def violations(part: str, source: str) -> list[str]:
    """What a source text in a part imports although it must not."""
    wrong = []
    for name in sorted(imports_of(source)):
        top = name.split(".")[0]
        if top == "asng":
            if part_of(name) not in MAY_IMPORT[part]:
                wrong.append(f"{part} imports {name}, which is not below it")
        elif (top not in sys.stdlib_module_names or top == "argparse") and top not in THIRD_PARTY.get(part, {top}):
            wrong.append(f"{part} imports {name}, which it has to do without")
    return wrong


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_is_below_it(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    part = "asng" if parts == ("__init__",) else parts[0]
    assert part in MAY_IMPORT, f"{part} has no place among the parts yet; give it one above"
    assert violations(part, path.read_text()) == []


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("families", "from asng.space import Variable"),
        ("experiments", "import click"),
        ("experiments", "from argparse import ArgumentParser"),
        ("families", "import asng.optimizer"),
        ("families", "def late():\n    from asng import optimizer"),
        ("optimizer", "from asng.baselines import SNG"),
        ("optimizer", "from asng import ASNG"),
        ("optimizer", "import torch"),
        ("families", "from scipy.special import gamma"),
        ("nas", "from asng.experiments import toy"),
        ("nas", "from asng.runs import Run"),
        ("experiments", "from asng.cli import main"),
        ("runs", "import numpy as np"),
        ("report", "import torch.nn as nn"),
    ],
)
def test_the_check_sees_a_part_that_reaches_upward(part, source):
    assert len(violations(part, source)) == 1


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("cli", "from asng.experiments import toy\nimport rich"),
        ("experiments", "from asng.optimizer import asng_update\nfrom asng import runs"),
        ("nas", "import torch\nimport numpy as np"),
        ("optimizer", "import math\nimport numpy as np\nfrom asng.space import Space"),
    ],
)
def test_the_check_lets_pass_what_points_downward(part, source):
    assert violations(part, source) == []


def test_import_asng_loads_nothing_but_numpy():
    program = """
import sys
import numpy.random  # with the helpers of its compiled parts
before = set(sys.modules)
import asng
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names) - {"asng", "numpy"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_without_torch_one_shot_search_says_what_to_install():
    program = "import sys; sys.modules['torch'] = None; import asng; import asng.nas"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"ImportError: asng\.nas needs PyTorch \(.*torch.*\): pip install 'asng\[nas\]'", done.stderr)


# Extras


def packages(extra: str) -> set[str]:
    """What an extra names, as it is imported."""
    listed = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    names = {re.split("[>=]", requirement)[0] for requirement in listed}
    return {{"scikit-learn": "sklearn", "pillow": "PIL"}.get(name, name) for name in names}


def imported_packages(*parts: str) -> set[str]:
    """The packages that these parts import."""
    paths = [path for part in parts for path in (PACKAGE / part).rglob("*.py")]
    tops = {name.split(".")[0] for path in paths for name in imports_of(path.read_text())}
    return tops - set(sys.stdlib_module_names) - {"asng", "numpy"}


def search_in_a_process(before: str, checkpoint: Path) -> subprocess.CompletedProcess[str]:
    """A small search after these lines, in a process of its own."""
    pytest.importorskip("torch")
    program = f"""
import os, signal, sys, torch
{before}
from asng import nas
model = nas.OneOf("op", [torch.nn.Linear(2, 1), nas.Linear(2, 1)])
batches = [torch.ones(4, 2)]
loss_fn = lambda model, x: model(x).square().mean()
nas.search(model, batches, [*batches], loss_fn, epochs=1, checkpoint={str(checkpoint)!r}, progress=False)
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.long
def test_one_shot_search_needs_torch_alone(tmp_path):
    assert packages("nas") == {"torch"}
    assert imported_packages("nas") - packages("export") - packages("onnx") == {"torch"}
    others = packages("experiments") | packages("export")
    without = f"sys.modules.update(dict.fromkeys({sorted(others)}))"  # as if not installed
    done = search_in_a_process(without, tmp_path / "checkpoint.pt")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_one_shot_search_does_without_what_windows_lacks(tmp_path):
    lacking = """
sys.modules["fcntl"] = None
for module, name in (os, "fork"), (os, "register_at_fork"), (os, "uname"), (signal, "pthread_sigmask"):
    vars(module).pop(name, None)
"""
    done = search_in_a_process(lacking, tmp_path / "checkpoint.pt")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_the_experiments_extra_has_what_they_and_their_commands_import():
    imported = imported_packages("experiments", "cli")
    assert packages("experiments") == imported - {"torch", "requests"} | {"asng[nas]"}  # pooch brings requests
