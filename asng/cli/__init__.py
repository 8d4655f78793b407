"""The command line: `asng EXPERIMENT [VERB] [flags]`. Only this room prints.

Flags come from the settings of each experiment, so that there is one place where they are written.
"""

import sys
from collections.abc import Callable, Sequence

try:
    import rich  # noqa: F401
    import tyro  # noqa: F401
except ImportError as error:
    sys.exit(f"The command line needs more than the optimizer ({error}); install it with: pip install 'asng[nas]'")

from asng.cli import cifar10, inpainting
from asng.cli.digits import run_digits
from asng.cli.toy import run_toy

INTERRUPTED = 130  # what a shell reports for Ctrl-C
WRONG_INPUT = 2


# The words of a command, and what they run.
COMMANDS: dict[tuple[str, ...], tuple[Callable[[Sequence[str]], None], str]] = {
    ("cifar10", "search"): (cifar10.run_search, "the cells of an image classifier, on CIFAR-10"),
    ("cifar10", "retrain"): (cifar10.run_retrain, "an architecture trained from scratch"),
    ("cifar10", "evaluate"): (cifar10.run_evaluate, "test accuracy of a run"),
    ("digits", "search"): (run_digits, "a search of a minute, on handwritten digits"),
    ("inpainting", "search"): (inpainting.run_search, "an autoencoder that fills holes in faces"),
    ("inpainting", "retrain"): (inpainting.run_retrain, "an autoencoder trained from scratch"),
    ("inpainting", "evaluate"): (inpainting.run_evaluate, "PSNR, SSIM and pictures of a run"),
    ("toy",): (run_toy, "the paper's toy problem: robustness to the initial step size"),
}


def overview() -> str:
    lines = [f"  asng {' '.join(words):<20} {purpose}" for words, (_, purpose) in COMMANDS.items()]
    return "\n".join(["usage: asng EXPERIMENT [VERB] [flags]", "", *lines, "", "--help behind each says more."])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Exit codes: 0 done, 2 wrong input, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return
    words = next((words for words in COMMANDS if tuple(arguments[: len(words)]) == words), None)
    if words is None:
        known = ", ".join(f"'{' '.join(words)}'" for words in COMMANDS)
        print(f"asng: no command {' '.join(arguments[:2])!r}; there is {known}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    command, _ = COMMANDS[words]
    try:
        command(arguments[len(words) :])
    except (ValueError, OSError) as error:
        print(f"asng: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
