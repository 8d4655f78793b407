"""Modules that say themselves what they become: `build_static()` and `active_modules()` of `Searchable`."""
# mypy: disable-error-code="arg-type, index, union-attr, list-item, attr-defined, operator"
# (torch's modules are looked into)

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from asng import nas
from asng.nas import Chain, OneOf, Pick, Repeat, Value, Width, extract, parameters, select
from asng.nas.supernet import Supernet
from asng.space import Integer
from tests.helpers.decisions import ONE, Counted


def test_choices_inside_choices_are_extracted():
    model = OneOf("outer", [OneOf("inner", [Counted(1), Repeat("depth", [Counted(5), Counted(7)])]), Counted(9)])
    values = {"outer": 0, "inner": 1, "depth": 2}
    select(model, values)
    extracted = extract(model, values)
    assert extracted(ONE) == model(ONE) == 13
    assert [type(module) for module in extracted.modules()] == [Chain, Counted, Counted]


def test_build_static_must_return_a_module():
    class Stuck(nas.Searchable):
        def __init__(self) -> None:
            super().__init__()
            self.pick = Pick("from", 2)

        def build_static(self) -> Any:
            pass

    with pytest.raises(TypeError, match=r"build_static\(\) of Stuck must return a module, its replacement, got None"):
        extract(Stuck(), {"from": 0})


