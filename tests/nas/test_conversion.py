"""Existing models become supernets: nothing of them is rewritten, and their weights are kept."""
# mypy: disable-error-code="arg-type, return-value, index"
# (wrong arguments are given, and modules are iterated over)

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from asng import ASNG, Integer, nas
from asng.nas import Chain, OneOf, Repeat, Width, convert, extract, parameters, select, space_of
from tests.helpers.captures import assert_same_steps
from tests.helpers.elastic_sizes import odd
from tests.helpers.foreign_models import (
    Attention,
    BatchNormAct2d,
    ElasticAttention,
    ResNet,
    VisionTransformer,
    search_resnet,
    search_vit,
)

MODELS: dict[str, Any] = {"resnet": (ResNet, search_resnet, 16), "vit": (VisionTransformer, search_vit, 8)}


def largest(model: nn.Module) -> dict[str, Any]:
    return {
        name: 0 if name == "act" else (variable.values() or [None])[-1] for name, variable in space_of(model).items()
    } | ({"act": "relu"} if "act" in space_of(model) else {})


@pytest.mark.parametrize("name", MODELS)
def test_the_largest_architecture_is_the_model_with_its_weights(name):
    make, replace, size = MODELS[name]
    model = make().double().eval()
    before = copy.deepcopy(model.state_dict())
    supernet = convert(model, replace)
    x = torch.randn(2, 3, size, size, dtype=torch.double)
    select(supernet, largest(supernet))
    assert torch.equal(supernet(x), model(x))
    static = extract(supernet)
    assert torch.equal(static(x), model(x))
    assert list(static.state_dict()) == list(model.state_dict())  # so they load into the plain model again
    torch.testing.assert_close(static.state_dict(), model.state_dict(), rtol=0, atol=0)
    with torch.no_grad():  # the model is no part of it
        for parameter in supernet.parameters():
            parameter.zero_()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not space_of(model)


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_equals_its_static_network(name):
    make, replace, size = MODELS[name]
    supernet = convert(make(), replace).double()
    x = torch.randn(2, 3, size, size, dtype=torch.double)
    for candidate in ASNG(space_of(supernet), seed=0).ask(6):
        select(supernet.eval(), candidate.values)
        static = extract(supernet)
        torch.testing.assert_close(static(x), supernet(x))
        assert parameters(supernet, candidate.values) == sum(p.numel() for p in static.parameters())


def test_a_converted_resnet_is_searched_and_keeps_its_names():
    torch.manual_seed(0)
    supernet = convert(ResNet(), search_resnet)
    assert set(space_of(supernet)) == {
        *("act", "layer1", "layer2", "layer1.0.width", "layer1.1.width"),
        *("layer2.0.width", "layer2.1.width", "layer2.2.width"),
    }
    batches = [(torch.randn(4, 3, 16, 16), torch.randint(5, (4,))) for _ in range(3)]
    result = nas.search(
        supernet,
        batches,
        [*batches],
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        epochs=1,
        limits=[nas.Limit(parameters, 5000)],
        progress=False,
    )
    assert result.feasible
    network: Any = result.model
    assert isinstance(network.layer1, Chain)
    assert type(network.layer2[0].conv1) is nn.Conv2d


def test_elastic_layers_take_the_weights_of_those_they_replace():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)).eval().double()
    model[0].weight.requires_grad_(False)

    def replace(path, module):
        width = Width("w", [4, 8])
        return {"0": lambda: nas.Linear(4, width), "1": lambda: nas.LayerNorm(width)}.get(path, lambda: None)()

    supernet: Any = convert(model, replace)
    torch.testing.assert_close(supernet.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert not supernet[0].weight.requires_grad
    assert not any(module.training for module in supernet.modules())
    assert model[0].weight is not supernet[0].weight


def test_modules_and_weights_that_are_shared_stay_shared():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 8), nn.Linear(8, 5, bias=False)
            self.head.weight = self.embedding.weight
            self.first = self.again = nn.ReLU()

        def forward(self, ids):
            return self.head(self.again(self.first(self.embedding(ids))))

    calls = []

    def replace(path, module):
        calls.append(path)
        width = Width("w", [4, 8])
        if isinstance(module, nn.Embedding):
            return nas.Embedding.from_torch(module, embedding_dim=width)
        if isinstance(module, nn.Linear):
            return nas.Linear.from_torch(module, in_features=width)
        return OneOf("act", [module, nn.Tanh()]) if isinstance(module, nn.ReLU) else None

    supernet: Any = convert(Tied(), replace)
    assert calls == ["embedding", "head", "first", ""]  # each once, the model last
    assert supernet.head.weight is supernet.embedding.weight
    assert supernet.first is supernet.again
    assert parameters(supernet, {"w": 4, "act": 0}) == 20


