"""Costs of architectures: counted by hand, measured without a trace in the model, summed beyond limits."""

import copy
import json
import time
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from asng import Custom, NormalFamily
from asng.nas import (
    BatchNorm1d,
    BatchNorm2d,
    Costs,
    Flops,
    Latency,
    Limit,
    Linear,
    OneOf,
    Pick,
    Repeat,
    Value,
    Width,
    extract,
    parameters,
    recalibrate,
    select,
)
from asng.space import Categorical, Integer, Real

IMAGES = torch.ones(2, 1, 6, 6)


class Net(nn.Module):
    """Four channels; the parameters and FLOPs of its parts are counted in the tests."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.op = OneOf(
            "op", {"wide": nn.Conv2d(4, 4, 3, padding=1), "point": nn.Conv2d(4, 4, 1), "none": nn.Identity()}
        )
        blocks = [nn.Sequential(nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Conv2d(4, 4, 1, bias=False)) for _ in range(3)]
        self.blocks = Repeat("depth", blocks, low=0)
        self.pick = Pick("input", 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.pick([x, self.blocks(self.op(x))]).mean((2, 3)))


SMALL = {"op": "none", "depth": 0, "input": 1}
LARGE = {"op": "wide", "depth": 3, "input": 1}
STEM, HEAD, WIDE, POINT, BLOCK = 4 * 9 + 4, 4 * 3 + 3, 4 * 4 * 9 + 4, 4 * 4 + 4, 4 + 4 + 4 * 4


class Touched(nn.Module):
    """Draws random numbers whenever it is made or run, and counts in a buffer."""

    calls: torch.Tensor

    def __init__(self, net, width):
        super().__init__()
        self.net, self.width = net, width
        self.shift = nn.Parameter(torch.rand(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.net(x) + self.width.value + self.shift * torch.rand(3, device=x.device)


class Touchy(Touched):
    """The same with decisions."""

    def __init__(self):
        super().__init__(Net(), Value("width", Integer(1, 4)))

    def freeze(self):
        return Touched(self.net, self.width)


class Watch(nn.Module):
    """Writes down how it is run."""

    seen: ClassVar[list] = []

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.act = OneOf("act", {"relu": nn.ReLU(), "tanh": nn.Tanh()})

    def forward(self, x, *more):
        assert x.device == self.scale.device
        self.seen.append((self.training, torch.is_grad_enabled(), tuple(x.shape), more))
        return self.act(x * self.scale)


@pytest.mark.parametrize(
    ("values", "count"),
    [
        (SMALL, STEM + HEAD),
        (LARGE, STEM + WIDE + 3 * BLOCK + HEAD),
        ({"op": "point", "depth": 2, "input": 0}, STEM + POINT + 2 * BLOCK + HEAD),
    ],
)
def test_parameters_are_those_of_the_extracted_network(values, count):
    net = Net()
    assert parameters(net, values) == count
    assert sum(parameter.numel() for parameter in extract(net, values).parameters()) == count


def test_what_is_shared_counts_once():
    shared = nn.Linear(5, 5)
    net = nn.Sequential(OneOf("a", [shared, nn.Linear(5, 5)]), OneOf("b", [shared, nn.Linear(5, 5)]))
    assert parameters(net, {"a": 0, "b": 0}) == 30
    assert parameters(net, {"a": 0, "b": 1}) == 60


@pytest.mark.parametrize(
    ("values", "flops"),
    [
        # 2 for each multiplication with addition: 2 images, 36 pixels, 4 channels
        (SMALL, 2 * 2 * (36 * 4 * 9 + 4 * 3)),
        ({**LARGE, "depth": 0}, 2 * 2 * (36 * 4 * 9 + 36 * 4 * 4 * 9 + 4 * 3)),
        ({"op": "point", "depth": 2, "input": 1}, 2 * 2 * (36 * 4 * 9 + 3 * 36 * 4 * 4 + 4 * 3)),
    ],
)
def test_flops_are_counted_on_the_example(values, flops):
    assert Flops(IMAGES)(Net(), values) == flops
    assert Flops(IMAGES.repeat(3, 1, 1, 1))(Net(), values) == 3 * flops


def test_a_module_that_returns_its_parameter_has_no_operations():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.constant = nn.Parameter(torch.zeros(5))

        def forward(self, x):
            return self.constant.expand(len(x), -1)

    net = nn.Sequential(OneOf("op", [nn.Linear(3, 5), Flat()]), nn.Linear(5, 2))
    assert [Flops(torch.zeros(4, 3))(net, {"op": op}) for op in (0, 1)] == [2 * 4 * (15 + 10), 2 * 4 * 10]


@pytest.mark.parametrize("width", [1, 3, 8])
def test_elastic_layers_cost_what_their_selected_part_costs(width):
    units = Width("width", 1, 8)
    net = nn.Sequential(Linear(5, units), BatchNorm1d(units), nn.ReLU(), Linear(units, 2))
    assert parameters(net, {"width": width}) == 5 * width + width + 2 * width + 2 * width + 2
    assert Flops(torch.zeros(4, 5))(net, {"width": width}) == 2 * 4 * (5 * width + 2 * width)


@pytest.mark.parametrize("measure", [Flops, Latency])
def test_a_network_is_measured_in_evaluation_without_gradients_on_the_example(measure):
    Watch.seen.clear()
    measure(torch.zeros(7, 2), "more", {"a": 1})(Watch().train(), {"act": "tanh"})
    assert set(map(str, Watch.seen)) == {str((False, False, (7, 2), ("more", {"a": 1})))}


def test_latency_runs_forward_as_often_as_it_says():
    for repeats, warm_up in [(1, 0), (4, 2)]:
        Watch.seen.clear()
        Latency(IMAGES, repeats=repeats, warm_up=warm_up)(Watch(), {"act": "relu"})
        assert len(Watch.seen) == repeats + warm_up


def test_latency_is_the_median_of_one_forward_each(monkeypatch):
    ticks = iter([0, 5, 10, 11, 20, 120, 200, 202, 300, 303])  # 5, 1, 100, 2 and 3 seconds
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert Latency(IMAGES, repeats=5)(Net(), SMALL) == 3


def test_a_network_fifty_times_larger_takes_longer():
    layers = [nn.Linear(200, 200) for _ in range(50)]
    net = OneOf("size", {"large": nn.Sequential(*layers), "small": nn.Linear(200, 200)})
    latency = Latency(torch.zeros(8, 200))
    assert latency(net, {"size": "large"}) > 5 * latency(net, {"size": "small"}) > 0


def test_a_device_that_cannot_be_timed_is_an_error_with_the_cure():
    with pytest.raises(ValueError, match=r"on cpu or cuda, not on meta; give a measure of your own"):
        Latency(IMAGES, device="meta")(Net(), SMALL)


@pytest.mark.parametrize("measure", [Flops, Latency])
def test_an_example_is_needed(measure):
    with pytest.raises(ValueError, match="example inputs are missing"):
        measure()


def test_latency_needs_a_forward_to_time():
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        Latency(IMAGES, repeats=0)


def everything(model):
    """All that measuring must not change, as text."""
    return str(
        (
            {
                name: (tensor.tolist(), tensor.requires_grad)
                for name, tensor in model.state_dict(keep_vars=True).items()
            },
            [parameter.grad is None or parameter.grad.tolist() for parameter in model.parameters()],
            [(module.training, getattr(module, "selected", None), type(module)) for module in model.modules()],
            [(id(module), id(parameter)) for module in model.modules() for parameter in module.parameters()],
            torch.get_rng_state().tolist(),
        )
    )


def rude(model, values):
    select(model, values)
    model.train(not model.training)
    return float(torch.rand(()))


def failing(model, values):
    select(model, values)
    raise RuntimeError("cannot measure")


@pytest.mark.parametrize("selected", [None, {**SMALL, "width": 2}])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("measure", [parameters, Flops(IMAGES), Latency(IMAGES), rude, failing])
def test_measuring_leaves_the_model_as_it_was(measure, training, selected):
    model: Any = Touchy().train(training)
    model.net.head.train(not training)
    if selected is not None:
        select(model, selected)
        model(IMAGES).sum().backward()
    before = everything(model)
    values: dict[str, Any] = {**LARGE, "width": 3}
    if measure not in (rude, failing):  # these need the help of Costs
        measure(model, values)
        assert everything(model) == before
    try:
        Costs(model, [Limit(measure, 1)]).of(values)
    except RuntimeError:
        assert measure is failing
    assert everything(model) == before


@pytest.mark.parametrize("measure", [parameters, Flops(IMAGES), Latency(IMAGES)])
def test_values_that_do_not_fit_are_the_error_of_select_and_change_nothing(measure):
    model = Net()
    select(model, SMALL)
    before = everything(model)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"op": "none"}, "no value for 'depth'"),
        ({**SMALL, "depth": 4}, "4 is outside"),
    ]
    for values, message in wrong:
        with pytest.raises(ValueError, match=message):
            measure(model, values)
        with pytest.raises(ValueError, match=message):
            Costs(model, [Limit(measure, 1)]).of(values)
    assert everything(model) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("trained_on", ["cpu", "cuda"])
@pytest.mark.parametrize("runs_on", ["cpu", "cuda", None])
def test_latency_on_another_device_than_the_one_trained_on(trained_on, runs_on):
    model = Touchy().to(trained_on)
    generator = torch.cuda.get_rng_state()
    before = everything(model)
    values: dict[str, Any] = {**LARGE, "width": 3}
    assert 1e-6 < Latency(IMAGES, device=runs_on)(model, values) < 1
    assert Flops(IMAGES)(model, values) > 0
    assert everything(model) == before
    assert torch.equal(torch.cuda.get_rng_state(), generator)
    assert all(parameter.device.type == trained_on for parameter in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_latency_on_cuda_waits_for_the_result():
    layers = [nn.Linear(2048, 2048) for _ in range(50)]
    net = OneOf("size", [layers[0], nn.Sequential(*layers)])
    latency = Latency(torch.zeros(8192, 2048), device="cuda")
    small, large = latency(net, {"size": 0}), latency(net, {"size": 1})
    assert 20 * small < large
    assert small > 2 * 8192 * 2048**2 / 2e15  # no device computes faster


def counting():
    calls = []

    def measure(model, values):
        calls.append(dict(values))
        return values["depth"] + 1

    return measure, calls


def test_an_architecture_is_measured_once_whatever_the_order_of_its_names():
    measure, calls = counting()
    costs = Costs(Net(), [Limit(measure, 2)])
    for _ in range(3):
        assert costs.of(LARGE) == (4.0,)
        assert costs.excess(dict(reversed(LARGE.items()))) == 1.0
        assert costs.of(SMALL) == (1.0,)
    assert calls == [LARGE, SMALL]


def test_the_model_is_walked_through_once_for_all_architectures(monkeypatch):
    net = Net()
    costs = Costs(net, [Limit(lambda model, values: values["depth"] + 1, 2)])
    for name in ("modules", "named_modules", "children", "named_children", "parameters", "named_parameters"):
        monkeypatch.setattr(nn.Module, name, lambda *_, **__: pytest.fail("walked through the model"))
    monkeypatch.setattr("asng.nas.selection.paths_of", lambda model: pytest.fail("walked through the model"))
    assert [costs.of({**LARGE, "depth": depth}) for depth in (1, 2, 3)] == [(2.0,), (3.0,), (4.0,)]


def test_what_is_known_can_be_saved_as_json_and_put_back():
    measure, calls = counting()
    costs = Costs(Net(), [Limit(measure, 2)])
    costs.of(LARGE)
    again = Costs(Net(), [Limit(measure, 2)])
    again.known.update({key: tuple(numbers) for key, numbers in json.loads(json.dumps(costs.known)).items()})
    assert again.of(LARGE) == (4.0,)
    assert len(calls) == 1


def test_choices_of_any_kind_are_told_apart():
    class Thing:
        def __repr__(self):
            return "thing"

    things = [np.zeros(2), np.ones(2), Thing(), Thing(), [1, 2], (1, 2), torch.relu, None, "None"]
    net = nn.Sequential(Value("thing", Categorical(things)), Value("rate", Real(0, 1)), Value("n", Integer(1, 3)))
    seen = []

    def number(model, values):
        seen.append(values)
        return len(seen)

    costs = Costs(net, [Limit(number, 1)])
    for _ in range(2):
        numbers = [
            costs.of({"thing": thing, "rate": r, "n": n}) for thing in things for r in (0.1, 0.2) for n in (1, 2)
        ]
        assert len(set(numbers)) == len(numbers) == len(seen) == 36


def test_the_excess_is_relative_and_summed_over_the_limits():
    costs = Costs(
        Net(),
        [
            Limit(lambda model, values: values["depth"] * 10.0, 20),
            Limit(lambda model, values: np.int64(values["input"] * 3), 2.0),
            Limit(parameters, 10**9),
        ],
    )
    assert costs.of({"op": "none", "depth": 3, "input": 1}) == (30.0, 3.0, STEM + 3 * BLOCK + HEAD)
    assert costs.excess({"op": "none", "depth": 3, "input": 1}) == pytest.approx(0.5 + 0.5)
    assert costs.excess({"op": "none", "depth": 3, "input": 0}) == pytest.approx(0.5)
    assert costs.excess({"op": "none", "depth": 2, "input": 0}) == 0.0  # at the limit is inside
    assert costs.excess({"op": "wide", "depth": 0, "input": 0}) == 0.0
    assert all(type(cost) is float for cost in costs.of(SMALL))


class Point:
    """A value of one's own kind."""

    def __init__(self, x):
        self.x = x

    def __index__(self):
        return self.x


