"""Captured steps on a GPU, beside the plain path."""

# mypy: disable-error-code="misc, var-annotated"

import copy
import gc
import io
import math
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from asng import nas
from asng.experiments.cifar10.network import Net as CifarNet
from asng.experiments.cifar10.network import use_fused_kernels
from asng.experiments.cifar10.space import random_values
from asng.experiments.inpainting.encoding import search_space
from asng.experiments.inpainting.network import Net as Autoencoders
from asng.experiments.inpainting.network import to_device_format
from asng.nas import Limit, OneOf, Width, parameters, select
from asng.nas import oneshot as oneshot_module
from asng.nas._capture import trace
from asng.nas._capture import update as _update
from asng.nas._capture.iteration import in_turn
from asng.nas._capture.switch import BranchingGraph, unavailable_reason
from asng.nas._capture.update import WeightUpdate
from tests.helpers.captures import Choosy, Counted, cross_entropy_and_accuracy, oneshot, with_gradient
from tests.helpers.searches import Net, batches, cross_entropy, pairs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LIMITS: list[list[Limit]] = [[], [Limit(parameters, 1e12)]]  # which all architectures meet


def on_gpu(batch):
    return tuple(tensor.cuda() for tensor in batch)


def gpu_pairs(n, dtype=torch.float):
    return [(on_gpu(train), on_gpu(valid)) for train, valid in pairs(n, dtype)]


def test_graphs_can_branch_here():
    assert unavailable_reason() is None


def test_a_switch_runs_the_body_that_the_device_names():
    index, out = torch.zeros(2, dtype=torch.int32, device="cuda"), torch.zeros(2, device="cuda")
    graph = BranchingGraph(out.device)

    def outer(number):
        out[0].fill_(number)
        graph.switch(index[1], [lambda inner=inner: out[1].fill_(10 * number + inner) for inner in range(2)])

    with graph.capture():
        out.fill_(-1)
        graph.switch(index[0], [lambda number=number: outer(number) for number in range(3)])
    for first in range(4):
        for second in range(3):
            index.copy_(torch.tensor([first, second]))
            graph.replay()
            inner = 10 * first + second if second < 2 else -1
            assert out.tolist() == ([first, inner] if first < 3 else [-1, -1])


@pytest.mark.parametrize("fails", [lambda: 1 / 0, lambda: torch.ones(1, device="cuda").item()], ids=["python", "sync"])
def test_after_a_failed_dry_run_all_else_works(fails):
    index = torch.zeros(1, dtype=torch.int32, device="cuda")
    graph = BranchingGraph(index.device)
    with pytest.raises((ZeroDivisionError, RuntimeError)), graph.dry_run():
        graph.switch(index[0], [lambda: None, fails])
    test_a_switch_runs_the_body_that_the_device_names()


