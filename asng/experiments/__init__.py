"""The paper's experiments, each one command of `asng`."""

from collections.abc import Callable

Progress = Callable[[float], None]  # called with the fraction done
