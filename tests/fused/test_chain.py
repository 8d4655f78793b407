"""The inpainting search by kernels that read the chain from device memory equals the plain path."""

# mypy: disable-error-code="call-overload, no-any-return"

import copy
import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from triton.runtime import interpreter

from asng import ASNG
from asng.experiments.inpainting.encoding import random_values, search_space
from asng.experiments.inpainting.network import Net
from asng.fused import _chain
from asng.nas import OneShot, select
from asng.nas._capture.iteration import Iteration
from tests.helpers.fused_layers import Calls


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Fewer programs; and loops as far as a loaded number, which Triton's interpreter reads as NumPy no longer lets."""
    monkeypatch.setattr(_chain, "PARTS", 2)
    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


def mse(model, batch):
    return F.mse_loss(model(batch[1]), batch[0])


def table_of(net, weights, gradients):
    """The weights of a `Net` in the order of its geometry, channels last, and their addresses."""
    rows = [[weight.data_ptr(), gradient.data_ptr()] for weight, gradient in zip(weights, gradients, strict=True)]
    return torch.tensor(rows)


def run_kernels(net, values, images):
    """The output of the chain for values, and the gradients of the mean of its square, by parameter."""
    modules = [part[kind] for side in (net.encoder, net.decoder) for part in side for kind in part] + [net.last]
    parameters = [module.weight for module in modules]
    weights = [parameter.detach().to(memory_format=torch.channels_last) for parameter in parameters]
    gradients = [torch.zeros_like(weight) for weight in weights]
    geometry = torch.tensor(net._geometry(values, images.shape[-2:]), dtype=torch.int32)
    anchor = torch.zeros((), requires_grad=True)
    output = net._bounds.run(images, geometry, table_of(net, weights, gradients), anchor)
    output.square().mean().backward()
    return output.detach(), dict(zip(parameters, gradients, strict=True))


@pytest.mark.parametrize("encoding", ["cat", "int"])
@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 3)])
@pytest.mark.parametrize("seed", [0, 1])
def test_outputs_and_gradients_are_those_of_float64(encoding, size, seed):
    torch.manual_seed(seed)
    space = search_space(encoding, layers=5, levels=2, widths=(4, 35) if encoding == "int" else (4, 6, 35))
    net, values, images = Net(space, size), random_values(space, seed), torch.rand(2, 3, *size)
    output, gradients = run_kernels(net, values, images)
    exact = copy.deepcopy(net).double()
    select(exact, values)
    expected = exact(images.double())
    expected.square().mean().backward()
    torch.testing.assert_close(output.double(), expected.detach(), rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        wanted = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(gradients[ours].double(), wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("amp_dtype", [None, torch.float16])  # of bfloat16 the interpreter multiplies the bits
def test_steps_of_a_search_equal_the_plain_ones(amp_dtype):
    def search(net):
        weight_optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        return OneShot(net, ASNG(space, seed=3), weight_optimizer, mse, max_grad_norm=5.0, amp_dtype=amp_dtype)

    torch.manual_seed(0)
    space = search_space("int", layers=4, levels=3, widths=(4, 9))
    net = Net(space, (6, 5))
    plain, other = search(net), search(copy.deepcopy(net).to(memory_format=torch.channels_last))
    data = [[tuple(torch.rand(2, 2, 3, 6, 5)) for _ in range(2)] for _ in range(2)]
    opened = Iteration(other.supernet, other.weight_optimizer, mse, 2, max_grad_norm=5.0, amp_dtype=amp_dtype)
    opened.prepare(*data[0])
    opened.update.load()
    for train, valid in data:
        expected = plain.step(train, valid)
        drawn, candidates = other.arch_optimizer.ask(), other.arch_optimizer.ask()
        with Calls() as calls:
            trained, judged = opened.step([c.values for c in drawn], train, [c.values for c in candidates], valid)
        assert not {"conv2d", "conv_transpose2d"} & calls.found.keys()
        other.arch_optimizer.tell(candidates, [numbers.loss for numbers in judged])
        got = [numbers.loss for numbers in (*trained, *judged)]
        torch.testing.assert_close(got, [*expected.train_losses, *expected.valid_losses], rtol=1e-4, atol=1e-5)
        assert all(map(math.isfinite, got))


def test_weights_in_another_memory_format_are_refused():
    net = Net(search_space("int", layers=4, levels=3, widths=(4, 9)), (6, 5))
    weight_optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    search = OneShot(net, ASNG(search_space("int", layers=4, levels=3, widths=(4, 9)), seed=3), weight_optimizer, mse)
    opened = Iteration(search.supernet, weight_optimizer, mse, 2, max_grad_norm=5.0, amp_dtype=None)
    batch = tuple(torch.rand(2, 2, 3, 6, 5))
    with pytest.raises(ValueError, match="the weights are not channels last"):
        opened.prepare(batch, batch)