@pytest.mark.parametrize("cases", [64, 4], ids=["flat", "nested"])
@pytest.mark.parametrize("max_grad_norm", [None, 0.3])
def test_captured_steps_equal_the_plain_ones(cases, max_grad_norm, monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", cases)
    torch.manual_seed(0)
    model = Choosy().cuda()
    twin = copy.deepcopy(model)
    plain, captured = (
        oneshot(model, max_grad_norm=max_grad_norm),
        oneshot(twin, max_grad_norm=max_grad_norm, capture=True),
    )
    rtol = 1e-7 if max_grad_norm is None else 1e-5  # the squares of the norm are added up in another order
    for train, valid in gpu_pairs(20):
        expected, got = plain.step(train, valid), captured.step(train, valid)
        torch.testing.assert_close(
            [*got.train_losses, *got.valid_losses],
            [*expected.train_losses, *expected.valid_losses],
            rtol=rtol,
            atol=1e-7,
        )
    captured.state_dict()
    assert captured.capture_cost["capture_seconds"] > 0
    assert with_gradient(twin) == with_gradient(model)
    torch.testing.assert_close([*twin.parameters()], [*model.parameters()])


def test_captured_metrics_equal_the_plain_ones():
    def loss(model, batch):
        scores = model(batch[0])
        return nn.functional.cross_entropy(scores, batch[1]), {
            "accuracy": (scores.argmax(1) == batch[1]).double().mean()
        }

    torch.manual_seed(0)
    model = Choosy().cuda()
    plain, captured = oneshot(model, loss_fn=loss), oneshot(copy.deepcopy(model), loss_fn=loss, capture=True)
    for train, valid in gpu_pairs(5):
        expected, got = plain.step(train, valid), captured.step(train, valid)
        assert (got.train_metrics, got.valid_metrics) == (expected.train_metrics, expected.valid_metrics)


def test_a_captured_search_resumes_from_its_state():
    torch.manual_seed(0)
    model = Choosy().cuda()
    first, second = oneshot(model, capture=True), oneshot(copy.deepcopy(model), capture=True)
    data = gpu_pairs(8)
    for train, valid in data[:4]:
        first.step(train, valid)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    for train, valid in data[4:]:
        assert first.step(train, valid) == second.step(train, valid)


def test_a_batch_of_another_shape_runs_plain_and_then_goes_on():
    torch.manual_seed(0)
    model = Choosy().cuda()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    data = gpu_pairs(9)
    small = tuple(tensor[:5] for tensor in data[0][0])
    data[3:3] = [(small, small)]
    for train, valid in data:
        expected, got = plain.step(train, valid), captured.step(train, valid)
        torch.testing.assert_close(got.valid_losses, expected.valid_losses)


@pytest.mark.parametrize("limits", LIMITS, ids=["unlimited", "limited"])
def test_replays_draw_new_dropout_masks_and_follow_the_seed(limits):
    def losses(seed):
        torch.manual_seed(0)
        model = nn.Sequential(OneOf("op", [nn.Dropout(0.5), nn.Dropout(0.4)]), nn.Linear(4, 3)).cuda()
        search = oneshot(model, capture=True, limits=limits)
        search.weight_optimizer.param_groups[0].update(lr=0.0, momentum=0.0, weight_decay=0.0)
        batch = on_gpu(batches(1)[0])
        torch.manual_seed(seed)
        return [search.step(batch, batch).valid_losses for _ in range(4)]

    one = losses(1)
    assert len(set(one)) == 4
    assert losses(1) == one
    assert losses(2) != one


def test_weights_that_are_moved_are_captured_again():
    torch.manual_seed(0)
    model = Choosy().cuda()
    twin = copy.deepcopy(model)
    plain, captured = oneshot(model), oneshot(twin, capture=True)
    for number, (train, valid) in enumerate(gpu_pairs(9)):
        if number == 3:
            for weight in (model.head.weight, twin.head.weight):
                weight.data = weight.data * 0.5
        if number == 6:
            model.double().float(), twin.double().float()
        expected, got = plain.step(train, valid), captured.step(train, valid)
        torch.testing.assert_close(got.valid_losses, expected.valid_losses)
    torch.testing.assert_close([*twin.parameters()], [*model.parameters()])


@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16])
def test_weights_that_are_frozen_for_a_while_are_captured_again(amp_dtype):
    torch.manual_seed(0)
    model = Choosy().cuda()
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    search = oneshot(model, weight_optimizer=weight_optimizer, amp_dtype=amp_dtype, capture=True)
    moved = []
    for number, (train, valid) in enumerate(gpu_pairs(9)):
        model.stem.requires_grad_(not 3 <= number < 6)
        before = model.stem.weight.detach().clone()
        search.step(train, valid)
        moved.append(not torch.equal(before, model.stem.weight))
    assert moved == [True] * 3 + [False] * 3 + [True] * 3


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_the_update_by_kernels_equals_that_by_torchs_functions(low, monkeypatch):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size, device="cuda")) for size in ((3, 5, 7), (1000, 777), (1,), (64,))]
    made = []
    for kind, own in ((_update.FusedSGDRule, parameters), (_update.SGDRule, copy.deepcopy(parameters))):
        monkeypatch.setattr(_update, "has_kernels_for", lambda values, kind=kind: kind is _update.FusedSGDRule)
        optimizer = torch.optim.SGD(own, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True)
        update = WeightUpdate(optimizer, 5.0, 2)
        if low:
            update.keep_low(torch.bfloat16, {id(p) for p in own[:2]})
        assert {type(rule) for rule in update._rules} == {kind}
        made.append((update, own))
    for number in range(5):
        gradients = torch.randn(2, 1000 * 777, device="cuda")
        for update, own in made:
            update.begin()
            for row, index in ((0, 0), (1, 0), (number % 2, number % 3)):  # the last parameter is never touched
                target = update.weights[row].gradients[id(own[index])]
                target.copy_(gradients[row, : target.numel()].view(target.shape))
            update.step([torch.tensor(0.1, dtype=torch.float64, device="cuda")] * len(update.groups))
            update.store()
        found = [[(p, p.grad, update._optimizer.state[p].get("momentum_buffer")) for p in own] for update, own in made]
        torch.testing.assert_close(*found)
        assert found[0][-1][1] is None


