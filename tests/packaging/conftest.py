"""Builds the release, and installs it into empty environments: uv links files of its cache, so each takes seconds."""

import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INDEX = "https://pypi.org/simple/"
CACHE = ROOT / ".venv" / "uv-cache"
TOOLS = {"build[uv]": "1.6.1", "pyright": "1.1.414", "twine": "7.0.0"}
# What pip was told about packages, for uv.
SETTINGS = {"PIP_CERT": "SSL_CERT_FILE", "PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL"}


def command(*words: object, folder: Path | None = None, ok: bool = True, **more: str) -> str:
    """Run a command outside of the checkout's reach; returns what it printed, or with ok=False how it failed."""
    unset = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    found = {uv: os.environ[pip] for pip, uv in SETTINGS.items() if pip in os.environ}
    environment = {
        **kept,
        **found,
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "NO_COLOR": "1",
        "UV_CACHE_DIR": str(CACHE),
        **more,
    }
    done = subprocess.run(
        [*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert (done.returncode == 0) == ok, f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def tool(name: str, *words: object, program: str | None = None, **more: Any) -> str:
    """Run a tool of a pinned version in an environment of its own."""
    return command(uv(), "tool", "run", "--from", f"{name}=={TOOLS[name]}", program or name, *words, **more)


def uv() -> str:
    path = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert path is not None, "uv is missing; run make test-packaging"
    return path


@pytest.fixture(scope="session", autouse=True)
def index():
    """Where packages come from; without it there is nothing to install."""
    try:
        urllib.request.urlopen(INDEX + "numpy/", timeout=30).close()
    except OSError as error:
        pytest.skip(f"{INDEX} cannot be reached ({error})")


@pytest.fixture(scope="session")
def dist(tmp_path_factory, index):
    """A folder with the source distribution and the wheel that is built from it, and what building said."""
    folder, source = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source")
    for name in command("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT).splitlines():
        if (ROOT / name).is_file() and not name.startswith(("results/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    # A copy, as other processes may build, too, and a build leaves files behind.
    return folder, tool("build[uv]", "--installer", "uv", "--outdir", folder, source, program="pyproject-build")


@pytest.fixture(scope="session")
def wheel(dist):
    (path,) = dist[0].glob("*.whl")
    return path


@pytest.fixture
def install(wheel, tmp_path):
    """A function that makes an empty environment with the wheel and an extra of it; returns its folder of programs.

    torch is the build that the project's own environment has: others are gigabytes.
    """

    def make(extra: str = "", *options: str) -> Path:
        limits = tmp_path / "limits.txt"
        limits.write_text(f"torch=={version('torch')}\n")
        command(uv(), "venv", "--quiet", "--python", sys.executable, tmp_path / "env")
        wanted = f"asng[{extra}] @ {wheel.as_uri()}" if extra else wheel
        into = ["--python", tmp_path / "env" / "bin" / "python", "--constraint", limits]
        command(uv(), "pip", "install", *into, *options, wanted)
        return tmp_path / "env" / "bin"

    return make
