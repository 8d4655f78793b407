"""The defaults of black boxes: the population, covariances of numbers, and steps that leave numbers a spread."""

import math
from collections.abc import Mapping
from typing import Any

from asng._asktell import Optimizer
from asng._covariance import CovarianceASNG
from asng.families import Bounds, CategoricalFamily, Family
from asng.optimizer import ASNG
from asng.space import Variable, family_of

MAX_BETA = 1 / 6  # where there are numbers
MAX_NUMBERS = 100  # with covariances, which then take four times as long as independent numbers
MAX_PRECISION = 1e6  # of numbers with covariances: the bounds over the smallest standard deviation


def black_box_optimizer(space: Mapping[str, Variable], **settings: Any) -> Optimizer:
    """ASNG for choices alone; with covariances for up to MAX_NUMBERS numbers, and independent numbers beyond that.

    Independent are also those beside a family of the user's own, and wide ranges of integers, for which float64 does
    not hold mean and covariance together.
    """
    marginals = [variable.marginal() for variable in space.values()]
    numbers = [part for part in marginals if isinstance(part, Bounds)]
    is_wide = any(max(abs(part.low), abs(part.high)) > MAX_PRECISION * part.std_min for part in numbers)
    if not 0 < len(numbers) <= MAX_NUMBERS or is_wide or any(isinstance(part, Family) for part in marginals):
        return capped_asng(space, **settings)
    return CovarianceASNG(space, **settings)


def capped_asng(space: Mapping[str, Variable], **settings: Any) -> ASNG:
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
