"""Dropout, augmentation and label smoothing found together with the architecture, in one search on digits.

They act on the weights only by training, so candidates that share weights are judged after a step of their own.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from asng import ASNG, Categorical, nas

HYPER = {"dropout": [0.0, 0.2, 0.4], "augmentation": [0.0, 0.05, 0.1, 0.2], "smoothing": [0.0, 0.1, 0.2]}


class Net(nn.Module):
    dropout: nas.Value | nas.Constant

    def __init__(self, searched):
        super().__init__()
        for name, choices in HYPER.items():  # a Constant is what a Value becomes when it is extracted
            self.add_module(name, nas.Value(name, Categorical(choices)) if searched else nas.Constant(0.0))
        width = nas.Width("width", [16, 32, 64, 128])
        activations = [nas.OneOf("activation", {"relu": nn.ReLU(), "tanh": nn.Tanh()}) for _ in range(3)]
        self.blocks = nas.Repeat("depth", [nn.Sequential(nas.Linear(width, width), a) for a in activations], low=0)
        self.stem, self.head = nas.Linear(64, width), nas.Linear(width, 10)

    def forward(self, x):
        return self.head(F.dropout(self.blocks(self.stem(x.flatten(1)).relu()), self.dropout.value, self.training))


def loss_fn(model, batch):  # also of the extracted network
    maps = torch.eye(2, 3) + model.augmentation.value * torch.randn(len(batch[0]), 2, 3)
    images = F.grid_sample(batch[0], F.affine_grid(maps, batch[0].shape, align_corners=False), align_corners=False)
    return F.cross_entropy(model(images), batch[1], label_smoothing=model.smoothing.value)


def judge(model, batch):  # the loss on other images as they are, without dropout and smoothing, after a step
    weights, before = zip(*((weight, weight.clone()) for weight in model.parameters()), strict=True)
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss_fn(model, batch[:2]), weights, allow_unused=True, materialize_grads=True)
    torch._foreach_add_(weights, gradients, alpha=-0.1)  # by the learning rate of the weights
    score = F.cross_entropy(model.eval()(batch[2]), batch[3])
    torch._foreach_copy_(list(model.train().parameters()), before)
    return score


digits = load_digits()
for seed, searched in [(seed, searched) for seed in (0, 1) for searched in (True, False)]:
    torch.manual_seed(seed)
    model, order = Net(searched), torch.randperm(1797)
    x, y = torch.tensor(digits.images[order, None] / 16).float(), torch.tensor(digits.target)[order]
    some, others = (x[:600], y[:600]), (x[600:1200], y[600:1200])  # a batch to judge on has images of both
    train, valid = (DataLoader(TensorDataset(*data), 50, shuffle=True) for data in (some, (*some, *others)))
    asng, sgd = ASNG(nas.space_of(model), population_size=4, seed=seed), torch.optim.SGD(model.parameters(), 0.1, 0.9)
    result = nas.search(model, train, valid, loss_fn, epochs=60, judge=judge, arch_optimizer=asng, weight_optimizer=sgd)
    accuracy = (result.model.eval()(x[1200:]).argmax(1) == y[1200:]).float().mean()
    print(f"{'searched' if searched else 'fixed at 0'}, accuracy: {accuracy:.3f}", result.values)
