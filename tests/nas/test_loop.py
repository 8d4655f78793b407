"""Long jobs: the records of their epochs, and that stopping at any moment changes nothing."""

import json
import math
import os
import shutil
import signal
import time

import pytest
import torch
from torch import nn

from asng.experiments._settings import EpochSettings, parse_device, set_lr
from asng.experiments._train_step import TrainStep
from asng.nas import _checkpoints as checkpoints
from asng.nas import _loop
from asng.nas._checkpoints import Checkpoint
from asng.nas._loop import Epoch, Job, run_job
from asng.runs import CHECKPOINT, ENVIRONMENT, METRICS, Run

pytestmark = pytest.mark.slow

STEPS, EPOCHS = 5, 3


class Noisy(Job):
    """Gradient descent on a line, with noise from torch's generator; a signal or an error where it is asked for."""

    device, steps_per_epoch = torch.device("cpu"), STEPS

    def __init__(self, *, interrupt_at=None, fail_at=None, number=signal.SIGINT):
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.weights = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.descent = TrainStep(self.model, self.weights, self.loss, max_grad_norm=1.0)
        self.interrupt_at, self.fail_at, self.signal = interrupt_at, fail_at, number
        self.tested = []

    @staticmethod
    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    def step(self, number):
        if number == self.fail_at:
            raise OSError("the power is gone")
        if number == self.interrupt_at:
            os.kill(os.getpid(), self.signal)
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        return {"train_loss": self.descent((x, x.sum(1, keepdim=True) + torch.randn(4, 1)))}

    def finish_epoch(self, epoch):
        self.tested.append(epoch.number)
        return {"test": epoch.number * 10}

    def state_dict(self):
        return self.descent.state_dict()

    def load_state_dict(self, state):
        self.descent.load_state_dict(state)


def run(job, folder, epochs=EPOCHS, config=None, **more):
    with Run(folder, config or {"is": "a test"}, METRICS) as kept:
        return run_job(job, epochs=epochs, checkpoint=Checkpoint(kept.folder / CHECKPOINT, kept.config, kept), **more)


