"""The command line: `asng EXPERIMENT VERB [flags]`. Only this package prints.

Flags are the fields of each experiment's settings.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from asng import __version__
from asng._signals import sigterm_as_interrupt

INTERRUPTED = 130  # what a shell reports for Ctrl-C
WRONG_INPUT = 2

# Experiment and verb of each command, and what it is for.
COMMANDS = {
    "cifar10 search": "the cells of an image classifier, on CIFAR-10",
    "cifar10 retrain": "an architecture trained from scratch",
    "cifar10 evaluate": "test accuracy of a run",
    "digits search": "a search of a minute or two, on handwritten digits",
    "inpainting search": "an autoencoder that fills holes in faces",
    "inpainting retrain": "an autoencoder trained from scratch",
    "inpainting evaluate": "PSNR, SSIM and pictures of a run",
    "toy sweep": "the paper's toy problem: robustness to the initial step size",
}


def function_of(command: str) -> Callable[[Sequence[str]], None]:
    """The function of a command: for `asng cifar10 search`, `run_search` in asng/cli/cifar10.py.

    Imported on demand, since torch takes seconds to import.
    """
    experiment, verb = command.split()
    function: Callable[[Sequence[str]], None] = getattr(import_module(f"asng.cli.{experiment}"), f"run_{verb}")
    return function


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Exit codes: 0 done, 2 wrong input, 130 interrupted by Ctrl-C or SIGTERM."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = " ".join(arguments[:2])
    try:
        if command in COMMANDS:
            with sigterm_as_interrupt():
                function_of(command)(arguments[2:])
        elif arguments[:1] == ["--version"]:
            print(f"asng {__version__}")
        else:
            print_overview(arguments)
    except ImportError as error:  # where it is imported: there is no list of what a command needs
        sys.exit(f"asng: {error}; the commands need pip install '.[experiments]'")
    except (ValueError, OSError) as error:
        print(f"asng: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def print_overview(arguments: Sequence[str]) -> None:
    """Print all commands, or those of an experiment; raises ValueError for an unknown command."""
    listed = {name: purpose for name, purpose in COMMANDS.items() if name.split()[0] in arguments[:1]}
    depth = 1 if listed else 0  # how many words are those of a command
    listed = listed or COMMANDS
    if arguments[depth:] and arguments[depth] not in ("-h", "--help"):
        known = dict.fromkeys(name.split()[depth] for name in listed)
        where = arguments[0] if depth else "asng"
        raise ValueError(f"no command {' '.join(arguments[: depth + 1])!r}; {where} has {', '.join(known)}")
    print(f"usage: asng {arguments[0] if depth else 'EXPERIMENT'} VERB [flags]\n")
    print(*(f"  asng {name:<20} {purpose}" for name, purpose in listed.items()), sep="\n")
    print("\n--help behind each says more.")
