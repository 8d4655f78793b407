"""What the tests of decisions share: a module that counts its runs, and what is asked of extracted modules."""

import torch
from torch import nn

from asng.nas import Decision
from asng.nas import _static as static_modules

ONE = torch.ones(())


class Counted(nn.Module):
    """Adds a number and counts how often it ran."""

    def __init__(self, number: float = 1.0) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(float(number)))
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return x + self.number


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def is_static(model: nn.Module) -> bool:
    """Whether a module is made of torch's, the test's and asng's static ones."""
    homes = {type(module).__module__.split(".")[0] for module in model.modules()}
    kept = {type(module) for module in model.modules() if type(module).__module__.startswith("asng")}
    return not any(isinstance(module, Decision) for module in model.modules()) and (
        kept <= {static_modules.Chain, static_modules.Item, static_modules.Constant} or "asng" not in homes
    )
