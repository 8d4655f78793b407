"""Mixed precision: computed in it, weights kept in float, overflows skipped; also on GPUs."""

import copy

import pytest
import torch
from torch import nn

from tests.helpers.searches import Net, Switch, cross_entropy, make_oneshot, pairs

pytestmark = pytest.mark.usefixtures("same_numbers")


@pytest.mark.parametrize("amp_dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_computes_in_it_and_keeps_weights_in_float(amp_dtype):
    kinds = []

    def loss(model, batch):
        output = model(batch[0])
        kinds.append(output.dtype)
        return nn.functional.cross_entropy(output.float(), batch[1])

    mixed, full = Net(dropout=0), Net(dropout=0)
    full.load_state_dict(mixed.state_dict())
    oneshot, reference = (
        make_oneshot(mixed, loss_fn=loss, amp_dtype=amp_dtype, max_grad_norm=1.0),
        make_oneshot(full, max_grad_norm=1.0),
    )
    for train, valid in pairs(3):
        oneshot.step(train, valid)
        reference.step(train, valid)
    assert set(kinds) == {amp_dtype}
    for value, expected in zip(mixed.state_dict().values(), full.state_dict().values(), strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, expected, rtol=0.05, atol=0.02)
    assert oneshot.state_dict()["scaler"].get("scale", None) == (65536.0 if amp_dtype is torch.float16 else None)


def test_scaled_gradients_that_overflow_are_skipped_and_the_scale_halved():
    model = Switch()
    oneshot = make_oneshot(model, loss_fn=lambda model, x: model(x), amp_dtype=torch.float16)
    x = torch.full((3,), 1e37)  # the loss is finite, its scaled gradient is not
    before = copy.deepcopy(model.state_dict())
    oneshot.step(x, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert oneshot.state_dict()["scaler"]["scale"] == 32768.0
    oneshot.step(torch.ones(3), torch.ones(3))
    assert any(value.ne(1).any() for value in model.state_dict().values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16, torch.float16])
def test_mixed_precision_on_cuda_learns(amp_dtype):
    model = Net(dropout=0).cuda()
    oneshot = make_oneshot(
        model,
        loss_fn=lambda model, batch: cross_entropy(model, [part.cuda() for part in batch]),
        amp_dtype=amp_dtype,
        max_grad_norm=5.0,
    )
    steps = [oneshot.step(train, valid) for train, valid in pairs(150)]
    early, late = (sum(sum(s.train_losses) for s in part) for part in (steps[:20], steps[-20:]))
    assert late < 0.8 * early
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())
    again = make_oneshot(
        Net(dropout=0).cuda(),
        loss_fn=lambda model, batch: cross_entropy(model, [part.cuda() for part in batch]),
        amp_dtype=amp_dtype,
    )
    again.load_state_dict(oneshot.state_dict())
    assert again.state_dict()["scaler"] == oneshot.state_dict()["scaler"]
