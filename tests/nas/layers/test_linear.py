"""Elastic linear layers, embeddings and attention: equal to torch's at every size, in models of torch's, too."""
# mypy: disable-error-code="arg-type, index"
# (wrong arguments are given, and torch's layers are looked into)

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from asng import ASNG, Integer, nas
from asng.nas import Value, extract, parameters, select, space_of
from tests.helpers.elastic_sizes import assert_like_its_static_layer, equal, randomize, width


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs_of_the_small_size(bias):
    layer = nas.Linear(width("a"), width("b") * 2, bias=bias)
    assert layer.weight.shape == (16, 8)
    for a, b in [(1, 1), (5, 3), (8, 8)]:
        select(layer, {"a": a, "b": b})
        x = torch.randn(4, 2, a)
        expected = F.linear(x, layer.weight[: 2 * b, :a], layer.bias[: 2 * b] if bias else None)
        assert equal(layer(x), expected)
        frozen = layer.build_static()
        assert type(frozen) is nn.Linear
        assert repr(frozen) == repr(nn.Linear(a, 2 * b, bias=bias))
        assert equal(frozen(x), expected)


# Embeddings.


@settings(max_examples=8, derandomize=True)
@given(a=st.integers(1, 8), padding=st.sampled_from([None, 0, -1]), by_frequency=st.booleans())
def test_an_embedding_equals_the_torch_layer_that_it_becomes(a, padding, by_frequency):
    layer = nas.Embedding(5, width(), padding, scale_grad_by_freq=by_frequency, dtype=torch.double)
    select(layer, {"a": a})
    assert_like_its_static_layer(layer, torch.tensor([[0, 1, 1], [4, 2, 1]]))


def test_an_embedding_renormalizes_the_slice_that_is_used():
    layer = nas.Embedding(5, width(), max_norm=0.1)
    select(layer, {"a": 3})
    static = layer.build_static()
    ids = torch.tensor([0, 3])
    torch.testing.assert_close(layer(ids), static(ids))
    assert (layer.weight[ids, :3].norm(dim=1) < 0.1001).all()


