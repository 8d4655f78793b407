"""Black boxes to minimize, and their spaces."""

from typing import Any

from asng import Integer


def sphere(values):
    return (values["n"] - 4) ** 2


LINE: dict[str, Any] = {"n": Integer(-10, 10)}
WIDE: dict[str, Any] = {"n": Integer(-1000, 1000)}


class Recorder:
    """A function that keeps the values it is called with."""

    def __init__(self, f=sphere):
        self.f, self.seen = f, []

    def __call__(self, values):
        self.seen.append(values)
        return self.f(values)
