"""Parameters counted in the model itself are those of the extracted network, also when the model has changed."""
# mypy: disable-error-code="index, union-attr, operator"
# (torch's modules are looked into)

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import asng
from asng import nas
from asng.experiments import digits
from asng.experiments.cifar10.network import Net as Cifar10Net
from asng.experiments.inpainting.encoding import search_space
from asng.experiments.inpainting.network import Net as InpaintingNet
from asng.nas import Costs, Limit, OneOf, Pick, Repeat, Value, Width, extract, parameters, select, space_of
from asng.nas.supernet import Supernet
from asng.space import Categorical, Integer
from tests.helpers.counted_net import LARGE, SMALL, everything
from tests.helpers.counted_net import Net as CountedNet
from tests.helpers.decisions import size_of


class Joined(nas.Searchable):
    """Replaced by what its own decisions say, with one inside that is frozen after it."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        self.width, self.pick = width, Pick("from", 3)
        self.columns = nn.Parameter(torch.randn(4, 6 * 3))
        self.inner = OneOf("inner", [nn.Linear(2, 2), nn.ReLU()])

    def build_static(self) -> nn.Module:
        plain = nn.Linear(int(self.width.value) * (self.pick.value + 1), 4)
        plain.weight = nn.Parameter(self.columns[:, : plain.in_features].detach().clone())
        return nn.Sequential(plain, self.inner)


class Outer(nas.Searchable):
    """A build_static() around another, and one that leaves the module as it is."""

    def __init__(self, width: Width) -> None:
        super().__init__()
        self.joined, self.same = Joined(width), Same()

    def build_static(self) -> nn.Module:
        return nn.ModuleList([self.joined, self.same, self.joined])


class Same(nas.Searchable, nn.Sequential):
    def __init__(self) -> None:
        super().__init__(OneOf("same", [nn.Linear(2, 2), nn.ReLU()]), nn.Linear(2, 3))

    def build_static(self) -> nn.Module:
        return self


class Mixed(nn.Module):
    """Ties, modules used twice, choices inside choices, Searchable modules."""

    def __init__(self) -> None:
        super().__init__()
        width = Width("w", 2, 6)
        self.stem = nas.Linear(3, width)
        shared = nn.Linear(5, 5)
        self.op = OneOf("op", [nas.Linear(width, width), OneOf("inner", [nas.LayerNorm(width), nn.Identity()])])
        self.again = self.op
        self.twin = nas.Linear(3, width)
        self.twin.weight = self.stem.weight
        self.plain = Repeat("depth", [shared, nn.Sequential(shared, nn.Linear(5, 5))], low=0)
        self.norm = nas.BatchNorm1d(width, affine=True)
        self.own = Outer(width)
        self.tied = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), Pick("from", 3)])
        self.register_module("nothing", None)
        self.tied[1].weight = self.tied[0].weight


class Convolutions(nn.Module):
    """Groups, kernels, buffers, a kernel that is shared, elastic layers among options."""

    def __init__(self) -> None:
        super().__init__()
        width, kernel = Width("w", [2, 4, 6]), Value("k", Categorical([1, 3]))
        self.there = nas.Conv2d(3, width, kernel, padding=1)
        self.back = nas.ConvTranspose2d(width, 3, kernel, padding=1, bias=False)
        self.back.weight = self.there.weight
        self.grouped = nas.Conv2d(width, width, Value("k2", Integer(1, 3)) * 2 - 1, padding=2, groups=width)
        halves = [nas.Conv2d(width, width * 2, 1, groups=2), nas.Conv2d(width, width * 2, 1, bias=False)]
        blocks = [OneOf(f"op{place}", [*halves, nn.Identity()]) for place in range(3)]
        self.body = Repeat("depth", [nn.Sequential(block, nas.BatchNorm2d(width * 2)) for block in blocks])
        self.register_buffer("table", torch.zeros(7))
        self.scale = nn.Parameter(torch.ones(2, 3))


class Wrapped(nn.Module):
    """Stands for another module in all, as what torch.compile gives."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.extra = nn.Linear(9, 9)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name in ("inner", "extra") else getattr(self.inner, name)