@pytest.mark.parametrize("kind", [int, Point])
def test_the_nearest_is_the_newest_with_the_smallest_excess_whatever_its_values_are(kind):
    own = Custom(NormalFamily([0.0], [1.0], [0.1], mirrored=True), value=Point)
    net = nn.Sequential(Value("n", Integer(1, 5) if kind is int else own), nn.Linear(1, 1))
    costs = Costs(net, [Limit(lambda model, values: int(values["n"]), 1)])
    assert costs.nearest() is None
    values = [kind(n) for n in (3, 2, 4, 2, 5)]
    for value in values:
        costs.of({"n": value})
    assert costs.nearest() == {"n": values[3]}


def test_without_limits_everything_is_inside():
    costs = Costs(Net(), [])
    assert costs.of(LARGE) == ()
    assert costs.excess(LARGE) == 0.0


@pytest.mark.parametrize("cost", [float("nan"), -1, -float("inf"), "many", None, torch.zeros(2)])
def test_a_cost_that_is_none_names_the_limit_and_the_value(cost):
    costs = Costs(Net(), [Limit(lambda model, values: cost, 1, name="energy")])
    with pytest.raises(ValueError, match=r"energy must be .*'depth': 0"):
        costs.excess(SMALL)


def test_an_error_in_a_measure_says_in_which_and_of_which_architecture():
    costs = Costs(Net(), [Limit(Flops(torch.zeros(1, 3, 6, 6)), 100)])  # as many channels as the model does not take
    with pytest.raises(RuntimeError) as error:
        costs.excess(SMALL)
    assert error.value.__notes__ == [f"in Flops of the architecture {SMALL}"]


