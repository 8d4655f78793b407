"""The command line: `asng EXPERIMENT [VERB] [flags]`. Only this package prints.

Flags are the fields of each experiment's settings.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from asng import __version__

INTERRUPTED = 130  # what a shell reports for Ctrl-C
WRONG_INPUT = 2

# The words of a command, and what it is for.
COMMANDS = {
    ("cifar10", "search"): "the cells of an image classifier, on CIFAR-10",
    ("cifar10", "retrain"): "an architecture trained from scratch",
    ("cifar10", "evaluate"): "test accuracy of a run",
    ("digits", "search"): "a search of a minute or two, on handwritten digits",
    ("inpainting", "search"): "an autoencoder that fills holes in faces",
    ("inpainting", "retrain"): "an autoencoder trained from scratch",
    ("inpainting", "evaluate"): "PSNR, SSIM and pictures of a run",
    ("toy",): "the paper's toy problem: robustness to the initial step size",
}


def overview(experiment: str | None = None) -> str:
    """All commands, or those of an experiment."""
    shown = {words: purpose for words, purpose in COMMANDS.items() if experiment in (None, words[0])}
    lines = [f"  asng {' '.join(words):<20} {purpose}" for words, purpose in shown.items()]
    usage = "EXPERIMENT [VERB]" if experiment is None else f"{experiment} VERB"
    return "\n".join([f"usage: asng {usage} [flags]", "", *lines, "", "--help behind each says more."])


def function_of(words: Sequence[str]) -> Callable[[Sequence[str]], None]:
    """The function of a command: for `asng cifar10 search`, `run_search` in asng/cli/cifar10.py.

    Imported on demand, since torch takes seconds to import.
    """
    function: Callable[[Sequence[str]], None] = getattr(import_module(f"asng.cli.{words[0]}"), f"run_{words[-1]}")
    return function


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Exit codes: 0 done, 2 wrong input, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    words = next((words for words in COMMANDS if tuple(arguments[: len(words)]) == words), None)
    try:
        if words is None:
            print_overview(arguments)
        else:
            function_of(words)(arguments[len(words) :])
    except ImportError as error:  # where it is imported: there is no list of what a command needs
        sys.exit(f"asng: {error}; the commands need pip install '.[experiments]'")
    except (ValueError, OSError) as error:
        print(f"asng: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def print_overview(arguments: Sequence[str]) -> None:
    """Print the commands, or the version; raises ValueError for an unknown command."""
    if arguments[:1] == ["--version"]:
        print(f"asng {__version__}")
        return
    experiment = arguments[0] if arguments and arguments[0] in {words[0] for words in COMMANDS} else None
    rest = arguments if experiment is None else arguments[1:]
    if rest and rest[0] not in ("-h", "--help"):
        known = [words[-1] if experiment else words[0] for words in COMMANDS if experiment in (None, words[0])]
        asked = " ".join(filter(None, (experiment, rest[0])))
        raise ValueError(f"no command {asked!r}; {experiment or 'asng'} has {', '.join(dict.fromkeys(known))}")
    print(overview(experiment))