def test_kernels_reach_gradients_beyond_32_bits():
    pytest.importorskip("triton")
    parameter = nn.Parameter(torch.zeros(110_000_000, device="cuda"))
    update = WeightUpdate(torch.optim.SGD([parameter], 1.0), math.inf, 20)
    update.keep_low(torch.bfloat16, {id(parameter)})
    update.begin()
    update.weights[19].gradients[id(parameter)][-1] = 2.0
    update.step([torch.tensor(1.0, dtype=torch.float64, device="cuda")])
    assert parameter[-2:].tolist() == [0.0, -2.0]
    assert not update.groups[0].rows[19, -64:].any()


@pytest.mark.parametrize("cases", [64, 4], ids=["flat", "nested"])
@pytest.mark.parametrize("side_by_side", [True, False], ids=["side by side", "in turn"])
def test_passes_without_a_feasible_candidate_do_nothing(cases, side_by_side, monkeypatch):
    if not side_by_side:
        monkeypatch.setattr(BranchingGraph, "fork", lambda self, branches: in_turn(branches))
    monkeypatch.setattr(trace, "MAX_CASES", cases)
    monkeypatch.setattr(oneshot_module, "MAX_DRAWS", 0)  # so that there are too few for the weights, too
    torch.manual_seed(0)
    model = Counted(Choosy()).double().cuda()
    settings: Any = {"limits": [Limit(parameters, 220)], "population_size": 3, "loss_fn": cross_entropy_and_accuracy}
    plain, captured = oneshot(model, **settings), oneshot(copy.deepcopy(model), capture=True, **settings)
    numbers = []
    for train, valid in gpu_pairs(30, torch.double):
        expected, got = plain.step(train, valid), captured.step(train, valid)
        assert [loss is None for loss in got.valid_losses] == [loss is None for loss in expected.valid_losses]
        torch.testing.assert_close(judged_losses(got), judged_losses(expected), rtol=1e-6, atol=0)
        torch.testing.assert_close(got.train_losses, expected.train_losses, rtol=1e-6, atol=0)
        torch.testing.assert_close(got.train_metrics, expected.train_metrics)
        torch.testing.assert_close(got.valid_metrics, expected.valid_metrics)
        numbers.append((len(judged_losses(got)), len(got.train_losses)))
        assert captured.model.passes.tolist() == [sum(half) for half in zip(*numbers, strict=True)]
    judged, trained = zip(*numbers, strict=True)
    assert set(judged) == set(trained) == {0, 1, 2, 3}
    captured.state_dict()
    assert captured.capture_cost["capture_gb"] > 0
    assert with_gradient(captured.model) == with_gradient(plain.model)
    torch.testing.assert_close([*captured.model.parameters()], [*plain.model.parameters()], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(captured.arch_optimizer.distribution(), plain.arch_optimizer.distribution())
    if not side_by_side:  # where two updates of a statistic at once may be one
        torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n", [0, 1])
def test_passes_without_a_candidate_leave_the_random_numbers_of_others(n):
    torch.manual_seed(0)
    model = nn.Sequential(OneOf("op", [nn.Dropout(0.5), nn.Identity()]), nn.Linear(4, 3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    search = oneshot(model, weight_optimizer=optimizer, limits=[Limit(parameters, 1000)], capture=True)
    batch = on_gpu(batches(1)[0])
    search.step(batch, batch)  # which captures
    captured: Any = search._captured._iteration

    def losses(trained, judged):
        torch.manual_seed(1)
        steps = [captured.step([{"op": 0}] * trained, batch, [{"op": 0}] * judged, batch) for _ in range(2)]
        return [[[numbers.loss for numbers in half] for half in step] for step in steps]

    whole = losses(2, 2)
    assert len({loss for step in whole for half in step for loss in half}) == 8
    assert losses(1, n) == [[train[:1], valid[:n]] for train, valid in whole]


@pytest.mark.parametrize("limits", LIMITS, ids=["unlimited", "limited"])
def test_more_candidates_than_streams_are_captured(limits):
    torch.manual_seed(0)
    model = Choosy().double().cuda()
    settings: Any = {"limits": limits, "population_size": 20}
    plain, captured = oneshot(model, **settings), oneshot(copy.deepcopy(model), capture=True, **settings)
    train, valid = gpu_pairs(1, torch.double)[0]
    expected, got = plain.step(train, valid), captured.step(train, valid)
    torch.testing.assert_close(got.train_losses, expected.train_losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(got.valid_losses, expected.valid_losses, rtol=1e-6, atol=0)
    torch.testing.assert_close([*captured.model.parameters()], [*plain.model.parameters()], rtol=1e-6, atol=1e-9)


def judged_losses(step):
    return [loss for loss in step.valid_losses if loss is not None]


def test_passes_without_a_candidate_leave_statistics_alone():
    torch.manual_seed(0)
    norm: Any = nn.BatchNorm1d(4)
    model = nn.Sequential(OneOf("op", [norm, nn.Identity()]), nn.Linear(4, 3)).cuda()
    search = oneshot(model, population_size=3, limits=[Limit(parameters, 1000)], capture=True)
    batch = on_gpu(batches(1)[0])
    search.step(batch, batch)  # which captures
    captured = search._captured._iteration
    for judged in (0, 1):
        before = int(norm.num_batches_tracked)
        numbers = captured.step([{"op": 0}], batch, [{"op": 0}] * judged, batch)
        assert [len(half) for half in numbers] == [1, judged]
        assert int(norm.num_batches_tracked) == before + 1 + judged


def synchronizes(model, batch):
    loss = cross_entropy(model, batch)
    return loss * (1.0 if loss.item() > 0 else 2.0)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"loss_fn": synchronizes}, "synchroniz"),
        ({"amp_dtype": torch.float16}, "float16"),
        ({"weight_optimizer": torch.optim.Adam}, "give Adam capturable=True"),
    ],
    ids=["sync", "float16", "adam"],
)
def test_what_cannot_be_captured_runs_as_usual_with_the_reason(settings, reason):
    model = Choosy().cuda()
    if "weight_optimizer" in settings:
        settings = {"weight_optimizer": settings["weight_optimizer"](model.parameters())}
    search = oneshot(model, capture=True, **settings)
    data = gpu_pairs(2)
    with pytest.warns(UserWarning, match=f"not captured as a CUDA graph.*{reason}"):
        search.step(*data[0])
    search.step(*data[1])