def test_an_infinite_cost_is_infinitely_far_outside():
    assert Costs(Net(), [Limit(lambda model, values: float("inf"), 1)]).excess(SMALL) == float("inf")


@pytest.mark.parametrize("at_most", [0, -1, float("nan"), float("inf"), "10", None])
def test_a_limit_is_a_number_above_zero(at_most):
    with pytest.raises(ValueError, match=r"the limit of parameters must be a number above 0"):
        Limit(parameters, at_most)


@pytest.mark.parametrize("limits", [Limit(parameters, 10), [(parameters, 10)], [parameters], 10, None])
def test_limits_are_a_list_of_limits(limits):
    with pytest.raises(ValueError, match=r"limits must be a list, such as \[Limit\(parameters, 100_000\)\], got "):
        Costs(Net(), limits)


def test_a_limit_needs_a_function():
    with pytest.raises(ValueError, match=r"a limit needs a function \(model, values\) -> number, got 100"):
        Limit(100, 100)  # type: ignore[arg-type]


def test_limits_are_named_after_their_measure():
    assert [Limit(measure, 1).name for measure in (parameters, Flops(IMAGES), Latency(IMAGES))] == [
        "parameters",
        "Flops",
        "Latency",
    ]
    assert Limit(parameters, 1, name="size").name == "size"


