"""Candidates that run out of memory rank last and move no weights; other errors leave a checkpoint to go on from."""
# mypy: disable-error-code="func-returns-value"

import copy
import itertools
import math
import random
import signal
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from asng._files import previous_path
from asng.nas import Limit, OneShot, Value, _loop, selected, space_of
from asng.nas import _checkpoints as checkpoints
from asng.space import Categorical
from tests.helpers.processes import crowd, exit_code_of, fail_together
from tests.helpers.searches import (
    FailingBackward,
    Net,
    Scripted,
    Switch,
    batches,
    cross_entropy,
    data,
    make_oneshot,
    outcome,
    run_search,
    same,
    small_search,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]

OUT_OF_MEMORY = pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
ignore_warnings = pytest.mark.filterwarnings("ignore:the architecture .* ran out of memory")

# One candidate fails -------------------------------------------------------------------------------


class Sum(nn.Module):
    """Shared weights, and one for each choice; choice 1 fails in one half of its run."""

    def __init__(self, half, kind):
        super().__init__()
        self.which = Value("which", Categorical(range(3)))
        self.shared = nn.Parameter(torch.ones(3))
        self.own = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(3)])
        self.fails_in, self.kind = half, kind

    def forward(self, x):
        own = self.own[self.which.value]
        if self.which.value == 1:
            if self.fails_in == "forward":
                raise self.kind("too large")
            own = FailingBackward.apply(own, self.kind)  # after the gradient of the shared weights was added
        return (self.shared * x).sum() + (own * x).sum()


def run_script(model, train, judged, **settings):
    """One step in which these choices are trained and judged."""
    arch_optimizer = Scripted(space_of(model), population_size=len(train), seed=0)
    arch_optimizer.script = [*train, *judged]
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    oneshot = OneShot(model, arch_optimizer, weight_optimizer, lambda model, x: model(x), **settings)
    return oneshot, oneshot.step(torch.full((3,), 0.5), torch.full((3,), 0.5))


@OUT_OF_MEMORY
@pytest.mark.parametrize("half", ["forward", "backward"])
@pytest.mark.parametrize("train", [[1, 0, 2], [0, 1, 2], [0, 2, 1], [1, 2, 1], [2, 1, 1]])
@ignore_warnings
def test_the_gradient_is_the_mean_over_the_candidates_that_did_not_fail(half, train, kind):
    model, others = Sum(half, kind), [which for which in train if which != 1]
    _, step = run_script(model, train, [0, 0, 0])
    assert step.train_losses == tuple(math.inf if which == 1 else 3.0 for which in train)
    torch.testing.assert_close(model.shared.data, torch.full((3,), 0.5))
    for which in range(3):
        share = others.count(which) / len(others)
        torch.testing.assert_close(model.own[which].data, torch.full((3,), 1 - 0.5 * share))
    assert model.own[1].grad is None  # never touched


@OUT_OF_MEMORY
def test_a_judged_candidate_that_fails_is_worst_and_named_in_a_warning(kind):
    model = Sum("forward", kind)
    with pytest.warns(UserWarning, match=r"the architecture {'which': 1} ran out of memory \(too large\)"):
        _, step = run_script(model, [0, 0, 0], [2, 1, 0])
    assert step.valid_losses == (2.25, math.inf, 1.5)


@ignore_warnings
def test_where_all_fail_in_training_the_weights_and_their_momentum_rest():
    model = Sum("backward", MemoryError)
    oneshot, _ = run_script(model, [0, 2], [0, 2])
    before = copy.deepcopy([model.state_dict(), oneshot.weight_optimizer.state_dict()])
    oneshot.arch_optimizer.script = [1, 1, 0, 2]
    step = oneshot.step(torch.ones(3), torch.ones(3))
    assert step.train_losses == (math.inf, math.inf)
    assert math.isnan(step.train_loss)
    assert str([model.state_dict(), oneshot.weight_optimizer.state_dict()]) == str(before)
    assert np.isfinite(step.valid_losses).all()