class Backbone(nn.Module):
    """Methods with the names of hooks, and one that transfer learning calls freeze(), as Lightning does."""

    def __init__(self) -> None:
        super().__init__()
        self.width = Width("w", [8, 16, 32])
        self.body = nn.Sequential(nas.Linear(8, self.width), nn.BatchNorm1d(8), nas.Linear(self.width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body[2](self.body[0](self.body[1](x)))

    def freeze(self) -> nn.Module:
        return self.requires_grad_(False).eval()

    running = active_modules = build_static = freeze


def test_methods_of_modules_that_are_not_searchable_are_never_called():
    model = nn.Sequential(Backbone())
    before = everything_of(model)
    assert [parameters(model, {"w": w}) for w in (8, 16)] == [16 + 8 * 9 + 9, 16 + 16 * 9 + 17]
    nas.Flops(torch.zeros(2, 8))(model, {"w": 8})
    nas.Latency(torch.zeros(2, 8), repeats=1)(model, {"w": 8})
    assert Supernet(model).active({"w": 8}) == {"w"}
    extracted = extract(model, {"w": 16})
    assert type(extracted[0]) is Backbone
    assert all(parameter.requires_grad for parameter in extracted.parameters())
    assert everything_of(model) == before


def test_a_model_with_a_freeze_of_its_own_is_trained_under_limits():
    torch.manual_seed(0)
    model, x = Backbone(), torch.randn(64, 8)
    before = [p.detach().clone() for p in model.parameters()]
    nas.search(
        model, [x], [x], lambda m, b: m(b).pow(2).mean(), epochs=2, limits=[nas.Limit(parameters, 300)], progress=False
    )
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def everything_of(model: nn.Module) -> list[Any]:
    """All of a model that a look at it must not change."""
    state = [(name, tensor.tolist()) for name, tensor in model.state_dict().items()]
    modules = [(name, id(module), module.training) for name, module in model.named_modules()]
    parameters = [(name, id(p), p.requires_grad, p.grad) for name, p in model.named_parameters()]
    selected = [(name, m.selected) for name, m in model.named_modules() if isinstance(m, nas.Decision)]
    return [state, modules, parameters, selected]


class Body(nas.Searchable):
    """As many blocks as a decision says; what it becomes is said by those who derive from it."""

    def __init__(self, depth: nas.Value, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.depth, self.blocks = depth, nn.ModuleList(blocks)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[: self.depth.value]:
            x = block(x)
        return x

    def build_static(self) -> nn.Module:
        return nn.Sequential(*self.blocks[: self.depth.value])


class Shorter(Body):
    def build_static(self) -> nn.Module:
        return Shorter(self.depth, self.blocks[: self.depth.value])


class Wrapping(Body):
    def build_static(self) -> nn.Module:
        return nn.Sequential(Wrapping(self.depth, self.blocks[: self.depth.value]))


class First(Body):
    def build_static(self) -> nn.Module:
        return Second(self.depth, self.blocks)


class Second(Body):
    def build_static(self) -> nn.Module:
        return First(self.depth, self.blocks)


class Cut(Body):
    def build_static(self) -> nn.Module:
        self.blocks = self.blocks[: self.depth.value]
        return self


class Stopped(Body):
    def build_static(self) -> nn.Module:
        return self.requires_grad_(False)


class Replaced(Body):
    def build_static(self) -> nn.Module:
        self.blocks[0].weight = nn.Parameter(torch.zeros(4, 4))
        return super().build_static()


class Counting(Body):
    def build_static(self) -> nn.Module:
        self.calls.add_(1)
        return super().build_static()


class Remembering(Body):
    fixed: int | None = None

    def build_static(self) -> nn.Module:
        self.fixed = self.depth.value
        return super().build_static()


class Hooked(Body):
    def build_static(self) -> nn.Module:
        self.register_forward_hook(lambda module, inputs, output: None)
        return super().build_static()


class Halved(Body):
    def build_static(self) -> nn.Module:
        self.half()
        return super().build_static()


class Scaled(Body):
    def build_static(self) -> nn.Module:
        self.blocks[1].weight.data.mul_(0.5)
        return super().build_static()


class Zeroed(Body):
    def build_static(self) -> nn.Module:
        nn.init.zeros_(self.blocks[0].bias)
        return super().build_static()


class Endless(Body):
    def build_static(self) -> nn.Module:
        return type("Endless", (type(self),), {})(self.depth, self.blocks)


class Itself(Body):
    def active_modules(self) -> Any:
        return self.blocks[: self.depth.value]

    def build_static(self) -> nn.Module:
        return self


class OwnChoice(nas.OneOf):
    def build_static(self) -> nn.Module:
        return self


CHANGED = {
    Itself: r"^build_static\(\) of 0 \(Itself\) returned the module itself, which keeps 0\.blocks\.2 \(Linear\), which",
    Remembering: r"^build_static\(\) of 0 \(Remembering\) changed fixed of 0 \(Remembering\); leave",
    Hooked: r"^build_static\(\) of 0 \(Hooked\) changed forward_hooks of 0 \(Hooked\); leave",
    Halved: r"^build_static\(\) of 0 \(Halved\) changed ",
    Scaled: r"^build_static\(\) of 0 \(Scaled\) changed the numbers of 0\.blocks\.1 \(Linear\); leave",
    Zeroed: r"^build_static\(\) of 0 \(Zeroed\) changed the numbers of 0\.blocks\.0 \(Linear\); leave",
    Endless: r"^build_static\(\) of Endless returned a Endless with decisions in it",
    Shorter: r"^build_static\(\) of 0 \(Shorter\) returned a Shorter with decisions in it",
    Wrapping: r"^build_static\(\) of 0 \(Wrapping\) returned a Wrapping with decisions in it",
    First: r"^build_static\(\) of Second returned a First with decisions in it",
    Cut: r"^build_static\(\) of 0 \(Cut\) changed modules of 0 \(Cut\); leave the model",
    Stopped: r"^build_static\(\) of 0 \(Stopped\) changed requires_grad of 0\.blocks\.0 \(Linear\); leave",
    Replaced: r"^build_static\(\) of 0 \(Replaced\) changed parameters of 0\.blocks\.0 \(Linear\); leave",
    Counting: r"^build_static\(\) of 0 \(Counting\) changed the numbers of 0 \(Counting\); leave",
}


def test_a_module_that_replaces_itself_has_no_inactive_parts():
    blocks = [nn.Linear(4, 4) for _ in range(3)]
    static = extract(nn.Sequential(Itself(Value("depth", Integer(1, 3)), blocks)), {"depth": 3})
    assert torch.equal(static(torch.ones(1, 4)), nn.Sequential(*blocks)(torch.ones(1, 4)))
    choice = nn.Sequential(OwnChoice("act", [nn.ReLU(), nn.Tanh()]))
    with pytest.raises(ValueError, match=r"of 0 \(OwnChoice\) returned the module itself, which is a decision; return"):
        extract(choice, {"act": 1})


class Meddling(Body):
    """Changes what is beside of it."""

    beside: Any

    def build_static(self) -> nn.Module:
        for module in self.beside:
            module.requires_grad_(False)
        return super().build_static()

    def active_modules(self) -> Any:
        for module in self.beside:
            module.extra = 1
        return list(self.blocks)


def test_hooks_that_change_what_is_beside_them_are_an_error():
    bodies = [Meddling(Value("depth", Integer(1, 3)), [nn.Linear(4, 4) for _ in range(3)]) for _ in range(2)]
    model = nn.Sequential(*bodies, nn.Linear(4, 4))
    for body in bodies:
        body.beside = (model[2],)
    select(model, {"depth": 3})
    before = everything_of(model)
    for look in (extract, parameters, nas.Flops(torch.zeros(1, 4))):
        with pytest.raises(
            ValueError, match=r"^build_static\(\) of 0 \(M\w+\) or 1 \(M\w+\) changed requires_grad of 2 \(Linear\)"
        ):
            look(model, {"depth": 2})
    with pytest.raises(ValueError, match=r"^active_modules\(\) of 0 .* or 1 .* changed extra of 2 \(Linear\); leave"):
        Supernet(model).active({"depth": 2})
    assert everything_of(model) == before
    assert not hasattr(model[2], "extra")


@pytest.mark.parametrize("kind", CHANGED)
def test_a_build_static_that_never_ends_or_changes_its_module_is_an_error(kind):
    model = nn.Sequential(kind(Value("depth", Integer(1, 3)), [nn.Linear(4, 4) for _ in range(3)]))
    select(model, {"depth": 3})
    before = everything_of(model)
    for look in (extract, parameters, nas.Flops(torch.zeros(1, 4))):
        with pytest.raises(ValueError, match=CHANGED[kind]):
            look(model, {"depth": 2})
    if kind is not Halved:  # whose weights have lost their digits
        assert everything_of(model) == before
    assert model[0].fixed is None if kind is Remembering else not model[0]._forward_hooks


def test_a_train_of_ones_own_that_freezes_is_not_felt_by_what_is_measured():
    class Frozen(Backbone):
        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            return self.requires_grad_(mode)

    model = Frozen()
    before = everything_of(model)
    limits = [nas.Limit(nas.Flops(torch.zeros(2, 8)), 1e9), nas.Limit(nas.Latency(torch.zeros(2, 8)), 10)]
    assert len(nas.Costs(Supernet(model), limits).measure({"w": 8})) == 2
    nas.recalibrate(model, [torch.randn(4, 8)], lambda model, x: model.body[1](x))
    assert [flags for _, _, flags, _ in everything_of(model)[2]] == [flags for _, _, flags, _ in before[2]]


def test_a_result_that_a_module_keeps_is_no_obstacle():
    class Keeping(Backbone):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen, self.all = super().forward(x), [super().forward(x)]
            return self.seen

    model = Keeping()
    select(model, {"w": 8})
    model(torch.randn(4, 8))
    assert nas.Flops(torch.zeros(2, 8))(model, {"w": 8}) > 0
    assert torch.equal(extract(model, {"w": 8}).seen, model.seen)


def test_a_decision_that_active_modules_forgets_still_counts():
    class Forgetful(Body):
        def active_modules(self) -> Any:
            return list(self.blocks[: self.depth.value])

    model = nn.Sequential(Forgetful(Value("depth", Integer(1, 3)), [nn.Linear(2, 2) for _ in range(3)]))
    costs = nas.Costs(Supernet(model), [nas.Limit(parameters, 12)])
    assert [costs.measure({"depth": depth}) for depth in (1, 2, 3)] == [(6.0,), (12.0,), (18.0,)]


def test_active_modules_must_be_modules():
    class Named(Body):
        def active_modules(self) -> Any:
            return ["depth"]

    model = nn.Sequential(Named(Value("depth", Integer(1, 3)), [nn.Linear(4, 4)]))
    with pytest.raises(ValueError, match=r"active_modules\(\) of Named must return a list of modules, got 'depth'"):
        Supernet(model).active({"depth": 1})


def test_a_build_static_that_returns_what_holds_it_is_an_error():
    class Around(Body):
        around: list[nn.Module]

        def build_static(self) -> nn.Module:
            return self.around[0]

    model = nn.Sequential(Around(Value("depth", Integer(1, 3)), [nn.Linear(4, 4)]))
    model[0].__dict__["around"] = [model]
    with pytest.raises(ValueError, match=r"is inside the module that its own build_static\(\) returned"):
        extract(model, {"depth": 1})


def test_what_torch_compile_wraps_is_extracted_without_the_wrapper():
    compiled: Any = torch.compile(nas.Linear(2, Width("w", 2, 4)), backend="eager")
    inside: Any = torch.compile(nn.Sequential(OneOf("op", [nn.ReLU(), nn.Tanh()])), backend="eager")
    extracted = extract(nn.Sequential(compiled, inside), {"op": 1, "w": 3})
    assert [type(module) for module in extracted] == [nn.Linear, nn.Sequential]
    assert type(extracted[1][0]) is nn.Tanh


def test_a_layer_with_a_forward_of_its_own_needs_a_build_static_too():
    class Scaled(nas.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    class Finished(Scaled):
        def build_static(self, in_channels: int | None = None) -> nn.Module:
            weight = self.weight[: self.out_features_decision.value].detach()
            plain = nn.Linear(3, len(weight))
            plain.weight, plain.bias = nn.Parameter(2 * weight), nn.Parameter(torch.zeros(len(weight)))
            return plain

    message = r"^layer 0 is a Scaled with a forward\(\) of its own, which the static layer would not have; give it a "
    with pytest.raises(ValueError, match=message):
        extract(nn.Sequential(Scaled(3, Width("w", 2, 4))), {"w": 2})
    model = nn.Sequential(Finished(3, Width("w", 2, 4), bias=False))
    select(model, {"w": 2})
    x = torch.randn(1, 3)
    assert torch.allclose(extract(model, {"w": 2})(x), model(x))
    assert parameters(model, {"w": 2}) == 2 * 3 + 2  # with the bias that only the plain layer has


class CutThroughData(nas.Searchable):
    """Makes its layer smaller in place, as only `.data` allows."""

    def __init__(self):
        super().__init__()
        self.width, self.layer = nas.Width("width", [4, 8]), nn.Linear(3, 8)

    def build_static(self):
        self.layer.weight.data = self.layer.weight.data[: self.width.value]
        self.layer.bias.data = self.layer.bias.data[: self.width.value]
        return self.layer


def test_what_a_build_static_cuts_through_data_is_put_back():
    module = CutThroughData()
    before = module.layer.weight.clone()
    with pytest.raises(ValueError, match=r"build_static\(\) of CutThroughData changed the numbers of layer"):
        nas.extract(module, {"width": 4})
    assert torch.equal(module.layer.weight, before)
    assert module.layer.bias.shape == (8,)
