"""Captured steps as far as a CPU can run them: the same code, with a switch in Python in place of the graph's."""

# mypy: disable-error-code="attr-defined, index, union-attr"

import copy
import io
import itertools
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from asng import Categorical, Integer, Real, nas
from asng.experiments.cifar10.network import Net as CifarNet
from asng.nas import OneOf, Value, Width, _capture, select
from asng.nas import _trace as trace
from asng.nas._branch import SplitGroups
from asng.nas._capture import Iteration
from asng.nas._cases import Columns, Refused
from asng.nas._switch import unavailable_reason
from asng.nas._update import CAPTURABLE, WeightUpdate, unsupported_reason
from asng.nas.supernet import Supernet
from tests.helpers.captures import Body, Choosy, oneshot, with_gradient
from tests.helpers.searches import Net, batches, cross_entropy, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def iteration(search, batch, *, loss_fn=cross_entropy, max_grad_norm=math.inf, amp_dtype=None):
    """The iteration of a OneShot, prepared."""
    result = Iteration(
        search.supernet, search.weight_optimizer, loss_fn, 2, max_grad_norm=max_grad_norm, amp_dtype=amp_dtype
    )
    result.prepare(batch, batch)
    result.update.load()
    return result


def step(search, open_iteration, train, valid):
    """What OneShot.step does, by way of the iteration."""
    drawn, candidates = search.arch_optimizer.ask(), search.arch_optimizer.ask()
    trained, judged = open_iteration.step([c.values for c in drawn], train, [c.values for c in candidates], valid)
    losses, valid_losses = ([numbers.loss for numbers in half] for half in (trained, judged))
    search.arch_optimizer.tell(candidates, valid_losses)
    return losses, valid_losses


def assert_same_steps(model, n=20, dtype=torch.float, *, same=True, max_grad_norm=None, amp_dtype=None, data=None):
    """Run the plain path and the open iteration side by side, from the same weights."""
    model, twin = model.to(dtype), copy.deepcopy(model).to(dtype)
    plain, other = (oneshot(m, max_grad_norm=max_grad_norm, amp_dtype=amp_dtype) for m in (model, twin))
    data = data or pairs(n, dtype)
    opened = iteration(other, data[0][0], max_grad_norm=max_grad_norm or math.inf, amp_dtype=amp_dtype)
    for train, valid in data:
        expected = plain.step(train, valid)
        got = step(other, opened, train, valid)
        if same:
            assert (list(expected.train_losses), list(expected.valid_losses)) == got
        else:
            torch.testing.assert_close([*expected.train_losses, *expected.valid_losses], [*got[0], *got[1]])
    opened.update.store()
    assert with_gradient(model) == with_gradient(twin)
    if same:
        torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)
    else:  # running statistics also of what the plain path leaves out
        torch.testing.assert_close([*twin.parameters()], [*model.parameters()])


# Steps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("model", [Choosy, lambda: Net(dropout=0, norm=True)], ids=["choosy", "net"])
def test_an_open_iteration_equals_the_plain_step_bit_for_bit(model, dtype):
    assert_same_steps(model(), dtype=dtype)


