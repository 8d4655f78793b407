"""The paper's experiments, each one command of `asng`."""

from collections.abc import Callable

Progress = Callable[[float], None]  # hears the fraction that is done