class Masks(nn.Module):
    """Its shapes depend on the data."""

    def forward(self, x):
        return x * x[x > 0].sum()


def test_shapes_that_depend_on_data_run_as_usual_with_the_module_named():
    model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [nn.Identity(), Masks()]), nn.Linear(4, 3)).cuda()
    search = oneshot(model, capture=True)
    data = gpu_pairs(2)
    with pytest.warns(UserWarning, match=r"not captured.*synchroniz.*\(in 1\.options\.1 \(Masks\)\)"):
        search.step(*data[0])
    search.step(*data[1])


class Large(nn.Module):
    """Keeps some 64 MiB for its gradient."""

    def forward(self, x):
        return x.repeat(1, 1 << 16).exp().view(len(x), -1, x.shape[1]).mean(1)


def memory_in_use():
    stats = torch.cuda.memory_stats()
    kinds = ("reserved", "allocated", "active", "inactive_split")
    return ", ".join(f"{kind} {stats[f'{kind}_bytes.all.current'] / 2**20:.0f} MiB" for kind in kinds)


@pytest.mark.parametrize("share", [0.3, 0.8], ids=["one pass", "all passes"])
def test_a_capture_that_runs_out_of_memory_leaves_plain_steps(share):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [Large() for _ in range(12)]), nn.Linear(4, 3)).cuda()
    batch = on_gpu(batches(1, size=64)[0])
    at_plain_passes: list[str] = []

    def loss_fn(model, batch):
        if not trace.is_open():
            at_plain_passes.append(memory_in_use())
        return cross_entropy(model, batch)

    fitting, captured = (oneshot(copy.deepcopy(model), loss_fn=loss_fn, capture=True) for _ in range(2))
    expected = fitting.step(batch, batch)
    needed = 1e9 * fitting.capture_cost["capture_gb"]
    del fitting
    gc.collect()
    torch.cuda.empty_cache()
    before, (_, total) = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((before + share * needed) / total)
    try:
        with pytest.warns(UserWarning, match="not captured as a CUDA graph.*out of memory") as caught:
            got = [captured.step(batch, batch) for _ in range(3)]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    limits = (
        f"limit {share * needed / 2**20:.0f} above {before / 2**20:.0f} MiB; first plain pass: {at_plain_passes[0]}"
    )
    assert len(caught) == 1, f"{limits}; warnings: {[str(warning.message) for warning in caught]}"
    torch.testing.assert_close(got[0].train_losses, expected.train_losses)
    assert all(math.isfinite(loss) for step in got for loss in step.train_losses)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before + 0.3 * needed, f"{limits}; at the end: {memory_in_use()}"
    test_a_switch_runs_the_body_that_the_device_names()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_model_on_another_device_than_the_current_one_is_captured():
    torch.manual_seed(0)
    model = Choosy().to("cuda:1")
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    for pair in pairs(5):
        train, valid = (tuple(tensor.to("cuda:1") for tensor in half) for half in pair)
        torch.testing.assert_close(captured.step(train, valid).valid_losses, plain.step(train, valid).valid_losses)
    assert captured.capture_cost["capture_gb"] > 0


