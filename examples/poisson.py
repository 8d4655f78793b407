"""Bring your own exponential family: how many newspapers to buy, a count without an upper limit.

A family is one class with eight short methods. Two choices make the rest fall into place: the
statistics T(x), and theta = E[T(x)] as the parameter. For the Poisson distribution T(x) = x, so theta
is the rate. Arrays may have leading axes `...`, one entry per run, so index from the end.
"""

import numpy as np

import asng


class Poisson(asng.Family):
    """Counts 0, 1, 2, ... with a rate between `low` > 0 and `high`."""

    size = dimension = 1  # length of theta; parameters that are free (all, unless theta is redundant)
    variables = 1  # numbers in one draw; Custom takes families of one

    def __init__(self, low, high):
        self.low, self.high = low, high

    def initial(self):  # (size,): where nothing is known, the allowed theta of maximal entropy
        return np.array([float(self.high)])

    def sample(self, theta, n, generator):  # (..., size) -> (..., n, variables), from this generator only
        return generator.poisson(theta[..., None, :], (*theta.shape[:-1], n, 1)).astype(float)

    def statistics(self, x):  # T, (..., variables) -> (..., size), with E[T] = theta
        return x.astype(float)

    def whiten(self, theta, gradient):  # A^T gradient with A A^T = F; here F = 1 / Var[T] = 1 / rate
        return gradient / np.sqrt(theta)

    def project(self, theta):  # back into the allowed set, where F is finite: the rate stays above 0
        return np.clip(theta, self.low, self.high)

    def mode(self, theta):  # the most likely draw, (..., size) -> (..., variables)
        return np.floor(theta)

    def describe(self, theta):  # per variable, what a person calls its parameters
        return [float(theta[0])]

    def encode(self, parameters):  # the opposite; `initial={"papers": 12.0}` comes through here
        return np.array(parameters, dtype=float)


def loss(values):
    """Each newspaper costs 1 and brings 2.5, if somebody wants it."""
    wanted = {"kiosk": 12, "station": 18}[values["place"]]
    return values["papers"] - 2.5 * min(values["papers"], wanted)


if __name__ == "__main__":
    papers = asng.Custom(Poisson(0.5, 50), value=int)  # value: from a raw draw to the value to evaluate
    places = asng.Categorical(["kiosk", "station"])
    result = asng.minimize(loss, {"place": places, "papers": papers}, evaluations=1000, seed=0)
    print(f"best: {result.values} with a profit of {-result.loss}")
    print(f"rate in the end: {result.optimizer.distribution()['papers']:.1f}")
