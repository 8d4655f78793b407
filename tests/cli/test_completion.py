"""Completion: the scripts do in the shells themselves what they are for."""

import shutil
import subprocess

import pytest

from asng import cli
from asng.cli.flags import flags_of
from tests.helpers.commands import refusal, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """A function that writes the script of a shell to a file."""

    def write(shell):
        done = run("--print-completion", shell)
        assert (done.code, done.err) == (0, "")
        path = tmp_path_factory.mktemp("completion") / shell
        path.write_text(done.out)
        return path

    return write


@pytest.fixture(scope="module")
def complete(script):
    """A function that lets bash complete the last of some words."""
    path = script("bash")

    def ask(*words):
        quoted = " ".join(f"'{word}'" for word in words)
        program = f"""
source {path}
COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
_asng
printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p asng
"""
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
        *found, spec = done.stdout.splitlines()
        assert spec == "complete -o default -F _asng asng"
        assert done.stderr == ""
        return [word for word in found if word]

    return ask


def test_bash_completes_commands_verbs_flags_and_choices(complete):
    firsts = [*dict.fromkeys(name.split()[0] for name in cli.commands())]
    assert complete("asng", "") == [*firsts, "--help", "--version", "--print-completion"]
    assert complete("asng", "re") == ["resume", "report"]
    assert complete("asng", "cifar10", "") == ["search", "retrain", "evaluate", "--help"]
    assert complete("asng", "cifar10", "search", "--ep") == ["--epochs"]
    assert complete("asng", "cifar10", "search", "--epochs", "3", "--no-") == ["--no-test", "--no-capture"]
    assert complete("asng", "cifar10", "search", "--method", "") == ["asng", "sng", "uniform"]
    assert complete("asng", "inpainting", "search", "--encoding", "i") == ["int"]
    assert complete("asng", "digits", "search", "--see") == ["--seeds", "--seed"]
    assert complete("asng", "--print-completion", "") == ["bash", "zsh", "fish"]


def test_bash_leaves_paths_to_itself(complete):
    for words in (["digits", "search", "--out", ""], ["resume", "ru"], ["report", "runs/a", "ru"]):
        assert complete("asng", *words) == []
    assert complete("asng", "report", "") == []  # a run; its flags come with their first letter
    assert complete("asng", "report", "-") == ["--help", "--quiet", "--json", "--out", "--watch"]


def test_bash_completes_further_values_of_a_flag(complete):
    assert complete("asng", "export", "runs/a", "--format", "json", "o") == ["onnx"]
    assert complete("asng", "export", "runs/a", "--format", "json", "--o") == ["--out"]
    assert complete("asng", "export", "runs/a", "--format", "json", "--out", "") == []


def test_every_flag_of_every_command_is_completed(complete):
    for command in cli.commands():
        options = [flag.usage.split()[0] for flag in flags_of(*cli.parts_of_command(command)) if flag.metavar is None]
        assert set(options) <= set(complete("asng", *command.split(), "--"))


def test_zsh_completes_by_the_functions_of_bash(script):
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh")
    words = "COMP_WORDS=(asng cifar10 search --meth) COMP_CWORD=3"  # as zsh sets them, with arrays from 0
    shown = 'print -rl -- "${COMPREPLY[@]}"'  # all that fits here; zsh itself chooses by the letters given
    program = f"source {script('zsh')}; setopt ksharrays; {words}; _asng; {shown}"
    done = subprocess.run(["zsh", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"--method", "--epochs"} <= {*done.stdout.split()}


def test_fish_completes_choices(script):
    if shutil.which("fish") is None:
        pytest.skip("there is no fish")
    for line, expected in (
        ("asng cifar10 search --method ", "uniform"),
        ("asng dig", "digits"),
        ("asng toy ", "sweep"),
        ("asng export runs/a --format json ", "onnx"),
        ("asng report --he", "--help"),
        ("asng --v", "--version"),
        ("asng --print-completion ", "zsh"),
    ):
        program = f"source {script('fish')}; complete -C '{line}'"
        done = subprocess.run(["fish", "-c", program], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        assert expected in [found.split("\t")[0] for found in done.stdout.splitlines()]


def test_a_shell_that_there_is_no_script_for_is_wrong_input():
    assert refusal("--print-completion", "bsh").endswith("for bash, zsh, fish; did you mean bash?")
    assert refusal("--print-completion").endswith("for bash, zsh, fish")
