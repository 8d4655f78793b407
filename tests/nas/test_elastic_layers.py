"""Every elastic layer at every size: outputs, gradients and statistics are those of the torch layer that it becomes."""
# mypy: disable-error-code="arg-type"
# (wrong arguments are given)

import copy
import pickle
from abc import ABCMeta
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from asng import ASNG, Integer, nas
from asng.nas import Value, extract, parameters, select, space_of
from tests.helpers.captures import assert_same_steps
from tests.helpers.elastic_sizes import odd, width

CONVOLUTIONS: dict[str, Any] = {}
for n in (1, 2, 3):
    conv, transposed = getattr(nas, f"Conv{n}d"), getattr(nas, f"ConvTranspose{n}d")
    CONVOLUTIONS |= {
        f"Conv{n}d": (lambda kind=conv: kind(width("a"), width("b"), odd(), padding=2), "a", n),
        f"Conv{n}d in groups": (lambda kind=conv: kind(width("a") * 2, width("a") * 4, 3, groups=width("a")), "2a", n),
        f"Conv{n}d circular": (
            lambda kind=conv: kind(width("a"), 3, odd(), padding=2, padding_mode="circular", bias=False),
            "a",
            n,
        ),
        f"Conv{n}d of two": (lambda kind=conv: kind(width("a") + width("b"), width("a") * width("b"), 1), "a+b", n),
        f"ConvTranspose{n}d": (
            lambda kind=transposed: kind(width("a"), width("b"), odd(), 2, padding=2, output_padding=1),
            "a",
            n,
        ),
        f"ConvTranspose{n}d in groups": (
            lambda kind=transposed: kind(width("a") * 2, width("a"), 3, groups=width("a")),
            "2a",
            n,
        ),
    }
NORMS: dict[str, Any] = {
    "GroupNorm": (lambda: nas.GroupNorm(2, width("a") * 2), "2a", 2),
    "GroupNorm of elastic groups": (lambda: nas.GroupNorm(width("a"), width("a") * 2, bias=False), "2a", 0),
    "GroupNorm not affine": (lambda: nas.GroupNorm(1, width("a"), affine=False), "a", 1),
    "LayerNorm": (lambda: nas.LayerNorm([3, width("a")]), "last", 1),
    "RMSNorm": (lambda: nas.RMSNorm(width("a"), eps=1e-3), "last", 1),
    "RMSNorm over two axes": (lambda: nas.RMSNorm([3, width("a")], elementwise_affine=True), "last", 1),
    "PReLU": (lambda: nas.PReLU(width("a"), init=0.3), "a", 1),
    "PReLU of rows": (lambda: nas.PReLU(width("a")), "a", 0),
}
for n in (1, 2, 3):
    batch, instance = getattr(nas, f"BatchNorm{n}d"), getattr(nas, f"InstanceNorm{n}d")
    NORMS |= {
        f"BatchNorm{n}d": (lambda kind=batch: kind(width("a"), momentum=None), "a", n),
        f"InstanceNorm{n}d": (lambda kind=instance: kind(width("a"), affine=True, bias=False), "a", n),
        f"InstanceNorm{n}d with statistics": (
            lambda kind=instance: kind(width("a"), affine=True, track_running_stats=True),
            "a",
            n,
        ),
    }
LAYERS = CONVOLUTIONS | NORMS


def draw_input(channels: str, axes: int, values: dict[str, int]) -> Tensor:
    a, b = values.get("a", 1), values.get("b", 1)
    if channels == "last":
        return torch.randn(2, 3, a, dtype=torch.double)
    count = {"a": a, "2a": 2 * a, "a+b": a + b}[channels]
    return torch.randn(3, count, *(4 + n for n in range(axes)), dtype=torch.double)


def randomize(layer: nn.Module) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()


