"""FLOPs by torch's own counter and by hand, whichever kernel torch takes, and a warning where there is no formula."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pack_sequence
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from asng import nas
from asng.nas import Costs, Flops, Limit, OneOf, Value, extract
from asng.nas._flops import FORMULAS
from asng.nas.supernet import Supernet
from asng.space import Integer

LSTM_FLOPS = 2 * 5 * (4 * 8) * (4 + 8)  # of five rows of four numbers, with a state of eight


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = Value("heads", Integer(1, 4))
        self.mixed = nn.Linear(8, 24)
        self.norm, self.conv = nn.BatchNorm1d(5), nn.Conv1d(5, 5, 3, groups=5)

    def forward(self, x):
        shape = (len(x), -1, self.heads.value, 8 // self.heads.value)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in self.mixed(x).chunk(3, -1))
        y = scaled_dot_product_attention(q, k, v)
        return self.conv(self.norm(y.transpose(1, 2).reshape(len(x), 5, 8))) @ torch.ones(6, 2)


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def flops_of(function, *args):
    return Flops(*args)(Call(function), {})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_flops_are_those_of_torchs_own_counter(mode, heads):
    model, x = Attention(), torch.randn(3, 5, 8)
    network = extract(model, {"heads": heads}).eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network(x)
    with mode():
        assert Flops(x)(model, {"heads": heads}) == counter.get_total_flops() > 0


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("given", [{}, {"is_causal": True}, {"attn_mask": torch.zeros(5, 7)}])
@pytest.mark.parametrize(("queries", "keys"), [(2, 2), (4, 2)])
def test_attention_costs_the_same_with_any_kernel(backend, given, queries, keys):
    q, k = torch.zeros(3, queries, 5, 6), torch.zeros(3, keys, 7, 6)
    with sdpa_kernel([backend, SDPBackend.MATH]):  # which torch 2.6 takes where heads are shared
        flops = flops_of(partial(scaled_dot_product_attention, enable_gqa=queries > keys, **given), q, k, k)
    assert flops == 2 * 2 * 3 * queries * 5 * 7 * 6


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_that_returns_its_weights_costs_as_much_as_one_that_does_not(need_weights):
    attention = nas.MultiheadAttention(8, 4, batch_first=True)
    flops = Flops(*[torch.zeros(1, 16, 8)] * 3, kwargs={"need_weights": need_weights})(attention, {})
    assert flops == 2 * 16 * 8 * 4 * 8 + 2 * 2 * 16 * 16 * 8


def test_attention_that_torch_fuses_in_evaluation_is_counted():
    layers = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nas.Repeat("depth", layers))
    one, two = (Flops(torch.zeros(1, 5, 8))(model, {"depth": depth}) for depth in (1, 2))
    assert two == 2 * one == 2 * (2 * 5 * (8 * 24 + 8 * 8 + 2 * 8 * 16) + 2 * 2 * 5 * 5 * 8)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by oneDNN, and step by step
@pytest.mark.parametrize(
    ("settings", "flops"),
    [
        ({}, LSTM_FLOPS),
        ({"bias": False}, LSTM_FLOPS),
        ({"bidirectional": True}, 2 * LSTM_FLOPS),
        ({"num_layers": 2, "batch_first": True}, LSTM_FLOPS + 2 * 5 * (4 * 8) * (8 + 8)),
    ],
)
def test_recurrent_layers_cost_the_same_with_any_kernel(dtype, settings, flops):
    one, three = ((n, 5, 4) if "batch_first" in settings else (5, n, 4) for n in (1, 3))
    lstm, gru = (layer(4, 8, dtype=dtype, **settings) for layer in (nn.LSTM, nn.GRU))
    assert Flops(torch.zeros(one, dtype=dtype))(lstm, {}) == flops
    assert Flops(torch.zeros(one, dtype=dtype))(gru, {}) == flops * 3 / 4  # as of its gates
    assert Flops(torch.zeros(three, dtype=dtype))(lstm, {}) == 3 * flops


def test_recurrent_layers_of_cudnn_cost_what_those_of_the_cpu_do():
    lstm, sequences = nn.LSTM(4, 8, 2, proj_size=3), [torch.zeros(5, 4), torch.zeros(3, 4)]
    packed, weights = pack_sequence(sequences), list(lstm.parameters())
    of_cpu = Flops(packed)(lstm, {})
    assert FORMULAS[torch.ops.aten._cudnn_rnn](packed.data, weights, 4, None, out_val=()) == of_cpu > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_cost_the_same_on_cuda(layer):
    model = layer(4, 8, 2, bidirectional=True)
    assert Flops(torch.zeros(5, 3, 4))(model, {}) == Flops(torch.zeros(5, 3, 4))(model.cuda(), {}) > 0


def test_a_bilinear_layer_costs_what_its_two_products_cost():
    x, y, weight = torch.zeros(3, 4), torch.zeros(3, 5), torch.zeros(6, 4, 5)
    products = flops_of(partial(torch.einsum, "ni,oij,nj->no"), x, weight, y)
    assert Flops(x, y)(nn.Bilinear(4, 5, 6), {}) == products == 2 * 3 * 6 * (4 * 5 + 5)


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda a: a @ a[0], 2 * 16),
        (lambda a: a[0] @ a[1], 2 * 4),
        (lambda a: torch.vdot(a[0], a[1]), 2 * 4),
        (lambda a: torch.addmv(a[0], a, a[1]), 2 * 16),
        (lambda a: a[0].clone().addmv_(a, a[1]), 2 * 16),
        (lambda a: a.clone().addmm_(a, a), 2 * 64),
        (lambda a: torch.addbmm(a, a.expand(3, 4, 4), a.expand(3, 4, 4)), 3 * 2 * 64),
        (lambda a: a.clone().addbmm_(a.expand(3, 4, 4), a.expand(3, 4, 4)), 3 * 2 * 64),
        (lambda a: a.repeat(3, 1, 1).baddbmm_(a.expand(3, 4, 4), a.expand(3, 4, 4)), 3 * 2 * 64),
    ],
)
def test_products_with_vectors_and_in_place_are_counted(function, flops):
    assert flops_of(function, torch.zeros(4, 4)) == flops


@pytest.mark.parametrize(
    "function",
    [torch.fft.fft, lambda a: nn.functional.interpolate(a[None], scale_factor=2, mode="linear"), torch.cumsum],
)
def test_what_multiplies_no_matrices_costs_nothing(function):
    args: Any = (torch.zeros(4, 4), 0) if function is torch.cumsum else (torch.zeros(4, 4),)
    assert flops_of(function, *args) == 0


class Tbc(nn.Module):
    """A convolution without a formula."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(3, 4, 5)), nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.conv_tbc(x, self.weight, self.bias)


def test_an_operation_without_a_formula_is_named_once():
    model = nn.Sequential(OneOf("op", [Tbc(), nn.Linear(4, 5)]), nn.Sequential(nn.Linear(5, 2)))
    flops, after = Flops(torch.zeros(7, 2, 4)), 2 * 2 * 5 * 2
    with pytest.warns(UserWarning, match=r"Flops counts aten\.conv_tbc in 0 \(Tbc\) as 0, since it has no") as warned:
        assert flops(model, {"op": 0}) == 5 * after
    assert [warning.filename for warning in warned] == [__file__]
    assert flops(model, {"op": 0}) == 5 * after  # without a warning
    with pytest.warns(UserWarning, match=r"register_flop_formula\(torch\.ops\.aten\.conv_tbc\)"):
        Costs(Supernet(model), [Limit(Flops(torch.zeros(7, 2, 4)), 1)]).measure({"op": 0})


def test_a_registered_formula_is_used(monkeypatch):
    monkeypatch.setitem(flop_registry, torch.ops.aten.conv_tbc, lambda x, weight, bias, out_val: math.prod(x.shape))
    assert Flops(torch.zeros(7, 2, 4))(Tbc(), {}) == 7 * 2 * 4
