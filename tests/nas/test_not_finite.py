"""What is NaN or infinite ends no search, and is told: how many steps it cost, and which statistics it left behind."""

import math
import warnings

import pytest
import torch
from torch import nn

from asng import nas
from tests.helpers.searches import Net, batches, cross_entropy, run_search

pytestmark = pytest.mark.usefixtures("same_numbers")

LOADERS = pytest.mark.parametrize(
    ("loader", "what"), [("train_loader", "the gradient was"), ("valid_loader", "all scores were")]
)


def make_model(*, norm=False):
    """All architectures depend on all inputs."""
    act = nas.OneOf("act", [nn.ReLU(), nn.LeakyReLU()])
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), act, nn.Linear(8, 3))


def with_one_bad(bad, n=5):
    """Batches of which the third has one bad number."""
    given = batches(n)
    given[2][0][0, 0] = bad
    return given


def warnings_of(model=None, **settings):
    """The result of a search, and its warnings, without the one that it was short."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run_search(make_model() if model is None else model, **settings)
    return found, [text for text in (str(each.message) for each in caught) if "too short" not in text]


@LOADERS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_batch_is_told_once_with_its_loader_and_the_number_of_steps(loader, what, bad):
    _, told = warnings_of(**{loader: with_one_bad(bad)}, epochs=3)
    assert told == [
        f"in 1 of 5 steps of epoch 1 {what} NaN or infinite, so nothing was learned; look for NaN in the batches "
        f"of {loader} and for divisions by 0, or lower the learning rate"
    ]


@LOADERS
def test_statistics_that_a_bad_batch_has_spoiled_are_told_and_mended_by_others(loader, what):
    found, told = warnings_of(make_model(norm=True), **{loader: with_one_bad(math.nan)}, epochs=3)
    network = found.model.eval()
    assert told[0].startswith(f"in 1 of 5 steps of epoch 1 {what} NaN")
    assert told[1:] == [
        "the running statistics of 1 (BatchNorm1d) are NaN or infinite, and of no use in evaluation mode; call "
        "nas.recalibrate(model, batches) with batches that hold neither"
    ]
    x = batches(1)[0][0]
    assert network(x).isnan().all()
    nas.recalibrate(network, batches(5))
    assert network(x).isfinite().all()


def test_recalibration_on_a_bad_batch_is_told_at_the_line_that_called_it():
    network = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    with pytest.warns(UserWarning, match=r"statistics of 0 \(BatchNorm1d\) and 1 more are NaN or infinite") as told:
        nas.recalibrate(network, with_one_bad(math.inf))
    assert told[0].filename == __file__


def test_statistics_of_layers_that_did_not_run_are_not_told():
    model = Net(norm=True)
    model.blocks.blocks[2].get_submodule("1").get_buffer("running_mean").fill_(math.nan)
    score = nas.score(model, {"first": 0, "depth": 2}, batches(2), cross_entropy, recalibrate_on=batches(5))
    assert math.isfinite(score)


def test_a_gradient_that_is_never_finite_is_told_although_the_losses_are():
    def loss_fn(model, batch):
        return cross_entropy(model, batch) + (0 * model[3].weight).sum().sqrt()

    found, (told,) = warnings_of(loss_fn=loss_fn)
    assert told.startswith("in 5 of 5 steps of epoch 1 the gradient was NaN or infinite")
    assert all(math.isfinite(record["train_loss"]) for record in found.history)


def test_steps_by_which_float16_finds_its_scale_are_not_told():
    def loss_fn(model, batch):
        return cross_entropy(model, batch) * 1e3

    model = make_model()
    before = model[0].weight.detach().clone()
    assert warnings_of(model, loss_fn=loss_fn, amp_dtype=torch.float16, epochs=1)[1] == []
    assert torch.equal(model[0].weight, before)  # none has moved it yet


def test_captured_steps_tell_by_their_losses(graphless):
    _, (told,) = warnings_of(train_loader=with_one_bad(math.nan), capture=True, epochs=1)
    assert told.startswith("in 1 of 5 steps of epoch 1 the gradient was NaN or infinite")


def test_steps_are_counted_from_epoch_to_epoch():
    def loss_fn(model, batch):
        is_late = torch.is_grad_enabled() and len(seen) >= 10 * 2
        seen.append(batch)
        return cross_entropy(model, batch) * (math.nan if is_late else 1.0)

    seen = []
    _, (told,) = warnings_of(loss_fn=loss_fn, epochs=2)
    assert told.startswith("in 5 of 5 steps of epoch 2 the gradient was NaN")


def test_a_judge_may_refuse_some_candidates():
    def judge(model, batch):
        return math.inf if nas.selected(model)["act"] else cross_entropy(model, batch)

    assert warnings_of(judge=judge)[1] == []


def square(model, batch):
    return model(batch[0]).square().mean()


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("judge", [None, square])
def test_weights_that_diverge_in_the_first_step_end_the_search(epochs, judge):
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=1e30)
    which = "validation losses" if judge is None else "scores"
    with pytest.raises(ValueError, match=f"^all {which} of epoch 1 were NaN or infinite; .*lower the learning rate"):
        run_search(model, loss_fn=square, weight_optimizer=sgd, judge=judge, epochs=epochs)
