"""Costs of architectures: counted by hand, and measured without a trace in the model."""

import time
from collections import UserDict
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from asng import nas
from asng.nas import BatchNorm1d, Costs, Flops, Latency, Limit, Linear, OneOf, Value, Width, extract, parameters, select
from asng.nas.supernet import Supernet
from asng.space import Integer
from tests.helpers.counted_net import BLOCK, HEAD, IMAGES, LARGE, POINT, SMALL, STEM, WIDE, Net, everything


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


class Touchy(Touched, nas.Searchable):
    """The same with decisions."""

    def __init__(self):
        super().__init__(Net(), Value("width", Integer(1, 4)))

    def build_static(self):
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
def test_measures_run_in_eval_mode_without_gradients(measure):
    Watch.seen.clear()
    measure(torch.zeros(7, 2), "more", {"a": 1})(Watch().train(), {"act": "tanh"})
    assert set(map(str, Watch.seen)) == {str((False, False, (7, 2), ("more", {"a": 1})))}


@pytest.mark.parametrize("measure", [Flops, Latency])
def test_a_train_method_that_returns_nothing_is_measured(measure):
    class Forgetful(Watch):
        def train(self, mode=True):
            super().train(mode)

    assert measure(torch.zeros(7, 2))(Forgetful(), {"act": "tanh"}) >= 0


def test_latency_runs_forward_as_often_as_it_says():
    for repeats, warmup in [(1, 0), (2, 2)]:
        Watch.seen.clear()
        Latency(IMAGES, repeats=repeats, warmup=warmup)(Watch(), {"act": "relu"})
        assert len(Watch.seen) == repeats + warmup


def test_latency_is_the_median_of_the_three_fastest_forwards(monkeypatch):
    ticks = iter([0, 5, 10, 11, 20, 120, 200, 202, 300, 303])  # 5, 1, 100, 2 and 3 seconds
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert Latency(IMAGES, repeats=5, warmup=0)(Net(), SMALL) == 2


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


class ByKeyword(nn.Module):
    """Takes its inputs by keyword alone, as models of Hugging Face may."""

    seen: ClassVar[list[Any]] = []

    def __init__(self):
        super().__init__()
        self.linear = nas.Linear(4, Width("w", [2, 8]))

    def forward(self, scale=1.0, *, states, mask=None):
        self.seen.append((scale, None if mask is None else mask["rows"].device.type))
        return self.linear(states) * scale


@pytest.mark.parametrize("measure", [Flops, Latency])
def test_inputs_may_be_given_by_keyword(measure):
    ByKeyword.seen.clear()
    states = torch.zeros(3, 4)
    inputs = {"states": states, "mask": {"rows": torch.ones(3)}}
    cost = measure(2.0, kwargs=inputs)(ByKeyword(), {"w": 8})
    assert cost == 3 * 4 * 8 * 2 or measure is Latency
    assert set(ByKeyword.seen) == {(2.0, "cpu")}
    measure(kwargs=UserDict(states=states))(ByKeyword(), {"w": 2})  # as tokenizers give
    assert ByKeyword.seen[-1] == (1.0, None)


def test_keywords_are_a_part_of_what_a_cost_depends_on():
    short, long, other = (Flops(kwargs={name: torch.zeros(n)}) for name, n in [("x", 1), ("x", 2), ("y", 2)])
    assert len({measure.fingerprint for measure in (short, long, other, Flops(torch.zeros(2)))}) == 4
    assert repr(long) == "Flops([], {x: (2,) torch.float32})"
    assert long.fingerprint == f"{long}, formulas of torch {torch.__version__}"


@pytest.mark.parametrize("measure", [Flops, Latency])
def test_keywords_that_are_no_mapping_are_refused(measure):
    with pytest.raises(ValueError, match=r"kwargs are inputs by name, such as \{'input_ids': ids\}, got \[1\]"):
        measure(kwargs=[1])
    with pytest.raises(ValueError, match=r"kwargs are inputs by name, .*, got \(1, 4\) torch\.float32"):
        measure(kwargs=torch.zeros(1, 4))


@pytest.mark.parametrize("measure", [Flops, Latency])
def test_a_shape_instead_of_an_example_is_an_error_with_the_cure(measure):
    with pytest.raises(ValueError, match=r"is a tensor, not its shape \(1, 3, 8, 8\); give torch\.zeros\(1, 3, 8, 8\)"):
        measure((1, 3, 8, 8))
    measure(torch.zeros(1), (1, 3))  # as any other arguments


def test_latency_needs_a_forward_to_time():
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        Latency(IMAGES, repeats=0)


def test_the_weights_are_not_copied_for_a_look_at_the_network():
    class Borrowed(Flops):
        def _measure(self, build, device, at_most):
            network = build.copy(share_weights=True).requires_grad_(False)
            return sum(p.data_ptr() in memory for p in network.parameters())

    model = Net()
    memory, before = {p.data_ptr() for p in model.parameters()}, everything(model)
    assert Borrowed(IMAGES)(model, LARGE) == len(list(extract(model, LARGE).parameters()))
    assert everything(model) == before


class Clamped(nn.Module):
    """Writes into its weights whenever it runs, in several ways."""

    def __init__(self, write):
        super().__init__()
        self.write, self.layer = write, nas.Linear(3, Width("w", 2, 4))
        self.embedding = nn.Embedding(4, 3, max_norm=0.1)

    def forward(self, x):
        x = x.clone().add_(self.embedding.weight[0])
        self.write(self)
        return self.layer(x)


