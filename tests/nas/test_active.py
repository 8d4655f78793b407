"""What a choice leaves without effect: only what runs is active, and a user's module says what runs."""
# mypy: disable-error-code="arg-type, index"
# (torch's modules are looked into)

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import nn

from asng import nas
from asng.nas import OneOf, Pick, Repeat, Value, Width, extract, space_of
from asng.nas.supernet import Supernet
from asng.space import Categorical, Integer
from tests.helpers.decisions import ONE, Counted


def make_nested() -> nn.Module:
    """A choice between a depth, whose blocks have choices, and a width; one name stands in two places."""
    inner = [nn.Sequential(OneOf(f"op{n}", [nn.ReLU(), nn.Tanh()]), Value("shared", Integer(0, 3))) for n in range(3)]
    wide = nn.Sequential(nas.Linear(3, Width("w", 4, 8)), nas.Linear(Width("w", 4, 8), 3))
    return nn.Sequential(
        OneOf("branch", {"deep": Repeat("depth", inner, low=0), "wide": wide, "both": Value("shared", Integer(0, 3))}),
        Pick("from", 2),
    )


@pytest.mark.parametrize(
    ("branch", "depth", "active"),
    [
        ("deep", 0, {"depth"}),
        ("deep", 1, {"depth", "op0", "shared"}),
        ("deep", 3, {"depth", "op0", "op1", "op2", "shared"}),
        ("wide", 3, {"w"}),
        ("both", 3, {"shared"}),
    ],
)
def test_only_what_runs_is_active(branch, depth, active):
    model = make_nested()
    values = {"branch": branch, "depth": depth, "op0": 0, "op1": 0, "op2": 0, "shared": 0, "w": 4, "from": 1}
    assert space_of(model).keys() == values.keys()
    assert Supernet(model).active(values) == active | {"branch", "from"}


@pytest.mark.parametrize("kind", [nn.Sequential, nn.Identity, lambda: Repeat("n", [nn.ReLU()] * 2)])
def test_a_module_in_the_place_of_the_list_is_refused(kind):
    class Own(nas.Searchable):
        def __init__(self):
            super().__init__()
            self.inner, self.depth = kind(), Value("depth", Integer(1, 2))

        def active_modules(self):
            return self.inner

        def build_static(self):
            return nn.Identity()

    model = Own()
    with pytest.raises(
        ValueError, match=rf"of Own must return a list .* a {type(model.inner).__name__}; return \[it\]$"
    ):
        Supernet(model).active(dict.fromkeys(space_of(model), 1))


def test_asking_what_is_active_selects_nothing():
    model = make_nested()
    values = {"branch": "deep", "depth": 2, "op0": 0, "op1": 0, "op2": 0, "shared": 0, "w": 4, "from": 1}
    supernet = Supernet(model)
    supernet.active(values)
    with pytest.raises(RuntimeError, match="has no value yet"):
        _ = model[0].value
    supernet.select(values)
    supernet.active({**values, "branch": "wide"})
    assert model[0].value == "deep"


def test_inactive_variables_do_not_change_the_output_and_active_ones_can():
    torch.manual_seed(0)
    ops = [OneOf(f"op{n}", [nn.Linear(3, 3), nn.Linear(3, 3)]) for n in range(3)]
    model = OneOf("branch", [Repeat("depth", ops), OneOf("last", [nn.Linear(3, 3), nn.Linear(3, 3)])])
    supernet, x = Supernet(model), torch.randn(2, 3)
    for branch in (0, 1):
        for depth in (1, 2, 3):
            values = {"branch": branch, "depth": depth, "op0": 0, "op1": 0, "op2": 0, "last": 0}
            active = supernet.active(values)
            supernet.select(values)
            before = model(x)
            for name in ("op0", "op1", "op2", "last"):
                supernet.select({**values, name: 1})
                assert torch.equal(model(x), before) == (name not in active)


class Chain(nas.Searchable):
    """Layers connected backward from the output: those not on the way do not run. It says so itself."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(OneOf(f"op{n}", [Counted(1), Counted(10)]) for n in range(layers))
        self.links = nn.ModuleList(Pick(f"from{n}", n + 1) for n in range(layers + 1))

    def way(self) -> list[int]:
        node, way = len(self.layers), []
        while (source := int(self.links[node].value)) > 0:
            node = source - 1
            way.append(node)
        return way[::-1]

    def active_modules(self) -> Iterator[nn.Module]:
        for node in self.way():
            yield from (self.layers[node], self.links[node])
        yield self.links[len(self.layers)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for node in self.way():
            x = self.layers[node](x)
        return x

    def build_static(self) -> nn.Module:
        return nn.Sequential(*(self.layers[node] for node in self.way()))


def test_methods_of_the_same_names_elsewhere_are_not_called():
    class Busy(nn.Linear):
        def active_modules(self) -> bool:
            return True

    model = nn.Sequential(Busy(2, 2), OneOf("op", [Busy(2, 2), nn.Identity()]))
    supernet = Supernet(model)
    assert supernet.active({"op": 0}) == {"op"}
    supernet.select({"op": 1})
    assert [type(module) for module in supernet.active_modules()].count(Busy) == 1


def test_a_users_module_says_what_runs_and_what_stays():
    model = Chain(3)
    # the output takes layer 2, which takes the input's successor 0: layer 1 is on no way
    values = {"op0": 0, "op1": 1, "op2": 1, "from0": 0, "from1": 1, "from2": 1, "from3": 3}
    assert Supernet(model).active(values) == {"op0", "op2", "from0", "from2", "from3"}
    extracted = extract(model, values)
    assert type(extracted) is nn.Sequential
    assert [type(module) for module in extracted] == [Counted, Counted]
    assert extracted(ONE) == 12
    assert Supernet(model).active({**values, "from3": 0}) == {"from3"}


# One key for each network ---------------------------------------------------------------------------


def test_values_that_round_to_equal_sizes_are_one_network():
    size = (Width("width", [8, 16]) * Value("ratio", Categorical([0.5, 0.6, 1.0]))).round_to(8)
    supernet = Supernet(nn.Sequential(nas.Linear(4, size), nas.BatchNorm1d(size), nas.Linear(size, 2)))
    keys: dict[str, set[int]] = {}
    for width, ratio in product([8, 16], [0.5, 0.6, 1.0]):
        values = {"width": width, "ratio": ratio}
        keys.setdefault(supernet.network_key(values), set()).add(supernet.extract(values)[0].out_features)
    assert sorted(keys.values(), key=min) == [{8}, {16}]


def test_a_number_that_other_code_may_read_tells_networks_apart():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.width = Width("width", [2, 3])
            self.linear = nas.Linear(4, self.width // 2)

    supernet = Supernet(Own())
    assert supernet.network_key({"width": 2}) != supernet.network_key({"width": 3})


def test_inactive_decisions_do_not_tell_networks_apart():
    values = {"branch": "wide", "depth": 2, "op0": 0, "op1": 0, "op2": 0, "shared": 0, "w": 4, "from": 1}
    supernet = Supernet(make_nested())
    assert supernet.network_key(values) == supernet.network_key({**values, "depth": 1, "op0": 1, "shared": 2})
    for change in ({"w": 5}, {"from": 0}, {"branch": "both"}):
        assert supernet.network_key(values) != supernet.network_key({**values, **change})