def test_choices_with_too_many_cases_get_switches_inside(monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", 4)
    assert_same_steps(Choosy())


def test_mixed_precision_equals_the_plain_step_bit_for_bit():
    assert_same_steps(Choosy(), amp_dtype=torch.bfloat16)


def test_clipped_steps_equal_the_plain_ones_up_to_rounding():
    assert_same_steps(Choosy(), dtype=torch.double, max_grad_norm=0.3, same=False)


def test_a_searchable_module_that_reads_its_decision_is_a_switch():
    model = nn.Sequential(Body(), nn.Linear(4, 3))
    assert_same_steps(model)


class Residual(nn.Module):
    """A block whose inner width and depth are decided, and read in Python or by elastic layers."""

    def __init__(self, name):
        super().__init__()
        width = Width(f"{name}.width", [2, 3, 5])
        self.body = nn.Sequential(nas.Linear(4, width), nas.BatchNorm1d(width), nn.ReLU(), nas.Linear(width, 4))
        self.times = Value(f"{name}.times", Integer(1, 3))

    def forward(self, x):
        for _ in range(self.times.value):
            x = x + self.body(x)
        return x


@pytest.mark.parametrize("max_cases", [64, 3], ids=["one switch a block", "a switch in each body"])
def test_where_shapes_differ_the_module_around_is_a_switch(max_cases, monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", max_cases)
    block = Residual("a") if max_cases == 64 else Residual("a").body
    assert_same_steps(nn.Sequential(block, nn.Tanh(), nn.Linear(4, 3)))


class Repeats(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.times, self.linear = times, nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(self.times.value):
            x = self.linear(x).tanh()
        return x


def test_two_blocks_that_read_one_decision_are_both_switches():
    times = Value("times", Integer(1, 3))
    model = nn.Sequential(Repeats(times), Repeats(times), nn.Linear(4, 3))
    assert_same_steps(model)
    assert iteration(oneshot(model), batches(1)[0])._surroundings == [model[0], model[1]]


def test_a_forward_of_a_module_alone_is_kept():
    model = nn.Sequential(OneOf("op", [nn.Linear(4, 4), nn.Tanh()]), nn.Linear(4, 3))
    own = model[0].forward = partial(model[0].forward)
    iteration(oneshot(model), batches(1)[0])
    assert model[0].forward is own


def test_blocks_with_widths_are_switches_of_their_own():
    model = nn.Sequential(Residual("a"), nn.Tanh(), Residual("b"), nn.Linear(4, 3))
    assert_same_steps(model)
    search = oneshot(model)
    assert iteration(search, batches(1)[0])._surroundings == [model[0], model[2]]


def test_the_cifar10_network_equals_the_plain_step_up_to_rounding():
    data = [
        [(torch.randn(4, 3, 8, 8, dtype=torch.double), torch.randint(10, (4,))) for _ in range(2)] for _ in range(4)
    ]
    assert_same_steps(CifarNet(4, 3), dtype=torch.double, same=False, max_grad_norm=5.0, data=data)


def cross_entropy_and_metrics(model, batch):
    loss = cross_entropy(model, batch)
    return loss, {"twice": 2 * loss, "rows": len(batch[0])} if loss.requires_grad else {"half": loss / 2}


def test_metrics_are_read_with_the_losses():
    model = Choosy()
    plain, other = (oneshot(m, loss_fn=cross_entropy_and_metrics) for m in (model, copy.deepcopy(model)))
    opened = iteration(other, batches(1)[0], loss_fn=cross_entropy_and_metrics)
    for train, valid in pairs(3):
        expected = plain.step(train, valid)
        drawn, candidates = other.arch_optimizer.ask(), other.arch_optimizer.ask()
        trained, judged = opened.step([c.values for c in drawn], train, [c.values for c in candidates], valid)
        other.arch_optimizer.tell(candidates, [numbers.loss for numbers in judged])
        got = (tuple(numbers.metrics for numbers in half) for half in (trained, judged))
        assert tuple(got) == (expected.train_metrics, expected.valid_metrics)
        assert expected.train_metrics[0]["rows"] == len(train[0])


def test_param_groups_with_schedules_equal_the_plain_step():
    model = Choosy()
    twin = copy.deepcopy(model)

    def make_oneshot_of(model):
        groups = [
            {"params": model.stem.parameters(), "lr": 0.01},
            {"params": [*model.parameters()][2:], "nesterov": True},
        ]
        weight_optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.5, weight_decay=0.1)
        return oneshot(model, weight_optimizer=weight_optimizer)

    plain, other = make_oneshot_of(model), make_oneshot_of(twin)
    opened = iteration(other, batches(1)[0])
    for train, valid in pairs(5):
        expected = plain.step(train, valid)
        assert (list(expected.train_losses), list(expected.valid_losses)) == step(other, opened, train, valid)
        for search in (plain, other):
            search.weight_optimizer.param_groups[0]["lr"] *= 0.5  # as a schedule does


def test_a_dry_run_leaves_weights_buffers_selection_and_rng_alone():
    model = Net(norm=True)
    select(model, {"first": 1, "depth": 2})
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    iteration(oneshot(model), batches(1)[0])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), rng)
    assert model.first.value == 1
    assert model.first.forward.__self__ is model.first


