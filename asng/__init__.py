"""asng: architecture search and mixed optimization by adaptive stochastic natural gradients."""

from asng._asktell import Best, Candidate, Optimizer, Seed
from asng._blackbox import Evaluation
from asng.baselines import SNG, Adam, RandomSearch
from asng.families import Bounds, CategoricalFamily, Choices, Family, Joint, Normal, NormalFamily
from asng.minimize import EvaluationError, Result, minimize, minimizer
from asng.optimizer import ASNG, rank_utilities
from asng.space import Categorical, Custom, Integer, Real, Variable, family_of

__version__ = "0.1.0"

__all__ = [
    "ASNG",
    "SNG",
    "Adam",
    "Best",
    "Bounds",
    "Candidate",
    "Categorical",
    "CategoricalFamily",
    "Choices",
    "Custom",
    "Evaluation",
    "EvaluationError",
    "Family",
    "Integer",
    "Joint",
    "Normal",
    "NormalFamily",
    "Optimizer",
    "RandomSearch",
    "Real",
    "Result",
    "Seed",
    "Variable",
    "family_of",
    "minimize",
    "minimizer",
    "rank_utilities",
]