def test_the_model_itself_may_be_replaced():
    converted = convert(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), lambda path, m: None if path else Repeat("depth", m))
    assert isinstance(converted, Repeat)
    assert len(converted.blocks) == 2


def test_wrappers_are_removed_before_anything_is_replaced():
    wrapped = nn.DataParallel(nn.Sequential(nn.ReLU()))
    assert set(space_of(convert(wrapped, lambda path, m: OneOf(path, [m]) if path == "0" else None))) == {"0"}


@pytest.mark.parametrize(
    ("kind", "layer", "sizes"),
    [
        (nas.Conv1d, nn.Conv1d(4, 8, 3, 2, padding=1, groups=2, padding_mode="reflect"), {"out_channels": 2}),
        (nas.Conv2d, nn.Conv2d(4, 8, 3, dilation=2, padding="same", bias=False), {"in_channels": 1}),
        (nas.ConvTranspose3d, nn.ConvTranspose3d(4, 8, 3, 2, output_padding=1), {"out_channels": 1}),
        (nas.Linear, nn.Linear(4, 8, bias=False), {"in_features": 1}),
        (nas.BatchNorm2d, nn.BatchNorm2d(8, momentum=None, affine=False), {"num_features": 1}),
        (nas.InstanceNorm3d, nn.InstanceNorm3d(8, track_running_stats=True), {"num_features": 1}),
        (nas.GroupNorm, nn.GroupNorm(2, 8, affine=False), {"num_channels": 2}),
        (nas.LayerNorm, nn.LayerNorm(8, eps=1e-2, bias=False), {"normalized_shape": 1}),
        (nas.RMSNorm, nn.RMSNorm(8, elementwise_affine=False), {"normalized_shape": 1}),
        (nas.Embedding, nn.Embedding(4, 8, padding_idx=1, max_norm=2.0), {"embedding_dim": 1}),
        (nas.PReLU, nn.PReLU(8, init=0.1), {"num_parameters": 1}),
        (nas.MultiheadAttention, nn.MultiheadAttention(8, 2, 0.1, False, True, batch_first=True), {"embed_dim": 2}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_every_elastic_layer_can_be_made_from_torchs(kind, layer, sizes):
    ((name, step),) = sizes.items()
    old = getattr(layer, name)
    size = old[0] if isinstance(old, tuple) else old
    made = kind.from_torch(layer.eval(), **{name: nas.Value("n", Integer(1, size // step)) * step})
    select(made, {"n": size // step})
    assert repr(made.build_static()) == repr(layer)
    assert made.state_dict().keys() == layer.state_dict().keys()
    assert all(one is other for one, other in zip(made.parameters(), layer.parameters(), strict=True))
    assert all(one is other for one, other in zip(made.buffers(), layer.buffers(), strict=True))
    assert not made.training


class ElasticBatchNormAct2d(nas.ElasticLayer, BatchNormAct2d):
    torch_layer, elastic = BatchNormAct2d, ("num_features",)

    def active_tensors(self):
        features, tensors = self.sizes["num_features"](), self.state_dict(keep_vars=True)
        return {name: tensor[:features] if tensor.dim() else tensor for name, tensor in tensors.items()}

    @classmethod
    def settings_of(cls, layer):
        return {"eps": layer.eps, "act_layer": type(layer.act)}


def test_a_layer_of_another_library_with_a_forward_of_its_own_is_made_elastic():
    layer: Any = BatchNormAct2d(8, eps=1e-3, act_layer=nn.SiLU)
    made = ElasticBatchNormAct2d.from_torch(layer, num_features=Width("w", [4, 8]))
    select(made, {"w": 4})
    static = extract(copy.deepcopy(made))
    x = torch.randn(3, 4, 2, 2)
    for one in (made, static):
        one(x)  # which also updates running statistics
    assert type(static) is BatchNormAct2d
    assert type(static.act) is nn.SiLU
    assert torch.equal(layer.running_mean[:4], static.running_mean)
    assert torch.equal(layer.running_mean[4:], torch.zeros(4))
    assert torch.equal(made.eval()(x), static.eval()(x))


class Unnamed(nn.Module):
    """Keeps no argument as an attribute, and takes no device, as some norms of Hugging Face do."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


class WithoutSettings(nas.ElasticLayer, Unnamed):
    torch_layer, elastic = Unnamed, ("size",)

    def active_tensors(self):
        return {"weight": self.weight[: self.sizes["size"]()]}


class WithSettings(WithoutSettings):
    torch_layer = Unnamed

    @classmethod
    def settings_of(cls, layer):
        return {"eps": layer.variance_epsilon}


def test_arguments_that_a_layer_does_not_keep_are_read_by_a_method():
    width = Width("w", [2, 4])
    made = WithSettings.from_torch(Unnamed(4, eps=0.5), size=width)
    select(made, {"w": 2})
    x = torch.randn(3, 2)
    assert torch.equal(made(x), Unnamed(2, eps=0.5)(x))
    assert extract(made).variance_epsilon == 0.5
    with pytest.raises(TypeError, match=r"needs a method settings_of\(cls, layer\) .* such as eps"):
        WithoutSettings.from_torch(Unnamed(4), size=width)
    with pytest.raises(ValueError, match=r"has a weight of shape \(8,\), but the largest one .* is \(4,\)"):
        WithSettings.from_torch(Unnamed(8), size=width)


class ForgetsTheActivation(ElasticBatchNormAct2d):
    @classmethod
    def settings_of(cls, layer):
        return {"eps": layer.eps}


class ForgetsEps(ElasticBatchNormAct2d):
    @classmethod
    def settings_of(cls, layer):
        return {"act_layer": type(layer.act)}


def with_part(layer: Any, name: str, part: nn.Module) -> nn.Module:
    setattr(layer, name, part)
    return layer


TANH_GELU = with_part(BatchNormAct2d(8, act_layer=nn.GELU), "act", nn.GELU("tanh"))
SEARCHED_PROJECTION = with_part(Attention(8, 8), "proj", nas.Linear(8, Width("out", [4, 8])))


@pytest.mark.parametrize(
    ("kind", "layer", "message"),
    [
        (ForgetsTheActivation, BatchNormAct2d(8, 0.1, nn.SiLU), r"has act = SiLU\(\), but .* has ReLU\(\)"),
        (ForgetsEps, BatchNormAct2d(8, 0.1), "has eps = 0.1, but nas.ForgetsEps .* has 1e-05; return the missing"),
        (ElasticBatchNormAct2d, TANH_GELU, "has act.approximate = 'tanh', but .* has 'none'"),
        (ElasticAttention, SEARCHED_PROJECTION, r"has proj = Linear\(.*, but .* has Linear\("),
    ],
    ids=["activation", "number", "setting of a part", "part that is elastic"],
)
def test_settings_that_would_get_lost_are_named(kind, layer, message):
    with pytest.raises(ValueError, match=message):
        kind.from_torch(layer, **{kind.elastic[0]: Width("w", [4, 8])})


def test_other_settings_may_be_given():
    made = ForgetsEps.from_torch(BatchNormAct2d(8, 0.1), num_features=Width("w", [4, 8]), act_layer=nn.SiLU)
    assert type(made.act) is nn.SiLU


@pytest.mark.parametrize(("name", "number"), [("stride", 2), ("padding", 1), ("dilation", 2)])
def test_a_setting_that_was_changed_to_one_number_stays(name, number):
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 9, 9)
    setattr(layer, name, number)
    made = nas.Conv2d.from_torch(layer, out_channels=Width("w", [2, 4]))
    select(made, {"w": 4})
    torch.testing.assert_close(made(x), layer(x), rtol=0, atol=0)


def test_a_note_on_a_layer_that_is_no_number_is_no_setting_that_differs():
    layer: Any = nn.Linear(4, 8)
    layer.score = float("nan")
    assert nas.Linear.from_torch(layer, out_features=Width("w", [4, 8])).weight is layer.weight


def test_a_kernel_of_torchs_becomes_the_largest_one():
    layer = nn.Conv3d(4, 8, 5, padding=2)
    made = nas.Conv3d.from_torch(layer, kernel_size=odd())
    x = torch.randn(1, 4, 6, 6, 6)
    select(made, {"k": 3})
    assert torch.equal(made(x), layer(x))
    select(made, {"k": 1})
    assert torch.equal(made.build_static().weight, layer.weight[..., 2:3, 2:3, 2:3])


class Scaled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def make_hooked() -> nn.Linear:
    layer = nn.Linear(4, 8)
    layer.register_forward_hook(lambda *_: None)
    return layer


def make_patched() -> nn.Linear:
    layer = nn.Linear(4, 8)
    layer.forward = lambda x: x  # type: ignore[method-assign, assignment]
    return layer


def make_hooked_backward() -> nn.Linear:
    layer = nn.Linear(4, 8)
    layer.register_full_backward_hook(lambda *_: None)
    return layer


class Renaming(nn.BatchNorm2d):
    """Reads state dicts of another program, and computes what its base class does."""

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)


def test_methods_that_compute_nothing_may_differ():
    layer = Renaming(8)
    made = nas.BatchNorm2d.from_torch(layer, num_features=Width("w", [4, 8]))
    assert made.weight is layer.weight


class Standardized(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight - weight.mean(), bias)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nas.Linear.from_torch(nn.Linear(4, 8), out_features=Width("w", [8, 16])),
            r"Linear\(in_features=4, .* has out_features=8, but the largest out_features of 'w' is 16; the largest",
        ),
        (
            lambda: nas.Linear.from_torch(nn.Conv2d(4, 8, 1)),
            r"nas\.Linear is made from a torch\.nn\.Linear, got Conv2d",
        ),
        (
            lambda: nas.Linear.from_torch(Scaled(4, 8)),
            r"Scaled has a forward method of its own, .*: class ElasticScaled\(nas\.ElasticLayer, Scaled\)",
        ),
        (
            lambda: nas.Linear.from_torch(make_hooked()),
            "has a forward hook, which nas.Linear would not have; remove it",
        ),
        (lambda: nas.Linear.from_torch(make_hooked_backward()), "has a backward hook, which nas.Linear would not"),
        (lambda: nas.Linear.from_torch(make_patched()), "Linear has a forward method of its own, which nas.Linear"),
        (
            lambda: nas.Conv2d.from_torch(Standardized(4, 8, 3)),
            "Standardized has a _conv_forward method of its own, which nas.Conv2d would not have",
        ),
        (lambda: nas.MultiheadAttention.from_torch(nn.MultiheadAttention(8, 2, kdim=4)), "not kdim=4 and vdim=8"),
        (
            lambda: nas.Linear.from_torch(parametrizations.weight_norm(nn.Linear(4, 8))),
            r"differ in their parameters \(parametrizations.weight.original0, .*weight\); .* remove parametrizations",
        ),
        (
            lambda: convert(nn.Linear(4, 8), lambda path, module: nas.Linear(4, Width("w", [4, 8]), bias=False)),
            r"nas.Linear differ in their parameters \(bias\); give both the same settings",
        ),
        (
            lambda: convert(nn.ReLU(), {nn.ReLU: nn.SiLU}),
            r"replace must be a function \(path, module\) -> module or None",
        ),
        (
            lambda: convert(nn.ReLU(), lambda path, module: nn.ReLU),
            "must return a module for 'the model', or None, got",
        ),
        (
            lambda: convert(nn.Sequential(nn.Linear(4, 8)), lambda path, m: nas.Linear(4, 4) if path else None),
            "=8, but",
        ),
    ],
)
def test_what_cannot_take_the_weights_is_refused_with_the_cure(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_replaced_module_in_a_plain_list_is_refused():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()
            self.order = [self.act]

    with pytest.raises(ValueError, match=r"order, a plain list, holds a ReLU that is replaced elsewhere.*ModuleList"):
        convert(Listed(), lambda path, m: OneOf("act", [m, nn.Tanh()]) if path == "act" else None)


@pytest.mark.slow
@pytest.mark.usefixtures("same_numbers")
def test_a_converted_model_is_captured():
    block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model = nn.Sequential(nn.Sequential(block, copy.deepcopy(block)), nn.Linear(4, 3))

    def replace(path, module):
        if path.startswith("0.") and isinstance(module, nn.Linear):
            name = "out_features" if path.endswith("0") else "in_features"
            return nas.Linear.from_torch(module, **{name: Width(f"{path[:3]}.width", [2, 8])})
        return Repeat("depth", module) if path == "0" else None

    assert_same_steps(convert(model, replace))
