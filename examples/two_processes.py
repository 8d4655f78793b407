"""Several processes share the candidates of each step: torchrun --nproc-per-node 2 examples/two_processes.py

Without torchrun it is one process, which does the same. The task: sin(5x) by a small network.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from asng import ASNG, nas


class Net(nn.Sequential):
    def __init__(self):
        width = nas.Width("width", [4, 8, 16, 32])
        activations = {"none": nn.Identity(), "relu": nn.ReLU(), "tanh": nn.Tanh()}
        first, second = (nas.OneOf(f"activation{i}", activations) for i in (1, 2))
        super().__init__(nas.Linear(1, width), first, nas.Linear(width, width), second, nas.Linear(width, 1))


def loss_fn(model, x):
    return F.mse_loss(model(x), torch.sin(5 * x))


together = "RANK" in os.environ  # torchrun says who is who
on_gpus = together and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
if on_gpus:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # on which NCCL communicates
if together:
    dist.init_process_group("nccl" if on_gpus else "gloo")
device = "cuda" if on_gpus else "cpu"
rank, world_size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)

torch.manual_seed(0)  # all processes need the same batches
train, valid = ([(torch.rand(64, 1) * 2 - 1).to(device) for _ in range(20)] for _ in range(2))
model = Net().to(device)
adam = torch.optim.Adam(model.parameters(), lr=0.01)
arch_optimizer = ASNG(nas.space_of(model), population_size=4, seed=0)  # two processes run two candidates each
result = nas.search(model, train, valid, loss_fn, epochs=30, arch_optimizer=arch_optimizer, weight_optimizer=adam)

# The distribution is never sent, yet it is the same everywhere, to the last bit.
theta = torch.tensor(arch_optimizer.theta, device=device)
everywhere = [theta.clone() for _ in range(world_size)]
if together:
    dist.all_gather(everywhere, theta)
    dist.destroy_process_group()

if rank == 0:
    print(f"found: {result.values} with probability {result.probability:.4f}")
    print(f"processes: {world_size}, with the same distribution: {all(torch.equal(t, theta) for t in everywhere)}")
    x = torch.linspace(-1, 1, 201, device=device)[:, None]
    print(f"mean squared error: {loss_fn(result.model, x):.4f}, of the mean {torch.sin(5 * x).var():.4f}")
