"""Tabular regression: how wide and how deep, and with which activation and norm?

Friedman's function of 10 numbers, of which only 5 count, with noise that leaves an R2 of 0.96 to reach.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import make_friedman1  # type: ignore[import-untyped]
from sklearn.linear_model import LinearRegression  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from asng import ASNG, nas


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        width = nas.Width("width", 4, 64)  # all layers have the same one
        self.stem = nas.Linear(10, width)
        self.blocks = nas.Repeat("depth", [self.block(width) for _ in range(4)])
        self.head = nas.Linear(width, 1)

    def block(self, width):  # equal names share one decision
        norms = {"none": nn.Identity(), "batch": nas.BatchNorm1d(width), "layer": nas.LayerNorm(width)}
        activation = nas.OneOf("activation", {"none": nn.Identity(), "relu": nn.ReLU(), "tanh": nn.Tanh()})
        return nn.Sequential(nas.OneOf("norm", norms), activation, nas.Linear(width, width))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))[:, 0]


def loss_fn(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def r2(values):
    """On the test rows, of an architecture trained from scratch on all others."""
    network = nas.extract(Net(), values)
    arch_optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
    for rows in torch.cat([torch.randperm(800) for _ in range(40)]).split(50):
        arch_optimizer.zero_grad()
        loss_fn(network, (x[rows], y[rows])).backward()
        arch_optimizer.step()
    return 1 - loss_fn(network.eval(), (x[800:], y[800:])).item() / y[800:].var().item()


torch.manual_seed(0)
x, y = (torch.from_numpy(array).float() for array in make_friedman1(1800, noise=1.0, random_state=0))
y = (y - y[:800].mean()) / y[:800].std()
train, valid = (DataLoader(TensorDataset(x[half], y[half]), 50, shuffle=True) for half in (slice(400), slice(400, 800)))
model = Net()
arch_optimizer = ASNG(nas.space_of(model), population_size=4, seed=0)
adam = torch.optim.Adam(model.parameters(), lr=0.005)
result = nas.search(model, train, valid, loss_fn, epochs=40, arch_optimizer=arch_optimizer, weight_optimizer=adam)
print("found:", result.values)
random = [r2(candidate.values) for candidate in ASNG(nas.space_of(model), seed=1).ask(5)]
linear = LinearRegression().fit(x[:800], y[:800]).score(x[800:], y[800:])
print(f"test R2: found {r2(result.values):.3f}, mean of 5 random {sum(random) / 5:.3f}, linear regression {linear:.3f}")