OPTIMIZERS = [partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.AdamW, lr=0.01)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adamw"])
def test_a_gradient_that_is_not_finite_leaves_weights_and_state(optimizer):
    model = Choosy()
    search = oneshot(model, weight_optimizer=optimizer(model.parameters()))
    x, y = batches(1)[0]
    opened = iteration(search, (x, y))
    step(search, opened, (x, y), (x, y))
    before = copy.deepcopy([tensor for tensor in opened.update.tensors() if tensor.is_floating_point()])
    losses, _ = step(search, opened, (x * math.nan, y), (x, y))
    assert all(map(math.isnan, losses))
    after = [tensor for tensor in opened.update.tensors() if tensor.is_floating_point()]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adamw"])
def test_plain_steps_go_on_where_an_open_iteration_stopped(optimizer):
    model = Choosy()
    twin = copy.deepcopy(model)
    plain, other = (oneshot(m, weight_optimizer=optimizer(m.parameters())) for m in (model, twin))
    opened = iteration(other, batches(1)[0])
    for number, (train, valid) in enumerate(pairs(12)):
        plain.step(train, valid)
        if number % 4 < 2:
            opened.update.load()
            step(other, opened, train, valid)
            opened.update.store()
        else:
            other.step(train, valid)
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert with_gradient(twin) == with_gradient(model)


@pytest.fixture
def graphless(monkeypatch):
    """Steps with capture=True run as on a GPU; only the graph is missing."""
    monkeypatch.setattr(_capture, "find_obstacle", lambda *given: None)
    monkeypatch.setattr(Iteration, "capture", lambda self: None)


@pytest.mark.usefixtures("graphless")
def test_captured_steps_give_way_to_plain_ones_and_go_on():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    data = pairs(9)
    small = tuple(tensor[:5] for tensor in data[0][0])
    data[3:3] = [(small, small)]
    for number, (train, valid) in enumerate(data):
        assert captured.step(train, valid) == plain.step(train, valid)
        if number == 6:
            captured.load_state_dict(copy.deepcopy(captured.state_dict()))
    captured.state_dict()
    assert set(captured.capture_cost) == {"capture_seconds", "capture_gb"}
    assert with_gradient(captured.model) == with_gradient(plain.model)
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


# Weights are views of one tensor -------------------------------------------------------------------


def bytes_held(module):
    """The memory behind the parameters."""
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in module.parameters()}
    return sum(storages.values())


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def test_weights_become_views_and_keep_values_and_layout():
    conv = nn.Conv2d(3, 5, 3)
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    before = copy.deepcopy(conv)
    WeightUpdate(torch.optim.SGD(conv.parameters(), 0.1), math.inf, 2)
    assert conv.weight.untyped_storage().data_ptr() == conv.bias.untyped_storage().data_ptr()
    torch.testing.assert_close(conv.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert conv.weight.stride() == before.weight.stride()


def test_memory_with_gaps_or_of_others_stays_where_it_is():
    whole = torch.randn(6, 6)
    parameters = [nn.Parameter(whole[:, ::2]), nn.Parameter(whole[2:4]), nn.Parameter(torch.randn(6))]
    before = [p.data_ptr() for p in parameters]
    update = WeightUpdate(torch.optim.SGD(parameters, 1.0), math.inf, 1)
    assert [p.data_ptr() == old for p, old in zip(parameters, before, strict=True)] == [True, True, False]
    with torch.no_grad():
        parameters[1].fill_(3.0)  # between steps
    update.begin()
    update.weights[0].gradients[id(parameters[1])].fill_(1.0)
    update.step(update.lrs)
    assert (whole[2:4] == 2.0).all()


def test_weights_that_are_views_move_to_a_second_update():
    model = Choosy()
    searches = oneshot(model), oneshot(copy.deepcopy(model))
    opened = [iteration(search, batches(1)[0]) for search in searches]
    for number, (train, valid) in enumerate(pairs(6)):
        if number == 3:
            opened[1].update.store()
            opened[1] = iteration(searches[1], batches(1)[0])
        assert step(searches[0], opened[0], train, valid) == step(searches[1], opened[1], train, valid)
    assert bytes_held(searches[0].model) == bytes_held(searches[1].model)


@pytest.mark.parametrize("move", [lambda m: m.double(), lambda m: setattr(m.stem.bias, "data", torch.ones(8))])
def test_weights_that_are_moved_are_noticed(move):
    model = Choosy()
    update = WeightUpdate(torch.optim.SGD(model.parameters(), 0.1), math.inf, 2)
    assert update.is_as_captured()
    move(model)
    assert not update.is_as_captured()


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16])
def test_weights_that_are_written_between_steps_are_taken_over(amp_dtype):
    model = Choosy()
    plain, other = (oneshot(m, amp_dtype=amp_dtype) for m in (model, copy.deepcopy(model)))
    opened = iteration(other, batches(1)[0], amp_dtype=amp_dtype)
    state = copy.deepcopy(model.state_dict())
    for number, (train, valid) in enumerate(pairs(6)):
        expected = plain.step(train, valid)
        assert (list(expected.train_losses), list(expected.valid_losses)) == step(other, opened, train, valid)
        for search in (plain, other):
            if number == 2:
                search.model.load_state_dict(state)
            with torch.no_grad():
                search.model.head.weight.mul_(0.5)