def assert_like_its_static_layer(layer: Any, *inputs: Tensor, **named: Any) -> nn.Module:
    """Compare outputs, gradients of inputs and parameters, and buffers of a layer and of what it becomes."""
    static = layer.build_static()
    assert type(static) is layer.torch_layer
    results = []
    for module in (layer, static):
        own = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        module.zero_grad()
        outputs = [y for y in as_tuple(module(*own, **named)) if y is not None]
        sum((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for y in outputs).backward()
        results.append([*outputs, *(x.grad for x in own)])
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)
    gradients = copy.deepcopy(layer)
    for name, parameter in layer.named_parameters():
        gradients.get_parameter(name).data = parameter.grad
    for name, part in gradients.build_static().named_parameters():
        torch.testing.assert_close(part.data, static.get_parameter(name).grad, rtol=1e-9, atol=1e-9)
        whole = layer.get_parameter(name).grad
        assert torch.count_nonzero(whole) == torch.count_nonzero(part)  # so there is none outside
    torch.testing.assert_close(dict(layer.build_static().named_buffers()), dict(static.named_buffers()))
    return static


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=8, derandomize=True)
@given(a=st.integers(1, 8), b=st.integers(1, 8), k=st.integers(1, 3), training=st.booleans())
def test_a_layer_equals_the_torch_layer_that_it_becomes(name, a, b, k, training):
    make, channels, axes = LAYERS[name]
    layer = make().double().train(training)
    randomize(layer)
    values = {key: {"a": a, "b": b, "k": k}[key] for key in space_of(layer)}
    select(layer, values)
    x = draw_input(channels, axes, values)
    static = assert_like_its_static_layer(layer, x)
    assert parameters(layer, values) == sum(p.numel() for p in static.parameters())
    assert list(static.state_dict()) == list(layer.state_dict())


@pytest.mark.parametrize("name", LAYERS)
def test_copies_and_pickles_compute_the_same(name):
    make, channels, axes = LAYERS[name]
    layer = make().double().eval()
    values = dict.fromkeys(space_of(layer), 2)
    select(layer, values)
    x = draw_input(channels, axes, values)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), layer(x))
        select(twin, dict.fromkeys(values, 1))
        assert torch.equal(layer(x), layer.build_static()(x))  # the original has its own values


PLAIN: list[tuple[Any, Any]] = [
    (lambda m: m.Conv1d(4, 6, 3, 2, 1, 1, 2), (2, 4, 7)),
    (lambda m: m.Conv3d(4, 6, (3, 1, 2), padding="same", padding_mode="reflect", bias=False), (2, 4, 5, 5, 5)),
    (lambda m: m.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2), (2, 4, 7)),
    (lambda m: m.ConvTranspose3d(4, 6, 3, 2, 1, 1), (2, 4, 3, 3, 3)),
    (lambda m: m.BatchNorm3d(4, momentum=None), (2, 4, 3, 3, 3)),
    (lambda m: m.InstanceNorm1d(4), (4, 7)),
    (lambda m: m.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 7, 7)),
    (lambda m: m.InstanceNorm3d(4), (2, 4, 3, 3, 3)),
    (lambda m: m.GroupNorm(2, 4), (2, 4, 7)),
    (lambda m: m.RMSNorm([3, 4]), (2, 3, 4)),
    (lambda m: m.PReLU(), (2, 3, 4)),
    (lambda m: m.PReLU(3), (2, 3, 4)),
]


@pytest.mark.parametrize(("make", "shape"), PLAIN)
def test_plain_numbers_make_torchs_layer(make, shape):
    torch.manual_seed(0)
    layer = make(nas)
    torch.manual_seed(0)
    plain = make(nn)
    assert repr(layer) == repr(plain)
    torch.testing.assert_close(layer.state_dict(), plain.state_dict(), rtol=0, atol=0)
    x = torch.randn(shape)
    assert torch.equal(layer(x), plain(x))
    assert space_of(layer) == {}
    assert type(extract(nn.Sequential(layer), {})[0]) is type(plain)  # type: ignore[index]


def test_an_instance_norm_takes_one_instance_too():
    layer = nas.InstanceNorm2d(width())
    select(layer, {"a": 3})
    x = torch.randn(3, 4, 5)
    assert torch.equal(layer(x), nn.InstanceNorm2d(3)(x))
    with pytest.raises(RuntimeError, match="InstanceNorm2d takes 'a' = 3 channels, but got 4"):
        layer(torch.zeros(1, 4, 5, 5))


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


@pytest.mark.parametrize("searched", ["feed-forward", "attention"])
def test_torchs_fast_path_does_not_run_past_elastic_layers(searched):
    model = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True)
    if searched == "attention":
        model.self_attn = nas.MultiheadAttention.from_torch(model.self_attn, num_heads=nas.Width("w", [2, 4]))
    else:
        hidden = nas.Width("w", [2, 16])
        model.linear1 = nas.Linear.from_torch(model.linear1, out_features=hidden)
        model.linear2 = nas.Linear.from_torch(model.linear2, in_features=hidden)
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
        if searched == "attention":
            layer.self_attn = nas.MultiheadAttention.from_torch(layer.self_attn, num_heads=nas.Width("w", [2, 4]))
        else:
            hidden = nas.Width("w", [2, 16])
            layer.linear1 = nas.Linear.from_torch(layer.linear1, out_features=hidden)
            layer.linear2 = nas.Linear.from_torch(layer.linear2, in_features=hidden)
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