def without_times(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def weights_of(job):
    return [parameter.detach().clone() for parameter in job.model.parameters()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    job = Noisy()
    return without_times(run(job, tmp_path_factory.mktemp("whole"))), weights_of(job)


def test_every_epoch_leaves_a_record_with_means_and_measures(tmp_path):
    records = run(Noisy(), tmp_path)
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["test"] for record in records] == [10, 20, 30]
    assert all(record["seconds"] > 0 for record in records)
    lines = (tmp_path / METRICS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == records


def test_the_loss_of_a_record_is_the_mean_over_its_steps(tmp_path):
    class Noted(Noisy):
        def step(self, number):
            result = super().step(number)
            losses.append(result["train_loss"].item())
            return result

    losses: list[float] = []
    records = run(Noted(), tmp_path)
    for place, record in enumerate(records):
        mine = losses[place * STEPS : (place + 1) * STEPS]
        assert record["train_loss"] == pytest.approx(sum(mine) / STEPS, rel=1e-12)


@pytest.mark.parametrize("number", range(EPOCHS * STEPS))
def test_a_job_stopped_at_any_step_continues_bit_equal(whole, tmp_path, number):
    sent = signal.SIGTERM if number % 2 else signal.SIGINT
    before = signal.getsignal(sent)
    with pytest.raises(KeyboardInterrupt):
        run(Noisy(interrupt_at=number, number=sent), tmp_path)
    assert signal.getsignal(sent) is before
    assert checkpoints.load(tmp_path / CHECKPOINT)["index"] == number + 1  # the step was finished
    torch.manual_seed(99)
    job = Noisy()
    records = run(job, tmp_path)
    assert without_times(records) == whole[0]
    assert all(torch.equal(*pair) for pair in zip(weights_of(job), whole[1], strict=True))


@pytest.mark.parametrize("number", range(0, EPOCHS * STEPS, 2))
def test_a_run_that_breaks_goes_on_from_its_last_step_and_ends_bit_equal(whole, tmp_path, number):
    with pytest.raises(OSError, match="power"):
        run(Noisy(fail_at=number), tmp_path)
    job = Noisy()
    assert without_times(run(job, tmp_path)) == whole[0]
    assert all(torch.equal(*pair) for pair in zip(weights_of(job), whole[1], strict=True))


class Slow(Noisy):
    """A step takes 100 seconds, and a save of its state `saving` more; `index` of each save."""

    def __init__(self, saving, monkeypatch, loss=None):
        super().__init__()
        self.now, self.steps, self.saved, self.saving, self.fixed = 0.0, 0, [], saving, loss
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def step(self, number):
        self.now, self.steps = self.now + 100, self.steps + 1
        return super().step(number) if self.fixed is None else {"train_loss": self.fixed}

    def state_dict(self):
        self.now += self.saving
        self.saved.append(self.steps)
        return super().state_dict()


@pytest.mark.parametrize(
    ("saving", "saved"), [(0, [3, 5, 8, 10, 13, 15]), (2, [3, 5, 8, 10, 13, 15]), (10, [3, 5, 10, 15])]
)
def test_within_an_epoch_a_state_is_saved_every_five_minutes_and_seldom_if_that_takes_long(
    whole, tmp_path, monkeypatch, saving, saved
):
    job = Slow(saving, monkeypatch)
    records = run(job, tmp_path)
    assert job.saved == saved
    assert [record["seconds"] for record in records] == [100 * STEPS] * EPOCHS
    assert without_times(records) == whole[0]


def test_an_epoch_without_finite_losses_is_not_saved_within(tmp_path, monkeypatch):
    job = Slow(0, monkeypatch, loss=math.nan)
    with pytest.raises(ValueError, match="all losses of epoch 1 were NaN"):
        run(job, tmp_path)
    assert job.saved == []


def test_a_line_of_metrics_without_its_checkpoint_is_written_again(whole, tmp_path):
    with pytest.raises(OSError, match="power"):
        run(Noisy(fail_at=STEPS + 1), tmp_path)
    with open(tmp_path / METRICS, "a") as file:  # as after a kill between the line and the checkpoint
        file.write('{"epoch": 2, "train_loss": 123}\n')
    assert without_times(run(Noisy(), tmp_path)) == whole[0]


def test_the_seconds_of_an_epoch_end_when_the_device_has_finished(tmp_path, monkeypatch):
    now = 0.0

    class Running(torch.Tensor):
        """A loss that is known only 20 seconds later, when it is read first."""

        known = False

        def __float__(self):
            nonlocal now
            now += 0 if self.known else 20
            self.known = True
            return float(self.as_subclass(torch.Tensor))

    class Launched(Noisy):
        def step(self, number):
            return {"train_loss": torch.tensor(1.0).as_subclass(Running)}

    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert [record["seconds"] for record in run(Launched(), tmp_path)] == [20 * STEPS] * EPOCHS


def test_the_time_before_an_interruption_counts(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Noisy(interrupt_at=1), tmp_path)
    state = checkpoints.load(tmp_path / CHECKPOINT)
    assert state["seconds"] > 0
    checkpoints.save(tmp_path / CHECKPOINT, {**state, "seconds": 1000.0})
    first, second = run(Noisy(), tmp_path, epochs=2)
    assert first["seconds"] > 1000 > second["seconds"]


def test_an_epochs_seconds_leave_out_its_tests(tmp_path, monkeypatch):
    now = 0.0

    def passes(seconds):
        nonlocal now
        now += seconds
        return {}

    class Timed(Noisy):
        def step(self, number):
            return {**super().step(number), **passes(1)}

        def finish_epoch(self, epoch):
            return {**super().finish_epoch(epoch), **passes(100)}

        def status(self, epoch):
            return passes(10)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    records = run(Timed(), tmp_path)
    assert [record["seconds"] for record in records] == [STEPS + 10 * (STEPS - 1)] * EPOCHS


def test_a_finished_run_does_nothing_more(tmp_path):
    first = run(Noisy(), tmp_path)
    job = Noisy()
    assert run(job, tmp_path) == first
    assert job.tested == []


def test_a_checkpoint_of_another_job_is_an_error_that_says_what_to_do(tmp_path):
    run(Noisy(), tmp_path)
    other = Noisy()
    other.descent.model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"another run \(.*\); use another path, or delete it to start over"):
        run(other, tmp_path, epochs=EPOCHS + 1)


@pytest.fixture
def foreign(tmp_path):
    """The checkpoints of runs that differ in one setting, all of the same shapes."""
    config = {"seed": 0, "rate": 0.1, "data": {"images": 4}}
    for name, change in (("mine", {}), ("other", {"seed": 1}), ("data", {"data": {"images": 5}})):
        run(Noisy(), tmp_path / name, epochs=1, config={**config, **change})
    return config


@pytest.mark.parametrize(
    ("name", "message"), [("other", r"\(seed: 1 there, 0 here\)"), ("data", r"\(data\.images: 5 there, 4 here\)")]
)
def test_the_checkpoint_of_another_run_is_refused_by_what_differs(foreign, tmp_path, name, message):
    path = tmp_path / "mine" / CHECKPOINT
    path.write_bytes((tmp_path / name / CHECKPOINT).read_bytes())
    before = read_but_starts(tmp_path / "mine")
    cure = "; to continue it, restore these settings; use another path, or delete it to start over"
    with pytest.raises(ValueError, match=rf"^{path} is of another run {message}{cure}$"):
        run(Noisy(), tmp_path / "mine", epochs=2, config=foreign)
    assert read_but_starts(tmp_path / "mine") == before


def read_but_starts(folder):
    """The content of all files but the one with a line for each start, of refused ones, too."""
    return {file: file.read_bytes() for file in folder.iterdir() if file.name != ENVIRONMENT}


def test_ctrl_c_after_the_folder_was_removed_saves_nothing(tmp_path):
    class Removing(Noisy):
        def step(self, number):
            if number == 1:
                shutil.rmtree(tmp_path / "run")
            return super().step(number)

    with pytest.raises(ValueError, match="run was removed while its run went on"):
        run(Removing(interrupt_at=2), tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_without_config_is_of_its_own_run_alone(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Noisy(interrupt_at=2), tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"is of another run \(is: a test there, another here"):
        run(Noisy(), tmp_path, config={"is": "another"})
    (tmp_path / "config.json").unlink()
    assert without_times(run(Noisy(), tmp_path)) == whole[0]


def test_out_of_memory_is_not_reported_as_another_run(tmp_path):
    class Full(Noisy):
        def load_state_dict(self, state):
            raise torch.OutOfMemoryError("out of memory")

    run(Noisy(), tmp_path)
    with pytest.raises(torch.OutOfMemoryError, match=r"^out of memory$"):
        run(Full(), tmp_path, epochs=EPOCHS + 1)


def test_losses_that_are_never_finite_end_the_run_with_a_cure(tmp_path):
    class Lost(Noisy):
        def step(self, number):
            return {"train_loss": math.nan, "accuracy": math.nan}

    with pytest.raises(ValueError, match=r"all losses of epoch 1 were NaN.*learning rate"):
        run(Lost(), tmp_path)
    with pytest.raises(ValueError, match=r"all losses of checkpoint 1 were NaN.*learning rate"):
        run(Lost(), tmp_path, unit="checkpoint")


def test_a_single_loss_that_is_not_finite_is_left_out_of_the_mean(tmp_path):
    class Once(Noisy):
        def step(self, number):
            return {"train_loss": math.inf if number == 2 else 1.0}

    assert [record["train_loss"] for record in run(Once(), tmp_path)] == [1.0] * EPOCHS


def test_the_end_of_every_epoch_is_shown_as_a_line(tmp_path):
    shown = []
    run(Noisy(), tmp_path, progress=lambda fraction, text, line=False: shown.append((fraction, text, line)))
    lines = [(fraction, text) for fraction, text, line in shown if line]
    assert [fraction for fraction, _ in lines] == [1 / 3, 2 / 3, 1.0]
    assert all(f"epoch {place}, train loss" in text for place, (_, text) in enumerate(lines, start=1))


def test_between_the_lines_it_shows_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(_loop, "STATUS_INTERVAL", -1.0)
    shown = []
    run(Noisy(), tmp_path, progress=lambda fraction, text, line=False: shown.append(text) if not line else None)
    assert len(shown) == EPOCHS * (STEPS - 1)
    assert shown[0].startswith("epoch 1/3 step 1/5, train loss ")


def test_the_status_of_a_job_is_shown_between_lines_and_asked_then_only(tmp_path, monkeypatch):
    asked, shown = [], []

    class Telling(Noisy):
        def status(self, epoch):
            asked.append(epoch.steps)
            return {"largest_probability": 0.25, "delta": 1.5}

    run(Telling(), tmp_path / "quick")
    assert not asked  # it was over before anything had to be shown
    monkeypatch.setattr(_loop, "STATUS_INTERVAL", -1.0)
    show = lambda fraction, text, line=False: shown.append((text, line))  # noqa: E731
    records = run(Telling(), tmp_path / "shown", progress=show)
    for text, line in shown:
        assert text.endswith(", largest probability 0.25, delta 1.5") == (not line)
    assert asked == [*range(1, STEPS)] * EPOCHS
    assert all("delta" not in record for record in records)


def test_a_run_that_goes_on_shows_how_far_it_was(tmp_path):
    shown = []
    with pytest.raises(KeyboardInterrupt):
        run(Noisy(interrupt_at=7), tmp_path)
    run(Noisy(), tmp_path, progress=lambda fraction, text, line=False: shown.append((fraction, text.split(",")[0])))
    assert shown == [(8 / 15, "continues in epoch 2 of 3 after step 3"), (2 / 3, "epoch 2"), (1.0, "epoch 3")]


def test_an_epoch_takes_the_mean_of_what_is_finite_wherever_it_lies():
    epoch = Epoch()
    for value in (1.0, torch.tensor(3.0), torch.tensor(math.nan), torch.tensor(5.0, dtype=torch.float64)):
        epoch.add({"loss": value, "lost": math.inf})
    assert epoch.means() == {"loss": 3.0, "lost": None}


# Files


@pytest.mark.parametrize(
    "harm", [lambda text: None, lambda text: "", lambda text: text[:20], lambda text: "5\n" + text]
)
@pytest.mark.parametrize("interrupt_at", [None, 7])
def test_damaged_metrics_are_restored_from_the_checkpoint(tmp_path, whole, harm, interrupt_at):
    if interrupt_at is None:
        run(Noisy(), tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            run(Noisy(interrupt_at=interrupt_at), tmp_path)
    path = tmp_path / METRICS
    damaged = harm(path.read_text())
    path.unlink()
    if damaged is not None:
        path.write_text(damaged)
    records = run(Noisy(), tmp_path)
    assert without_times(records) == whole[0]
    assert [json.loads(line) for line in path.read_text().splitlines()] == records


@pytest.mark.parametrize(("part", "wrong"), [("index", 8), ("index", 10**6), ("steps", 0), ("steps", STEPS + 1)])
def test_a_position_that_no_run_reaches_is_refused(tmp_path, part, wrong):
    with pytest.raises(KeyboardInterrupt):
        run(Noisy(interrupt_at=6), tmp_path)
    state = checkpoints.load(tmp_path / CHECKPOINT)
    checkpoints.save(tmp_path / CHECKPOINT, {**state, part: wrong})
    with pytest.raises(
        ValueError, match=r"checkpoint\.pt is of another run \(step \d+ is not step \d+ after 1 epochs\)"
    ):
        run(Noisy(), tmp_path)


def test_records_that_json_cannot_hold_are_refused(tmp_path):
    run(Noisy(), tmp_path)
    state = checkpoints.load(tmp_path / CHECKPOINT)
    state["history"][1]["train_loss"] = torch.zeros(2)
    checkpoints.save(tmp_path / CHECKPOINT, state)
    with pytest.raises(ValueError, match=r"has a checkpoint with damaged records \(.*Tensor.*\); delete it"):
        run(Noisy(), tmp_path)


@pytest.mark.parametrize("name", [CHECKPOINT, METRICS])
def test_a_pipe_among_the_files_is_refused_without_waiting(tmp_path, name):
    run(Noisy(), tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name} is not a regular file; remove it, or use another path"):
        run(Noisy(), tmp_path)


# Small things


def test_the_learning_rate_follows_a_cosine():
    assert [EpochSettings(lr=0.1).lr_at(k / 4) for k in range(5)] == pytest.approx(
        [0.1, 0.05 * (1 + math.sqrt(0.5)), 0.05, 0.05 * (1 - math.sqrt(0.5)), 0.0]
    )
    one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    weight_optimizer = torch.optim.SGD([{"params": [one]}, {"params": [other]}], lr=1.0)
    set_lr(weight_optimizer, 0.5)
    assert [group["lr"] for group in weight_optimizer.param_groups] == [0.5, 0.5]


def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(monkeypatch):
    assert parse_device("cpu") == torch.device("cpu")
    assert parse_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "meta", "mps", ""):
        with pytest.raises(ValueError, match=rf"^there is no device '{name}'; give cpu.* or auto$"):
            parse_device(name)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"'cuda:0' was asked for.*sees no GPU; give cpu or auto"):
        parse_device("cuda:0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [str(parse_device(name)) for name in ("auto", "cuda", "cuda:1", "cpu")] == [
        "cuda",
        "cuda",
        "cuda:1",
        "cpu",
    ]
    with pytest.raises(ValueError, match=r"no device 'cuda:2'; give cpu, cuda:0, cuda:1 or auto"):
        parse_device("cuda:2")
