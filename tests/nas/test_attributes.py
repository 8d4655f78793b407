"""What modules hold besides modules, in the extracted network: functions, hooks, activations, compiled code."""

from functools import partial
from threading import Lock
from types import MethodType
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

from asng import ASNG, Categorical, Real, nas
from asng.nas import OneOf, Repeat, Width, extract, select, space_of


class Calling(nn.Module):
    """Calls a layer through an attribute that the test makes of the module."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.layer, self.op = nn.Linear(4, 4), OneOf("op", [nn.Linear(4, 4), nn.Tanh()])
        self.call = make(self)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.op(x))


class Caller:
    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def randomize(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))


@pytest.mark.parametrize(
    "make",
    [lambda module: module.run, lambda module: partial(module.run), lambda module: Caller(module.layer)],
    ids=["method", "partial", "object"],
)
def test_what_calls_a_module_calls_its_copy_in_the_extracted_network(make):
    model = nn.Sequential(Calling(make))
    static, x = extract(model, {"op": 1}), torch.ones(1, 4)
    before = static(x)
    randomize(model)
    assert torch.equal(static(x), before)
    randomize(static)
    assert not torch.equal(static(x), before)


@pytest.mark.parametrize(
    ("make", "captured"),
    [
        (lambda module: lambda x: 2 * module.layer(x), r"0 \(Calling\)"),
        (lambda module: lambda x, layer=module.layer: layer(x), r"0.layer \(Linear\)"),
        (lambda module: partial(lambda x: 2 * module.run(x)), r"0 \(Calling\)"),
        (lambda module: (lambda old: lambda x: 2 * old(x))(module.run), r"0 \(Calling\)"),
    ],
    ids=["closure", "default", "partial", "wrapped method"],
)
def test_a_function_that_captures_a_module_of_the_model_is_refused(make, captured):
    model: Any = nn.Sequential(Calling(make))
    for look in (extract, nas.Flops(torch.zeros(1, 4))):
        with pytest.raises(
            ValueError, match=rf"^call of 0 \(Calling\) has a function that captures {captured}, and would"
        ):
            look(model, {"op": 1})
    model[0].call = None
    model[0].layer.register_forward_hook(lambda *_: model[0].eval() and None)
    with pytest.raises(ValueError, match=r"^forward_hooks of 0\.layer \(Linear\) has a function that captures Seq"):
        extract(model, {"op": 1})


def test_a_weak_reference_to_a_module_of_the_model_is_refused():
    model = nn.Sequential(Calling(lambda module: ref(module.op)))
    with pytest.raises(ValueError, match=r"^call of 0 \(Calling\) has a weak reference to 0\.op \(OneOf\), and would"):
        extract(model, {"op": 1})


def test_what_cannot_be_extracted_ends_a_search_in_its_first_step():
    model, calls = nn.Sequential(Calling(lambda module: lambda x: 2 * module.layer(x))), []

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return model(x).mean()

    with pytest.raises(ValueError, match="has a function that captures"):
        nas.search(model, [torch.ones(1, 4)] * 5, [torch.ones(1, 4)] * 5, loss, epochs=9, progress=False)
    assert len(calls) == 4


@pytest.mark.slow
def test_a_layer_compiled_in_place_is_a_layer_of_its_own_when_extracted():
    model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [nn.Linear(4, 4), nn.Tanh()]))
    model[0].compile(backend="eager")
    static, x = extract(model, {"op": 1}), torch.ones(1, 4)
    before = static(x)
    randomize(model)
    assert torch.equal(static(x), before)


@pytest.mark.slow
def test_a_compiled_layer_in_a_model_is_extracted_without_its_wrapper():
    compiled: Any = torch.compile(nn.Linear(4, 4), backend="eager")
    layer = nn.Sequential(compiled)
    model = nn.Sequential(layer, OneOf("op", [nn.Linear(4, 4), nn.Tanh()]))
    static, x = extract(model, {"op": 1}), torch.ones(1, 4)
    assert static.state_dict().keys() == {"0.0.weight", "0.0.bias"}
    assert torch.equal(static(x), layer(x).tanh())


def test_an_attribute_that_cannot_be_copied_is_named():
    model = nn.Sequential(Calling(lambda module: Lock()))
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        extract(model, {"op": 1})
    assert caught.value.__notes__[0] == "while copying the attribute 'call' of Calling"


def test_activations_that_a_module_keeps_are_copied():
    model: Any = nn.Sequential(nn.Linear(4, 4), OneOf("op", [nn.Linear(4, 4), nn.Tanh()]))
    model.kept = {"features": [model[0](torch.ones(1, 4))]}
    static: Any = extract(model, {"op": 1})
    assert torch.equal(static.kept["features"][0], model.kept["features"][0])


@pytest.mark.parametrize(
    "hooked", [nas.Linear(4, Width("w", [4, 8])), OneOf("op", [nn.ReLU()]), Repeat("d", [nn.ReLU()] * 2)]
)
def test_a_forward_hook_on_what_is_replaced_is_refused(hooked):
    model = nn.Sequential(hooked)
    handle = hooked.register_forward_hook(lambda module, inputs, output: 2 * output)
    values = ASNG(nas.space_of(model)).mode()
    with pytest.raises(
        ValueError, match=rf"^0 \({type(hooked).__name__}\) has a forward hook, which its replacement \w+ would"
    ):
        extract(model, values)
    handle.remove()
    extract(model, values)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_that_hooks_of_torch_compute_are_extracted_as_the_layer_would_run(norm):
    model = nn.Sequential(norm(nas.Linear(4, Width("w", [4, 8]))))
    select(model, {"w": 4})
    model.eval()(torch.ones(1, 4))
    randomize(model)
    before = model[0].weight
    static = extract(model)
    assert model[0].weight is before
    assert torch.equal(static(torch.ones(1, 4)), model(torch.ones(1, 4)))


def test_the_size_of_the_last_input_is_not_changed_by_building_a_static_layer():
    layer = nas.Linear(nas.AnySize(8), 2)
    layer(torch.ones(1, 5))
    layer.build_static(in_channels=3)
    assert layer.static_settings()["in_features"] == 5


def test_an_extracted_value_has_the_index_that_it_had():
    model = nn.ModuleList([nas.Value("v", Categorical(["a", "b"])), nas.Value("x", Real(0, 1))])
    first, second = extract(model, {"v": "b", "x": 0.5}).children()
    assert (first.value, first.index) == ("b", 1)
    assert (second.value, second.index) == (0.5, None)


def test_active_modules_that_are_no_list_are_named():
    class Forgetful(nas.Searchable):
        def __init__(self) -> None:
            super().__init__()
            self.v = nas.Value("v", Categorical(["a", "b"]))

        def active_modules(self) -> Any:
            return None

        def build_static(self) -> nn.Module:
            return nn.Identity()

    with pytest.raises(ValueError, match=r"active_modules\(\) of Forgetful must return a list of modules, got None"):
        nas.Supernet(Forgetful()).active({"v": "a"})


@pytest.mark.parametrize("searched", [OneOf("op", [nn.Linear(4, 4), nn.Tanh()]), nas.Linear(4, Width("op", [3, 4]))])
def test_a_decision_with_a_forward_of_its_own_is_refused(searched):
    searched.forward = lambda x: x
    model = nn.Sequential(searched)
    with pytest.raises(
        ValueError, match=r"^0 \(\w+\) has a forward of its own, which its replacement Linear would not"
    ):
        extract(model, ASNG(space_of(model)).mode())


class Bound(nn.Module):
    """Calls its parts by methods that it holds as attributes."""

    def __init__(self) -> None:
        super().__init__()
        width = Width("width", [2, 4])
        self.embed, self.op = nas.Linear(4, width), OneOf("op", [nn.Tanh(), nn.ReLU()])
        self.head, self.unused = nas.Linear(width, 1), OneOf("unused", [nn.Tanh()])
        self.encode, self.activate, self.call_head = self.embed.forward, self.op.forward, self.head.__call__
        self.never = self.unused.options[0].forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call_head(self.activate(self.encode(x)))


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("op", [0, 1])
def test_methods_of_decisions_and_elastic_layers_become_those_of_their_replacements(width, op):
    model, x = Bound(), torch.randn(3, 4)
    values = {"width": width, "op": op, "unused": 0}
    select(model, values)
    network: Any = extract(model, values)
    randomize(model)  # the network has its own
    expected = network.head(network.op(network.embed(x)))
    assert torch.equal(network(x), expected)
    assert network.encode.__self__ is network.embed


def test_modules_that_copy_themselves_find_their_children():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu()

    model = nn.Sequential(torch.fx.symbolic_trace(Plain()), OneOf("op", [nn.Linear(4, 4), nn.Tanh()]))
    x = torch.randn(3, 4)
    select(model, {"op": 1})
    network = extract(model, {"op": 1})
    expected = model(x)
    randomize(model)
    assert torch.equal(network(x), expected)


@pytest.mark.parametrize(
    "read", [lambda model: extract(model, {"width": 8}), lambda m: nas.parameters(m, {"width": 8})]
)
def test_extraction_leaves_the_state_of_parametrizations_alone(read):
    model = nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(nas.Linear(4, Width("width", [4, 8]))))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    read(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())


def triple(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.op(x) * 3


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.op = OneOf("op", [nn.Linear(4, 4), nn.Tanh()])
        self.base = super().__repr__

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x)


@pytest.mark.parametrize("name", ["forward", "call"])
def test_functions_that_were_set_as_methods_are_kept(name):
    triple.__name__ = name  # also that of a method of the class
    model, x = Plain(), torch.randn(3, 4)
    model.forward = MethodType(triple, model)  # type: ignore[method-assign]
    select(model, {"op": 1})
    network: Any = extract(model, {"op": 1})
    assert torch.equal(network(x), 3 * x.tanh())
    assert network.forward.__self__ is network.base.__self__ is network


def test_a_method_that_the_replacement_lacks_is_refused():
    model = nn.Sequential(OneOf("op", [nn.Linear(4, 4), nn.Tanh()]))
    model.choose = model[0].active_modules
    with pytest.raises(
        ValueError, match="the method active_modules of a OneOf is an attribute, but its replacement Tanh"
    ):
        extract(model, {"op": 1})


class Fast(nas.Searchable):
    """Sets one of its own methods as its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.op = OneOf("op", [nn.Linear(4, 4), nn.Tanh()])
        self.forward = self.run

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x)

    def active_modules(self) -> list[nn.Module]:
        return [self.op]

    def build_static(self) -> nn.Module:
        return self.op


def test_a_searchable_module_may_choose_among_its_own_methods():
    assert isinstance(extract(nn.Sequential(Fast()), {"op": 1})[0], nn.Tanh)  # type: ignore[index]