def test_a_checkpoint_of_views_holds_each_number_once():
    model = Choosy()
    before = saved(model.state_dict())
    opened = iteration(oneshot(model), batches(1)[0])
    after = saved(model.state_dict())
    assert len(after) < len(before) + 4 * len(opened.update.groups[0].values)
    torch.testing.assert_close(torch.load(io.BytesIO(after), weights_only=True), model.state_dict(), rtol=0, atol=0)


def test_copies_and_extracted_networks_have_memory_of_their_own():
    model = Choosy()
    values = {"op": 0, "inner": 0, "depth": 1, "source": 0, "last": 0}
    size, of_network = bytes_held(copy.deepcopy(model)), bytes_held(nas.extract(model, values))
    before = len(saved(nas.extract(model, values)))
    iteration(oneshot(model), batches(1)[0])
    assert bytes_held(copy.deepcopy(model)) == size
    assert bytes_held(nas.extract(model, values)) == of_network < size
    assert len(saved(nas.extract(model, values))) == before


def test_a_module_that_changes_views_is_named():
    class Halves(Body):
        def build_static(self):
            next(self.blocks[1].parameters()).data.mul_(0.5)
            return super().build_static()

    model = nn.Sequential(Halves(), nn.Linear(4, 3))
    WeightUpdate(torch.optim.SGD(model.parameters(), 0.1), math.inf, 2)
    with pytest.raises(ValueError, match=r"of 0 \(Halves\) changed the numbers of 0\.blocks\.1 \(Linear\)"):
        nas.extract(model, {"depth": 2})


# What cannot be captured ---------------------------------------------------------------------------


class Reads(nn.Module):
    def __init__(self, variable):
        super().__init__()
        self.decision = Value("x", variable)
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x) * (1 + self.decision.value)


def share_weights():
    model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [nn.Linear(4, 4), nn.Identity()]), nn.Linear(4, 3))
    model[1].options[0].weight = model[0].weight
    return model


class Remembers(nn.Module):
    """Its option uses what it was not given."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.op = OneOf("op", [Recalls(), nn.Identity()])

    def forward(self, x):
        self.op.options[0].seen = self.stem(x)
        return self.head(self.op(x))


class Recalls(nn.Module):
    def forward(self, x):
        return x + self.seen


class Averages(nn.Module):
    """Makes a new buffer in every pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x - self.mean)


def test_a_buffer_that_is_replaced_is_put_back():
    model = OneOf("op", [Averages(), nn.Linear(4, 3)])
    averages: Any = model.options[0]
    mean = averages.mean
    with pytest.raises(Refused):
        iteration(oneshot(model), batches(1)[0])
    assert averages.mean is mean
    assert mean.tolist() == [0.0] * 4