def test_an_architecture_is_warned_of_once():
    def loss(model, x):
        if model.which.value:
            raise MemoryError
        return model(x)

    oneshot = make_oneshot(Switch(3), population_size=4, loss_fn=loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(40):
            oneshot.step(torch.ones(3), torch.ones(3))
    architectures = sorted(str(warning.message).split(" ran out")[0] for warning in caught)
    assert architectures == [f"the architecture {{'which': {which}}}" for which in (1, 2)]
    assert oneshot.arch_optimizer.mode() == {"which": 0}


@ignore_warnings
def test_after_five_steps_in_a_row_in_which_all_fail_there_is_an_error():
    calls = itertools.count()

    def loss(model, x):
        if next(calls) // 4 not in (0, 3):  # of four runs: the first and the fourth step
            raise torch.OutOfMemoryError
        return model(x)

    oneshot, x = make_oneshot(Switch(), loss_fn=loss), torch.ones(3)
    for _ in range(8):
        oneshot.step(x, x)
    with pytest.raises(
        RuntimeError, match="every candidate of 5 steps in a row ran out of memory; use smaller batches"
    ):
        oneshot.step(x, x)


@pytest.mark.parametrize("half", ["training", "judging"])
@ignore_warnings
def test_a_half_that_always_fails_ends_in_the_error_too(half):
    def loss(model, x):
        if torch.is_grad_enabled() == (half == "training"):
            raise torch.OutOfMemoryError
        return model(x)

    oneshot, x = make_oneshot(Switch(), loss_fn=loss), torch.ones(3)
    for _ in range(4):
        oneshot.step(x, x)
    with pytest.raises(RuntimeError, match="every candidate of 5 steps in a row"):
        oneshot.step(x, x)


@ignore_warnings
def test_a_search_goes_on_without_what_does_not_fit_and_resumes_to_the_bit(tmp_path):
    def run(path, stop=None):
        calls = itertools.count()

        def loss(model, batch):
            if next(calls) == stop:
                signal.raise_signal(signal.SIGINT)
            if selected(model)["depth"] == 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return cross_entropy(model, batch)

        model = Net()
        return outcome(model, run_search(model, batches(20, 1), batches(20, 2), loss, epochs=4, checkpoint=path))

    torch.manual_seed(0)
    expected = run(None)
    assert expected["values"]["depth"] < 3
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "c.pt", stop=105)
    assert same(run(tmp_path / "c.pt"), expected)


@pytest.mark.parametrize("half", ["forward", "backward"])
@ignore_warnings
def test_two_processes_drop_the_same_candidates_as_one(tmp_path, half):
    alone, both = tmp_path / "alone", tmp_path / "both"
    for folder in (alone, both):
        folder.mkdir()
    members = crowd(fail_together, both, half)
    fail_together(0, alone, half)
    assert [exit_code_of(member) for member in members] == [0, 0]
    expected, *results = (torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("*/rank*.pt")))
    assert any(math.inf in losses for losses in expected["train"])
    assert any(math.inf in losses for losses in expected["valid"])
    for result in results:
        assert result["optimizer"]["state"] == expected["optimizer"]["state"]
        assert result["optimizer"]["generator"] == expected["optimizer"]["generator"]
        for half in ("train", "valid"):
            np.testing.assert_allclose(result[half], expected[half], rtol=1e-9)
        for name, value in result["weights"].items():
            torch.testing.assert_close(value, expected["weights"][name], rtol=1e-9, atol=1e-9)
        assert result["metrics"] == expected["metrics"]
        assert {metrics.get("depth") for step in result["metrics"] for metrics in step} == {1.0, 2.0, None}
        assert result["error"] == expected["error"] == "RuntimeError after 5 steps"


# Errors that leave a search ------------------------------------------------------------------------


def failing_at(call, kind=ArithmeticError):
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == call:
            raise kind("of the user's")
        return cross_entropy(model, batch)

    return loss


