"""Models that cannot be captured are refused with the reason, or run by plain steps after a warning."""

# mypy: disable-error-code="index, union-attr"

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from asng import Categorical, Integer, Real, nas
from asng.nas import OneOf, Value
from asng.nas._capture import trace
from asng.nas._capture.cases import Refused
from asng.nas._capture.switch import refuse_waits
from tests.helpers.captures import Averages, Choosy, assert_same_steps, iteration, oneshot
from tests.helpers.searches import batches, cross_entropy, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


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


@pytest.mark.parametrize("model", [Remembers, lambda: Reads(Categorical([1, 2]))], ids=["remembers", "reads"])
def test_a_whole_model_of_few_cases_can_be_one_switch(model):
    assert_same_steps(model())


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: nn.Sequential(Reads(Integer(1, 99)), nn.Linear(4, 3)),
            r"^0 has more than 64 cases, and decision 'x' \(0.decision\) is read in Python outside a choice",
        ),
        (lambda: OneOf("op", [nn.Linear(4, 3), nn.Linear(4, 5)]), r"results of 'op' \(the model\) differ in shape"),
        (lambda: OneOf("op", [Reads(Real(0, 1)), nn.Linear(4, 3)]), "'x' .*, without cases"),
        (lambda: OneOf("op", [Reads(Integer(1, 99)), nn.Linear(4, 3)]), "'op' .* more than 64 cases"),
        (share_weights, "parameter 0.weight is used inside and outside a choice"),
        (lambda: OneOf("op", [Averages(), nn.Linear(4, 3)]), r"^options.0 replaces its buffer 'mean'; write into it"),
    ],
)
def test_what_cannot_be_open_is_refused_with_its_name(model, reason):
    search = oneshot(model())
    with pytest.raises(Refused, match=reason):
        iteration(search, batches(1)[0])


class GivesPair(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return self.linear(x), None


def test_results_that_are_no_tensors_are_refused_with_the_module():
    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0])[0], batch[1])

    model = OneOf("op", [GivesPair(nn.Linear(4, 3)), GivesPair(nn.Linear(4, 3))])
    with pytest.raises(Refused, match=r"^'op' \(the model\) gives NoneType, and only tensors can be switched$"):
        iteration(oneshot(model), batches(1)[0], loss_fn=loss_fn)


def test_a_choice_that_is_recomputed_in_the_backward_pass_is_refused():
    class Recomputes(Choosy):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    with pytest.raises(Refused, match=r"runs again in the backward pass; leave out torch.utils.checkpoint around it"):
        iteration(oneshot(Recomputes()), batches(1)[0])


@pytest.mark.parametrize(
    ("owner", "name"),
    [(torch.cuda, "synchronize"), (torch.accelerator, "synchronize"), (torch.cuda.Event, "elapsed_time")],
)
def test_waits_by_hand_are_refused(owner, name):
    before = getattr(owner, name)
    with pytest.raises(RuntimeError, match="synchronizing"), refuse_waits():
        getattr(owner, name)(None)
    assert getattr(owner, name) is before


class Looks(nn.Module):
    def forward(self, x):
        return x * {0: 1.0, 1: 2.0}[self.decision.index]  # a tensor has another hash

    def __init__(self):
        super().__init__()
        self.decision = Value("scale", Categorical([1, 2]))


class Scales(nn.Module):
    """Reads in Python a decision with more values than a switch has cases."""

    def __init__(self):
        super().__init__()
        self.decision = Value("scale", Integer(1, 99))

    def forward(self, x):
        return x * self.decision.value


class Large(nn.Module):
    """Alone it fits into memory, but not beside the other options, as a graph holds them."""

    def forward(self, x):
        if trace.is_open():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return x.tanh()


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x + torch.empty_like(x).normal_(generator=self.generator)


class Waits(nn.Module):
    """Reads a number on the host, which torch refuses on a GPU while the architecture is open."""

    def forward(self, x):
        if trace.is_open():
            raise RuntimeError("called a synchronizing CUDA operation")
        return x * x.mean().item()


def weighted_loss(model, batch):
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
        (Scales, cross_entropy, tuple, r"usual: 'op' \(1\) has more than 64 cases$"),
        (Large, cross_entropy, tuple, r"usual: CUDA out of memory\. .* 9 GiB \(in 1\.options\.0 \(Large\)\)$"),
        (
            Waits,
            cross_entropy,
            tuple,
            r"synchronizing .*; leave out code that reads .* \(in 1\.options\.0 \(Waits\)\)$",
        ),
        (Noise, cross_entropy, tuple, r"normal_ draws from a generator of its own.* \(in 1\.options\.0 \(Noise\)\)$"),
        (nn.Tanh, weighted_loss, tuple, r"usual: decision 'op' \(1\) is read in Python outside a choice$"),
        (nn.Tanh, as_array, lambda b: (b[0], b[1].numpy()), "a batch holds ndarray, and only tensors, numbers"),
    ],
    ids=["key", "in place", "value", "memory", "wait", "generator", "loss", "numpy"],
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
