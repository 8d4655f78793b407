"""Extraction: a plain network that equals the selected one and is as large as it, with nothing of the search left."""
# mypy: disable-error-code="arg-type, index, union-attr, list-item, attr-defined, operator"
# (torch's modules are looked into)

import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

import asng
from asng import nas
from asng.nas import OneOf, Pick, Repeat, Value, Width, extract, parameters, select, space_of
from asng.nas import _static as static_modules
from asng.nas.supernet import Supernet
from asng.space import Integer, Real
from tests.helpers.decisions import ONE, Counted, is_static, size_of

# Joint decisions: a cell whose loose ends are joined by a 1x1 convolution with columns for every node.


class Cell(nas.Searchable):
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

    def build_static(self) -> nn.Module:
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


@pytest.mark.long
@pytest.mark.parametrize("training", [True, False])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_the_extracted_network_equals_the_selected_one(net, training, seed):
    net.train(training)
    values = drawn(net, seed)
    before = copy.deepcopy(net.state_dict())
    extracted = extract(net, values)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert is_static(extracted)
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
    assert is_static(large)
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


@pytest.mark.long
def test_an_extracted_network_is_exported_by_torch(net):
    extracted = extract(net.eval(), drawn(net, 5)).eval()
    x = torch.randn(2, 3, 5, 5)
    exported = torch.export.export(extracted, (x,))
    assert torch.allclose(exported.module()(x), extracted(x), atol=1e-6)


@pytest.mark.long
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
    assert "asng" not in inspect.getsource(static_modules)


# Choices inside choices, and modules that say themselves what they become.


def test_choices_inside_choices_are_extracted():
    model = OneOf("outer", [OneOf("inner", [Counted(1), Repeat("depth", [Counted(5), Counted(7)])]), Counted(9)])
    values = {"outer": 0, "inner": 1, "depth": 2}
    select(model, values)
    extracted = extract(model, values)
    assert extracted(ONE) == model(ONE) == 13
    assert [type(module) for module in extracted.modules()] == [nn.Sequential, Counted, Counted]


def test_build_static_must_return_a_module():
    class Stuck(nas.Searchable):
        def __init__(self) -> None:
            super().__init__()
            self.pick = Pick("from", 2)

        def build_static(self) -> Any:
            pass

    with pytest.raises(
        TypeError, match=r"build_static\(\) of Stuck must return a module, which takes its place, got None"
    ):
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
    with pytest.raises(
        ValueError, match=r"of 0 \(OwnChoice\) returned the module itself, which is to be decided; return"
    ):
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
    with pytest.raises(TypeError, match=r"active_modules\(\) of Named must return a list of modules, got 'depth'"):
        Supernet(model).active({"depth": 1})


def test_a_build_static_that_returns_what_holds_it_is_an_error():
    class Around(Body):
        around: list[nn.Module]

        def build_static(self) -> nn.Module:
            return self.around[0]

    model = nn.Sequential(Around(Value("depth", Integer(1, 3)), [nn.Linear(4, 4)]))
    model[0].__dict__["around"] = [model]
    with pytest.raises(ValueError, match=r"is inside of what its own build_static\(\) returned"):
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

    message = r"^0 is a Scaled with a forward\(\) of its own, which the static layer would not have; give it a "
    with pytest.raises(ValueError, match=message):
        extract(nn.Sequential(Scaled(3, Width("w", 2, 4))), {"w": 2})
    model = nn.Sequential(Finished(3, Width("w", 2, 4), bias=False))
    select(model, {"w": 2})
    x = torch.randn(1, 3)
    assert torch.allclose(extract(model, {"w": 2})(x), model(x))
    assert parameters(model, {"w": 2}) == 2 * 3 + 2  # with the bias that only the plain layer has


# The selection of a supernet is its own.


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
    supernet = Supernet(net)
    supernet.select(values)
    with pytest.raises(KeyError), supernet.selecting(drawn(net, 9)):
        raise KeyError
    assert net.scale.value == values["scale"]


# The copy is what copy.deepcopy would make.


class Odd(nn.Module):
    """Attributes of many kinds, modules that copy themselves in their own way, and references between modules."""

    def __init__(self) -> None:
        super().__init__()
        self.op = OneOf("op", [nn.Linear(4, 4), nn.Tanh()])
        self.lstm, self.attention = nn.LSTM(4, 4, batch_first=True), nn.MultiheadAttention(4, 2, batch_first=True)
        self.scaled = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)
        self.shared: dict[str, Any] = {}
        self.norm.shared = self.shared  # type: ignore[assignment]
        self.made = self.norm.weight * 2  # not a leaf
        self.own_copies = CopiesItself()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.scaled(self.attention(*3 * [self.lstm(self.op(x))[0]])[0])
        return self.norm(y.flatten(0, 1)) * self.made.detach()


class CopiesItself(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.copies = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "CopiesItself":
        twin = CopiesItself()
        twin.copies = self.copies + 1
        return twin


def test_modules_that_copy_themselves_in_their_own_way_are_copied_so():
    torch.manual_seed(0)
    model = Odd().eval()
    extracted: Any = extract(model, {"op": 0})
    select(model, {"op": 0})
    x = torch.randn(3, 5, 4)
    assert torch.equal(extracted(x), model(x))
    assert extracted.own_copies.copies == 1
    assert extracted.norm.shared is extracted.shared is not model.shared
    assert extracted.made is not model.made
    assert type(extracted.scaled) is not nn.Linear  # still parametrized
    assert {p.data_ptr() for p in extracted.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())
    nn.init.zeros_(extracted.lstm.weight_ih_l0)
    assert not torch.equal(extracted(x), model(x))


def test_without_values_a_model_is_extracted_as_it_is_selected():
    model = nn.Sequential(OneOf("act", [nn.ReLU(), nn.Tanh()]))
    with pytest.raises(RuntimeError, match="decision 'act' has no value yet"):
        extract(model)
    select(model, {"act": 1})
    assert type(extract(model)[0]) is nn.Tanh
    assert Supernet(model).num_parameters() == 0


def test_an_extracted_batch_norm_holds_no_more_memory_than_it_needs():
    extracted: Any = extract(nn.Sequential(nas.BatchNorm1d(Width("w", 2, 1000))), {"w": 2})
    assert extracted[0].running_mean.untyped_storage().nbytes() == 2 * 4
    assert extracted[0].weight.untyped_storage().nbytes() == 2 * 4


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


@pytest.mark.parametrize("trained", [True, False])
def test_a_parametrized_elastic_layer_is_trained_after_extraction_as_before(trained):
    layer = parametrizations.weight_norm(nas.Linear(4, nas.Width("w", [2, 4])))
    layer.requires_grad_(trained)
    static = nas.extract(nn.Sequential(layer), {"w": 2})
    assert {parameter.requires_grad for parameter in static.parameters()} == {trained}
