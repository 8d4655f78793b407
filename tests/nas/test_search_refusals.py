"""What OneShot and search refuse: wrong models, optimizers, losses and batches, each named with its cure."""

import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from asng import ASNG, Categorical, Integer
from asng.nas import OneOf, OneShot, Value, space_of, top
from asng.nas import _checkpoints as checkpoints
from tests.helpers.searches import Net, Switch, batches, cross_entropy, data, make_oneshot, run_search

pytestmark = pytest.mark.usefixtures("same_numbers")

# OneShot -------------------------------------------------------------------------------------------


def test_a_model_without_decisions_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"no decisions to search; put some in, such as asng\.nas\.OneOf"):
        OneShot(model, ASNG({"a": Categorical(["x", "y"])}), torch.optim.SGD(model.parameters(), 0.1), cross_entropy)


def test_a_torch_optimizer_in_the_place_of_asng_is_refused():
    model = Net()
    weight_optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(
        ValueError, match=r"optimizer must be an optimizer of asng, .* got SGD; pass the torch optimizer"
    ):
        OneShot(model, weight_optimizer, weight_optimizer, cross_entropy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"a": Categorical(["x", "y"])}, "differ in 'a', 'depth', 'first'"),
        ({"first": Categorical([0, 1, 2]), "depth": Integer(1, 4)}, "differ in 'depth'"),
    ],
)
def test_an_optimizer_of_another_space_is_refused(space, message):
    model = Net()
    with pytest.raises(ValueError, match=f"another space than the model's .*{message}.*space_of"):
        OneShot(model, ASNG(space), torch.optim.SGD(model.parameters(), 0.1), cross_entropy)


def test_the_space_of_an_optimizer_may_have_another_order():
    model = Net()
    space = dict(reversed(space_of(model).items()))
    search = OneShot(model, ASNG(space), torch.optim.SGD(model.parameters(), 0.1), cross_entropy)
    search.step(*batches(2))
    assert list(search.arch_optimizer.mode()) == list(space) != list(space_of(model))
    assert top(search)[0].values == {name: search.arch_optimizer.mode()[name] for name in space_of(model)}


def test_parameters_that_weights_does_not_hold_are_named():
    model = Net()
    some = [p for name, p in model.named_parameters() if not name.startswith("head")]
    with pytest.raises(ValueError, match=r"head\.weight, head\.bias; make it with model\.parameters\(\)"):
        make_oneshot(model, weight_optimizer=torch.optim.SGD(some, 0.1))
    with pytest.raises(ValueError, match="and 10 more"):
        make_oneshot(model, weight_optimizer=torch.optim.SGD(Net().parameters(), 0.1))
    model.head.requires_grad_(False)
    make_oneshot(model, weight_optimizer=torch.optim.SGD(some, 0.1)).step(*batches(2))


def test_choices_that_are_arrays_are_compared():
    model = nn.Sequential(Value("a", Categorical([np.arange(2), np.arange(3)])), nn.Linear(3, 3))
    weight_optimizer = torch.optim.SGD(model.parameters(), 0.1)
    equal, other = (Categorical([np.arange(2), np.arange(n)]) for n in (3, 4))
    OneShot(model, ASNG({"a": equal}), weight_optimizer, cross_entropy)
    with pytest.raises(ValueError, match="they differ in 'a'"):
        OneShot(model, ASNG({"a": other}), weight_optimizer, cross_entropy)


def test_sparse_gradients_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), OneOf("op", [nn.Identity(), nn.Tanh()]))
    with pytest.raises(ValueError, match=r"^0 has sparse gradients, .* use sparse=False"):
        make_oneshot(model)


@pytest.mark.parametrize("given", [0.1, [], [0.1], None])
def test_what_is_no_torch_optimizer_is_refused(given):
    with pytest.raises(ValueError, match=rf"weight_optimizer must be a torch optimizer.* got {re.escape(repr(given))}"):
        OneShot(model := Net(), ASNG(space_of(model)), given, cross_entropy)
    if given is not None:  # which is the default
        with pytest.raises(ValueError, match="weight_optimizer must be a torch optimizer"):
            run_search(weight_optimizer=given)


def test_a_parameter_of_two_optimizers_is_refused_by_name():
    model = Net()
    several = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(model.head.parameters(), 0.1)]
    with pytest.raises(
        ValueError, match=r"two of the weight optimizers hold the parameter head\.weight; give it to one"
    ):
        make_oneshot(model, weight_optimizer=several)