class LanguageModel(nn.Module):
    """Its head has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        units = width("a", 2, 8)
        self.embedding, self.norm = nas.Embedding(7, units), nas.RMSNorm(units)
        self.head = nas.Linear(units, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.embedding(ids)))
        return logits


def test_an_embedding_stays_tied_to_the_head():
    model = LanguageModel().double()
    ids = torch.tensor([[1, 2, 6]])
    for units in (2, 5, 8):
        select(model, {"a": units})
        extracted: Any = extract(model)
        assert extracted.head.weight is extracted.embedding.weight
        assert parameters(model, {"a": units}) == 7 * units + units
        torch.testing.assert_close(extracted(ids), model(ids))
        for net in (model, extracted):
            net.zero_grad()
            net(ids).square().sum().backward()
        assert isinstance(model.head.weight.grad, Tensor)
        torch.testing.assert_close(extracted.head.weight.grad, model.head.weight.grad[:, :units])


# Attention.

ATTENTION: dict[str, Any] = {
    "heads and their dimension": lambda **s: nas.MultiheadAttention(width("a") * width("b", 1, 3), width("a"), **s),
    "heads of a fixed dimension": lambda **s: nas.MultiheadAttention(width("a") * 2, width("a"), **s),
    "a dimension of fixed heads": lambda **s: nas.MultiheadAttention(width("b", 1, 3) * 4, 4, **s),
    "a width with any heads": lambda **s: nas.MultiheadAttention(
        width("b", 1, 3) * 4, Value("a", Integer(0, 1)) + 1, **s
    ),
    "numbers": lambda **s: nas.MultiheadAttention(8, 2, **s),
}


@pytest.mark.parametrize("name", ATTENTION)
@settings(max_examples=12, derandomize=True)
@given(
    a=st.integers(0, 8),
    b=st.integers(1, 3),
    bias=st.booleans(),
    more=st.booleans(),
    batch_first=st.booleans(),
    weights=st.booleans(),
    training=st.booleans(),
)
def test_attention_equals_the_torch_layer_that_it_becomes(name, a, b, bias, more, batch_first, weights, training):
    layer = ATTENTION[name](bias=bias, add_bias_kv=more, add_zero_attn=more, batch_first=batch_first)
    layer.double().train(training)
    randomize(layer)
    space = space_of(layer)
    values = {key: min(max(n, space[key].low), space[key].high) for key, n in (("a", a), ("b", b)) if key in space}  # type: ignore[attr-defined]
    select(layer, values)
    size = layer.sizes["embed_dim"]()
    query, key = (torch.randn(3, length, size, dtype=torch.double) for length in (3, 3 if batch_first else 5))
    if not batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    static: Any = assert_like_its_static_layer(layer, query, key, key, need_weights=weights)
    assert (static.embed_dim, static.num_heads) == (size, layer.sizes["num_heads"]())
    with torch.no_grad():  # torch's fast path in evaluation mode
        torch.testing.assert_close(layer(query, key, key), static(query, key, key))
        torch.testing.assert_close(layer(query, query, query), static(query, query, query))


def test_attention_takes_masks_as_torchs_does():
    layer = ATTENTION["heads and their dimension"](batch_first=True).double()
    select(layer, {"a": 2, "b": 2})
    x = torch.randn(2, 5, 4, dtype=torch.double)
    padding = torch.arange(5).expand(2, 5) > 3
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.double)
    assert_like_its_static_layer(layer, x, x, x, key_padding_mask=padding, need_weights=False)
    assert_like_its_static_layer(layer, x, x, x, attn_mask=causal, is_causal=True, need_weights=False)


def test_the_entries_of_a_head_stay_in_their_head():
    heads, dim = width("a", 1, 2), width("b", 1, 3)
    layer = nas.MultiheadAttention(heads * dim, heads, bias=False)
    select(layer, {"a": 2, "b": 2})
    rows = [0, 1, 3, 4]  # of 6 in the largest: the first two of three, of each head
    static: Any = layer.build_static()
    for part, whole in zip(static.in_proj_weight.chunk(3), layer.in_proj_weight.chunk(3), strict=True):
        assert torch.equal(part, whole[rows, :4])
    assert torch.equal(static.out_proj.weight, layer.out_proj.weight[:4, rows])


def test_dropped_attention_draws_the_same_numbers_as_torchs():
    layer = ATTENTION["heads and their dimension"](dropout=0.5)
    select(layer, {"a": 2, "b": 2})
    static = layer.build_static()
    x = torch.randn(3, 1, 4)
    outputs = []
    for module in (layer, static):
        torch.manual_seed(0)
        outputs.append(module(x, x, x)[0])
    torch.testing.assert_close(outputs[0], outputs[1])


def test_attention_in_a_transformer_layer_of_torch():
    model = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True, dropout=0.0)
    model.self_attn = nas.MultiheadAttention.from_torch(model.self_attn, num_heads=nas.Width("heads", [1, 2, 4]))
    x = torch.randn(2, 3, 8)
    for heads in (1, 2, 4):
        select(model, {"heads": heads})
        extracted: Any = extract(model)
        assert extracted.self_attn.num_heads == heads
        torch.testing.assert_close(extracted(x), model(x))
        torch.testing.assert_close(extracted.eval()(x), model.eval()(x))
        with torch.no_grad():
            torch.testing.assert_close(extracted(x), model(x))


def make_elastic(layer, searched):
    """Let the heads of an encoder layer of torch be searched, or the width of its feed-forward part."""
    if searched == "attention":
        layer.self_attn = nas.MultiheadAttention.from_torch(layer.self_attn, num_heads=nas.Width("w", [2, 4]))
    else:
        hidden = nas.Width("w", [2, 16])
        layer.linear1 = nas.Linear.from_torch(layer.linear1, out_features=hidden)
        layer.linear2 = nas.Linear.from_torch(layer.linear2, in_features=hidden)


@pytest.mark.parametrize("searched", ["feed-forward", "attention"])
def test_torchs_fast_path_does_not_run_past_elastic_layers(searched):
    model: Any = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True)
    make_elastic(model, searched)
    x = torch.randn(2, 3, 8)
    select(model.eval(), {"w": 2})
    with torch.no_grad():
        torch.testing.assert_close(model(x), extract(model)(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:the judge")
@pytest.mark.parametrize("searched", ["feed-forward", "attention"])
def test_an_encoder_of_torch_with_padding_is_scored_as_it_is_extracted(searched):
    """In evaluation mode and without gradients it makes nested tensors, which elastic layers do not take."""
    torch.manual_seed(0)
    model: Any = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4, 16, batch_first=True, dropout=0.0), 2)
    for layer in model.layers:
        make_elastic(layer, searched)
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False] * 3, [False, False, True]])

    def loss_fn(model, batch):
        return model(batch, src_key_padding_mask=padding)[~padding].square().mul(batch[~padding]).mean()

    select(model, {"w": 2})
    expected = loss_fn(extract(model).eval(), x).item()
    assert nas.score(model, {"w": 2}, [x], loss_fn) == pytest.approx(expected)
    judge = lambda model, batch: loss_fn(model.eval(), batch)  # noqa: E731
    weight_optimizer = torch.optim.SGD(model.parameters(), 0.1)
    oneshot = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), weight_optimizer, loss_fn, judge=judge)
    step = oneshot.judge_step(x)
    assert [score for c, score in zip(step.candidates, step.scores, strict=True) if c["w"] == 2] == pytest.approx(
        [expected] * sum(c["w"] == 2 for c in step.candidates)
    )
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"got a nested tensor, .* use_nested_tensor = False"):
        loss_fn(model.eval(), x)
    model.use_nested_tensor = False
    with torch.no_grad():
        assert loss_fn(model, x).item() == pytest.approx(expected)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_frozen_encoder_in_evaluation_mode_is_searched():
    """Its training passes have no gradients inside, so torch would make nested tensors there, too."""
    torch.manual_seed(0)
    encoder: Any = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4, 16, batch_first=True), 1).requires_grad_(
        False
    )
    (layer,) = encoder.layers
    layer.self_attn = nas.MultiheadAttention.from_torch(layer.self_attn, num_heads=nas.Width("w", [2, 4]))
    model = nn.ModuleDict({"encoder": encoder.requires_grad_(False), "head": nn.Linear(8, 1)})
    padding = torch.tensor([[False] * 3, [False, False, True]])

    def loss_fn(model, batch):
        return model["head"](model["encoder"](batch, src_key_padding_mask=padding)[:, 0]).square().mean()

    weight_optimizer = torch.optim.SGD(model.parameters(), 0.1)
    oneshot = nas.OneShot(model, ASNG(nas.space_of(model), seed=0), weight_optimizer, loss_fn)
    encoder.eval()
    step = oneshot.step(torch.randn(2, 3, 8), torch.randn(2, 3, 8))
    assert len(step.train_losses) == len(step.scores) == 2
    assert not encoder.training
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.usefixtures("nothing_compiled")
def test_compiled_attention_computes_the_same_in_one_graph():
    attention = nas.MultiheadAttention(width("a", 2, 8) * 2, width("a", 2, 8), batch_first=True)
    compiled: Any = torch.compile(attention, backend="eager", fullgraph=True)
    for units in (2, 8):
        select(attention, {"a": units})
        x = torch.randn(2, 3, 2 * units)
        torch.testing.assert_close(compiled(x, x, x)[0], attention(x, x, x)[0])