@pytest.mark.parametrize("measure", [Flops(torch.ones(2, 3)), Latency(torch.ones(2, 3))])
@pytest.mark.parametrize(
    "write",
    [
        lambda net: net.layer.weight.clamp_(-0.1, 0.1),
        lambda net: net.layer.weight.data.mul_(0.5),
        lambda net: torch.mul(net.layer.bias, 0.5, out=net.layer.bias.data),
        lambda net: torch._foreach_mul_(list(net.layer.parameters()), 0.5),
        lambda net: net.embedding(torch.tensor([1])),
    ],
)
def test_a_network_that_writes_into_its_weights_writes_into_copies(measure, write):
    model = Clamped(write)
    before = [parameter.clone() for parameter in model.parameters()]
    cost = measure(model, {"w": 3})
    assert cost == 2 * 2 * 3 * 3 if isinstance(measure, Flops) else cost > 0
    assert all(map(torch.equal, model.parameters(), before))


def test_one_extraction_serves_all_measures():
    built = []

    class Once(nas.Searchable):
        def __init__(self):
            super().__init__()
            self.op = OneOf("op", [nn.Linear(3, 3), nn.ReLU()])

        def build_static(self):
            built.append(self)
            return nn.Sequential(self.op)

    example = torch.zeros(2, 3)
    limits = [Limit(Flops(example), 100), Limit(parameters, 100), Limit(Latency(example), 10)]
    assert len(Costs(Supernet(Once()), limits).measure({"op": 0})) == 3
    assert len(built) == 1


def latency_of_runs(monkeypatch, warmup, timed, at_most=None):
    """The latency measured where forwards take these seconds, and how many of them ran."""
    ticks = iter([tick for second in warmup + timed for tick in (0.0, second)])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    latency = Latency(IMAGES, repeats=len(timed), warmup=len(warmup))
    if at_most is None:
        cost = latency(Net(), SMALL)
    else:
        (cost,) = Costs(Supernet(Net()), [Limit(latency, at_most)]).measure(SMALL)
    return cost, len(warmup + timed) - len(list(ticks)) // 2


def test_latency_stops_early_only_when_the_times_agree(monkeypatch):
    assert latency_of_runs(monkeypatch, [], [1.0, 9.0, 1.01, 1.005, 0.5, 7.0, 7.0]) == (1.005, 4)
    assert latency_of_runs(monkeypatch, [0.1, 0.1], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == (2.0, 9)


@pytest.mark.parametrize(
    ("warmup", "timed", "at_most", "measured"),
    [
        ([9.0, 2.0], [3.0, 1.0, 1.0, 1.0], 3.0, (3.0, 3)),  # two meet it
        ([9.0, 9.0], [7.0, 5.0, 6.5, 1.0], 3.0, (6.5, 5)),  # all are far above it
        ([9.0, 5.0], [7.0, 5.0, 6.5, 5.2], 4.0, (5.2, 6)),  # above it, but not far
    ],
)
def test_latency_under_a_limit_runs_until_that_is_decided(monkeypatch, warmup, timed, at_most, measured):
    assert latency_of_runs(monkeypatch, warmup, timed, at_most) == measured


def test_a_measure_leaves_statistics_and_gradients_alone():
    model: Any = nn.Sequential(nn.BatchNorm1d(3), OneOf("op", [nn.Linear(3, 3), nn.ReLU()]))
    select(model, {"op": 0})
    model(torch.randn(4, 3)).sum().backward()
    before = everything(model), [parameter.grad.clone() for parameter in model.parameters()]

    def gradient_norm(model, values):
        select(model, values)
        model.train()(torch.randn(4, 3)).square().sum().backward()
        norm = sum(p.grad.norm() for p in model.parameters() if p.grad is not None)
        model.requires_grad_(False)
        model[0].register_buffer("extra", torch.zeros(1))
        return norm

    assert Costs(Supernet(model), [Limit(gradient_norm, 1)]).measure({"op": 1})[0] > 0
    gradients = [parameter.grad for parameter in model.parameters()]
    assert everything(model) == before[0]
    assert all(torch.equal(now, then) for now, then in zip(gradients, before[1], strict=True))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert "extra" not in dict(model.named_buffers())


def rude(model, values):
    select(model, values)
    model.train(not model.training)
    return float(torch.rand(()))


def fail(model, values):
    select(model, values)
    raise RuntimeError("cannot measure")


@pytest.mark.parametrize("selected", [None, {**SMALL, "width": 2}])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("measure", [parameters, Flops(IMAGES), Latency(IMAGES), rude, fail])
def test_measuring_leaves_the_model_as_it_was(measure, training, selected):
    model: Any = Touchy().train(training)
    model.net.head.train(not training)
    if selected is not None:
        select(model, selected)
        model(IMAGES).sum().backward()
    before = everything(model)
    values: dict[str, Any] = {**LARGE, "width": 3}
    if measure not in (rude, fail):  # these need the help of Costs
        measure(model, values)
        assert everything(model) == before
    try:
        Costs(Supernet(model), [Limit(measure, 1)]).measure(values)
    except RuntimeError:
        assert measure is fail
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
            Costs(Supernet(model), [Limit(measure, 1)]).measure(values)
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
