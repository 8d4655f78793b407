"""Gradient descent is torch's own loop, in mixed precision too, and on a GPU replayed."""

import pytest
import torch
from torch import nn

from asng.experiments.descent import Descent


def squared_error(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


@pytest.mark.parametrize("clip_norm", [0.01, 1e9])
def test_descent_is_torchs_own_loop(clip_norm):
    torch.manual_seed(1)
    model, batches = nn.Linear(3, 1), [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(4)]
    twin = nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    weights, twins = (torch.optim.Adam(m.parameters(), lr=0.1) for m in (model, twin))
    descent = Descent(model, weights, squared_error, clip_norm=clip_norm)
    for batch in batches:
        loss = descent(batch)
        twins.zero_grad()
        expected = squared_error(twin, batch)
        expected.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), clip_norm)
        twins.step()
        assert torch.equal(loss, expected)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), twin.parameters(), strict=True))


def test_mixed_precision_computes_in_bfloat16_and_keeps_the_weights_in_float32():
    torch.manual_seed(1)
    model, seen = nn.Linear(3, 1), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    weights = torch.optim.SGD(model.parameters(), lr=0.1)
    descent = Descent(model, weights, squared_error, clip_norm=1.0, amp=torch.bfloat16)
    before = descent((torch.ones(8, 3), torch.ones(8, 1)))
    for _ in range(20):
        after = descent((torch.ones(8, 3), torch.ones(8, 1)))
    assert set(seen) == {torch.bfloat16}
    assert model.weight.dtype is torch.float32
    assert after < 0.1 * before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_replayed_on_a_gpu_it_computes_what_it_computes_without():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    on_gpu = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    on_gpu.load_state_dict(model.state_dict())
    descents = [
        Descent(m, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), squared_error, clip_norm=1.0)
        for m in (model, on_gpu)
    ]
    for number in range(20):
        if number == 10:
            descents[1].forget()
        batch = torch.randn(8, 3), torch.randn(8, 1)
        losses = descents[0](batch), descents[1](tuple(tensor.cuda() for tensor in batch))
        assert torch.allclose(losses[0], losses[1].cpu(), rtol=1e-3, atol=1e-5)