def batches(n, size=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(size, 1, 6, 6, generator=generator) + 2 for _ in range(n)]


def test_recalibration_averages_over_the_batches():
    net: Any = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.BatchNorm2d(1, affine=False))
    net[0].momentum = 0.3
    net[2].eval()
    net(batches(1, seed=9)[0] + 99)  # what has to be forgotten
    data = batches(4)
    recalibrate(net, iter(data))
    torch.testing.assert_close(net[0].running_mean, torch.stack([batch.mean() for batch in data]).mean()[None])
    torch.testing.assert_close(net[0].running_var, torch.stack([batch.var() for batch in data]).mean()[None])
    # without dropout in between, what the second one sees is normal
    assert net[2].running_mean.abs() < 1e-6
    assert abs(net[2].running_var - 1) < 0.01
    assert (net[0].momentum, net[2].momentum) == (0.3, 0.1)
    assert [module.training for module in net.modules()] == [True, True, True, False]
    assert net[0].num_batches_tracked == 4


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms_that_do_not_count_their_batches_are_recalibrated_all_the_same(affine):
    width = Width("w", 1, 3)
    layers: list[Any] = [nn.Conv2d(1, 3, 1), BatchNorm2d(width, affine=affine), nn.Conv2d(3, 1, 1), nn.BatchNorm2d(1)]
    counting: Any = nn.Sequential(*layers)
    silent = copy.deepcopy(counting)
    for norm in (silent[1], silent[3]):
        norm.num_batches_tracked = None
    networks: list[Any] = [extract(model, {"w": 3}) for model in (counting, silent)]
    for network in networks:
        recalibrate(network, batches(4))
    for place in (1, 3):
        one, other = [network[place] for network in networks]
        assert torch.equal(one.running_mean, other.running_mean)
        assert torch.equal(one.running_var, other.running_var)
        assert one.num_batches_tracked == 4
        assert other.num_batches_tracked is None
        assert other.momentum == 0.1
    assert list(networks[1].state_dict()) == [
        name for name in networks[0].state_dict() if "num_batches_tracked" not in name
    ]


