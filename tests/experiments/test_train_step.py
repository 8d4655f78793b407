"""Gradient descent is torch's own loop, in mixed precision too; on a GPU it is replayed, which changes nothing."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from asng import nas
from asng.experiments._settings import set_lr
from asng.experiments._train_step import TrainStep, preserve_buffers_and_rng
from asng.experiments.cifar10.network import Net, set_drop_path
from asng.experiments.cifar10.space import random_values


def squared_error(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("max_grad_norm", [0.01, 1e9])
def test_descent_is_torchs_own_loop(max_grad_norm):
    torch.manual_seed(1)
    model, batches = nn.Linear(3, 1), [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(4)]
    twin = nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    optimizer, twins = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, twin))
    train_step = TrainStep(model, optimizer, squared_error, max_grad_norm=max_grad_norm)
    for batch in batches:
        loss = train_step(batch)
        twins.zero_grad()
        expected = squared_error(twin, batch)
        expected.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), max_grad_norm)
        twins.step()
        assert torch.equal(loss, expected)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("max_grad_norm", [0.01, 1e9])
@pytest.mark.parametrize("kind", [partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01), torch.optim.Adam])
def test_fused_optimizers_clip_while_they_update(kind, max_grad_norm):
    torch.manual_seed(1)
    model, batches = nn.Linear(3, 1), [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(4)]
    twin = copy.deepcopy(model)
    fused, plain = kind(model.parameters(), lr=0.1, fused=True), kind(twin.parameters(), lr=0.1)
    fast = TrainStep(model, fused, squared_error, max_grad_norm=max_grad_norm)
    reference = TrainStep(twin, plain, squared_error, max_grad_norm=max_grad_norm)
    for batch in [*batches[:2], (torch.full((8, 3), torch.nan), torch.ones(8, 1)), *batches[2:]]:
        torch.testing.assert_close(fast(batch), reference(batch), rtol=1e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=1e-5, atol=1e-6)


def test_mixed_precision_keeps_the_weights_in_float32():
    torch.manual_seed(1)
    model, seen = nn.Linear(3, 1), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_step = TrainStep(model, optimizer, squared_error, max_grad_norm=1.0, amp_dtype=torch.bfloat16)
    before = train_step((torch.ones(8, 3), torch.ones(8, 1)))
    for _ in range(20):
        after = train_step((torch.ones(8, 3), torch.ones(8, 1)))
    assert set(seen) == {torch.bfloat16}
    assert model.weight.dtype is torch.float32
    assert after < 0.1 * before


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_are(name, amp_dtype, device):
    def train(batches):
        torch.manual_seed(1)
        model = nn.Linear(3, 1).to(device)
        optimizer = OPTIMIZERS[name](model.parameters(), device == "cuda")
        train_step = TrainStep(model, optimizer, squared_error, max_grad_norm=1.0, amp_dtype=amp_dtype)
        losses = [train_step((x.to(device), torch.ones(8, 1, device=device))).item() for x in batches]
        return losses, [parameter.detach().cpu() for parameter in model.parameters()]

    good = [torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    bad = [torch.full((8, 3), value) for value in (torch.nan, torch.inf)]
    losses, weights = train(good)
    with_bad, untouched = train([*good[:2], *bad, *good[2:]])
    assert not any(map(math.isfinite, with_bad[2:4]))
    assert with_bad[:2] + with_bad[4:] == losses
    assert len(set(losses)) == 4
    assert all(torch.equal(*pair) for pair in zip(weights, untouched, strict=True))


OPTIMIZERS = {
    "sgd": lambda parameters, gpu: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, fused=gpu),
    "adam": lambda parameters, gpu: torch.optim.Adam(parameters, lr=0.1, fused=gpu, capturable=gpu),
}


@GPU
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_captured_on_a_gpu_it_computes_what_it_computes_without(optimizer):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    on_gpu = copy.deepcopy(model).cuda()
    descents = [
        TrainStep(m, OPTIMIZERS[optimizer](m.parameters(), m is on_gpu), squared_error, max_grad_norm=1.0)
        for m in (model, on_gpu)
    ]
    for number in range(20):
        for descent in descents:
            set_lr(descent.optimizer, 0.1 / (1 + number))
        batch = torch.randn(8, 3), torch.randn(8, 1)
        losses = descents[0](batch), descents[1](tuple(tensor.cuda() for tensor in batch))
        assert torch.allclose(losses[0], losses[1].cpu(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close([p.cpu() for p in on_gpu.parameters()], [*model.parameters()], rtol=1e-3, atol=1e-5)


class Convolutions(nn.Module):
    """Weights of several tiles and of one number, and one without a gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.Linear(3, 3)
        self.pointwise, self.factor = nn.Conv2d(64, 8, 1), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.factor * self.pointwise(self.second(self.first(x).relu()).relu()).mean((2, 3))