@pytest.mark.parametrize("model", [Remembers, lambda: Reads(Categorical([1, 2]))], ids=["remembers", "reads"])
def test_a_whole_model_of_few_cases_can_be_one_switch(model):
    assert_same_steps(model())


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: nn.Sequential(Reads(Integer(1, 99)), nn.Linear(4, 3)),
            r"^0 has more than 64 cases, and decision 'x' \(0.decision\) is read in Python outside of a choice",
        ),
        (lambda: OneOf("op", [nn.Linear(4, 3), nn.Linear(4, 5)]), r"results of 'op' \(the model\) differ in shape"),
        (lambda: OneOf("op", [Reads(Real(0, 1)), nn.Linear(4, 3)]), "'x' .*, without cases"),
        (lambda: OneOf("op", [Reads(Integer(1, 99)), nn.Linear(4, 3)]), "'op' .* more than 64 cases"),
        (share_weights, "parameter 0.weight is used inside and outside of a choice"),
        (lambda: OneOf("op", [Averages(), nn.Linear(4, 3)]), r"^options.0 replaces its buffer 'mean'; write into it"),
    ],
)
def test_what_cannot_be_open_is_refused_with_its_name(model, reason):
    search = oneshot(model())
    with pytest.raises(Refused, match=reason):
        iteration(search, batches(1)[0])


def test_metrics_that_change_their_names_are_refused():
    calls = itertools.count()
    search = oneshot(Choosy(), loss_fn=None)

    def loss(model, batch):
        return cross_entropy(model, batch), {f"metric {next(calls)}": 1.0}

    opened = iteration(search, batches(1)[0], loss_fn=loss)
    with pytest.raises(Refused, match=r"the metrics change from \['metric 0'\] to \['metric 2'\]"):
        step(search, opened, *batches(2))


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (torch.optim.NAdam, "is NAdam, and only SGD, Adadelta, Adam"),
        (torch.optim.Adam, "capturable=False; give Adam capturable=True"),
        (lambda p: torch.optim.Adam(p, capturable=True), None),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1), "dampening=0.1"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), None),
    ],
)
def test_optimizers_that_cannot_be_captured_are_named(optimizer, reason):
    got = unsupported_reason(optimizer(nn.Linear(2, 2).parameters()))
    assert got is reason if reason is None else reason in str(got)


@pytest.mark.parametrize(
    ("wrap", "amp_dtype", "reason"),
    [
        (nn.DataParallel, None, "the model is wrapped in DataParallel"),
        (None, torch.float16, "gradients are scaled, as float16 needs it"),
        (None, None, "is SimpleNamespace, and only SGD"),
    ],
)
def test_what_is_against_a_capture_on_a_gpu_is_known_before(wrap, amp_dtype, reason):
    model = nn.Linear(2, 2)
    on_gpu: Any = SimpleNamespace(param_groups=[{"params": [SimpleNamespace(device=torch.device("cuda:0"))]}])
    assert reason in str(_capture.find_obstacle(model if wrap is None else wrap(model), on_gpu, amp_dtype))


class Looks(nn.Module):
    def forward(self, x):
        return x * {0: 1.0, 1: 2.0}[self.decision.index]  # a tensor has another hash

    def __init__(self):
        super().__init__()
        self.decision = Value("scale", Categorical([1, 2]))


def weighted(model, batch):
    return cross_entropy(model, batch) * (1 + nas.selected(model)["op"])


def as_array(model, batch):
    return cross_entropy(model, (batch[0], torch.from_numpy(batch[1])))


@pytest.mark.usefixtures("graphless")
@pytest.mark.parametrize(
    ("option", "loss_fn", "to_batch", "reason"),
    [
        (Looks, cross_entropy, tuple, r"\(in 1\.options\.0 \(Looks\)\)"),
        (
            lambda: nn.Sequential(nn.ReLU(inplace=True)),
            cross_entropy,
            tuple,
            r"in-place.* \(in 1\.options\.0\.0 \(ReLU",
        ),
        (nn.Tanh, weighted, tuple, r"usual: decision 'op' \(1\) is read in Python outside of a choice$"),
        (nn.Tanh, as_array, lambda b: (b[0], b[1].numpy()), "a batch holds ndarray, and only tensors, numbers"),
    ],
    ids=["key", "in place", "loss", "numpy"],
)
def test_a_model_that_cannot_be_captured_runs_as_usual(option, loss_fn, to_batch, reason):
    model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [option(), nn.Identity()]), nn.Linear(4, 3))
    plain, captured = (
        oneshot(m, loss_fn=loss_fn, capture=c) for m, c in ((model, False), (copy.deepcopy(model), True))
    )
    data = [tuple(map(to_batch, pair)) for pair in pairs(2)]
    with pytest.warns(UserWarning, match=reason) as caught:
        got = [captured.step(*pair) for pair in data]
    assert len(caught) == 1
    assert got == [plain.step(*pair) for pair in data]