class Special(OneOf):
    """A decision of one's own, which leaves more behind than what it runs."""

    def build_static(self) -> nn.Module:
        return nn.Sequential(super().build_static(), nn.Linear(1, 6))


class Odd(nn.Module):
    """Names of hooks that mean something else, wrappers, a decision of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.build_static = OneOf("op", [nn.Linear(2, 2), nn.Linear(2, 3)])
        self.wrapped = Wrapped(Joined(Width("w", 2, 6)))
        self.special = Special("special", [nn.Linear(4, 4), nn.Linear(4, 5)])
        by_hand: Any = nn.Sequential(OneOf("op", [nn.Linear(3, 3), nn.Linear(3, 4)]), nas.Linear(3, Width("w", 2, 6)))
        by_hand.build_static = by_hand.active_modules = by_hand.freeze = lambda: nn.Linear(8, 1)
        self.by_hand = by_hand
        self.frozen = nn.Linear(5, 5).requires_grad_(False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "counted": CountedNet,
    "mixed": Mixed,
    "convolutions": Convolutions,
    "odd": Odd,
    "digits": digits.Net,
    "cifar10": lambda: Cifar10Net(channels=2, cells=3, affine=True),
    "inpainting, categorical": lambda: InpaintingNet(search_space("cat", layers=5, widths=(4, 6, 8)), (8, 8)),
    "inpainting, integer": lambda: InpaintingNet(search_space("int", layers=5, widths=(4, 8)), (8, 8)),
}


def draw(model: nn.Module, number: int, seed: int = 0) -> list[dict[str, Any]]:
    return [candidate.values for candidate in asng.ASNG(space_of(model), seed=seed).ask(number)]


def recount(costs: Costs, values: dict[str, Any]) -> int:
    """Measured again, with the same costs."""
    costs.known.clear()
    return int(costs.measure(values)[0])


@pytest.mark.parametrize("name", MODELS)
def test_counts_equal_the_extracted_network_in_any_order(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    costs = Costs(Supernet(model), [Limit(parameters, 1)])
    architectures = draw(model, 12)
    expected = [size_of(extract(model, values)) for values in architectures]
    assert len(set(expected)) > 3
    before = everything(model)
    assert [recount(costs, values) for values in architectures] == expected
    assert [parameters(model, values) for values in architectures] == expected
    assert everything(model) == before


# A model that changes.


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.width = Width("w", 2, 6)
        self.stem = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.op = OneOf("op", [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), nas.Linear(4, self.width)])
        self.body = Repeat("depth", [nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)])
        self.elastic = nas.Linear(3, self.width)
        self.twin = nas.Linear(3, self.width)
        self.own = Joined(self.width)


class Halved(nas.Searchable):
    def __init__(self, width: Width) -> None:
        super().__init__()
        self.width = width

    def build_static(self) -> nn.Module:
        return nn.Linear(20, int(self.width.value) // 2)


CHANGES: dict[str, Callable[[Any], object]] = {
    "a layer is another": lambda net: setattr(net, "stem", nn.Linear(7, 7)),
    "a layer inside is another": lambda net: net.stem.__setitem__(0, nn.Linear(7, 7)),
    "a layer is added": lambda net: net.stem.append(nn.Linear(7, 7)),
    "a layer is removed": lambda net: net.stem.__delitem__(0),
    "a layer is gone": lambda net: setattr(net, "stem", None),
    "a weight is another": lambda net: setattr(net.stem[0], "weight", nn.Parameter(torch.zeros(11, 3))),
    "a weight is less in place": lambda net: setattr(net.stem[0].weight, "data", torch.zeros(2, 3)),
    "a parameter is new": lambda net: net.stem[1].register_parameter("slope", nn.Parameter(torch.zeros(9))),
    "a bias is gone": lambda net: setattr(net.stem[0], "bias", None),
    "an option is another": lambda net: net.op.options.__setitem__(0, nn.Linear(8, 8)),
    "the inside of an option is another": lambda net: net.op.options[1].__setitem__(0, nn.Linear(8, 8)),
    "a block is another": lambda net: net.body.blocks.__setitem__(1, nn.Linear(8, 8)),
    "an elastic layer is another": lambda net: setattr(net, "elastic", nas.Linear(5, net.width)),
    "an elastic layer is where none was": lambda net: net.stem.__setitem__(0, nas.Linear(5, net.width)),
    "an elastic layer has a bias no more": lambda net: setattr(net.elastic, "bias", None),
    "weights become shared": lambda net: setattr(net.body.blocks[1], "weight", net.body.blocks[0].weight),
    "elastic weights become shared": lambda net: setattr(net.twin, "weight", net.elastic.weight),
    "a module of one's own has more to join": lambda net: setattr(net.own, "columns", nn.Parameter(torch.zeros(9, 18))),
    "an option is a Searchable module": lambda net: net.op.options.__setitem__(0, Halved(net.width)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_has_changed_is_counted_as_it_is_now(change):
    torch.manual_seed(0)
    model = Changing()
    costs = Costs(Supernet(model), [Limit(parameters, 1)])
    architectures = draw(model, 24)
    before = [recount(costs, values) for values in architectures]
    CHANGES[change](model)
    after = [recount(costs, values) for values in architectures]
    assert after == [size_of(extract(model, values)) for values in architectures]
    assert after != before


def test_a_decision_that_is_new_is_an_error_rather_than_a_wrong_number():
    model = Changing()
    costs = Costs(Supernet(model), [Limit(parameters, 1)])
    values = draw(model, 1)[0]
    recount(costs, values)
    model.stem[1] = OneOf("new", [nn.Linear(2, 2), nn.ReLU()])
    with pytest.raises(RuntimeError, match="decision 'new' has no value yet"):
        recount(costs, values)


def test_an_architecture_is_measured_once_until_cleared():
    model = CountedNet()
    costs = Costs(Supernet(model), [Limit(parameters, 1)])
    (small,), (large,) = costs.measure(SMALL), costs.measure(LARGE)
    model.head = nn.Linear(4, 13)
    assert costs.measure(SMALL) == (small,)
    costs.known.clear()
    assert costs.measure(SMALL) == (small + 10 * 5,)
    assert costs.measure(LARGE) == (large + 10 * 5,)


def test_an_error_in_extraction_names_the_architecture():
    class Doubled(nas.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    costs = Costs(Supernet(nn.Sequential(Doubled(3, Width("w", 2, 6)))), [Limit(parameters, 1)])
    with pytest.raises(ValueError, match=r"forward\(\) of its own.*give it a build_static\(\) of its own") as raised:
        costs.measure({"w": 4})
    assert raised.value.__notes__ == ["in parameters of the architecture {'w': 4}"]


# What a build_static() does while it is counted leaves no trace.


class Rude(nas.Searchable):
    def __init__(self) -> None:
        super().__init__()
        self.other = Value("other", Integer(1, 3))
        self.op = OneOf("op", [nn.Linear(2, 2), nn.Linear(2, 3)])

    def build_static(self) -> nn.Module:
        self.eval()
        self.other.choose(99)
        torch.rand(3)
        return nn.Sequential(self.op)


def test_a_rude_build_static_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(1, 1), Rude(), OneOf("op", [nn.Linear(2, 2), nn.Linear(2, 3)]))
    values = {"other": 2, "op": 1}
    select(model, {"other": 1, "op": 0})
    before = everything(model)
    assert parameters(model, values) == Costs(Supernet(model), [Limit(parameters, 1)]).measure(values)[0] == 2 + 9 + 9
    assert everything(model) == before


def test_an_error_in_build_static_leaves_the_model_as_it_was():
    class Failing(Rude):
        def build_static(self) -> nn.Module:
            super().build_static()
            raise KeyError("cannot")

    model = Failing()
    select(model, {"other": 1, "op": 0})
    before = everything(model)
    with pytest.raises(KeyError, match="cannot"):
        parameters(model, {"other": 2, "op": 1})
    assert everything(model) == before
