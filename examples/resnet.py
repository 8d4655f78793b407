"""A trained ResNet, written as torchvision writes it, becomes a supernet: a third of its parameters is to be enough.

Nothing of the model is rewritten, and its weights are where the search begins. The task: which texture is it?
"""

import torch
import torch.nn.functional as F
from torch import nn

from asng import nas


class BasicBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


def replace(path, module):
    if isinstance(module, BasicBlock):  # how many channels are between its convolutions
        width = nas.Width(f"{path}.width", [4, 8, 16, module.conv1.out_channels])
        module.conv1 = nas.Conv2d.from_torch(module.conv1, out_channels=width)
        module.bn1 = nas.BatchNorm2d.from_torch(module.bn1, num_features=width)
        module.conv2 = nas.Conv2d.from_torch(module.conv2, in_channels=width)
    return nas.Repeat("depth", module) if path == "1" else None


def batch(n=32):  # stripes across, down, both or none under noise: images (n, 1, 16, 16) and their kinds
    kinds, wave = torch.randint(4, (n,)), torch.sin(torch.arange(16) * 1.5 + torch.rand(n, 1) * 6.28)
    stripes = wave[:, :, None] * (kinds % 2)[:, None, None] + wave[:, None] * (kinds // 2)[:, None, None]
    return (stripes + 2 * torch.randn(n, 16, 16))[:, None], kinds


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


torch.manual_seed(0)
blocks, pool = nn.Sequential(*(BasicBlock(32) for _ in range(3))), [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
trained = nn.Sequential(nn.Conv2d(1, 32, 3, stride=2), blocks, *pool, nn.Linear(32, 4))
batches, test = [batch() for _ in range(60)], batch(1000)
optimizer = torch.optim.Adam(trained.parameters(), lr=1e-3)
for images in batches:
    optimizer.zero_grad(), loss_fn(trained, images).backward(), optimizer.step()

supernet = nas.convert(trained, replace)
optimizer = torch.optim.Adam(supernet.parameters(), lr=1e-3)
limit = nas.Limit(nas.parameters, nas.parameters(trained, {}) // 3)
result = nas.search(supernet, batches[:30], batches[30:], loss_fn, epochs=5, weight_optimizer=optimizer, limits=[limit])
nas.recalibrate(result.model, batches)
print(f"values: {result.values}")
for name, network in (("trained", trained), ("found", result.model)):
    right = (network.eval()(test[0]).argmax(1) == test[1]).float().mean()
    print(f"{name}: accuracy: {right:.3f} with {nas.parameters(network, {})} parameters")
