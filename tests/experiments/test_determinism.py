"""Searches and trainings under torch.use_deterministic_algorithms: the same numbers again, and no refusal."""

import pytest
import torch
import torch.nn.functional as F

from asng import ASNG, nas
from asng.experiments._train_step import TrainStep
from asng.experiments.cifar10.network import Net
from asng.experiments.cifar10.space import random_values

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
pytestmark = pytest.mark.parametrize("device", ["cpu", GPU])


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it on a GPU
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def batch_on(device, seed):
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.randn(4, 3, 32, 32, generator=generator), torch.randint(10, (4,), generator=generator)
    return images.to(device), labels.to(device)


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def test_steps_of_a_search_are_the_same_again(device):
    def losses():
        torch.manual_seed(0)
        model = Net(2, 3).to(device)
        weights = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        search = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), weights, loss_fn, max_grad_norm=5.0)
        steps = [search.step(batch_on(device, 2 * i), batch_on(device, 2 * i + 1)) for i in range(4)]
        return [(step.train_losses, step.valid_losses) for step in steps]

    assert losses() == losses()


def test_steps_of_a_training_are_the_same_again(device):
    def losses():
        torch.manual_seed(0)
        model = nas.extract(Net(2, 3, affine=True), random_values(3)).to(device)
        weights = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=device == "cuda")
        step = TrainStep(model, weights, loss_fn, max_grad_norm=5.0)
        return [step(batch_on(device, i)).item() for i in range(4)]

    assert losses() == losses()