# Layers of the user's.


class GRUCell(nas.ElasticLayer, nn.GRUCell):
    """Its weights are those of three gates, one below the other; torch's forward runs on the slices."""

    torch_layer, elastic = nn.GRUCell, ("input_size", "hidden_size")

    def active_tensors(self) -> dict[str, Tensor | None]:
        inputs, hidden = self.sizes["input_size"](), self.sizes["hidden_size"]()

        def gates(tensor: Any) -> Any:
            return None if tensor is None else tensor.unflatten(0, (3, -1))[:, :hidden].flatten(0, 1)

        return {
            "weight_ih": gates(self.weight_ih)[:, :inputs],
            "weight_hh": gates(self.weight_hh)[:, :hidden],
            "bias_ih": gates(self.bias_ih),
            "bias_hh": gates(self.bias_hh),
        }


@pytest.mark.parametrize("bias", [True, False])
@settings(max_examples=8, derandomize=True)
@given(a=st.integers(1, 8), b=st.integers(1, 8))
def test_an_own_layer_says_its_slices_and_torch_computes_with_them(bias, a, b):
    layer = GRUCell(width("a"), width("b"), bias).double()
    select(layer, {"a": a, "b": b})
    rows, state = (torch.randn(3, n, dtype=torch.double) for n in (a, b))
    static: Any = assert_like_its_static_layer(layer, rows, state)
    assert (static.input_size, static.hidden_size, static.bias) == (a, b, bias)


class NamedGRU(nn.GRU):
    """The constructor of torch's takes any arguments."""

    def __init__(self, input_size, hidden_size, num_layers=1):
        super().__init__(input_size, hidden_size, num_layers=num_layers)


class GRU(nas.ElasticLayer, NamedGRU):  # type: ignore[misc]  # both have a check_input
    torch_layer, elastic = NamedGRU, ("input_size", "hidden_size")

    def active_tensors(self) -> dict[str, Tensor | None]:
        inputs, hidden = self.sizes["input_size"](), self.sizes["hidden_size"]()

        def part(name: str, tensor: Tensor) -> Tensor:
            rows = tensor.unflatten(0, (3, -1))[:, :hidden].flatten(0, 1)
            return rows if tensor.ndim == 1 else rows[:, : inputs if name == "weight_ih_l0" else hidden]

        return {name: part(name, tensor) for name, tensor in self.named_parameters()}


def test_a_recurrent_layer_is_elastic_by_a_class_that_names_its_arguments():
    layer = GRU(width("a"), width("b"), num_layers=2).double()
    select(layer, {"a": 3, "b": 2})
    static: Any = assert_like_its_static_layer(layer, torch.randn(4, 2, 3, dtype=torch.double))
    assert (static.input_size, static.hidden_size, static.num_layers) == (3, 2, 2)
    unnamed = type("Unnamed", (nas.ElasticLayer, nn.GRU), {**vars(GRU), "torch_layer": nn.GRU})
    with pytest.raises(TypeError, match=r"the arguments of GRU are args, kwargs; let torch_layer be a class of yours"):
        unnamed(3, 2)


def test_statistics_of_an_own_layer_reach_the_layer():
    class Norm(nas.ElasticLayer, nn.BatchNorm1d):
        torch_layer, elastic = nn.BatchNorm1d, ("num_features",)

        def active_tensors(self) -> dict[str, Tensor | None]:
            features = self.sizes["num_features"]()
            parts = {name: tensor[:features] for name, tensor in self.state_dict().items() if tensor.dim()}
            return {**parts, "num_batches_tracked": self.num_batches_tracked}

    layer, known = Norm(width()), nas.BatchNorm1d(width())
    x = torch.randn(4, 3)
    for norm in (layer, known):
        select(norm, {"a": 3})
        norm(x)
    torch.testing.assert_close(layer.state_dict(), known.state_dict())
    assert torch.equal(layer.eval()(x), known.eval()(x))


class Bilinear(nas.ElasticLayer, nn.Bilinear):
    torch_layer, elastic = nn.Bilinear, ("in1_features",)

    def active_tensors(self) -> dict[str, Tensor | None]:
        return {"weight": self.weight[:, : self.sizes["in1_features"]()], "bias": self.bias}


COMPLETE = {"torch_layer": nn.Bilinear, "elastic": ("in1_features",)}