def test_an_optimizer_that_needs_a_closure_is_refused():
    model = Net()
    with pytest.raises(ValueError, match=r"^LBFGS needs a closure .*use a torch optimizer without a closure"):
        make_oneshot(model, weight_optimizer=torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize(
    ("name", "value"), [("amp_dtype", torch.float32), ("max_grad_norm", 0.0), ("max_grad_norm", -1.0)]
)
def test_wrong_settings_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*{value}"):
        make_oneshot(**{name: value})


# Losses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, x: 1.0, r"must return a scalar tensor, or \(loss, metrics\), got 1\.0"),
        (lambda model, x: SimpleNamespace(loss=model(x), logits=x), r"got a SimpleNamespace; return its \.loss$"),
        (lambda model, x: model(x) * torch.ones(2), r"got a tensor of shape \(2,\)"),
        (lambda model, x: (model(x), 0.5), r"metrics must be a mapping of names to numbers, got 0\.5"),
        (lambda model, x: (model(x), {1: 0.5}), r"names of metrics must be strings, got 1"),
        (lambda model, x: (model(x), {"a": x}), r"metric 'a' must be a real number .* of shape \(3,\)"),
        (lambda model, x: (model(x), {"a": "b"}), r"metric 'a' must be a real number or a scalar tensor, got 'b'"),
        (lambda model, x: model(x).detach(), "does not depend on the weights"),
        (lambda model, x: (model(x) > 0).sum(), r"is a tensor of torch\.int64, which has no gradient; return floating"),
        (lambda model, x: model(x) > 0, r"is a tensor of torch\.bool, which has no gradient"),
        (lambda model, x: model(x) * 1j, r"must return a real number, got torch\.complex64; take its abs\(\)"),
    ],
)
def test_a_wrong_loss_is_named(loss, message):
    with pytest.raises(ValueError, match=message):
        make_oneshot(Switch(), loss_fn=loss).step(torch.ones(3), torch.ones(3))


def test_architectures_may_be_judged_by_whole_numbers():
    def loss(model, x):
        return model(x) if torch.is_grad_enabled() else torch.tensor(model.which.value)

    step = make_oneshot(Switch(), loss_fn=loss).step(torch.ones(3), torch.ones(3))
    assert step.valid_losses == tuple(values["which"] for values in step.candidates)


def test_a_batch_of_one_row_is_told_from_a_fault_of_the_architecture():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training") as error:
        make_oneshot(Net(norm=True)).step(batches(1)[0], batches(1, size=1)[0])
    assert "candidates are judged in training mode; leave out a last batch of one row" in error.value.__notes__[-1]


def test_an_error_in_the_loss_says_in_which_architecture():
    def loss(model, x):
        return model(x)[:, 2 * model.which.value]

    with pytest.raises(IndexError) as error:
        make_oneshot(Switch(), loss_fn=loss).step(torch.ones(3), torch.ones(3))
    assert error.value.__notes__ in (["in the architecture {'which': 0}"], ["in the architecture {'which': 1}"])


@pytest.mark.parametrize("retain_graph", [False, True])  # with which torch does not object
def test_a_loss_that_calls_backward_is_refused_in_the_first_step(retain_graph):
    def loss_fn(model, batch):
        loss = cross_entropy(model, batch)
        if loss.requires_grad:
            loss.backward(retain_graph=retain_graph)
        return loss

    message = r"loss_fn changes gradients; leave out zero_grad\(\) and backward\(\) in it: the search calls them"
    with pytest.raises(ValueError, match=message):
        make_oneshot(Net(), loss_fn=loss_fn).step(*batches(2))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_loss_that_clears_gradients_is_refused(set_to_none):
    def loss_fn(model, batch):
        for parameter in model.parameters():
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()
        return cross_entropy(model, batch)

    with pytest.raises(ValueError, match=r"loss_fn changes gradients; leave out zero_grad\(\) and backward\(\) in it"):
        run_search(loss_fn=loss_fn)


def test_a_loss_that_leaves_the_model_in_evaluation_mode_is_refused():
    with pytest.raises(ValueError, match=r"loss_fn leaves the model in evaluation mode.*; leave out eval\(\) in it"):
        run_search(loss_fn=lambda model, batch: cross_entropy(model.eval(), batch))


