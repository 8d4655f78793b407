"""Decisions: found by name, selected, left without effect, and extracted into plain modules."""

# mypy: disable-error-code="arg-type, index, union-attr, list-item, attr-defined, operator"
# (wrong arguments are tested, and torch's modules are looked into)

import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import asng
from asng import nas
from asng.nas import Decision, Decisions, OneOf, Pick, Repeat, Value, Width, extract, select, space_of
from asng.nas import plain as plain_modules
from asng.space import Categorical, Integer, Real

torch.set_num_threads(1)


class Counted(nn.Module):
    """Adds a number and counts how often it ran."""

    def __init__(self, number: float = 1.0) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(float(number)))
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return x + self.number


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def is_plain(model: nn.Module) -> bool:
    """Whether a module is made of torch's, the test's and the two plain ones."""
    homes = {type(module).__module__.split(".")[0] for module in model.modules()}
    kept = {type(module) for module in model.modules() if type(module).__module__.startswith("asng")}
    return not any(isinstance(module, Decision) for module in model.modules()) and (
        kept <= {plain_modules.Item, plain_modules.Constant} or "asng" not in homes
    )


ONE = torch.ones(())


# Each kind of decision, selected and extracted.


def test_one_of_runs_only_the_chosen_module():
    model = OneOf("op", [Counted(1), Counted(2), Counted(3)])
    assert space_of(model) == {"op": Categorical([0, 1, 2])}
    select(model, {"op": 2})
    assert model(ONE) == 4
    assert [option.runs for option in model.options] == [0, 0, 1]
    extracted = extract(model, {"op": 1})
    assert type(extracted) is Counted
    assert extracted(ONE) == 3
    assert size_of(extracted) == 1


def test_one_of_names_chooses_by_name_and_passes_all_arguments():
    class Scaled(nn.Module):
        def forward(self, x: float, *, by: float) -> float:
            return x * by

    model = OneOf("act", {"scaled": Scaled(), "relu": nn.ReLU()})
    select(model, {"act": "scaled"})
    assert model(2.0, by=3.0) == 6.0


def test_pick_returns_one_input():
    model = Pick("from", 3)
    assert space_of(model) == {"from": Categorical([0, 1, 2])}
    select(model, {"from": 1})
    assert model(["x", "y", "z"]) == "y"
    assert extract(model, {"from": 2})(["x", "y", "z"]) == "z"
    with pytest.raises(ValueError, match="'from' chooses among 3 inputs, got 2"):
        model(["x", "y"])


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_repeat_runs_the_first_blocks(depth):
    model = Repeat("depth", [Counted(1), Counted(10), Counted(100)], low=0)
    assert space_of(model) == {"depth": Integer(0, 3)}
    select(model, {"depth": depth})
    expected = {0: 1, 1: 2, 3: 112}[depth]
    assert model(ONE) == expected
    assert [block.runs for block in model.blocks] == [int(place < depth) for place in range(3)]
    extracted = extract(model, {"depth": depth})
    assert type(extracted) is nn.Sequential
    assert size_of(extracted) == depth
    assert extracted(ONE) == expected


def test_values_of_any_variable_are_read_in_the_users_code():
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rate = Value("rate", Real(0, 0.5))
            self.kind = Value("kind", Categorical([None, (1, 2), "x"]))

        def forward(self, x: float) -> tuple[float, Any]:
            return x * self.rate.value, self.kind.value

    model = Dropped()
    values = {"rate": 0.25, "kind": (1, 2)}
    select(model, values)
    assert model(2.0) == (0.5, (1, 2))
    extracted = extract(model, values)
    assert extracted(2.0) == (0.5, (1, 2))
    assert is_plain(extracted)
    assert space_of(extracted) == {}


def test_a_value_may_belong_to_a_family_of_the_users_own():
    custom = asng.Custom(asng.NormalFamily([0.0], [1.0], [0.1], mirrored=True))
    model = nn.Sequential(Value("own", custom))
    select(model, {"own": 0.3})
    assert extract(model, {"own": 0.3})[0].value == 0.3


# Names.