@GPU
@pytest.mark.parametrize("max_grad_norm", [0.01, 1e9])
def test_on_a_gpu_kernels_of_our_own_take_the_step_of_sgd(max_grad_norm):
    pytest.importorskip("triton")
    torch.manual_seed(1)
    model: Any = Convolutions().cuda()
    model.to(memory_format=torch.channels_last)
    models = [model, copy.deepcopy(model)]
    optimizers = [
        torch.optim.SGD(
            [
                {"params": [*m.first.parameters(), *m.unused.parameters()], "momentum": 0.9, "nesterov": True},
                {"params": m.second.parameters(), "momentum": 0.9, "weight_decay": 0.01, "lr": 0.05},
                {"params": [*m.pointwise.parameters(), m.factor]},
            ],
            lr=0.1,
            fused=True,
        )
        for m in models
    ]
    steps = [
        TrainStep(m, o, squared_error, max_grad_norm=max_grad_norm) for m, o in zip(models, optimizers, strict=True)
    ]
    assert steps[0]._sgd is not None
    steps[1]._sgd = None  # torch's kernels
    unused = copy.deepcopy(model.unused)
    for number in range(8):
        batch = torch.randn(4, 3, 8, 8, device="cuda"), torch.randn(4, 8, device="cuda")
        run = TrainStep._step if number == 5 else TrainStep.__call__  # a plain step leaves the graph as it is
        losses = [run(step, batch) for step in steps]
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(*([*m.parameters()] for m in models), rtol=1e-3, atol=1e-5)
    assert all_equal(model.unused, unused)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-4)


@GPU
def test_on_a_gpu_a_captured_step_follows_the_drop_path_rate():
    model = nas.extract(Net(4, 3, affine=True, auxiliary=True), random_values(1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
    step = TrainStep(model, optimizer, lambda model, batch: model(batch[0])[0].square().sum(), max_grad_norm=1.0)
    batch = (torch.randn(4, 3, 32, 32, device="cuda"),)

    def losses(rate):
        set_drop_path(model, rate)
        return {step(batch).item() for _ in range(4)}

    assert [len(losses(rate)) for rate in (0.0, 0.5, 0.0)] == [1, 4, 1]


@GPU
@pytest.mark.parametrize("seed", [0, 1])
def test_on_a_gpu_paths_side_by_side_compute_what_they_do_in_turn(seed):
    model = nas.extract(Net(8, 8, affine=True, auxiliary=True), random_values(seed)).cuda().double()
    models = [model, copy.deepcopy(model)]
    batch = (torch.randn(16, 3, 32, 32, device="cuda", dtype=torch.float64),)

    def loss_fn(model, batch):
        scores, second = model(batch[0])
        return scores.logsumexp(1).mean() + second.logsumexp(1).mean()

    steps = [TrainStep(m, OPTIMIZERS["sgd"](m.parameters(), True), loss_fn, max_grad_norm=5.0) for m in models]
    for _ in range(5):
        torch.testing.assert_close(steps[0](batch), steps[1]._step(batch), rtol=1e-9, atol=1e-12)
    for captured, plain in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(captured, plain, rtol=1e-7, atol=1e-10)


@GPU
def test_on_a_gpu_an_optimizer_that_is_not_fused_is_refused():
    model = nn.Linear(3, 1).cuda()
    with pytest.raises(ValueError, match="SGD must be fused to be captured; give fused=True"):
        TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), squared_error, max_grad_norm=1.0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 3])
