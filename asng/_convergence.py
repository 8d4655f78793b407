"""Thresholds by which a search has had too few steps or was mostly noise: for warnings of searches and of reports."""

import math

MIN_STEPS = 5  # per free parameter of the distribution: about what it takes without noise
MIN_CERTAINTY = 0.9  # of a search that has had fewer
NOISY_STEPS = 20  # per free parameter, after which delta tells noise
NOISE = 5.0  # delta times steps over the root of the free parameters: about 3 on noise, growing with steps otherwise


def is_noise(delta: float, steps: float, free: int) -> bool:
    """Whether ASNG's step size after these steps, for that many free parameters, is what random scores lead to.

    >>> is_noise(delta=0.01, steps=600, free=6), is_noise(delta=0.5, steps=600, free=6)
    (True, False)
    """
    return steps >= NOISY_STEPS * free and delta * steps < NOISE * math.sqrt(free)
