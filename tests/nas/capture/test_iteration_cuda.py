"""Captured steps on a GPU, beside the plain path."""

# mypy: disable-error-code="misc, var-annotated"

import copy
import gc
import io
import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from asng.nas import Limit, OneOf, parameters
from asng.nas import oneshot as oneshot_module
from asng.nas._capture import trace
from asng.nas._capture.iteration import run_in_turn
from asng.nas._capture.switch import BranchingGraph, unavailable_reason
from tests.helpers.captures import (
    LIMITS,
    Choosy,
    Counted,
    cross_entropy_and_accuracy,
    gpu_pairs,
    on_gpu,
    oneshot,
    with_gradient,
)
from tests.helpers.searches import batches, cross_entropy, pairs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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


def test_a_captured_step_waits_for_the_device_once():
    captured = oneshot(Choosy().cuda(), capture=True)
    first, *others = gpu_pairs(4)
    captured.step(*first)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for pair in others:
                captured.step(*pair)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "called a synchronizing CUDA operation" in str(warning.message)]
    assert len(waits) == len(others)  # to read the losses


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


@pytest.mark.parametrize("cases", [64, 4], ids=["flat", "nested"])
@pytest.mark.parametrize("side_by_side", [True, False], ids=["side by side", "in turn"])
def test_passes_without_a_feasible_candidate_do_nothing(cases, side_by_side, monkeypatch):
    if not side_by_side:
        monkeypatch.setattr(BranchingGraph, "fork", lambda self, branches: run_in_turn(branches))
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


def waits(model, batch):
    loss = cross_entropy(model, batch)
    torch.cuda.synchronize()
    return loss


def measures_time(model, batch):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    loss = cross_entropy(model, batch)
    end.record()
    end.synchronize()
    return loss, {"ms": start.elapsed_time(end)}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"loss_fn": synchronizes}, "synchroniz"),
        ({"judge": synchronizes}, "synchroniz"),
        ({"loss_fn": waits}, "synchroniz"),
        ({"judge": measures_time}, "synchroniz"),
        ({"amp_dtype": torch.float16}, "float16"),
        ({"weight_optimizer": torch.optim.Adam}, "give Adam capturable=True"),
    ],
    ids=["loss", "judge", "wait", "time", "float16", "adam"],
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
