"""What the tests of costs share: a network whose parts are counted by hand, and all that must not change in it."""

import torch
from torch import nn

from asng.nas import OneOf, Pick, Repeat

IMAGES = torch.ones(2, 1, 6, 6)


class Net(nn.Module):
    """Four channels; the parameters and FLOPs of its parts are counted in the tests."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.op = OneOf(
            "op", {"wide": nn.Conv2d(4, 4, 3, padding=1), "point": nn.Conv2d(4, 4, 1), "none": nn.Identity()}
        )
        blocks = [nn.Sequential(nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Conv2d(4, 4, 1, bias=False)) for _ in range(3)]
        self.blocks = Repeat("depth", blocks, low=0)
        self.pick = Pick("input", 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.pick([x, self.blocks(self.op(x))]).mean((2, 3)))


SMALL = {"op": "none", "depth": 0, "input": 1}
LARGE = {"op": "wide", "depth": 3, "input": 1}
STEM, HEAD, WIDE, POINT, BLOCK = 4 * 9 + 4, 4 * 3 + 3, 4 * 4 * 9 + 4, 4 * 4 + 4, 4 + 4 + 4 * 4


def everything(model):
    """All that measuring must not change, as text."""
    return str(
        (
            {
                name: (tensor.tolist(), tensor.requires_grad)
                for name, tensor in model.state_dict(keep_vars=True).items()
            },
            [parameter.grad is None or parameter.grad.tolist() for parameter in model.parameters()],
            [(module.training, getattr(module, "selected", None), type(module)) for module in model.modules()],
            [(id(module), id(parameter)) for module in model.modules() for parameter in module.parameters()],
            torch.get_rng_state().tolist(),
        )
    )
