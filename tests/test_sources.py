"""The sources of the package hold nothing that runs foreign code, or writes where an archive says."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "asng").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "subprocess", "telnetlib"}
NAMES = {"eval", "exec", "compile", "__import__"}
METHODS = {
    "os.system",
    "os.popen",
    "os.startfile",
    "shutil.unpack_archive",
    "yaml.load",
    "tempfile.mktemp",
}
OWN_CODE = {"_source.py": ["exec", "compile"]}  # runs what it has just written, to compare it with the model
METHODS |= {"zipfile.extract", "zipfile.extractall"}


def dangers(source: str) -> list[str]:
    """What a source text should do without, each with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            names = [str(node.module)]
        elif isinstance(node, ast.Call):
            names = _call_dangers(node, reads_archives="import tarfile" in source or "import zipfile" in source)
        found += [f"line {getattr(node, 'lineno', 0)}: {name}" for name in names]
    return found


def _call_dangers(node: ast.Call, reads_archives: bool) -> list[str]:
    """The dangers of a call."""
    name = ast.unparse(node.func)
    forbidden = {"extractall", "load_module"} | ({"extract"} if reads_archives else set())
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    wrong = [name] if name in NAMES | METHODS or name.split(".")[-1] in forbidden else []
    wrong += [f"{name}(shell=True)"] if keywords.get("shell", "False") != "False" else []
    if name == "torch.load" and keywords.get("weights_only") != "True":
        wrong.append("torch.load without weights_only=True")
    if name in ("np.load", "numpy.load") and keywords.get("allow_pickle") != "False":
        wrong.append("np.load without allow_pickle=False")
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_runs_foreign_code(path):
    found = [danger.split(": ")[1] for danger in dangers(path.read_text())]
    assert found == OWN_CODE.get(path.name, [])


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as c",
        "def f():\n    import subprocess",
        "eval('1')",
        "exec(text)",
        "run('ls', shell=True)",
        "run('ls', shell=anything)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file)",
        "archive.extractall(folder)",
        "import tarfile\narchive.extract(member, folder)",
        "os.system('ls')",
        "tempfile.mktemp()",
    ],
)
def test_the_check_sees_each_danger(source):
    assert len(dangers(source)) == 1


def test_the_check_lets_pass_what_is_safe():
    safe = "model.eval()\nre.compile('a')\ntorch.load(file, weights_only=True)\nnp.load(file, allow_pickle=False)"
    safe += "\nnas.extract(model)"
    assert dangers(safe) == []
