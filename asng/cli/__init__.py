"""The command line: `asng EXPERIMENT VERB [flags]` and `asng runs | resume | report | export RUN`.

Flags are the fields of each experiment's settings. Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted.
"""

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pkgutil import resolve_name
from typing import Any, NamedTuple, NoReturn

from asng import __version__
from asng._checks import did_you_mean
from asng._signals import exit_at_signals, ignore_signals, sigterm_as_interrupt
from asng._untrusted import escape_controls

FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130  # the last one is what a shell reports for Ctrl-C


class Images(NamedTuple):
    """An image experiment: the path of its `Task`, its subject, and the measure of its test."""

    task: str
    goal: str
    figures: str

    def verbs(self) -> dict[str, str]:
        train, test = "train an architecture from scratch", f"test a run: {self.figures}"
        return {"search": self.goal, "retrain": train, "evaluate": test}


CIFAR10, INPAINTING = "asng.experiments.cifar10.task:Cifar10", "asng.experiments.inpainting.task:Inpainting"
# The others than those on images have verbs of their own.
EXPERIMENTS: dict[str, Images | dict[str, str]] = {
    "cifar10": Images(CIFAR10, "search the cells of a classifier of CIFAR-10", "accuracy"),
    "digits": {
        "search": "search a network for handwritten digits, in minutes",
        "tune": "choose hyperparameters by short searches",
    },
    "inpainting": Images(INPAINTING, "search an autoencoder that fills holes in faces", "PSNR, SSIM and pictures"),
    "toy": {"sweep": "run the paper's toy problem over initial step sizes"},
}

# Of runs of all experiments: one word, without a verb.
OF_RUNS = {
    "runs": "list runs: state, progress, main result",
    "resume": "continue an interrupted run from its folder",
    "report": "write an HTML page about runs: curves, architectures",
    "export": "write the network of a run as files without asng",
}


def commands() -> dict[str, str]:
    """The words of each command, and what it is for."""
    verbs = {name: each.verbs() if isinstance(each, Images) else each for name, each in EXPERIMENTS.items()}
    return {f"{name} {verb}": purpose for name, each in verbs.items() for verb, purpose in each.items()} | OF_RUNS


def function_of(command: str) -> Callable[[Sequence[str]], None]:
    """The function of a command: for `asng toy sweep`, `run_sweep` in asng/cli/toy.py; for `asng report`, `run_report`.

    Imported on demand, since torch takes seconds to import.
    """
    module, verb, experiment = _module_of(command)
    function: Callable[..., None] = getattr(module, f"run_{verb}")
    return partial(function, resolve_name(experiment.task)) if isinstance(experiment, Images) else function


def parts_of_command(command: str) -> tuple[type, dict[str, Any]]:
    """The arguments of `flags_of` for a command: for `asng toy sweep`, `SweepCommand` in asng/cli/toy.py."""
    module, verb, experiment = _module_of(command)
    if isinstance(experiment, Images):
        return module.parts_of_verb(resolve_name(experiment.task), verb)  # type: ignore[no-any-return]
    return getattr(module, f"{verb.capitalize()}Command"), {}


def _module_of(command: str) -> tuple[Any, str, Any]:
    name, verb = command.split()[0], command.split()[-1]
    experiment = EXPERIMENTS.get(name)
    return import_module(f"asng.cli.{'images' if isinstance(experiment, Images) else name}"), verb, experiment


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted (Ctrl-C)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments[0] if arguments[:1] and arguments[0] in OF_RUNS else " ".join(arguments[:2])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever a name holds, and the terminal cannot show
    try:
        if command in commands():
            with warnings.catch_warnings():
                warnings.showwarning = show_own_warning
                with exit_at_signals(INTERRUPTED):
                    function = function_of(command)
                with sigterm_as_interrupt():
                    function(arguments[len(command.split()) :])
        elif arguments[:1] == ["--version"]:
            print(f"asng {__version__}")
        elif arguments[:1] == ["--print-completion"]:
            from asng.cli.completion import print_completion
            from asng.cli.flags import flags_of

            print_completion(" ".join(arguments[1:]), {name: flags_of(*parts_of_command(name)) for name in commands()})
        else:
            print_overview(arguments)
    except ImportError as error:  # where it is imported: there is no list of what a command needs
        cure = "" if "pip install" in str(error) else "; the commands need pip install 'asng[experiments]'"
        _fail(f"{error}{cure}", FAILED)
    except MemoryError as error:
        _fail(f"there is not enough memory ({error}); choose smaller settings", FAILED)
    except BrokenPipeError:  # such as by `| head`
        with suppress(OSError):  # nothing is left to be written at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except OSError as error:  # without its number
        path = "" if error.filename is None else f"{error.filename}: "
        _fail(f"{path}{error.strerror}" if error.strerror else str(error), WRONG_INPUT)
    except ValueError as error:
        _fail(str(error), WRONG_INPUT)
    except KeyboardInterrupt:
        atexit.register(ignore_signals)  # another one would only disturb the exit
        sys.exit(INTERRUPTED)


def _fail(message: str, code: int) -> NoReturn:
    print(f"asng: {escape_controls(message)}", file=sys.stderr)
    sys.exit(code)


def show_own_warning(message: Warning | str, *about: Any, **more: Any) -> None:
    """Print a warning of asng's in one line, and none of the libraries that it uses."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "warnings":
        frame = frame.f_back
    if str(frame.f_globals.get("__name__")).split(".")[0] == "asng":
        print(f"asng: warning: {escape_controls(str(message))}", file=sys.stderr)


def print_overview(arguments: Sequence[str]) -> None:
    """Print all commands, or those of an experiment; raises ValueError for an unknown command."""
    known_commands = commands()
    listed = {name: purpose for name, purpose in known_commands.items() if name.split()[0] in arguments[:1]}
    depth = 1 if listed else 0  # how many words are those of a command
    listed = listed or known_commands
    if arguments[depth:] and arguments[depth] not in ("-h", "--help"):
        known = dict.fromkeys(name.split()[depth] for name in listed)
        where = arguments[0] if depth else "asng"
        near = did_you_mean(arguments[depth], [*known, "--help", "--version", "--print-completion"])
        raise ValueError(f"no command {' '.join(arguments[: depth + 1])!r}; {where} has {', '.join(known)}{near}")
    usage = f"asng {arguments[0]} VERB [flags]" if depth else "asng EXPERIMENT VERB [flags], or asng VERB RUN [flags]"
    print(f"usage: {usage}\n")
    print(*(f"  asng {name:<20} {purpose}" for name, purpose in listed.items()), sep="\n")
    print(f"\nasng {arguments[0]} VERB --help explains a command and its flags." if depth else f"\n{OVERVIEW}")


OVERVIEW = """\
Start here:
  asng digits search        a whole search, in a minute or two
  asng report runs/digits   a report of it, as an HTML page

asng COMMAND --help explains a command and its flags; asng --version prints the
version. Completion (bash, zsh or fish): source <(asng --print-completion bash)

Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted (Ctrl-C)."""