@pytest.mark.parametrize("counts", [True, False])
def test_an_elastic_norm_in_a_selected_supernet_is_recalibrated_in_its_part(counts):
    net: Any = nn.Sequential(BatchNorm2d(Width("w", 1, 3)))
    if not counts:
        net[0].num_batches_tracked = None
    select(net, {"w": 1})
    recalibrate(net, batches(4))
    plain: Any = nn.Sequential(nn.BatchNorm2d(1))
    recalibrate(plain, batches(4))
    assert torch.equal(net[0].running_mean, torch.cat([plain[0].running_mean, torch.zeros(2)]))
    assert (net[0].num_batches_tracked is None) == (not counts)


def test_recalibration_leaves_weights_and_random_numbers_alone():
    net: Any = extract(Net(), LARGE)
    weights = {name: parameter.clone() for name, parameter in net.named_parameters()}
    generator = torch.get_rng_state()
    recalibrate(net, batches(3))
    assert all(torch.equal(parameter, weights[name]) for name, parameter in net.named_parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_recalibrated_network_normalises_what_it_is_shown():
    net: Any = extract(Net(), LARGE).eval()
    data = batches(5, size=50)
    recalibrate(net, data)
    with torch.no_grad():
        normal = net.blocks[0][0](net.op(net.stem(torch.cat(data))))
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(normal.var((0, 2, 3)), torch.ones(4), atol=0.05, rtol=0)


def test_batches_are_inputs_pairs_or_what_forward_takes():
    results = []
    data = batches(2)
    for given, forward in [
        (data, None),
        ([(batch, "label") for batch in data], None),
        ([[batch, "label"] for batch in data], None),
        ([{"image": batch} for batch in data], lambda model, batch: model(batch["image"])),
    ]:
        net: Any = nn.Sequential(nn.BatchNorm2d(1))
        recalibrate(net, given, forward)
        results.append((net[0].running_mean.item(), net[0].running_var.item()))
    assert len(set(results)) == 1


def broken(model, batch):
    model(batch)
    raise RuntimeError("no memory")


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(
    ("data", "forward", "error"),
    [([], None, "there are no batches"), (iter([]), None, "there are no batches"), (batches(2), broken, "no memory")],
)
def test_a_recalibration_that_fails_changes_nothing(data, forward, error, counts):
    net: Any = nn.Sequential(nn.BatchNorm2d(1))
    net(batches(1)[0])
    if not counts:
        net[0].num_batches_tracked = None
    before = everything(net)
    with pytest.raises((ValueError, RuntimeError), match=error):
        recalibrate(net, data, forward)
    assert everything(net) == before
    assert net[0].momentum == 0.1
    assert (net[0].num_batches_tracked is None) == (not counts)


def test_a_batch_norm_that_does_not_run_keeps_its_statistics():
    net: Any = nn.ModuleDict({"runs": nn.BatchNorm2d(1), "rests": nn.BatchNorm2d(1)})
    net["rests"].running_mean.fill_(5)
    recalibrate(net, batches(2), forward=lambda model, batch: net["runs"](batch))
    assert net["rests"].running_mean == 5
    assert net["runs"].running_mean != 0


@pytest.mark.parametrize("net", [nn.Linear(2, 2), nn.BatchNorm2d(1, track_running_stats=False)])
def test_without_batch_norm_there_is_nothing_to_recalibrate(net):
    with pytest.raises(ValueError, match="no batch norm with running statistics"):
        recalibrate(net, batches(1))
