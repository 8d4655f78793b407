"""What the console script `asng` runs: during the imports and at the exit, Ctrl-C ends the process at once.

Python drops exceptions inside the callbacks that clean up after imports, a KeyboardInterrupt as any other, and prints
those at the exit. This module is not in the package, whose own import takes half a second.
"""

import signal


def main() -> None:
    """Run `asng.cli.main`, which handles Ctrl-C in between."""
    _end_at_ctrl_c()
    from asng.cli import main

    try:
        main()
    finally:
        _end_at_ctrl_c()


def _end_at_ctrl_c() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
