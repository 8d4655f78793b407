"""The wheel and each of its extras in an empty environment, outside of the checkout, with the newest and the oldest
versions that are allowed."""

import re

import pytest

import asng
from tests.packaging.conftest import PROJECT, ROOT, command

# What each extra is for, done once. Of others, whatever they name is imported.
SMOKE = {
    "": """
import asng
result = asng.minimize(lambda v: v["n"], {"n": asng.Integer(0, 9)}, evaluations=30, seed=0)
assert result.values == {"n": 0}, result
try:
    import asng.nas
except ImportError as error:
    assert "pip install 'asng[nas]'" in str(error), error
""",
    "plot": """
import types, asng.plot
first, second = {"train_loss": 0.9, "valid_loss": 1.1}, {"train_loss": 0.5, "valid_loss": 0.6}
asng.plot.history(types.SimpleNamespace(history=[first, second])).savefig("history.svg")
""",
    "optuna": """
import optuna
from asng.integrations.optuna import ASNGSampler
study = optuna.create_study(sampler=ASNGSampler(seed=0))
study.optimize(lambda trial: trial.suggest_int("n", 0, 9), n_trials=20)
assert study.best_value <= 1
""",
    "dask": """
import asng
from distributed import Client
if __name__ == "__main__":
    with Client(processes=False, dashboard_address=None) as client:
        executor = client.get_executor(pure=False)
        space = {"n": asng.Integer(0, 9)}
        result = asng.minimize(lambda v: v["n"], space, evaluations=20, executor=executor, seed=0)
        assert result.values["n"] <= 1, result
""",
    "tensorboard": """
from asng.integrations.tensorboard import TensorBoard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
TensorBoard("log")({"epoch": 1, "valid_loss": 0.5})
events = EventAccumulator("log").Reload()
assert events.Tags()["scalars"], events.Tags()
""",
    "experiments": """
import subprocess, sys
from pathlib import Path
asng = str(Path(sys.executable).with_name("asng"))
subprocess.run([asng, "digits", "search", "--epochs", "2", "--training-epochs", "1", "--out", "digits"], check=True)
subprocess.run([asng, "report", "digits"], check=True)
assert Path("digits/report.html").read_text().count("<svg")
""",
    "export": """
import torch
from asng import nas
network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
files = nas.export(network, "exported", torch.zeros(2, 2), values={"width": 3})
assert sorted(files) == ["json", "onnx", "python", "safetensors", "torch"]
""",
    "kernels": """
import torch, triton
from asng import fused
assert fused.fuse(torch.nn.BatchNorm2d(4))(torch.randn(2, 4, 3, 3)).shape == (2, 4, 3, 3)
""",
}
EXTRAS = PROJECT["optional-dependencies"]
IMPORT_ALL = """
import importlib, importlib.metadata as metadata, re, sys
names = {{re.sub("[-_.]+", "-", name).lower() for name in {names}}}
modules = {{}}
for module, distributions in metadata.packages_distributions().items():
    for name in distributions:
        modules.setdefault(re.sub("[-_.]+", "-", name).lower(), []).append(module)
for name in names:
    public = [module for module in modules[name] if not module.startswith("_") and module.isidentifier()]
    assert public, name
    for module in public:
        importlib.import_module(module)
"""
OLDEST = ["", "plot", "optuna", "dask", "experiments", "export", "tensorboard"]


def program_for(extra: str) -> str:
    if extra in SMOKE:
        return SMOKE[extra]
    named = [re.split(r"[\[<>=;~! ]", requirement)[0] for requirement in EXTRAS[extra]]
    return IMPORT_ALL.format(names=sorted({*named} - {"asng"}))


def check(programs, program, tmp_path):
    """Run a program in a folder of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "program.py").write_text(program)
    command(programs / "python", "program.py", folder=folder, OMP_NUM_THREADS="1")


@pytest.mark.parametrize("extra", ["", *(extra for extra in EXTRAS if extra != "nas")])
def test_an_extra_does_what_it_is_for_in_an_empty_environment(extra, install, tmp_path):
    check(install(extra), program_for(extra), tmp_path)


@pytest.mark.parametrize("extra", OLDEST)
def test_an_extra_works_with_the_oldest_versions_that_it_allows(extra, install, tmp_path):
    """torch apart: its oldest version is gigabytes here, and is tested in a workflow."""
    check(install(extra, "--resolution", "lowest-direct"), program_for(extra), tmp_path)


def test_numpy_is_all_that_the_core_needs(install):
    programs = install()
    program = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    listed = command(programs / "python", "-c", program, folder=programs)
    assert sorted(listed.lower().split()) == ["asng", "numpy"]
    assert command(programs / "asng", "--version", folder=programs) == f"asng {asng.__version__}\n"
    said = command(programs / "asng", "digits", "search", folder=programs, ok=False)
    assert said.count("\n") == 1
    assert "pip install 'asng[experiments]'" in said


def test_the_readmes_code_runs_outside_of_the_checkout(install, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 2
    check(install("nas"), "\n".join(blocks), tmp_path)