@pytest.mark.parametrize(
    ("bases", "attributes", "message"),
    [
        ((nas.ElasticLayer, nn.Bilinear), {}, "Own needs the class attributes torch_layer and elastic, such as"),
        ((nas.ElasticLayer,), COMPLETE, r"class Own\(nas\.ElasticLayer, Bilinear\)"),
        ((nn.Bilinear, nas.ElasticLayer), COMPLETE, "must derive from ElasticLayer first"),
        ((Bilinear,), {"elastic": ("in_features",)}, "elastic of Own names 'in_features', but the arguments of Bilin"),
    ],
)
def test_an_own_layer_that_lacks_something_is_told_what(bases, attributes, message):
    own: Any = ABCMeta("Own", bases, {"active_tensors": Bilinear.active_tensors, **attributes})
    with pytest.raises(TypeError, match=message):
        own(width(), 3, 5)


@pytest.mark.parametrize("use", [lambda layer: layer(torch.ones(1, 2), torch.ones(1, 3)), extract])
@pytest.mark.parametrize(
    ("rename", "message"),
    [
        (lambda weight, bias: {"wieght": weight, "bias": bias}, r"weight \(5, 2, 3\), bias \(5,\); got wieght"),
        (lambda weight, bias: {"weight": weight}, r"\(in1_features=2, .*, bias \(5,\); got weight \(5, 2, 3\)\."),
        (
            lambda weight, bias: {"weight": weight[:, :1], "bias": bias},
            r": weight \(5, 2, 3\), .*; got weight \(5, 1, 3\), .* Slice them by the selected sizes",
        ),
    ],
)
def test_slices_of_an_own_layer_are_those_of_torchs(use, rename, message):
    class Own(Bilinear):
        def active_tensors(self) -> dict[str, Tensor | None]:
            return rename(**super().active_tensors())

    layer = Own(width(), 3, 5)
    select(layer, {"a": 2})
    with pytest.raises(TypeError, match=message):
        use(layer)


# What does not fit, and what capturing makes of it.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nas.Embedding(width(), 3), "num_embeddings cannot be a decision, .*; only embedding_dim can"),
        (
            lambda: nas.Embedding(3, nas.AnySize(3)),
            r"embedding_dim is an integer or follows a decision, got AnySize\(3\)",
        ),
        (lambda: nas.Embedding(3, width(), sparse=True), "slices have no sparse gradients; give sparse=False"),
        (lambda: nas.GroupNorm(2, width()), "divisible by num_groups, but 'a' is not by 2 .*; let the width be"),
        (lambda: nas.GroupNorm(width(), 8), "divisible by num_groups, but 8 is not by 'a'"),
        (lambda: nas.GroupNorm(2, nas.AnySize(4)), r"AnySize\(4\), cannot be split into num_groups=2"),
        (lambda: nas.MultiheadAttention(width(), 2), r"but 'a' is not by 2 .*; let it be a product, such as heads \*"),
        (lambda: nas.MultiheadAttention(8, 2, dropout=Value("p", Integer(0, 1))), "dropout cannot be a decision"),
        (
            lambda: nas.Conv2d(3, 4, odd(), padding=odd() // 2),
            "padding cannot .* Give the number for the largest kernel",
        ),
        (lambda: nas.Conv1d(3, 4, 3, groups=2), "in_channels must be divisible by groups"),
        (lambda: nas.Conv3d(3, 4, odd(), padding=(2, 2, 1)), r"padding=\(2, 2, 1\) is too small"),
    ],
)
def test_what_cannot_work_is_said_when_the_layer_is_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_wrong_width_is_told_with_the_path_of_the_layer():
    model = nn.Sequential(nas.Conv1d(3, width("a"), 3), nas.GroupNorm(1, width("b")))
    select(model, {"a": 3, "b": 4})
    with pytest.raises(RuntimeError, match=r"^layer 1 takes 'b' = 4 channels, but got 3"):
        model(torch.zeros(1, 3, 8))


class Everything(nn.Module):
    """Rows through new layers, one after another."""

    def __init__(self) -> None:
        super().__init__()
        heads, dim = nas.Width("heads", [1, 2]), nas.Width("dim", [2, 4])
        self.conv = nas.Conv1d(1, heads * dim, 3, padding=1)
        self.norm = nas.GroupNorm(heads, heads * dim)
        self.attention = nas.MultiheadAttention(heads * dim, heads, batch_first=True)
        self.act, self.scale = nas.PReLU(heads * dim), nas.RMSNorm(heads * dim)
        self.head = nas.Linear(heads * dim, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x[:, None])).transpose(1, 2)
        x = self.scale(x + self.attention(x, x, x, need_weights=False)[0])
        logits: Tensor = self.head(self.act(x.mean(1)))
        return logits


@pytest.mark.slow
@pytest.mark.usefixtures("same_numbers")
def test_new_layers_are_captured_as_the_old_ones_are():
    assert_same_steps(Everything(), n=10)