def test_equal_names_share_one_variable():
    model = nn.Sequential(
        *[OneOf("op", [Counted(1), Counted(2)]) for _ in range(3)], OneOf("other", [Counted(), Counted()])
    )
    assert space_of(model) == {"op": Categorical([0, 1]), "other": Categorical([0, 1])}
    select(model, {"op": 1, "other": 0})
    assert model(ONE) == 1 + 3 * 2 + 1


def test_a_name_declared_twice_differently_shows_both_and_where():
    model = nn.Sequential(
        OneOf("op", [nn.ReLU(), nn.Tanh()]), nn.ModuleDict({"deep": nn.ModuleList([Value("op", Integer(1, 9))])})
    )
    for use in (space_of, lambda m: select(m, {"op": 1}), lambda m: extract(m, {"op": 1})):
        with pytest.raises(ValueError, match="declared twice") as error:
            use(model)
        assert str(error.value) == (
            "decision 'op' is declared twice, differently: Categorical(choices=(0, 1)) at 0, "
            "Integer(low=1, high=9) at 1.deep.0; give one of them another name"
        )


@pytest.mark.parametrize("kind", [np.arange, torch.arange])
def test_choices_that_are_arrays_are_compared(kind):
    one, equal, other = (Value("a", Categorical([kind(2), kind(n)])) for n in (3, 3, 4))
    assert space_of(nn.ModuleList([one, equal])) == {"a": one.variable}
    with pytest.raises(ValueError, match=r"'a' is declared twice, differently: Categorical.* at 0, Categorical.* at 1"):
        space_of(nn.ModuleList([one, other]))


def test_a_conflict_with_the_model_itself_says_the_top():
    model = OneOf("op", [OneOf("op", [nn.ReLU(), nn.Tanh(), nn.ELU()]), nn.ReLU()])
    with pytest.raises(ValueError, match=r"\(0, 1\)\) at the top, .*\(0, 1, 2\)\) at options.0;"):
        space_of(model)


