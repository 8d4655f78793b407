"""The CIFAR-10 networks compute with fused kernels what they compute with torch's."""

# mypy: disable-error-code="union-attr"

import copy
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")

from asng import fused, nas
from asng.experiments.cifar10.layers import auxiliary_head, run_stem
from asng.experiments.cifar10.network import Net, set_drop_path, use_fused_kernels
from asng.experiments.cifar10.space import random_values
from asng.fused._dispatch import row_of
from tests.helpers.fused_layers import Calls, channels_last, error, run


def gradient_of(model, images, labels):
    """The loss, and the gradients by their parameters' names."""
    scores = model(images)
    loss = F.cross_entropy(scores[0] if isinstance(scores, tuple) else scores, labels)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return loss, {name: gradient for name, gradient in zip(names, found, strict=True) if gradient is not None}


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("static", [False, True], ids=["supernet", "extracted"])
def test_losses_and_gradients_are_those_of_torchs_kernels(seed, static):
    torch.manual_seed(seed)
    values = random_values(seed)
    model: Any = Net(4, 3, affine=static)
    nas.select(model, values)
    plain: Any = (nas.extract(model, values) if static else model).train()
    ours = use_fused_kernels(copy.deepcopy(plain).to(memory_format=torch.channels_last))
    images = torch.randn(4, 3, 4, 4, dtype=torch.double)
    labels = torch.randint(10, (4,))
    expected, wanted = gradient_of(plain.double(), images, labels)
    loss, got = gradient_of(ours, images.float().contiguous(memory_format=torch.channels_last), labels)
    assert any(type(module).__module__.startswith("asng.fused") for module in ours.modules())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    assert got.keys() == wanted.keys()
    whole = torch.cat([gradient.flatten() for gradient in wanted.values()]).norm()
    far = {
        name: float(difference)
        for name, gradient in wanted.items()
        if (difference := (got[name].double() - gradient).norm()) > 0.01 * gradient.norm() + 1e-5 * whole
    }
    assert not far  # not even of parameters with small gradients


def functions_of(output):
    """The functions of torch's graph, each with the number of those that a result of it went to."""
    users: Counter[Any] = Counter()
    found, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        sources = [(source, number) for source, number in node.next_functions if source is not None]
        users.update(sources)
        waiting += [source for source, _ in sources]
    return [
        (type(node).__name__, max(n for (source, _), n in users.items() if source is node))
        for node in found
        if node is not output.grad_fn
    ]


@pytest.mark.parametrize("seed", [3, 5])  # without an identity that halves, which has a ReLU of torch's
def test_kernels_rectify_while_they_read_and_add_up_gradients(seed):
    network: Any = use_fused_kernels(nas.extract(Net(3, 3, affine=True), random_values(seed)))
    functions = functions_of(network(channels_last((2, 3, 4, 4), torch.float32)))
    names = [name for name, _ in functions]
    assert "ReluBackward0" not in names
    assert "_FanOutBackward" in names
    assert [name for name, users in functions if users > 1] == []


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("static", [False, True], ids=["supernet", "extracted"])
def test_all_layers_but_the_convolution_of_the_stem_take_kernels(static, amp):
    values = random_values(1)  # with all operations in both kinds of cells
    model: Any = Net(4, 3, affine=static)
    nas.select(model, values)
    model = use_fused_kernels(nas.extract(model, values) if static else model)
    set_drop_path(model, 0.5)
    with Calls() as calls, torch.autocast("cpu", torch.bfloat16, enabled=amp):
        model(channels_last((2, 3, 8, 8), torch.float32))
    assert calls.found == {"conv2d": 1}


def test_of_the_auxiliary_head_the_batch_norms_take_kernels():
    with Calls() as calls:
        use_fused_kernels(auxiliary_head(8, affine=True))(channels_last((2, 8, 8, 8), torch.float32))
    assert calls.found == {"avg_pool2d": 1, "conv2d": 2}


def test_the_stem_writes_aligned_rows():
    torch.manual_seed(0)
    net, images = Net(3, 3, affine=True), channels_last((2, 3, 6, 6), torch.float32)
    expected = run(copy.deepcopy(net.stem).double(), images.double())
    output = run_stem(use_fused_kernels(net).stem, images)
    assert row_of(output) == 16  # for 9 channels
    assert error(output.detach(), expected.output) < 1e-6
    upstream = channels_last(output.shape, torch.bfloat16, seed=1).float()  # as in `run`
    gradients = torch.autograd.grad(output, list(net.stem.parameters()), upstream)
    assert all(error(*pair) < 1e-5 for pair in zip(gradients, expected.gradients[1:], strict=True))


def test_what_is_extracted_has_torchs_layers():
    model = use_fused_kernels(Net(4, 3))
    network = nas.extract(model, random_values(0))
    assert not any(type(module).__module__.startswith("asng.fused") for module in network.modules())
    assert any(type(module) is fused.MaxPool2d for module in model.modules())
    assert any(type(module) in (nn.MaxPool2d, nn.AvgPool2d) for module in network.modules())
