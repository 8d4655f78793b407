"""The files of a release: what is in them, how they are described, how complete their types are."""

import json
import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import asng
from tests.packaging.conftest import ROOT, TOOLS, command, tool, uv

MIN_TYPES = 0.95  # share of the public interface with known types


def test_building_warns_of_nothing(dist):
    assert [
        line for line in dist[1].splitlines() if re.search(r"\bwarn|deprecat", line, re.I) and ".py" not in line
    ] == []


def test_the_description_is_one_that_pypi_shows(dist):
    assert tool("twine", "check", "--strict", *sorted(dist[0].iterdir())).count("PASSED") == 2


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tracked = set(command("git", "ls-files", "asng", "_asng_command.py", folder=ROOT).splitlines())
    about = f"asng-{asng.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(about)} == tracked
    assert {"asng/py.typed", "asng/report/page.html", "asng/report/report.css", "asng/report/report.js"} <= tracked
    assert f"{about}licenses/LICENSE" in names
    assert wheel.stat().st_size < 2**20


def test_the_source_distribution_holds_what_a_build_needs(dist):
    (path,) = dist[0].glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "NOTICE.md", "CHANGELOG.md", "CITATION.cff", "asng/py.typed"}
    assert wanted <= names
    assert not any(name.startswith(("tests", "results", "docs", "benchmarks", ".github")) for name in names)


def test_a_script_beside_the_checkout_imports_the_package_and_not_the_folder_of_its_name(tmp_path):
    tracked = command("git", "ls-files", "asng", "_asng_command.py", "pyproject.toml", "README.md", folder=ROOT)
    for name in [*tracked.splitlines(), "LICENSE", "NOTICE.md"]:
        (tmp_path / "asng" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "asng" / name)
    python, makefile = tmp_path / "env" / "bin" / "python", (ROOT / "Makefile").read_text()
    command(uv(), "venv", "--quiet", "--python", sys.executable, tmp_path / "env")
    command(uv(), "pip", "install", "--python", python, "numpy", "setuptools")
    options = re.findall(r"^EDITABLE := (.*)$", makefile, re.M)[0].split()
    command(uv(), "pip", "install", "--python", python, *options, tmp_path / "asng")
    (tmp_path / "script.py").write_text("import asng; print(asng.Categorical.__module__)")
    assert command(python, "script.py", folder=tmp_path) == "asng.space\n"


def test_the_release_makes_all_links_of_the_readme_absolute(tmp_path):
    program, readme = tmp_path / ".github" / "absolute_links.py", tmp_path / "README.md"
    program.parent.mkdir()
    program.write_text((ROOT / ".github" / "absolute_links.py").read_text())
    readme.write_text((ROOT / "README.md").read_text())
    relative = r"\]\((?!https://|#)([^)]+)\)"
    links = re.findall(rf"(?<!!)\[[^\]]*{relative}", readme.read_text())  # but pictures, which lead to their bytes
    command(sys.executable, program, "https://github.com/someone/asng", "v0.1.0")
    assert links
    assert re.findall(relative, readme.read_text()) == []
    assert f"https://github.com/someone/asng/blob/v0.1.0/{links[0]}" in readme.read_text()


def test_the_public_interface_has_types(wheel, tmp_path):
    """Measured on the installed wheel, beside the libraries of the project's environment."""
    import torch

    command(uv(), "venv", "--quiet", "--python", sys.executable, tmp_path / "env")
    (packages,) = (tmp_path / "env").glob("lib/*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "others.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    programs = tmp_path / "env" / "bin"
    command(uv(), "pip", "install", "--python", programs / "python", f"pyright=={TOOLS['pyright']}")
    words = ["--verifytypes", "asng", "--ignoreexternal", "--outputjson"]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"  # where it looks for python
    text = command(programs / "pyright", *words, folder=tmp_path, ok=False, PATH=path)
    report = json.loads(text[text.index("{") : text.rindex("}") + 1])["typeCompleteness"]
    counts = report["exportedSymbolCounts"]
    assert counts["withKnownType"] > 1000
    assert report["completenessScore"] >= MIN_TYPES, counts