def test_widths_of_one_name_conflict_across_layers():
    model = nn.Sequential(nas.Linear(3, Width("w", 4, 8)), nas.Linear(Width("w", 4, 9), 2))
    with pytest.raises(ValueError, match=r"'w' is declared twice.*high=8\) at 0.gives, .*high=9\) at 1.takes"):
        space_of(model)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pick("", 3), "a decision needs a name, got ''"),
        (lambda: Pick(3, 3), "a decision needs a name, got 3"),
        (lambda: Value("k", [1, 3]), r"'k' needs a variable, such as asng.Integer\(1, 3\), got \[1, 3\]"),
        (lambda: OneOf("op", [nn.ReLU(), torch.relu]), "'op' chooses among modules, got .*relu.* for 1"),
        (lambda: OneOf("op", []), "OneOf 'op' chooses among modules, got none"),
        (lambda: Pick("from", 0), "the number of inputs of Pick 'from' must be at least 1, got 0"),
        (lambda: Pick("from", [1, 2]), r"Pick 'from' must be a whole number, got \[1, 2\]"),
        (
            lambda: Repeat("depth", [nn.ReLU()] * 2, low=-1),
            "'depth' .*got low=-1 and 2 of them; low must be at least 0",
        ),
        (lambda: Repeat("depth", [nn.ReLU()] * 2, low=2), "'depth' .*got low=2 and 2 of them; low must be .* fewer"),
        (lambda: Repeat("depth", []), "'depth' .*got low=1 and 0 of them"),
        (lambda: Width("w", 8), "Width 'w' needs low < high, or a list of widths, got low=8 and high=None"),
        (lambda: Width("w", 8, 8), "Width 'w' needs low < high, or a list of widths, got low=8 and high=8"),
    ],
)
def test_what_cannot_be_decided_is_said_when_it_is_declared(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", [list, tuple, iter, nn.ModuleList, lambda modules: nn.Sequential(*modules)])
def test_modules_come_in_anything_that_gives_them(kind):
    assert OneOf("op", kind([nn.ReLU(), nn.Tanh()])).variable == Categorical([0, 1])
    assert Repeat("depth", kind([nn.ReLU(), nn.Tanh()])).variable == Integer(1, 2)


@pytest.mark.parametrize("kind", [dict, nn.ModuleDict])
def test_modules_in_dicts_are_chosen_by_name(kind):
    model = OneOf("op", kind({"relu": nn.ReLU(), "tanh": nn.Tanh()}))
    assert model.variable == Categorical(["relu", "tanh"])
    assert isinstance(extract(model, {"op": "tanh"}), nn.Tanh)


# Selection: complete and inside.


def every_kind() -> nn.ModuleList:
    return nn.ModuleList(
        [
            OneOf("op", {"a": nn.ReLU(), "b": nn.Tanh()}),
            Pick("from", 3),
            Repeat("depth", [nn.ReLU(), nn.ReLU()]),
            Value("rate", Real(0.0, 1.0)),
            Width("w", [4, 8]),
            Value("array", Categorical([np.arange(2), np.arange(3)])),
        ]
    )


FITTING = {"op": "b", "from": 2, "depth": 2, "rate": 0.5, "w": 4, "array": np.arange(3)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "c"}, r"'c' is outside of Categorical\(choices=\('a', 'b'\)\), which is decision 'op'"),
        ({"op": 0}, "0 is outside of .*'op'"),
        ({"from": 3}, "3 is outside of .*'from'"),
        ({"from": -1}, "-1 is outside of .*'from'"),
        ({"from": True}, "True is outside of .*'from'"),
        ({"from": 1.0}, "1.0 is outside of .*'from'"),
        ({"depth": 0}, r"0 is outside of Integer\(low=1, high=2\), which is decision 'depth'"),
        ({"depth": 3}, "3 is outside of .*'depth'"),
        ({"depth": 1.5}, "1.5 is outside of .*'depth'"),
        ({"depth": True}, "True is outside of .*'depth'"),
        ({"rate": 1.1}, "1.1 is outside of .*'rate'"),
        ({"rate": float("nan")}, "nan is outside of .*'rate'"),
        ({"rate": "0.5"}, "'0.5' is outside of .*'rate'"),
        ({"rate": True}, "True is outside of .*'rate'"),
        ({"w": 6}, "6 is outside of .*'w'"),
        ({"array": np.arange(4)}, "is outside of .*'array'"),
        ({"new": 1}, r"the model has no decision 'new'; it has \['op', 'from'"),
    ],
)
def test_values_outside_are_refused_and_change_nothing(change, message):
    model = every_kind()
    select(model, FITTING)
    for use in (select, extract, lambda m, v: Decisions(m).active(v)):
        with pytest.raises(ValueError, match=message):
            use(model, {**FITTING, "depth": 1, **change})
    assert model[2].value == 2


@pytest.mark.parametrize("name", list(FITTING))
def test_leaving_one_out_is_refused(name):
    model = every_kind()
    values = {key: value for key, value in FITTING.items() if key != name}
    for use in (select, extract):
        with pytest.raises(ValueError, match=f"no value for '{name}'; a model needs one for each decision"):
            use(model, values)


def test_a_model_that_was_never_selected_says_so():
    with pytest.raises(RuntimeError, match=r"'from' has no value yet; call asng.nas.select\(model, values\)"):
        Pick("from", 2)([1, 2])


def test_what_the_optimizer_asks_fits():
    model = nn.ModuleList(list(every_kind())[:5])
    optimizer = asng.ASNG(space_of(model), seed=0)
    decisions = Decisions(model)
    for candidate in optimizer.ask(20):
        decisions.select(candidate.values)
        selected = {m.name: m.value for m in model.modules() if isinstance(m, Decision)}
        assert selected == candidate.values


# What a choice leaves without effect.


def nested() -> nn.Module:
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
    model = nested()
    values = {"branch": branch, "depth": depth, "op0": 0, "op1": 0, "op2": 0, "shared": 0, "w": 4, "from": 1}
    assert space_of(model).keys() == values.keys()
    assert Decisions(model).active(values) == active | {"branch", "from"}


def test_asking_what_is_active_selects_nothing():
    model = nested()
    values = {"branch": "deep", "depth": 2, "op0": 0, "op1": 0, "op2": 0, "shared": 0, "w": 4, "from": 1}
    decisions = Decisions(model)
    decisions.active(values)
    with pytest.raises(RuntimeError, match="has no value yet"):
        _ = model[0].value
    decisions.select(values)
    decisions.active({**values, "branch": "wide"})
    assert model[0].value == "deep"