def assert_same_losses(model, twin, data, **settings):
    """The plain path and the captured one from the same weights, both told the same losses."""
    weight_optimizer = settings.pop("weight_optimizer")
    plain, captured = (
        oneshot(m, weight_optimizer=weight_optimizer(m.parameters()), capture=c, **settings)
        for m, c in ((model, False), (twin, True))
    )
    for train, valid in data:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = captured.step(train, valid)
        expected = plain.step(train, valid)
        torch.testing.assert_close(
            [*got.train_losses, *got.valid_losses], [*expected.train_losses, *expected.valid_losses], rtol=1e-4, atol=0
        )
    captured.state_dict()
    assert with_gradient(twin) == with_gradient(model)
    torch.testing.assert_close([*twin.parameters()], [*model.parameters()], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["AdamW", "RMSprop", "Adadelta", "ASGD", "NAdam"])
def test_other_optimizers_are_captured(name):
    torch.manual_seed(0)
    model = Choosy().double().cuda()  # in which a bias before a batch norm has no gradient of rounding errors
    optimizer = partial(getattr(torch.optim, name), lr=0.01, weight_decay=0.01, capturable=True)
    assert_same_losses(
        model, copy.deepcopy(model), gpu_pairs(12, torch.double), weight_optimizer=optimizer, loss_fn=cross_entropy
    )


def test_rprop_is_captured():
    torch.manual_seed(0)
    model = Net(dropout=0).double().cuda()  # without batch norms: of rounding errors, too, the sign counts
    optimizer = partial(torch.optim.Rprop, lr=0.01, capturable=True)
    assert_same_losses(
        model, copy.deepcopy(model), gpu_pairs(12, torch.double), weight_optimizer=optimizer, loss_fn=cross_entropy
    )


@pytest.mark.parametrize("name", ["ASGD", "NAdam", "Rprop"])
@pytest.mark.filterwarnings("error")
def test_states_that_begin_with_other_numbers_than_zero_are_captured(name):
    torch.manual_seed(0)
    model = Choosy().cuda()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, capturable=True)
    search = oneshot(model, weight_optimizer=optimizer, amp_dtype=torch.bfloat16, capture=True)
    steps = [search.step(*pair) for pair in gpu_pairs(5)]
    assert search.capture_cost
    assert all(math.isfinite(loss) for step in steps for loss in step.train_losses)