def test_steps_with_preserved_weights_change_no_later_step(optimizer, before):
    losses, models = [], []
    for extra in (0, 2):
        model = noisy_net()
        descent = TrainStep(model, OPTIMIZERS[optimizer](model.parameters(), False), squared_error, max_grad_norm=1.0)
        torch.manual_seed(4)
        for number, batch in enumerate(noisy_batches()):
            if number == before:
                with preserve_buffers_and_rng(model), descent._preserve_weights():
                    for _ in range(extra):
                        descent(batch)
            losses.append(descent(batch).item())
        models.append(model)
    assert losses[:8] == losses[8:]
    assert all_equal(*models)


def noisy_net():
    """Dropped units and batch statistics: what a pass leaves behind."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1))


def noisy_batches(n=8):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(8, 3, generator=generator), torch.randn(8, 1, generator=generator)) for _ in range(n)]


def descent_of(model):
    on_gpu = next(model.parameters()).is_cuda
    return TrainStep(model, OPTIMIZERS["sgd"](model.parameters(), on_gpu), squared_error, max_grad_norm=1.0)


def all_equal(one, other):
    return all(torch.equal(*pair) for pair in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_preserved_passes_change_no_later_step():
    losses, models = [], []
    for extra in (0, 3):
        model = noisy_net()
        train_step = descent_of(model)
        torch.manual_seed(4)
        for batch in noisy_batches():
            with preserve_buffers_and_rng(model):
                for _ in range(extra):
                    squared_error(model, batch).backward()
            losses.append(train_step(batch).item())
        models.append(model)
    assert losses[:8] == losses[8:]
    assert len(set(losses)) == 8
    assert all_equal(*models)
    assert models[0][1].num_batches_tracked == 8


def test_a_pass_that_fails_leaves_all_untouched_too():
    model, twin = noisy_net(), noisy_net()
    random = torch.get_rng_state()

    def fail():
        model(torch.randn(8, 3))
        raise OSError("the power is gone")

    with pytest.raises(OSError, match="power"), preserve_buffers_and_rng(model):
        fail()
    assert torch.equal(torch.get_rng_state(), random)
    assert all_equal(model, twin)


def test_a_buffer_that_a_pass_replaces_is_restored_too():
    class Counting(nn.Module):
        passes: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x):
            self.passes = self.passes + 1
            return x

    model = Counting()
    buffer = model.passes
    with preserve_buffers_and_rng(model):
        model(torch.zeros(1))
    assert model.passes is buffer
    assert model.passes == 0


@pytest.mark.parametrize("kind", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam], ids=["sgd", "adam"])
def test_a_training_goes_on_with_the_optimizer_of_another_machine(kind):
    model, (batch, *_) = noisy_net().eval(), noisy_batches()
    plain, fused = (
        TrainStep(m, kind(m.parameters(), lr=0.1, fused=fused), squared_error, max_grad_norm=0.01)
        for m, fused in ((model, None), (copy.deepcopy(model), True))  # as on a CPU, and on a GPU
    )
    plain(batch)
    fused.load_state_dict(copy.deepcopy(plain.state_dict()))
    torch.testing.assert_close([fused(batch) for _ in range(3)], [plain(batch) for _ in range(3)])


@GPU
def test_on_a_gpu_a_resumed_training_is_the_same_bit_for_bit():
    def train(until):
        model = noisy_net().cuda()
        train_step = descent_of(model)
        torch.cuda.manual_seed(4)
        losses = []
        for number, batch in enumerate(noisy_batches()):
            if number == until:
                state, random = copy.deepcopy(train_step.state_dict()), torch.cuda.get_rng_state()
                model = noisy_net().cuda()
                train_step = descent_of(model)
                train_step.load_state_dict(state)
                torch.cuda.manual_seed(99)
                torch.cuda.set_rng_state(random)
            losses.append(train_step(tuple(tensor.cuda() for tensor in batch)).item())
        return losses, model

    (whole, one), (parts, other) = train(until=None), train(until=5)
    assert whole == parts
    assert len(set(whole)) == 8
    assert all_equal(one, other)
    assert one[1].num_batches_tracked == 8
