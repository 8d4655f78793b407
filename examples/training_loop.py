"""Your own training loop around a search: optimizers, scheduler, log and early stop stay yours.

For scikit-learn's handwritten digits: which operations, how many channels, how deep?
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn

from asng import ASNG, nas


class Net(nn.Sequential):
    def __init__(self):
        width = nas.Width("width", [4, 8, 16])
        stem = nas.Conv2d(1, width, 3, stride=2, padding=1)
        body = nas.Repeat("depth", [self.block(width, f"op{i}") for i in range(3)])
        super().__init__(stem, body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nas.Linear(width, 10))

    def block(self, width, name):
        conv1, conv3 = nas.Conv2d(width, width, 1), nas.Conv2d(width, width, 3, padding=1)
        operations = {"conv1": conv1, "conv3": conv3, "average": nn.AvgPool2d(3, 1, 1), "max": nn.MaxPool2d(3, 1, 1)}
        return nn.Sequential(nas.OneOf(name, operations), nas.BatchNorm2d(width), nn.ReLU())


def loss_fn(model, rows):
    return F.cross_entropy(model(images[rows]), labels[rows])


def accuracy(values):
    """On the test images, of an architecture trained from scratch."""
    network = nas.extract(Net(), values)
    arch_optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for rows in torch.cat([torch.randperm(1200) for _ in range(8)]).split(60):
        arch_optimizer.zero_grad()
        loss_fn(network, rows).backward()
        arch_optimizer.step()
    return (network.eval()(images[1200:]).argmax(1) == labels[1200:]).float().mean().item()


torch.manual_seed(0)
digits, order = load_digits(), torch.randperm(1797)
images, labels = torch.tensor(digits.images)[order, None].float() / 16, torch.tensor(digits.target)[order]
model = Net()
arch_optimizer = ASNG(nas.space_of(model), seed=0)
weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(weight_optimizer, 60)
oneshot = nas.OneShot(model, arch_optimizer, weight_optimizer, loss_fn, max_grad_norm=5.0)
modes: list[dict] = []  # the most likely architecture after every epoch
while len(modes) < 60 and (len(modes) < 6 or modes[-6:] != modes[-1:] * 6):  # stop when 6 epochs changed nothing
    halves = torch.randperm(600).split(60), (600 + torch.randperm(600)).split(60)  # to train weights, to judge
    losses = [oneshot.step(*batches).train_loss for batches in zip(*halves, strict=True)]
    lr_scheduler.step()
    modes.append(arch_optimizer.mode())
    print(f"epoch {len(modes)}: training loss {sum(losses) / 10:.3f}, {modes[-1]}")

random = [accuracy(candidate.values) for candidate in ASNG(nas.space_of(model), seed=1).ask(5)]
print(f"test accuracy: found {accuracy(modes[-1]):.3f}, mean of 5 random architectures {sum(random) / 5:.3f}")