# In float64 more than rounding differs; in the others rounding grows from step to step.
@pytest.mark.parametrize(
    ("dtype", "amp_dtype", "tolerance"),
    [(torch.double, None, 1e-8), (torch.float, None, 2e-3), (torch.float, torch.bfloat16, 3e-2)],
    ids=["float64", "float32", "bfloat16"],
)
def test_widths_of_many_combinations_are_captured_with_masks(dtype, amp_dtype, tolerance):
    widths: list[Any] = [Width(f"w{i}", 2, 9) for i in range(3)]
    layers: list[nn.Module] = []
    for before, width in zip([4, *widths], widths, strict=False):
        layers += [nas.Linear(before, width), nas.BatchNorm1d(width), nn.Sigmoid()]
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nas.LayerNorm(widths[-1]), nas.Linear(widths[-1], 3)).to("cuda", dtype)
    twin = copy.deepcopy(model)
    plain, captured = oneshot(model, amp_dtype=amp_dtype), oneshot(twin, amp_dtype=amp_dtype, capture=True)
    for train, valid in gpu_pairs(20, dtype):
        expected, got = plain.step(train, valid), captured.step(train, valid)
        torch.testing.assert_close(
            [*got.train_losses, *got.valid_losses],
            [*expected.train_losses, *expected.valid_losses],
            rtol=tolerance,
            atol=tolerance,
        )
    assert captured.capture_cost["capture_seconds"] > 0
    if amp_dtype is None:
        torch.testing.assert_close([*twin.parameters()], [*model.parameters()], rtol=5 * tolerance, atol=tolerance / 2)
        # Candidates run side by side, so of two updates of a statistic at once one may be lost.
        assert twin[1].running_mean.isfinite().all()  # type: ignore[operator]


def test_a_mean_over_all_channels_is_not_captured_with_masks():
    class Centered(nn.Module):
        def forward(self, x):
            return x - x.mean(1, keepdim=True)

    width = Width("w", 1, 99)
    model = nn.Sequential(nas.Linear(4, width), Centered(), nas.Linear(width, 3)).cuda()
    search = oneshot(model, capture=True)
    (train, valid), *_ = gpu_pairs(1)
    with pytest.warns(UserWarning, match="with masks its gradient differs"):
        assert all(map(math.isfinite, search.step(train, valid).valid_losses))


def test_blocks_with_widths_are_captured():
    torch.manual_seed(0)
    width = Width("width", [2, 3, 5])
    block = nn.Sequential(nas.Linear(4, width), nas.BatchNorm1d(width), nn.ReLU(), nas.Linear(width, 4))
    model = nn.Sequential(block, nn.Tanh(), nn.Linear(4, 3)).cuda()
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    assert_same_losses(model, copy.deepcopy(model), gpu_pairs(12), weight_optimizer=optimizer, loss_fn=cross_entropy)


