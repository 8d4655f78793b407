"""The defaults of black boxes: the population, and steps that leave numbers a spread."""

import math
from collections.abc import Mapping
from typing import Any

from asng.families import CategoricalFamily
from asng.optimizer import ASNG
from asng.space import Variable, family_of

MAX_BETA = 1 / 6  # where there are numbers


def black_box_asng(space: Mapping[str, Variable], **settings: Any) -> ASNG:
    """ASNG that, where there are numbers, keeps beta = delta / sqrt(n_theta) at MAX_BETA or less, initially, too.

    A step that moves the mean of a number by d lowers its variance by d^2. Without the cap, a few long steps that
    agree leave the mean behind with no spread to move on. Choices alone are quicker without the cap.
    """
    family = family_of(space)
    max_beta = 1.0 if isinstance(family, CategoricalFamily) else MAX_BETA
    return ASNG(space, delta_init=min(1.0, family.root_dimension * max_beta), max_beta=max_beta, **settings)


def default_population_size(space: Mapping[str, Variable]) -> int:
    """4 + floor(3 ln n) for n variables with more than one value."""
    listed = [variable.values() for variable in space.values()]
    n = sum(values is None or len(values) > 1 for values in listed)
    return 4 + math.floor(3 * math.log(max(n, 1)))