def search_with_noise(checkpoint, loss_fn=cross_entropy, epochs=3, **settings):
    """A search with all that a failed step may change: batch statistics, and every global generator."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002

    def noisy(model, batch):
        loss = loss_fn(model, batch)
        return loss * (1 + 0.1 * random.random() + 0.1 * np.random.random())  # noqa: NPY002

    return small_search(checkpoint, epochs=epochs, loss_fn=noisy, norm=True, **settings)


@pytest.fixture(scope="module")
def whole():
    return {own: search_with_noise(None, own_generator=own) for own in (False, True)}


@pytest.fixture
def saved_after_every_step(monkeypatch):
    monkeypatch.setattr(_loop, "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(_loop, "MAX_SAVE_SHARE", math.inf)


either_half = pytest.mark.parametrize("call", [5, 6, 7, 8, 18, 31, 48, 58])  # two candidates are trained, two judged


@pytest.mark.parametrize("own_generator", [False, True])
@either_half
def test_an_error_in_either_half_of_a_step_changes_nothing_in_what_continues(tmp_path, whole, call, own_generator):
    path = tmp_path / "checkpoint.pt"
    epoch, step = divmod((call - 1) // 4, 5)
    with pytest.raises(ArithmeticError) as caught:
        search_with_noise(path, failing_at(call), own_generator=own_generator)
    then = f"continues in epoch {epoch + 1} of 3 after step 0, saved in {path}" if epoch else "starts over"
    assert caught.value.__notes__[1:] == [
        f"stopped in epoch {epoch + 1} of 3 after step {step}, in a step that failed: the same call {then}"
    ]
    assert path.exists() == (epoch > 0)
    assert same(search_with_noise(path, own_generator=own_generator), whole[own_generator])


@pytest.mark.usefixtures("saved_after_every_step")
@either_half
def test_saves_within_an_epoch_keep_all_steps_before_the_one_that_failed(tmp_path, whole, call):
    path, seen = tmp_path / "checkpoint.pt", []

    def watch(loss):
        return lambda model, batch: (seen.append((selected(model), batch[0].tolist())), loss(model, batch))[1]

    with pytest.raises(ArithmeticError) as caught:
        search_with_noise(path, watch(failing_at(call)))
    assert caught.value.__notes__[-1].endswith(f"saved in {path}: the same call continues from there")
    failed, step = seen[call - 1 - (call - 1) % 4 :], (call - 1) // 4
    seen.clear()
    assert same(search_with_noise(path, watch(cross_entropy)), whole[False])
    assert seen[: len(failed)] == failed
    assert len(seen) == 4 * (15 - step)


@pytest.mark.parametrize("call", [27, 46])
def test_an_error_of_a_judge_trains_no_batch_twice(tmp_path, call):
    def run(path, loss_fn=cross_entropy):
        return search_with_noise(path, judge=lambda model, batch: loss_fn(model, batch).item(), epochs=5)

    path = tmp_path / "checkpoint.pt"
    with pytest.raises(ArithmeticError):
        run(path, failing_at(call))
    assert same(run(path), run(None))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_exit_in_the_users_code_leaves_the_last_save_too(tmp_path, whole, kind):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(kind) as caught:
        search_with_noise(path, failing_at(29, kind))
    assert caught.value.__notes__ == [
        "stopped in epoch 2 of 3 after step 2, in a step that failed: the same call continues in epoch 2 of 3 after "
        f"step 0, saved in {path}"
    ]
    assert same(search_with_noise(path), whole[False])


class Flaky(Dataset):
    """Cannot be read once."""

    def __init__(self, when):
        self._reads, self._when = itertools.count(), when

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if next(self._reads) == self._when:
            raise OSError("connection reset")
        x, y = data(40)
        return x[index] + torch.rand(()) + random.random() + np.random.random(), y[index]  # noqa: NPY002


@pytest.mark.parametrize("read", [9, 70, 119])
def test_an_error_in_loading_is_repeated_to_the_bit(tmp_path, read):
    def run(path, when=None):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        model = Net()
        loader = DataLoader(Flaky(when), batch_size=8, shuffle=True)
        return outcome(model, run_search(model, loader, batches(7), checkpoint=path, epochs=3))

    expected = run(None)
    with pytest.raises(OSError, match="connection reset") as caught:
        run(tmp_path / "c.pt", read)
    assert "in a step that failed: the same call" in caught.value.__notes__[-1]
    assert same(run(tmp_path / "c.pt"), expected)


def test_an_error_in_the_first_step_leaves_no_checkpoint_in_the_way(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(ArithmeticError) as caught:
        run_search(loss_fn=failing_at(1), checkpoint=path)
    assert not path.exists()
    assert not any("saved" in note for note in caught.value.__notes__)


def test_an_error_right_after_a_save_keeps_what_was_saved(tmp_path):
    path = tmp_path / "checkpoint.pt"
    for _ in range(2):
        with pytest.raises(ArithmeticError):  # in the judging half of the sixth step, the first of an epoch
            run_search(loss_fn=failing_at(23), checkpoint=path)
        assert checkpoints.load(path)["measured"] == {}
        assert not previous_path(path).exists()
        path.unlink()


@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_an_error_of_the_schedule_leaves_the_last_save(tmp_path, interval):
    class Wrong(torch.optim.lr_scheduler.StepLR):
        wrong = True

        def step(self, epoch=None):
            if self.last_epoch == {"epoch": 1, "step": 7}[interval] and self.wrong:
                raise ArithmeticError("of the user's")
            super().step(epoch)

    def run(path):
        torch.manual_seed(0)
        model = Net()
        weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = {"lr_scheduler": Wrong(weight_optimizer, 1, 0.9), "scheduler_interval": interval}
        found = run_search(model, weight_optimizer=weight_optimizer, **schedule, checkpoint=path, epochs=3)
        return outcome(model, found)

    with pytest.raises(ArithmeticError) as caught:
        run(tmp_path / "c.pt")
    assert "the same call continues in epoch 2 of 3 after step 0, saved in" in caught.value.__notes__[-1]
    Wrong.wrong = False
    assert same(run(tmp_path / "c.pt"), run(None))


def test_a_state_that_cannot_be_saved_does_not_hide_the_error(tmp_path):
    path = tmp_path / "folder"

    def callback(step):
        path.mkdir()
        raise ArithmeticError("of the user's")

    with pytest.raises(ArithmeticError, match="of the user's") as caught:
        run_search(callback=callback, checkpoint=path)
    assert caught.value.__notes__[-1].startswith("the state could not be saved (")


@ignore_warnings
def test_memory_that_never_suffices_ends_a_search_that_can_be_continued(tmp_path):
    path, steps = tmp_path / "checkpoint.pt", itertools.count()

    def loss(model, batch):
        if next(steps) >= 8:
            raise MemoryError
        return cross_entropy(model, batch)

    with pytest.raises(RuntimeError, match="ran out of memory") as caught:
        run_search(loss_fn=loss, checkpoint=path, epochs=3)
    assert "continues in epoch 2 of 3 after step 0, saved in" in caught.value.__notes__[-1]
    assert len(run_search(checkpoint=path, epochs=3).history) == 3


@ignore_warnings
def test_memory_that_never_suffices_is_named_also_where_epochs_are_short(tmp_path):
    def loss(model, batch):
        raise MemoryError

    with pytest.raises(RuntimeError, match="every candidate of 5 steps in a row ran out of memory") as caught:
        run_search(train_loader=batches(3, 1), loss_fn=loss, checkpoint=tmp_path / "checkpoint.pt", epochs=3)
    assert "continues in epoch 2 of 3 after step 0, saved in" in caught.value.__notes__[-1]


def test_errors_that_are_named_as_failures_cost_a_candidate():
    def loss(model, x):
        if selected(model)["which"]:
            raise OverflowError("too steep")
        return model(x)

    oneshot = make_oneshot(Switch(), loss_fn=loss, failures=(ArithmeticError,))
    message = r"'which': 1} failed by OverflowError \(too steep\); it ranks last .* its gradient is dropped$"
    with pytest.warns(UserWarning, match=message):
        steps = [oneshot.step(torch.ones(3), torch.ones(3)) for _ in range(20)]
    assert math.inf in [loss for step in steps for loss in step.valid_losses]
    assert oneshot.arch_optimizer.mode() == {"which": 0}


def test_errors_that_are_not_named_are_raised():
    def loss(model, x):
        raise MemoryError

    with pytest.raises(MemoryError):
        make_oneshot(Switch(), loss_fn=loss, failures=(ZeroDivisionError,)).step(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("failures", [MemoryError, [MemoryError], (MemoryError("x"),), (KeyboardInterrupt,)])
def test_failures_are_a_tuple_of_exception_classes(failures):
    with pytest.raises(ValueError, match="failures must be a tuple of exception classes, such as"):
        make_oneshot(failures=failures)


def test_a_half_without_feasible_candidates_has_not_failed():
    def loss(model, x):
        raise torch.OutOfMemoryError

    cost = [1]
    oneshot = make_oneshot(Switch(), loss_fn=loss, limits=[Limit(lambda model, values: cost[0], 1, name="cost")])
    oneshot.costs.known = Forgetful()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oneshot.step(torch.ones(3), torch.ones(3))
        assert oneshot._is_half_failed
        cost[0] = 2
        oneshot.step(torch.ones(3), torch.ones(3))
        assert not oneshot._is_half_failed


class Forgetful(dict):
    """A cache that keeps nothing."""

    def __setitem__(self, key, value):
        pass