def test_a_loss_may_take_gradients_and_modes_of_its_own():
    def loss_fn(model, batch):
        with torch.no_grad():
            target = model.eval()(batch[0]).softmax(1)
        model.train()
        loss = cross_entropy(model, batch)
        penalty = 0
        if loss.requires_grad:
            penalty = torch.autograd.grad(loss, model.head.weight, create_graph=True)[0].square().sum()
        return loss + penalty + (model(batch[0]).softmax(1) - target).square().mean()

    assert math.isfinite(run_search(loss_fn=loss_fn).history[-1]["train_loss"])


def test_a_model_that_always_stays_in_evaluation_mode_is_searched():
    class Frozen(Net):
        def train(self, mode=True):
            return super().train(False)

    model = Frozen()
    assert math.isfinite(run_search(model).history[-1]["train_loss"])
    assert not model.training


def test_an_epoch_without_a_finite_loss_ends_the_search(tmp_path):
    path = tmp_path / "checkpoint.pt"
    calls = itertools.count()
    message = "all losses of epoch 2 were NaN or infinite; lower the learning rate"
    with pytest.raises(ValueError, match=message) as error:
        run_search(
            loss_fn=lambda model, batch: cross_entropy(model, batch) * (math.nan if next(calls) >= 20 else 1),
            epochs=4,
            checkpoint=path,
        )
    assert len(checkpoints.load(path)["history"]) == 1
    assert error.value.__notes__ == [f"{path} is as it was after epoch 1, before these losses"]


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder; give the path of a file, such as .*search\.pt"):
        run_search(checkpoint=tmp_path)


# search --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, r"epochs must be an integer, got 1\.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"train_loader": 3}, "train_loader must give batches when it is iterated, such as a DataLoader, got 3"),
        ({"train_loader": "train.csv"}, r"train_loader must give batches when .* DataLoader, got 'train\.csv'"),
        (
            {"valid_loader": {"x": 3, "y": 4}},
            r"valid_loader must give batches when .* DataLoader, got \{'x': 3, 'y': 4\}",
        ),
        (
            {"train_loader": torch.randn(32, 4)},
            r"train_loader must give batches .*, but a Tensor gives rows; pass a list of .*, such as x\.split\(32\)",
        ),
        ({"valid_loader": np.ones((32, 4))}, "valid_loader must give batches .*, but a ndarray gives rows"),
        ({"train_loader": []}, "train_loader gave no batches in epoch 1; is it empty, or used up?"),
        ({"valid_loader": []}, "valid_loader gave no batches; is it empty, or used up?"),
        (
            {"train_loader": iter(batches(2))},
            "train_loader is an iterator .* ends after one epoch of 2; pass what it is made from",
        ),
        (
            {"valid_loader": (b for b in batches(2))},
            r"valid_loader is an iterator \(generator\), which ends after one epoch of 2",
        ),
        (
            {"valid_loader": (b for b in batches(2)), "epochs": 1},
            "valid_loader gave no batches; is it empty, or used up?",
        ),
        ({"model": nn.Linear(4, 3)}, "the model has no decisions"),
        ({"arch_optimizer": ASNG({"a": Categorical(["x", "y"])})}, "another space than the model's"),
        (
            {"weight_optimizer": torch.optim.SGD(Net().parameters(), 0.1)},
            "weight_optimizer does not hold the model's parameters",
        ),
        ({"max_grad_norm": 0}, "max_grad_norm must be above 0, or None"),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.StepLR(torch.optim.SGD(Net().parameters(), 0.1), 1)},
            "lr_scheduler belongs to another optimizer; pass the one",
        ),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.StepLR},
            r"lr_scheduler is the class StepLR; make one: StepLR\(weight_optimizer, \.\.\.\)",
        ),
    ],
)
def test_wrong_arguments_are_named_with_their_cure(settings, message):
    with pytest.raises(ValueError, match=message):
        run_search(**settings)


def test_one_epoch_takes_an_iterator():
    assert len(run_search(train_loader=iter(batches(2)), valid_loader=iter(batches(2)), epochs=1).history) == 1


def test_a_sampler_that_deals_out_batches_is_refused():
    dataset = TensorDataset(*data(16))
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset, num_replicas=2, rank=0))
    with pytest.raises(
        ValueError, match="train_loader has a DistributedSampler, but all processes need the same batches"
    ):
        run_search(train_loader=loader)


def test_the_class_of_a_weight_optimizer_is_refused_with_the_cure():
    model = OneOf("op", [nn.Linear(2, 1), nn.Linear(2, 1)])
    with pytest.raises(ValueError, match=r"is the class Adam; make one: Adam\(model.parameters\(\), lr=...\)"):
        make_oneshot(model, weight_optimizer=torch.optim.Adam)
