"""A search under two limits: latency measured on this machine, in seconds, and parameters.

Infeasible architectures are never trained and never returned. The task: which of four textures does a noisy image show?
"""

import torch
import torch.nn.functional as F
from torch import nn

from asng import Categorical, nas

torch.set_num_threads(1)  # latency is that of the threads which torch may use
torch.manual_seed(0)


def batch(n=32):
    """Stripes across, down, both or none under noise: images (n, 1, 16, 16) and their kinds."""
    kinds = torch.randint(4, (n,))
    wave = torch.sin(torch.arange(16) * 1.5 + torch.rand(n, 1) * 6.28)
    across, down = wave[:, :, None] * (kinds % 2)[:, None, None], wave[:, None, :] * (kinds // 2)[:, None, None]
    return (across + down + torch.randn(n, 16, 16))[:, None], kinds


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Net(nn.Sequential):
    def __init__(self):
        width = nas.Width("width", [8, 16, 32, 64])
        blocks = []
        for i in range(3):
            size = nas.Value(f"kernel{i}", Categorical([1, 3, 5]))
            blocks += [nn.Sequential(nas.Conv2d(width, width, size, padding=2), nas.BatchNorm2d(width), nn.ReLU())]
        stem = nas.Conv2d(1, width, 3, padding=1)
        super().__init__(stem, nas.Repeat("depth", blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nas.Linear(width, 4))


model = Net()
largest = {"width": 64, "depth": 3, "kernel0": 5, "kernel1": 5, "kernel2": 5}
latency = nas.Latency(torch.zeros(1, 1, 16, 16))  # seconds for one image
seconds = latency(model, largest) / 3  # a limit that makes sense on any machine; yours is a number
limits = [nas.Limit(latency, seconds), nas.Limit(nas.parameters, 20_000)]

train, valid = ([batch() for _ in range(20)] for _ in range(2))
result = nas.search(model, train, valid, loss_fn, epochs=12, limits=limits)
nas.recalibrate(result.model, train)

print(f"found: {result.values}, feasible: {result.feasible}")
for name, values in (("found", result.values), ("largest", largest)):
    print(f"{name}: {1000 * latency(model, values):.3f} ms, {nas.parameters(model, values)} parameters")
print(f"limits: {1000 * seconds:.3f} ms, 20000 parameters")
images, kinds = batch(1000)
print(f"accuracy: {(result.model.eval()(images).argmax(1) == kinds).float().mean():.3f}, of guessing 0.250")