def test_inactive_variables_do_not_change_the_output_and_active_ones_can():
    torch.manual_seed(0)
    ops = [OneOf(f"op{n}", [nn.Linear(3, 3), nn.Linear(3, 3)]) for n in range(3)]
    model = OneOf("branch", [Repeat("depth", ops), OneOf("last", [nn.Linear(3, 3), nn.Linear(3, 3)])])
    decisions, x = Decisions(model), torch.randn(2, 3)
    for branch in (0, 1):
        for depth in (1, 2, 3):
            values = {"branch": branch, "depth": depth, "op0": 0, "op1": 0, "op2": 0, "last": 0}
            active = decisions.active(values)
            decisions.select(values)
            before = model(x)
            for name in ("op0", "op1", "op2", "last"):
                decisions.select({**values, name: 1})
                assert torch.equal(model(x), before) == (name not in active)


class Chain(nn.Module):
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

    def running(self) -> Iterator[nn.Module]:
        for node in self.way():
            yield from (self.layers[node], self.links[node])
        yield self.links[len(self.layers)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for node in self.way():
            x = self.layers[node](x)
        return x

    def freeze(self) -> nn.Module:
        return nn.Sequential(*(self.layers[node] for node in self.way()))


def test_methods_of_these_names_that_have_nothing_to_do_with_decisions_are_left_alone():
    class Busy(nn.Linear):
        def running(self) -> bool:
            return True

    model = nn.Sequential(Busy(2, 2), OneOf("op", [Busy(2, 2), nn.Identity()]))
    decisions = Decisions(model)
    assert decisions.active({"op": 0}) == {"op"}
    decisions.select({"op": 1})
    assert [type(module) for module in decisions.running()].count(Busy) == 1


def test_a_users_module_says_what_runs_and_what_stays():
    model = Chain(3)
    # the output takes layer 2, which takes the input's successor 0: layer 1 is on no way
    values = {"op0": 0, "op1": 1, "op2": 1, "from0": 0, "from1": 1, "from2": 1, "from3": 3}
    assert Decisions(model).active(values) == {"op0", "op2", "from0", "from2", "from3"}
    extracted = extract(model, values)
    assert type(extracted) is nn.Sequential
    assert [type(module) for module in extracted] == [Counted, Counted]
    assert extracted(ONE) == 12
    assert Decisions(model).active({**values, "from3": 0}) == {"from3"}


# Joint decisions: a cell whose loose ends are joined by a 1x1 convolution with columns for every node.


class Cell(nn.Module):
    """Nodes that add two earlier ones; those that no later node uses are joined."""

    def __init__(self, channels: int, nodes: int = 4) -> None:
        super().__init__()
        self.channels = channels
        self.inputs = nn.ModuleList(
            nn.ModuleList(Pick(f"node{n}.{side}", 1 + n) for side in "ab") for n in range(nodes)
        )
        self.ops = nn.ModuleList(
            OneOf(f"op{n}", [nn.Identity(), nas.Conv2d(channels, channels, 3, padding=1)]) for n in range(nodes)
        )
        self.join = nn.Conv2d(nodes * channels, channels, 1, bias=False)

    def loose(self) -> list[int]:
        """The nodes that nobody takes; node n is number n + 1 among the inputs."""
        taken = {pick.value for picks in self.inputs for pick in picks}
        return [n for n in range(len(self.ops)) if n + 1 not in taken]

    def columns(self) -> list[int]:
        return [n * self.channels + c for n in self.loose() for c in range(self.channels)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = run_nodes(self, x)
        joined = torch.cat([ends[n] for n in self.loose()], dim=1)
        return nn.functional.conv2d(joined, self.join.weight[:, self.columns()])

    def freeze(self) -> nn.Module:
        frozen = FrozenCell()
        frozen.inputs, frozen.ops = self.inputs, self.ops  # with decisions, which are frozen after it
        frozen.ends = self.loose()
        frozen.join = nn.Conv2d(len(self.columns()), self.channels, 1, bias=False)
        frozen.join.weight = nn.Parameter(self.join.weight[:, self.columns()])
        return frozen


class FrozenCell(nn.Module):
    ends: list[int]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = run_nodes(self, x)
        return self.join(torch.cat([ends[n] for n in self.ends], dim=1))


def run_nodes(cell: Any, x: torch.Tensor) -> list[torch.Tensor]:
    done = [x]
    for (first, second), op in zip(cell.inputs, cell.ops, strict=True):
        done.append(op(first(done) + second(done)))
    return done[1:]


class Net(nn.Module):
    """A supernet with every kind of decision; more cells have the same decisions."""

    def __init__(self, cells: int = 2) -> None:
        super().__init__()
        width = Width("width", 2, 6)
        self.stem = nas.Conv2d(3, width * 2, Value("k", Integer(1, 2)) * 2 - 1, padding=1, bias=False)
        self.norm = nas.BatchNorm2d(width * 2)
        self.depthwise = nas.Conv2d(width * 2, width * 2, 3, padding=1, groups=width * 2)
        self.down = nas.ConvTranspose2d(Width("width", 2, 6) * 2, 4, 2, stride=2)
        self.cells = nn.Sequential(*(Cell(4) for _ in range(cells)))
        self.blocks = Repeat("depth", [nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()) for _ in range(3)], low=0)
        self.head = nn.ModuleDict(
            {"hidden": nas.Linear(4, Width("units", [5, 7])), "last": nas.Linear(Width("units", [5, 7]), 2)}
        )
        self.scale = Value("scale", Real(0.5, 2.0))
        self.layer_norm = nas.LayerNorm(Width("units", [5, 7]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.depthwise(self.norm(self.stem(x))))
        x = self.blocks(self.cells(x)).mean((2, 3)) * self.scale.value
        return self.head["last"](self.layer_norm(torch.relu(self.head["hidden"](x))))


def drawn(model: nn.Module, seed: int) -> dict[str, Any]:
    return asng.ASNG(space_of(model), seed=seed).ask(1)[0].values


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("training", [True, False])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_the_extracted_network_equals_the_selected_one(net, training, seed):
    net.train(training)
    values = drawn(net, seed)
    before = copy.deepcopy(net.state_dict())
    extracted = extract(net, values)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert is_plain(extracted)
    assert all(module.training == training for module in extracted.modules())
    x = torch.randn(2, 3, 5, 5)
    select(net, values)
    expected = net(x)
    assert torch.allclose(extracted(x), expected, rtol=1e-4, atol=1e-5)
    for twin in (copy.deepcopy(extracted), pickle.loads(pickle.dumps(extracted))):
        assert torch.allclose(twin.eval()(x), extracted.eval()(x))
    theirs = {parameter.data_ptr() for parameter in net.parameters()}
    assert not theirs & {parameter.data_ptr() for parameter in extracted.parameters()}
    assert size_of(extracted) == by_hand(values, cells=2)


def by_hand(values: dict[str, Any], cells: int) -> int:
    """The parameters that an architecture needs."""
    wide, units = 2 * values["width"], values["units"]
    kernel = 2 * values["k"] - 1
    outer = 3 * wide * kernel**2 + 2 * wide + (9 * wide + wide) + (wide * 4 * 4 + 4)
    taken = {values[f"node{n}.{side}"] for n in range(4) for side in "ab"}
    loose = [n for n in range(4) if n + 1 not in taken]
    cell = sum((4 * 4 * 9 + 4) * values[f"op{n}"] for n in range(4)) + len(loose) * 4 * 4
    head = (4 * units + units) + 2 * units + (2 * units + 2)
    return outer + cells * cell + values["depth"] * (16 + 4) + head


def test_a_larger_network_takes_the_same_architecture(net):
    values = drawn(net, 3)
    large = extract(Net(cells=20), values)
    assert size_of(large) == by_hand(values, cells=20)
    assert len(large.cells) == 20
    assert is_plain(large)
    assert large(torch.randn(2, 3, 4, 4)).shape == (2, 2)


def test_the_larger_network_trains(net):
    large = extract(Net(cells=3), drawn(net, 4))
    large(torch.randn(2, 3, 4, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in large.parameters())


def test_extracting_leaves_the_selection_as_it_was(net):
    first, second = drawn(net, 1), drawn(net, 2)
    assert first != second
    select(net, first)
    extract(net, second)
    assert net.scale.value == first["scale"]
    fresh = Net()
    extract(fresh, first)
    with pytest.raises(RuntimeError, match="no value yet"):
        _ = fresh.scale.value


def test_an_extracted_network_is_exported_by_torch(net):
    extracted = extract(net.eval(), drawn(net, 5)).eval()
    x = torch.randn(2, 3, 5, 5)
    exported = torch.export.export(extracted, (x,))
    assert torch.allclose(exported.module()(x), extracted(x), atol=1e-6)


def test_an_extracted_network_of_torchs_layers_needs_no_asng_to_load(tmp_path):
    model = nn.Sequential(
        OneOf("op", [nas.Conv2d(3, Width("w", 2, 4), 3), nn.ReLU()]), nas.BatchNorm2d(Width("w", 2, 4))
    )
    torch.save(extract(model, {"op": 0, "w": 3}), tmp_path / "model.pt")
    program = f"""
import sys
sys.modules["asng"] = None  # so that importing it fails
import torch
print(torch.load({str(tmp_path / "model.pt")!r}, weights_only=False))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "(0): Conv2d(3, 3, kernel_size=(3, 3)" in done.stdout


def test_the_plain_modules_import_nothing_of_the_package():
    assert "asng" not in inspect.getsource(plain_modules)


# Sharing.


def test_modules_used_twice_stay_shared():
    block = nn.Sequential(OneOf("op", [nn.Linear(3, 3), nn.Identity()]), nas.Linear(3, Width("w", 3, 5)))
    fixed = nn.Linear(3, 3)
    model = nn.ModuleList([block, block, fixed, nn.Sequential(fixed), block[1]])
    extracted = extract(model, {"op": 0, "w": 3})
    assert extracted[0] is extracted[1]
    assert extracted[2] is extracted[3][0]
    assert extracted[4] is extracted[0][1]
    assert extracted[2] is not fixed
    assert size_of(extracted) == 3 * 12


def test_tied_weights_stay_tied():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), Pick("from", 2)])
    model[1].weight = model[0].weight
    extracted = extract(model, {"from": 0})
    assert extracted[0].weight is extracted[1].weight
    assert extracted[0].weight is not model[0].weight


def test_choices_inside_choices_are_extracted():
    model = OneOf("outer", [OneOf("inner", [Counted(1), Repeat("depth", [Counted(5), Counted(7)])]), Counted(9)])
    values = {"outer": 0, "inner": 1, "depth": 2}
    select(model, values)
    extracted = extract(model, values)
    assert extracted(ONE) == model(ONE) == 13
    assert [type(module) for module in extracted.modules()] == [nn.Sequential, Counted, Counted]


def test_freeze_must_return_a_module():
    class Stuck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pick = Pick("from", 2)

        def freeze(self) -> None:
            pass

    with pytest.raises(TypeError, match=r"freeze\(\) of Stuck must return a module, .* got None; if it is for"):
        extract(Stuck(), {"from": 0})


def test_a_freeze_that_has_nothing_to_do_with_decisions_is_left_alone():
    class Own(nn.Module):
        def freeze(self) -> None:
            raise AssertionError

    class Setting(nn.Sequential):
        freeze = True

    extracted = extract(nn.ModuleList([Own(), Pick("from", 2), None, Setting(Pick("from", 2))]), {"from": 0})
    assert type(extracted[0]) is Own
    assert type(extracted[3]) is Setting


def test_a_selected_model_is_copied_and_pickled_with_its_selection(net):
    values = drawn(net, 6)
    select(net.eval(), values)
    x = torch.randn(2, 3, 5, 5)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(x), net(x))
        select(twin, drawn(net, 7))
        assert net.scale.value == values["scale"]


def test_selected_values_come_back_after_an_error(net):
    values = drawn(net, 8)
    decisions = Decisions(net)
    decisions.select(values)
    with pytest.raises(KeyError), decisions.selected(drawn(net, 9)):
        raise KeyError
    assert net.scale.value == values["scale"]
