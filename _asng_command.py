"""What the console script `asng` runs: while the command line is imported, Ctrl-C ends the process at once.

Python drops exceptions inside the callbacks that clean up after imports, a KeyboardInterrupt as any other. This module
is not in the package, whose own import takes half a second.
"""

import signal


def main() -> None:
    """Run `asng.cli.main`, which handles Ctrl-C from then on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from asng.cli import main

    main()
