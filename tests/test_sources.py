"""The sources hold nothing that runs foreign code, or writes where an archive says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("asng", "benchmarks", "examples", ".github", "docs")
SOURCES = sorted([ROOT / "_asng_command.py", *(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))])
MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "subprocess",
    "telnetlib",
    "runpy",
}
# Dotted names as they are behind any alias.
CALLS = re.compile(
    r"(builtins\.)?(eval|exec|compile|__import__)"
    r"|os\.(system|popen|startfile|exec\w+|spawn\w+|posix_spawnp?)|pty\.spawn|asyncio\.create_subprocess_\w+"
    r"|shutil\.unpack_archive|tempfile\.mktemp|yaml\.(load|unsafe_load|full_load)\w*"
    r"|torch\.(hub\.\w+|jit\.load|package\.\w+)|pandas\.(read_pickle|eval)|numpy\.lib\.format\.\w+"
    r"|.*\.(extractall|load_module|read_pickle)"
)
NEEDED = {  # what is known to be harmless
    "asng/_evaluation.py": ["pickle"],  # an exception of this very process, to see whether it comes back
    "asng/nas/_source.py": ["exec", "compile"],  # runs what it has just written, to compare it with the model
    "benchmarks/cifar10_tables.py": ["subprocess"],  # runs asng itself, without a shell
}


def dangers(source: str) -> list[str]:
    """What a source text should do without, each with its line."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    reads_archives = any(name.split(".")[0] in ("tarfile", "zipfile") for name in aliases.values())
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            names = [str(node.module)]
        elif isinstance(node, ast.Call):
            names = _call_dangers(node, aliases, reads_archives)
        found += [f"line {getattr(node, 'lineno', 0)}: {name}" for name in names]
    return found


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What each imported name stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname or each.name.split(".")[0], each.name) for each in node.names if each.asname)
            yield from ((each.name.split(".")[0],) * 2 for each in node.names if not each.asname)
        elif isinstance(node, ast.ImportFrom):
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def _call_dangers(node: ast.Call, aliases: dict[str, str], reads_archives: bool) -> list[str]:
    """The dangers of a call."""
    first, *rest = ast.unparse(node.func).split(".")
    name = ".".join([aliases.get(first, first), *rest])
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    wrong = [name] if CALLS.fullmatch(name) or (reads_archives and name.endswith(".extract")) else []
    wrong += [f"{name}(shell=True)"] if keywords.get("shell", "False") != "False" else []
    if name == "torch.load" and keywords.get("weights_only") != "True":
        wrong.append("torch.load without weights_only=True")
    if name == "numpy.load" and keywords.get("allow_pickle") != "False":
        wrong.append("np.load without allow_pickle=False")
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_runs_foreign_code(path):
    found = [danger.split(": ")[1] for danger in dangers(path.read_text())]
    assert found == NEEDED.get(path.relative_to(ROOT).as_posix(), [])


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as c",
        "def f():\n    import subprocess",
        "eval('1')",
        "exec(text)",
        "import builtins as b\nb.exec(text)",
        "run('ls', shell=True)",
        "run('ls', shell=anything)",
        "import torch\ntorch.load(file)",
        "import torch\ntorch.load(file, weights_only=False)",
        "from torch import load as read\nread(file)",
        "import torch\ntorch.hub.load('owner/name', 'model')",
        "import numpy as np\nnp.load(file)",
        "from numpy import load\nload(file, allow_pickle=True)",
        "import pandas as pd\npd.read_pickle(file)",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "archive.extractall(folder)",
        "import tarfile\narchive.extract(member, folder)",
        "from zipfile import ZipFile\narchive.extract(member, folder)",
        "import shutil as s\ns.unpack_archive(file)",
        "import os\nos.system('ls')",
        "from os import system\nsystem('ls')",
        "import os\nos.execv(path, [])",
        "import tempfile\ntempfile.mktemp()",
    ],
)
def test_the_check_sees_each_danger(source):
    assert len(dangers(source)) == 1


def test_the_check_lets_pass_what_is_safe():
    safe = "import torch, re\nimport numpy as np\nmodel.eval()\nre.compile('a')\nnas.extract(model)"
    safe += "\ntorch.load(file, weights_only=True)\nnp.load(file, allow_pickle=False)\nrun('ls', shell=False)"
    assert dangers(safe) == []
