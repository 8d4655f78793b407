"""Captured searches of widths with masks and of the experiments' networks on a GPU, beside the plain path."""

# mypy: disable-error-code="misc, var-annotated"

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from asng import nas
from asng.experiments.cifar10.network import Net as CifarNet
from asng.experiments.cifar10.network import use_fused_kernels
from asng.experiments.cifar10.space import random_values
from asng.experiments.inpainting.encoding import search_space
from asng.experiments.inpainting.network import Net as Autoencoders
from asng.experiments.inpainting.network import to_device_format
from asng.nas import Width, select
from tests.helpers.captures import LIMITS, assert_same_losses, gpu_pairs, oneshot
from tests.helpers.searches import cross_entropy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


# In float64 more than rounding differs; in the others rounding grows from step to step.
@pytest.mark.parametrize(
    ("dtype", "amp_dtype", "tolerance"),
    [(torch.double, None, 1e-8), (torch.float, None, 2e-3), (torch.float, torch.bfloat16, 3e-2)],
    ids=["float64", "float32", "bfloat16"],
)
def test_widths_of_many_combinations_are_captured_with_masks(dtype, amp_dtype, tolerance):
    widths: list[Any] = [Width(f"w{i}", 2, 9) for i in range(3)]
    layers: list[nn.Module] = []
    for before, width in zip([4, *widths], widths, strict=False):
        layers += [nas.Linear(before, width), nas.BatchNorm1d(width), nn.Sigmoid()]
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nas.LayerNorm(widths[-1]), nas.Linear(widths[-1], 3)).to("cuda", dtype)
    twin = copy.deepcopy(model)
    plain, captured = oneshot(model, amp_dtype=amp_dtype), oneshot(twin, amp_dtype=amp_dtype, capture=True)
    for train, valid in gpu_pairs(20, dtype):
        expected, got = plain.step(train, valid), captured.step(train, valid)
        torch.testing.assert_close(
            [*got.train_losses, *got.valid_losses],
            [*expected.train_losses, *expected.valid_losses],
            rtol=tolerance,
            atol=tolerance,
        )
    assert captured.capture_cost["capture_seconds"] > 0
    if amp_dtype is None:
        torch.testing.assert_close([*twin.parameters()], [*model.parameters()], rtol=5 * tolerance, atol=tolerance / 2)
        # Candidates run side by side, so of two updates of a statistic at once one may be lost.
        assert twin[1].running_mean.isfinite().all()  # type: ignore[operator]


def test_a_mean_over_all_channels_is_not_captured_with_masks():
    class Centered(nn.Module):
        def forward(self, x):
            return x - x.mean(1, keepdim=True)

    width = Width("w", 1, 99)
    model = nn.Sequential(nas.Linear(4, width), Centered(), nas.Linear(width, 3)).cuda()
    search = oneshot(model, capture=True)
    (train, valid), *_ = gpu_pairs(1)
    with pytest.warns(UserWarning, match="with masks its gradient differs"):
        assert all(map(math.isfinite, search.step(train, valid).valid_losses))


def test_blocks_with_widths_are_captured():
    torch.manual_seed(0)
    width = Width("width", [2, 3, 5])
    block = nn.Sequential(nas.Linear(4, width), nas.BatchNorm1d(width), nn.ReLU(), nas.Linear(width, 4))
    model = nn.Sequential(block, nn.Tanh(), nn.Linear(4, 3)).cuda()
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    assert_same_losses(model, copy.deepcopy(model), gpu_pairs(12), weight_optimizer=optimizer, loss_fn=cross_entropy)


@pytest.mark.parametrize("limits", LIMITS, ids=["unlimited", "limited"])
@pytest.mark.parametrize("encoding", ["cat", "int"])
@pytest.mark.parametrize("size", [(16, 16), (9, 14)], ids=["even", "odd"])
def test_the_inpainting_search_is_captured(encoding, size, limits, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    widths = (8, 24) if encoding == "int" else (8, 16, 24)
    model = to_device_format(Autoencoders(search_space(encoding, 8, widths=widths), size), torch.device("cuda"))
    data = [[tuple(torch.rand(2, 4, 3, *size, device="cuda").unbind()) for _ in range(2)] for _ in range(8)]
    optimizer = partial(torch.optim.SGD, lr=0.025, momentum=0.9)
    assert_same_losses(
        model,
        copy.deepcopy(model),
        data,
        weight_optimizer=optimizer,
        loss_fn=lambda model, batch: nn.functional.mse_loss(model(batch[1]), batch[0]),
        limits=limits,
    )


@pytest.mark.parametrize("settings", [{}, {"amp_dtype": torch.bfloat16}], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("limits", LIMITS, ids=["unlimited", "limited"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "channels_last"])
def test_the_first_steps_of_a_small_cifar10_network_are_captured(layout, settings, limits):
    torch.manual_seed(0)
    model = CifarNet(8, 3).cuda()
    settings = {"limits": limits, **settings}
    plain, captured = oneshot(model, **settings), oneshot(copy.deepcopy(model), capture=True, **settings)
    losses = []
    for _ in range(3):
        images, labels = torch.randn(2, 16, 3, 32, 32, device="cuda"), torch.randint(10, (2, 16), device="cuda")
        train, valid = ((images[half].to(memory_format=layout), labels[half]) for half in range(2))
        losses.append([search.step(train, valid).train_losses for search in (plain, captured)])
    torch.testing.assert_close(*losses[0], rtol=0.01, atol=0.01)  # later ones differ by what rounding has become
    assert all(math.isfinite(loss) for _, got in losses for loss in got)


def test_fused_kernels_are_captured_under_limits_as_without():
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model: Any = CifarNet(8, 3).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    use_fused_kernels(model)
    searches = [oneshot(copy.deepcopy(model), capture=True, limits=limits) for limits in LIMITS]
    images = torch.randn(2, 16, 3, 32, 32, device="cuda")
    train, valid = (
        (half.contiguous(memory_format=torch.channels_last), torch.randint(10, (16,), device="cuda")) for half in images
    )
    steps = [search.step(train, valid) for search in searches]
    torch.testing.assert_close(steps[0].train_losses, steps[1].train_losses, rtol=0.01, atol=0.01)
    assert all(search.capture_cost for search in searches)


def test_gradients_do_not_depend_on_the_memory_format(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    images, labels = torch.randn(16, 3, 32, 32, device="cuda"), torch.randint(10, (16,), device="cuda")
    model = CifarNet(8, 3).cuda()
    select(model, random_values(1))

    def gradients(layout):
        loss = nn.functional.cross_entropy(model(images.to(memory_format=layout)), labels)
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        return torch.cat([gradient.flatten() for gradient in found if gradient is not None])

    expected, got = gradients(torch.contiguous_format), gradients(torch.channels_last)
    assert (got - expected).norm() < 0.02 * expected.norm()  # rounding moves inputs of ReLUs over 0