@pytest.mark.parametrize("limits", LIMITS, ids=["unlimited", "limited"])
@pytest.mark.parametrize("encoding", ["cat", "int"])
@pytest.mark.parametrize("size", [(16, 16), (9, 14)], ids=["even", "odd"])
def test_the_inpainting_search_is_captured(encoding, size, limits, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    widths = (8, 24) if encoding == "int" else (8, 16, 24)
    model = to_device_format(Autoencoders(search_space(encoding, 8, widths=widths), size), torch.device("cuda"))
    data = [[tuple(torch.rand(2, 4, 3, *size, device="cuda").unbind()) for _ in range(2)] for _ in range(8)]
    optimizer = partial(torch.optim.SGD, lr=0.025, momentum=0.9)
    assert_same_losses(
        model,
        copy.deepcopy(model),
        data,
        weight_optimizer=optimizer,
        loss_fn=lambda model, batch: nn.functional.mse_loss(model(batch[1]), batch[0]),
        limits=limits,
    )


@pytest.mark.parametrize("settings", [{}, {"amp_dtype": torch.bfloat16}], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("limits", LIMITS, ids=["unlimited", "limited"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "channels_last"])
def test_the_first_steps_of_a_small_cifar10_network_are_captured(layout, settings, limits):
    torch.manual_seed(0)
    model = CifarNet(8, 3).cuda()
    settings = {"limits": limits, **settings}
    plain, captured = oneshot(model, **settings), oneshot(copy.deepcopy(model), capture=True, **settings)
    losses = []
    for _ in range(3):
        images, labels = torch.randn(2, 16, 3, 32, 32, device="cuda"), torch.randint(10, (2, 16), device="cuda")
        train, valid = ((images[half].to(memory_format=layout), labels[half]) for half in range(2))
        losses.append([search.step(train, valid).train_losses for search in (plain, captured)])
    torch.testing.assert_close(*losses[0], rtol=0.01, atol=0.01)  # later ones differ by what rounding has become
    assert all(math.isfinite(loss) for _, got in losses for loss in got)


def test_fused_kernels_are_captured_under_limits_as_without():
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model: Any = CifarNet(8, 3).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    use_fused_kernels(model)
    searches = [oneshot(copy.deepcopy(model), capture=True, limits=limits) for limits in LIMITS]
    images = torch.randn(2, 16, 3, 32, 32, device="cuda")
    train, valid = (
        (half.contiguous(memory_format=torch.channels_last), torch.randint(10, (16,), device="cuda")) for half in images
    )
    steps = [search.step(train, valid) for search in searches]
    torch.testing.assert_close(steps[0].train_losses, steps[1].train_losses, rtol=0.01, atol=0.01)
    assert all(search.capture_cost for search in searches)


def test_gradients_do_not_depend_on_the_memory_format(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    images, labels = torch.randn(16, 3, 32, 32, device="cuda"), torch.randint(10, (16,), device="cuda")
    model = CifarNet(8, 3).cuda()
    select(model, random_values(1))

    def gradients(layout):
        loss = nn.functional.cross_entropy(model(images.to(memory_format=layout)), labels)
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        return torch.cat([gradient.flatten() for gradient in found if gradient is not None])

    expected, got = gradients(torch.contiguous_format), gradients(torch.channels_last)
    assert (got - expected).norm() < 0.02 * expected.norm()  # rounding moves inputs of ReLUs over 0


# Judges and halves ---------------------------------------------------------------------------------


def share_of_errors(model, batch):
    logits = model(batch[0])
    return (logits.argmax(1) != batch[1]).double().mean(), {"loss": nn.functional.cross_entropy(logits, batch[1])}


@pytest.mark.parametrize("limits", LIMITS, ids=["unlimited", "limited"])
def test_a_judge_is_captured_with_its_metrics(limits):
    torch.manual_seed(0)
    model = Choosy().double().cuda()
    settings: Any = {"limits": limits, "judge": share_of_errors}
    plain, captured = oneshot(model, **settings), oneshot(copy.deepcopy(model), capture=True, **settings)
    for train, valid in gpu_pairs(20, torch.double):
        expected, got = plain.step(train, valid), captured.step(train, valid)
        assert got.scores == pytest.approx(expected.scores)
        losses, expected_losses = ([m["loss"] for m in step.valid_metrics] for step in (got, expected))
        torch.testing.assert_close(losses, expected_losses, rtol=1e-6, atol=0)
    assert captured.capture_cost


@pytest.mark.parametrize(
    "judge", [lambda m, b: cross_entropy(m, b).item(), lambda m, b: 1.0], ids=["reads the device", "of Python"]
)
def test_a_judge_that_returns_a_number_of_python_is_not_captured(judge):
    search = oneshot(Choosy().cuda(), judge=judge, capture=True)
    first, second = gpu_pairs(2)
    with pytest.warns(UserWarning, match="runs as usual"):
        search.step(*first)
    assert None not in search.step(*second).scores
    assert not search.capture_cost


def test_halves_of_steps_run_between_captured_ones():
    torch.manual_seed(0)
    model = Choosy().double().cuda()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the step is not captured", UserWarning)
        for number, (train, valid) in enumerate(gpu_pairs(9, torch.double)):
            if number % 3:
                pairs_of_steps = [(s.train_step(train, valid), s.judge_step(valid)) for s in (plain, captured)]
                expected, got = ([*first.train_losses, *second.scores] for first, second in pairs_of_steps)
            else:
                steps = [s.step(train, valid) for s in (plain, captured)]
                expected, got = ([*step.train_losses, *step.scores] for step in steps)
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    captured.state_dict()
    torch.testing.assert_close([*captured.model.parameters()], [*plain.model.parameters()], rtol=1e-6, atol=1e-9)