@pytest.mark.usefixtures("graphless")
def test_a_number_that_changes_from_batch_to_batch_ends_captures():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    first, second, third = [[(*batch, number) for batch in pair] for number, pair in enumerate(pairs(3))]
    assert captured.step(*first) == plain.step(*first)
    with pytest.warns(UserWarning, match="a batch holds 1 instead of 0, and only tensors may change"):
        assert captured.step(*second) == plain.step(*second)
    assert captured.step(*third) == plain.step(*third)
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("graphless")
def test_a_loss_without_a_gradient_is_an_error_as_usual():
    search = oneshot(Choosy(), loss_fn=lambda model, batch: cross_entropy(model, batch).detach(), capture=True)
    with (
        pytest.warns(UserWarning, match="the loss has no gradient"),
        pytest.raises(ValueError, match="does not depend on the weights"),
    ):
        search.step(*batches(2))


class Ignores(nn.Module):
    def __init__(self, *names):
        super().__init__()
        self.inner = nn.ModuleList(Value(name, Categorical([1, 2])) for name in names)
        self.net = Choosy()

    def forward(self, x):
        return self.net(x)


@pytest.mark.usefixtures("graphless", "nothing_compiled")
def test_decisions_that_a_captured_step_does_not_read_are_named():
    search = oneshot(Ignores("a", "b"), capture=True)
    first, second = pairs(2)
    with pytest.warns(UserWarning, match="nothing has read the decisions 'a', 'b' in a captured step"):
        search.step(*first)
    search.step(*second)  # without a warning, which would be an error


@pytest.mark.usefixtures("graphless")
def test_a_search_records_what_the_capture_took_and_resumes(tmp_path):
    def history(checkpoint, epochs=2, capture=True):
        torch.manual_seed(0)
        model = Choosy()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        options: Any = {"checkpoint": checkpoint, "progress": False, "capture": capture}
        options |= {"weight_optimizer": optimizer, "lr_scheduler": scheduler, "epochs": epochs}
        return nas.search(model, batches(3, 1), batches(3, 2), cross_entropy, **options).history

    captured, plain = history(None), history(None, capture=False)
    assert [sorted(set(record) - set(plain[0])) for record in captured] == [["capture_gb", "capture_seconds"], []]
    history(tmp_path / "search.pt", epochs=1)
    resumed = history(tmp_path / "search.pt")
    for one, other, third in zip(plain, captured, resumed, strict=True):
        assert one["valid_loss"] == other["valid_loss"] == third["valid_loss"]


@pytest.mark.usefixtures("graphless")
def test_settings_that_change_all_the_time_end_captures():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)

    def assert_same_step(number, train, valid):
        for search in (plain, captured):
            search.weight_optimizer.param_groups[0]["momentum"] = 0.9 - 0.1 * number
        assert captured.step(train, valid) == plain.step(train, valid)

    *first, fifth, sixth = enumerate(pairs(6))
    for number, pair in first:
        assert_same_step(number, *pair)
    with pytest.warns(UserWarning, match="it was captured 4 times, as the optimizer's settings"):
        assert_same_step(fifth[0], *fifth[1])
    assert_same_step(sixth[0], *sixth[1])  # without a warning, which would be an error


def test_capture_on_the_cpu_warns_once_and_runs_as_usual():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    (first, second) = pairs(2)
    with pytest.warns(UserWarning, match="not captured as a CUDA graph.*the weights are on cpu"):
        step_one = captured.step(*first)
    assert (step_one, captured.step(*second)) == (plain.step(*first), plain.step(*second))
    assert captured.capture_cost == plain.capture_cost == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_the_reason_is_told():
    assert unavailable_reason() == "torch sees no CUDA device"


# Parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD,
        partial(torch.optim.SGD, momentum=0.9),
        partial(torch.optim.SGD, momentum=0.9, nesterov=True),
        *(getattr(torch.optim, name) for name in CAPTURABLE),
        partial(torch.optim.Adam, amsgrad=True),
        partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    ],
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_flat_gradients_move_weights_as_torch_does(optimizer, weight_decay):
    ours = [
        nn.Parameter(torch.randn(3, 5)),
        nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.randn(4, 70)[:, ::2]),
    ]
    theirs = copy.deepcopy(ours)
    made = [optimizer(p, lr=0.1, weight_decay=weight_decay) for p in (ours, theirs)]
    flat = WeightUpdate(made[0], math.inf, 1)
    for number in range(5):
        flat.begin()
        for index, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            if number >= index:  # the others are touched later
                gradient = torch.randn_like(one)
                flat.weights[0].gradients[id(one)].copy_(gradient)
                two.grad = gradient
        flat.step(flat.lrs)
        made[1].step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_the_index_of_a_decision_is_the_position_of_its_value():
    model = nn.Sequential(OneOf("op", {"a": nn.ReLU(), "b": nn.Tanh()}), Body())
    select(model, {"op": "b", "depth": 3})
    assert (model[0].index, model[1].depth.index) == (1, 2)


def test_columns_tell_the_case_of_an_architecture():
    columns = Columns(Supernet(Choosy()))
    columns.add_cases([(("op", 0),), (("op", 1), ("inner", 0)), (("op", 1), ("inner", 1)), (("op", 2),)])
    assert columns.add_decision("depth") == 1
    values = {"op": 1, "inner": 1, "depth": 3, "source": 0, "last": 0}
    assert columns.encode(values) == [2, 2]


def times(values, factor):
    return [factor * values["op"], values["depth"]]


def test_columns_hold_the_numbers_that_functions_make_of_the_values():
    columns = Columns(Supernet(Choosy()))
    assert [columns.add_function(times, (factor,), 2) for factor in (10, 20, 10)] == [0, 2, 0]
    values = {"op": 1, "inner": 1, "depth": 3, "source": 0, "last": 0}
    assert columns.encode(values) == [10, 3, 20, 3]


def test_a_module_with_its_own_kernel_reads_numbers_and_addresses_of_weights():
    seen = []

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.which = Value("which", Categorical([2, 3, 5]))
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            if not trace.is_open():
                return self.linear(x) * self.which.value
            addresses, anchor = trace.address_weights([self.linear.weight])
            seen.append((addresses.tolist(), self.linear.weight.data_ptr(), anchor.requires_grad))
            return self.linear(x) * trace.read_numbers(self.numbers, length=1) + anchor

        def numbers(self, values):
            return [values["which"]]

    model = Scaled()
    plain, other = oneshot(model), oneshot(copy.deepcopy(model))
    opened = iteration(other, batches(1)[0])
    for train, valid in pairs(5):
        expected = plain.step(train, valid)
        got = step(other, opened, train, valid)
        torch.testing.assert_close([*got[0], *got[1]], [*expected.train_losses, *expected.valid_losses])
    gradients = {weights.gradients[id(other.model.linear.weight)].data_ptr() for weights in opened.update.weights}
    assert {row[1] for ((row,), _, _) in seen} == gradients
    assert all(row[0] == address and has_gradient for ((row,), address, has_gradient) in seen)


def test_a_module_with_its_own_mask_reads_the_index_on_the_device():
    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.which = Value("which", Categorical(range(3)))
            self.weight = nn.Parameter(torch.randn(3, 4, 3))

        def forward(self, x):
            mask = torch.as_tensor(self.which.index) == torch.arange(3)
            return x @ (self.weight * mask[:, None, None]).sum(0)

    model = Mask()
    plain, other = oneshot(model), oneshot(copy.deepcopy(model))
    opened = iteration(other, batches(1)[0])
    for train, valid in pairs(5):
        expected = plain.step(train, valid)
        assert (list(expected.train_losses), list(expected.valid_losses)) == step(other, opened, train, valid)


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "padding": 1}, {"bias": False}])
def test_grouped_convolutions_are_split_into_one_per_group(settings):
    conv, x = nn.Conv2d(8, 12, 3, groups=4, **settings), torch.randn(2, 8, 6, 6)
    names = []

    class Names(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function)
            return function(*args, **(kwargs or {}))

    with Names(), SplitGroups():
        split = conv(x)
    torch.testing.assert_close(split, conv(x))
    assert names.count(torch.conv2d) == 4
