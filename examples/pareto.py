"""How much accuracy does each parameter buy? The front of both, from one trained supernet, as a table and a figure.

For scikit-learn's handwritten digits. While the weights are trained nothing is searched: `RandomSearch` draws all
architectures alike, so that small and large ones are trained equally well.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn

from asng import RandomSearch, nas, plot


class Net(nn.Sequential):
    def __init__(self):
        first, second = (nas.Width(name, [2, 4, 8, 16, 32]) for name in ("first", "second"))
        body = nas.Repeat("depth", [self.block(second, second) for _ in range(2)], low=0)
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        super().__init__(self.block(1, first), self.block(first, second, 2), body, pool, nas.Linear(second, 10))

    def block(self, inputs, outputs, stride=1):
        return nn.Sequential(nas.Conv2d(inputs, outputs, 3, stride, 1), nas.BatchNorm2d(outputs), nn.ReLU())


def loss_fn(model, rows):
    return F.cross_entropy(model(images[rows]), labels[rows])


def errors(model, rows):
    """The share of wrong answers, which the front trades against parameters."""
    return (model(images[rows]).argmax(1) != labels[rows]).float().mean().item()


torch.manual_seed(0)
digits, order = load_digits(), torch.randperm(1797)
images, labels = torch.tensor(digits.images)[order, None].float() / 16, torch.tensor(digits.target)[order]
train, valid, test = torch.arange(1797).split([900, 400, 497])  # rows

model = Net()
weight_optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
oneshot = nas.OneShot(model, RandomSearch(nas.space_of(model), seed=0), weight_optimizer, loss_fn)
for _ in range(60):
    for rows in train[torch.randperm(len(train))].split(60):
        oneshot.train_step(rows)

front = nas.front(oneshot, [nas.parameters], [valid], errors, k=50)
print(front)
plot.front(front).savefig("pareto.png")
for name, point in (("smallest", front.points[0]), ("largest", front.points[-1])):
    wrong = nas.score(model, point.values, [test], errors)
    print(f"{name} of the front: {point.costs[0]:.0f} parameters, test accuracy {1 - wrong:.3f}")
