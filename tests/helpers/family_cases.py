"""The built-in families as cases for family_checks, with the covariances of the paper's supplement B."""

import numpy as np

from asng import CategoricalFamily, Family, Joint, NormalFamily
from tests.helpers.family_checks import Case


def probabilities(counts, rows=4, seed=0):
    """Random allowed thetas of a categorical family, from flat to nearly decided."""
    rng = np.random.default_rng(seed)
    concentrations = np.geomspace(20, 0.1, rows)
    thetas = [np.concatenate([rng.dirichlet(np.full(m, c)) for m in counts]) for c in concentrations]
    return CategoricalFamily(counts).project(np.array(thetas))


def categorical_covariance(counts):
    """Supplement B, for all m entries: diag(p) - p p^T in each block."""

    def covariance(theta):
        result = np.zeros((theta.size, theta.size))
        for start, m in zip(np.cumsum(counts) - counts, counts, strict=True):
            own, p = slice(start, start + m), theta[start : start + m]
            result[own, own] = np.diag(p) - np.outer(p, p)
        return result

    return covariance


def normal_theta(means, stds):
    means, stds = np.array(means, dtype=float), np.array(stds, dtype=float)
    return np.concatenate([means, means**2 + stds**2], -1)


def normal_covariance(theta):
    """Supplement B: [var, 2 mean var; 2 mean var, 4 mean^2 var + 2 var^2] for each variable."""
    mean, second = np.split(theta, 2)
    var = second - mean**2
    cross = np.diag(2 * mean * var)
    return np.block([[np.diag(var), cross], [cross, np.diag(4 * mean**2 * var + 2 * var**2)]])


def categorical_case(counts):
    return Case(CategoricalFamily(counts), probabilities(counts), categorical_covariance(counts))


def normal_case(mirrored):
    family = NormalFamily([-2, 0, 900], [2, 9, 1100], [1e-3, 0.25, 0.25], mirrored=mirrored)
    means = [[0, 4.5, 1000], [0, 0, 1000], [-2, 9, 900], [1.3, 2.5, 1000]]
    stds = [[2, 4.5, 100], [1e-3, 0.25, 0.25], [0.5, 1, 10], [1e-2, 0.3, 0.25]]
    return Case(family, normal_theta(means, stds), normal_covariance)


def joint_case(*, nested=False):
    """Columns in disorder, and in the nested form a Joint inside a Joint."""
    categorical, normal = categorical_case([3, 1, 2]), normal_case(mirrored=True)
    family: Family = Joint([(categorical.family, [5, 0, 2]), (normal.family, [1, 4, 3])])
    if nested:
        family = Joint([(normal.family, [0, 6, 2]), (family, [8, 1, 3, 4, 5, 7])])
        parts = [normal, categorical, normal]
    else:
        parts = [categorical, normal]

    def covariance(theta):
        result, start = np.zeros((theta.size, theta.size)), 0
        for part in parts:
            own = slice(start, start + part.family.size)
            result[own, own], start = part.covariance(theta[own]), own.stop
        return result

    return Case(family, np.concatenate([part.thetas for part in parts], -1), covariance)


CASES = {
    "one variable": categorical_case([4]),
    "two of two": categorical_case([2, 2]),
    "one choice": categorical_case([1]),
    "one choice between others": categorical_case([3, 1, 2, 5]),
    "binary": categorical_case([2] * 5),
    "normal mirrored": normal_case(mirrored=True),
    "normal independent": normal_case(mirrored=False),
    "joint": joint_case(),
    "joint of joint": joint_case(nested=True),
}
