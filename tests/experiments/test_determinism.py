"""Searches and trainings under torch.use_deterministic_algorithms: the same numbers again, and no refusal."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from asng import ASNG, nas
from asng.experiments._train_step import TrainStep
from asng.experiments.cifar10.network import Net, use_fused_kernels
from asng.experiments.cifar10.space import random_values

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
in_each_precision = pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it on a GPU
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def batch_on(device, seed, memory_format=torch.contiguous_format):
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.randn(4, 3, 32, 32, generator=generator), torch.randint(10, (4,), generator=generator)
    return images.to(device).contiguous(memory_format=memory_format), labels.to(device)


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def to_gpu(model, kernels) -> tuple[Any, Any]:
    """A model on the GPU with these kernels, and what makes its mini-batches."""
    if kernels == "torch":
        return model.cuda(), partial(batch_on, "cuda")
    pytest.importorskip("triton")
    model = use_fused_kernels(model.cuda().to(memory_format=torch.channels_last))
    return model, partial(batch_on, "cuda", memory_format=torch.channels_last)


def search_losses(model, make_batch, **settings):
    """The losses of four steps of a search, and how it was captured."""
    weights = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    search = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), weights, loss_fn, max_grad_norm=5.0, **settings)
    steps = [search.step(make_batch(2 * i), make_batch(2 * i + 1)) for i in range(4)]
    return [(step.train_losses, step.valid_losses) for step in steps], search.capture_cost


def train_losses(model, make_batch, **settings):
    """The losses of four steps of a training."""
    is_on_gpu = next(model.parameters()).is_cuda
    weights = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=is_on_gpu)
    step = TrainStep(model, weights, loss_fn, max_grad_norm=5.0, **settings)
    return [step(make_batch(i)).item() for i in range(4)]


@on_each_device
def test_steps_of_a_search_are_the_same_again(device):
    def losses():
        torch.manual_seed(0)
        return search_losses(Net(2, 3).to(device), partial(batch_on, device))[0]

    assert losses() == losses()


@on_each_device
def test_steps_of_a_training_are_the_same_again(device):
    def losses():
        torch.manual_seed(0)
        return train_losses(nas.extract(Net(2, 3, affine=True), random_values(3)).to(device), partial(batch_on, device))

    assert losses() == losses()


@needs_gpu
@in_each_precision
@pytest.mark.parametrize("kernels", ["torch", "fused"])
def test_captured_steps_of_a_search_are_the_same_again(kernels, amp_dtype):
    def losses():
        torch.manual_seed(0)
        found, cost = search_losses(*to_gpu(Net(8, 3), kernels), capture=True, amp_dtype=amp_dtype)
        assert cost["capture_seconds"] > 0
        return found

    assert losses() == losses()


@needs_gpu
@in_each_precision
def test_steps_of_a_training_with_fused_kernels_are_the_same_again(amp_dtype):
    def losses():
        torch.manual_seed(0)
        model = nas.extract(Net(8, 3, affine=True), random_values(3))
        return train_losses(*to_gpu(model, "fused"), amp_dtype=amp_dtype)

    assert losses() == losses()
