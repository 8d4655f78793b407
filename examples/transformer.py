"""A small transformer encoder: how many heads, how wide, how deep?

Its task: for each letter of a sequence, how often does it occur in the whole sequence?
"""

import torch
import torch.nn.functional as F
from torch import nn

from asng import ASNG, Categorical, nas

LETTERS, LENGTH = 5, 8


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.heads = nas.Value("heads", Categorical([1, 2, 4]))  # equal names: the same in all blocks
        self.norm, self.out = nas.LayerNorm(width), nas.Linear(width, width)
        self.qkv = nn.ModuleList(nas.Linear(width, width) for _ in range(3))
        self.feed = nn.Sequential(nas.LayerNorm(width), nas.Linear(width, hidden), nn.GELU(), nas.Linear(hidden, width))

    def forward(self, x):  # (batch, length, width)
        y = self.norm(x)
        q, k, v = (linear(y).unflatten(2, (self.heads.value, -1)).transpose(1, 2) for linear in self.qkv)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        width, hidden = nas.Width("width", [16, 32, 64]), nas.Width("hidden", [8, 16, 32, 64])
        self.embed = nas.Linear(LETTERS, width)
        self.blocks = nas.Repeat("depth", [Block(width, hidden) for _ in range(3)])
        self.head = nn.Sequential(nas.LayerNorm(width), nas.Linear(width, 4))

    def forward(self, x):  # (batch, length) to (batch, 4, length), the scores of once, twice, three times, more
        return self.head(self.blocks(self.embed(F.one_hot(x, LETTERS).float()))).transpose(1, 2)


def batch(n=64):
    x = torch.randint(LETTERS, (n, LENGTH))
    return x, (x[:, :, None] == x[:, None]).sum(2).clamp(max=4) - 1


torch.manual_seed(0)
model = Encoder()
arch_optimizer, weight_optimizer = ASNG(nas.space_of(model), seed=0), torch.optim.Adam(model.parameters(), lr=0.002)
oneshot = nas.OneShot(model, arch_optimizer, weight_optimizer, lambda model, b: F.cross_entropy(model(b[0]), b[1]))
for _ in range(500):
    oneshot.step(batch(), batch())
result = nas.result(oneshot)
print(f"found: {result.values} with probability {result.probability:.2f}")
x, y = batch(2000)  # there are no batch norms, so the weights of the search can be used as they are
others = [nas.extract(model, candidate.values) for candidate in ASNG(nas.space_of(model), seed=1).ask(20)]
right = [(network(x).argmax(1) == y).float().mean().item() for network in (result.model, *others)]
print(f"accuracy: found {right[0]:.3f}, mean of 20 random architectures {sum(right[1:]) / 20:.3f}")
