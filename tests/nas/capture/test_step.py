"""What cannot be captured is refused with the reason, or runs by plain steps after a warning."""

# mypy: disable-error-code="attr-defined, index, union-attr"

import copy
import itertools
import pickle
import random
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrize
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from asng import ASNG, Categorical, Integer, Real, nas
from asng.nas import OneOf, OneShot, Value
from asng.nas._capture import step as _capture
from asng.nas._capture import trace
from asng.nas._capture.cases import Refused
from asng.nas._capture.held import find_held
from asng.nas._capture.host_rng import host_generators, snapshot
from asng.nas._capture.switch import (
    MIN_CUDA,
    MIN_TORCH,
    Versions,
    installed_versions,
    outdated_reason,
    refuse_waits,
    unavailable_reason,
)
from asng.nas._capture.update import unsupported_reason
from tests.helpers.captures import Choosy, assert_same_steps, iteration, oneshot
from tests.helpers.searches import batches, cross_entropy, pairs

ROOT = Path(__file__).parents[3]
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


class Moves(nn.Module):
    """Makes a new buffer by the first pass, or new memory for it in every one."""

    mean: torch.Tensor | None

    def __init__(self, mean):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", mean)

    def forward(self, x):
        if self.mean is None:
            self.mean = x.detach().mean(0)
        else:
            self.mean.data = self.mean.data + 1
        return self.linear(x - self.mean)


@pytest.mark.parametrize("mean", [None, torch.zeros(4)], ids=["new", "moved"])
def test_new_memory_of_a_buffer_is_refused(mean):
    with pytest.raises(Refused, match=r"^0 replaces its buffer 'mean'; write into it"):
        iteration(oneshot(nn.Sequential(Moves(mean), OneOf("op", [nn.Tanh(), nn.Linear(3, 3)]))), batches(1)[0])


class Centers(nn.Module):
    """A loss with a mean of its own, which every pass moves."""

    def __init__(self, move, *, registered):
        super().__init__()
        self.move, self.mean = move, torch.zeros(3)
        if registered:
            del self.mean
            self.register_buffer("mean", torch.zeros(3))

    def forward(self, model, batch):
        scores = model(batch[0])
        self.move(self, 0.9 * self.mean + 0.1 * scores.detach().mean(0))
        return nn.functional.cross_entropy(scores - self.mean, batch[1])


def replace_mean(loss, mean):
    loss.mean = mean


@pytest.mark.usefixtures("graphless")
@pytest.mark.parametrize(("registered", "name"), [(True, "buffer"), (False, "tensor")])
def test_a_state_that_the_loss_replaces_runs_as_usual(registered, name):
    model = Choosy()
    losses = [Centers(replace_mean, registered=registered) for _ in range(2)]
    plain, captured = oneshot(model, loss_fn=losses[0]), oneshot(copy.deepcopy(model), loss_fn=losses[1], capture=True)
    data = pairs(3)
    with pytest.warns(UserWarning, match=f"usual: Centers replaces its {name} 'mean'; write into it"):
        got = [captured.step(*pair) for pair in data]
    assert got == [plain.step(*pair) for pair in data]


@pytest.mark.usefixtures("graphless")
def test_a_dry_run_leaves_the_buffers_of_the_loss_alone():
    model = Choosy()
    losses = [Centers(lambda loss, mean: loss.mean.copy_(mean), registered=True) for _ in range(2)]
    plain, captured = oneshot(model, loss_fn=losses[0]), oneshot(copy.deepcopy(model), loss_fn=losses[1], capture=True)
    for train, valid in pairs(3):
        assert captured.step(train, valid) == plain.step(train, valid)
    assert captured.capture_cost


class Positions(nn.Module):
    """Keeps numbers for batches of one size, and what it gave last."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.numbers, self.last = torch.zeros(0, 1), torch.zeros(())

    def forward(self, x):
        if self.numbers.shape[0] != len(x):
            self.numbers = torch.linspace(0, 1, len(x))[:, None]
        self.last = self.linear(x + self.numbers)
        return self.last


@pytest.mark.usefixtures("graphless")
def test_what_a_graph_reads_is_kept_when_the_model_replaces_it():
    positions = Positions()
    model = nn.Sequential(positions, OneOf("op", [nn.Linear(4, 3), nn.Sequential(nn.Tanh(), nn.Linear(4, 3))]))
    search = oneshot(model, capture=True)
    train, valid = pairs(1)[0]
    search.step(train, valid)
    memory = StorageWeakRef(positions.numbers.untyped_storage())
    shorter = tuple(tensor[:5] for tensor in train)
    search.step(shorter, shorter)
    assert len(positions.numbers) == 5
    assert not memory.expired()
    search.release_capture()
    assert memory.expired()


@pytest.mark.usefixtures("graphless")
def test_what_is_kept_for_one_of_two_sizes_runs_as_usual():
    model = nn.Sequential(OneOf("op", [Positions(), nn.Linear(4, 4)]), nn.Linear(4, 3))
    train, valid = pairs(1)[0]
    with pytest.warns(UserWarning, match=r"usual: 0\.options\.0 replaces its tensor 'numbers'; write into it"):
        oneshot(model, capture=True).step(train, tuple(tensor[:5] for tensor in valid))


class Constrained(nn.Linear):
    """Its forward() changes its weight."""

    def __init__(self, constrain):
        super().__init__(4, 4)
        self.constrain = constrain

    def forward(self, x):
        self.constrain(self)
        return super().forward(x)


def replace_weight(layer):
    layer.weight.data = torch.renorm(layer.weight.data, 2, 0, 0.3)


def write_weight(layer):
    with torch.no_grad():
        layer.weight[0] = 0.1


@pytest.mark.usefixtures("graphless")
@pytest.mark.parametrize("amp_dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("constrain", [replace_weight, write_weight, lambda layer: layer.weight.data.clamp_(-0.1, 0.1)])
def test_weights_that_a_pass_writes_run_as_usual(constrain, amp_dtype):
    model = nn.Sequential(OneOf("op", [Constrained(constrain), nn.Linear(4, 4)]), nn.Linear(4, 3))
    plain, captured = (
        oneshot(m, amp_dtype=amp_dtype, capture=c) for m, c in ((model, False), (copy.deepcopy(model), True))
    )
    data = pairs(4)
    with pytest.warns(UserWarning, match=r"a pass writes into a weight; .* \(in 0\.options\.0 \(Constrained\)\)$"):
        got = [captured.step(*pair) for pair in data]
    assert got == [plain.step(*pair) for pair in data]


class Embeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(2, 4, max_norm=0.5)

    def forward(self, x):
        return self.embedding((x[:, 0] > 0).long())


@pytest.mark.usefixtures("graphless")
def test_a_maximal_norm_of_an_embedding_runs_as_usual():
    search = oneshot(nn.Sequential(OneOf("op", [Embeds(), nn.Linear(4, 4)]), nn.Linear(4, 3)), capture=True)
    reason = r"a pass writes into a weight; .* \(in 0\.options\.0\.embedding \(Embedding\)\)$"
    with pytest.warns(UserWarning, match=reason):
        search.step(*pairs(1)[0])


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


class Factor(nn.Module):
    """Has its weight from elsewhere, such as from the loss."""

    def __init__(self, weight):
        super().__init__()
        self.weights = [weight]

    def forward(self, x):
        return x * self.weights[0]


def test_parameters_that_are_not_the_models_are_refused_with_their_shape():
    weight = nn.Parameter(torch.ones(8))
    model = Choosy()
    model.last.options[1] = Factor(weight)
    search = oneshot(model, weight_optimizer=torch.optim.SGD([*model.parameters(), weight], 0.1))
    reason = r"^parameter of shape \(8,\), which is not the model's, is used inside and outside of a choice$"
    with pytest.raises(Refused, match=reason):
        iteration(search, batches(1)[0], loss_fn=lambda *given: cross_entropy(*given) + weight.square().sum())


def test_metrics_that_change_their_names_are_refused():
    calls = itertools.count()

    def loss(model, batch):
        return cross_entropy(model, batch), {f"metric {next(calls)}": 1.0}

    with pytest.raises(Refused, match=r"the metrics change from \['metric 0'\] to \['metric 2'\]"):
        iteration(oneshot(Choosy()), batches(1)[0], loss_fn=loss)


def adversarial(model, batch):
    x = batch[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(model, (x, batch[1])), x)
    return cross_entropy(model, (x.detach() + 0.1 * gradient.sign(), batch[1]))


def gradient_penalty(model, batch):
    x = batch[0].clone().requires_grad_()
    loss = cross_entropy(model, (x, batch[1]))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + gradient.square().sum()


@pytest.mark.parametrize("loss_fn", [adversarial, gradient_penalty])
def test_a_backward_pass_inside_the_loss_is_refused(loss_fn):
    model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [nn.Linear(4, 3), nn.Sequential(nn.Tanh(), nn.Linear(4, 3))]))
    with pytest.raises(Refused, match=r"^the loss has a backward pass of its own through 'op' \(1\)$"):
        iteration(oneshot(model), batches(1)[0], loss_fn=loss_fn, judge=cross_entropy)


def test_a_loss_that_calls_backward_is_refused_and_leaves_no_gradients():
    model = nn.Sequential(nn.Linear(4, 3), OneOf("op", [nn.Identity(), nn.Linear(3, 3)]))
    model[0].bias.grad = torch.ones(3)

    def loss_fn(model, batch):
        cross_entropy(model[0], batch).backward()
        return cross_entropy(model, batch)

    with pytest.raises(Refused, match=r"^the loss calls backward\(\)"):
        iteration(oneshot(model), batches(1)[0], loss_fn=loss_fn, judge=cross_entropy)
    assert model[0].weight.grad is None
    assert model[0].bias.grad.tolist() == [1.0] * 3


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def with_cached_weights(model, batch):
    with parametrize.cached():
        return cross_entropy(model, batch)


def test_weights_that_a_pass_keeps_for_all_options_are_refused():
    model = Choosy()
    parametrize.register_parametrization(model.last.options[1], "weight", Doubled())
    with pytest.raises(Refused, match="uses a tensor with a gradient that is not among its arguments"):
        iteration(oneshot(model, loss_fn=with_cached_weights), batches(1)[0], loss_fn=with_cached_weights)


class KeepsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.kept: list[torch.Tensor] = []

    def forward(self, x):
        self.kept = self.kept or [self.linear.weight]
        return nn.functional.linear(x, self.kept[0])


def test_references_to_weights_are_refused_in_mixed_precision():
    model = Choosy()
    model.last.options[1] = KeepsWeight()
    reason = r"a reference to parameter last\.options\.1\.linear\.weight was kept, and mixed precision runs with a copy"
    with pytest.raises(Refused, match=reason):
        iteration(oneshot(model), batches(1)[0], amp_dtype=torch.bfloat16)


def test_a_penalty_on_a_weight_that_was_kept_is_refused_in_mixed_precision():
    model = Choosy()
    weight = model.stem.weight

    def loss_fn(model, batch):
        return cross_entropy(model, batch) + nn.functional.linear(batch[0], weight).square().sum()

    with pytest.raises(Refused, match=r"a reference to parameter stem\.weight was kept"):
        iteration(oneshot(model), batches(1)[0], loss_fn=loss_fn, amp_dtype=torch.bfloat16)


def test_a_loss_that_leaves_the_model_in_evaluation_mode_is_refused():
    with pytest.raises(Refused, match=r"^loss_fn leaves the model in evaluation mode; leave out eval\(\)"):
        iteration(oneshot(Choosy()), batches(1)[0], loss_fn=lambda model, batch: cross_entropy(model.eval(), batch))


def test_a_hook_on_accumulated_gradients_is_refused_with_the_parameter():
    model = Choosy()
    model.stem.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(Refused, match=r"^parameter stem.weight has a hook on its accumulated gradient"):
        iteration(oneshot(model), batches(1)[0])


@torch.inference_mode()
def judge_in_inference_mode(model, batch):
    return cross_entropy(model, batch)


def test_inference_mode_is_refused_where_it_hides_writes():
    def prepare(option):
        model = nn.Sequential(nn.Linear(4, 4), OneOf("op", [option, nn.Tanh()]), nn.Linear(4, 3))
        iteration(oneshot(model), batches(1)[0], judge=judge_in_inference_mode)

    with pytest.raises(Refused, match=r"^'op' \(1\) can pass its input on, and torch.inference_mode\(\) hides whether"):
        prepare(nn.Identity())
    prepare(nn.Sigmoid())


def normalizing_loss(model, batch):
    x = batch[0].to(model.head.weight.device).mul_(0.5)  # a copy for each candidate, if the batch is elsewhere
    return cross_entropy(model, (x, batch[1]))


@pytest.mark.parametrize("settings", [{"loss_fn": normalizing_loss}, {"judge": normalizing_loss}])
def test_writes_into_a_batch_are_refused(settings):
    batch = batches(1)[0]
    before = batch[0].clone()
    with pytest.raises(
        Refused, match=r"^the model or the (loss|judge) writes into a batch, which all candidates share"
    ):
        iteration(oneshot(Choosy()), batch, **settings)
    assert torch.equal(batch[0], before)


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


@pytest.mark.parametrize(
    ("draw", "name"),
    [(random.random, "Python's random"), (np.random.rand, "NumPy's random"), (np.random.randn, "NumPy's random")],
    ids=["python", "numpy", "normal"],
)
def test_random_numbers_of_the_host_are_refused(draw, name):
    def loss_fn(model, batch):
        return cross_entropy(model, batch) * (1 + draw())

    expected = repeat_draw(draw)
    with pytest.raises(Refused, match=f"^the model, the loss or the judge draws from {name}, and a graph would repeat"):
        iteration(oneshot(Choosy()), batches(1)[0], loss_fn=loss_fn)
    assert [draw(), draw()] == expected  # plain steps draw what they would without a capture


NUMPYS = np.random.default_rng(0)


def mix(batch):
    return NUMPYS.uniform() * batch[0], batch[1]


def loss_of_mixture(model, batch):
    return cross_entropy(model, mix(batch))


def loss_of_own_mixture(model, batch, *, generator=np.random.default_rng(0)):  # noqa: B008
    return cross_entropy(model, batch) * generator.uniform()


def loss_of_some_mixtures(model, batch):
    return cross_entropy(model, batch) * max([NUMPYS.uniform() for _ in range(3)])


AUGMENTATION: Any = ModuleType("augmentation")  # of a user
exec("import random\ngenerator = random.Random(0)\ndef draw(): return generator.random()", vars(AUGMENTATION))


def loss_of_another_module(model, batch):
    return cross_entropy(model, batch) * AUGMENTATION.draw()


class Jitters(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = random.Random(0)

    def forward(self, x):
        return x * self.generator.random()


class Loss:
    def __init__(self):
        self.generator = np.random.RandomState(0)

    def __call__(self, model, batch):
        return cross_entropy(model, batch) * self.draw()

    def draw(self):
        return self.generator.rand()


class LossInTurn:
    def __init__(self):
        self.parts = {"factors": [Loss(), Loss()]}

    def __call__(self, model, batch):
        return self.parts["factors"][1](model, batch)


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize(
    ("option", "function", "generator", "name"),
    [
        (nn.Tanh(), loss_of_mixture, lambda model, function: NUMPYS, "Generator"),
        (nn.Tanh(), loss_of_own_mixture, lambda model, function: function.__kwdefaults__["generator"], "Generator"),
        (nn.Tanh(), loss_of_some_mixtures, lambda model, function: NUMPYS, "Generator"),
        (nn.Tanh(), loss_of_another_module, lambda model, function: AUGMENTATION.generator, "Random"),
        (nn.Tanh(), Loss(), lambda model, function: function.generator, "RandomState"),
        (nn.Tanh(), LossInTurn(), lambda model, function: function.parts["factors"][1].generator, "RandomState"),
        (Jitters(), cross_entropy, lambda model, function: model.last.options[1].generator, "Random"),
    ],
    ids=["global", "default", "comprehension", "module", "object", "list", "option"],
)
@pytest.mark.usefixtures("graphless")
def test_generators_of_the_host_are_refused_and_left_alone(option, function, generator, name, judged):
    model = Choosy()
    model.last.options[1] = option
    search = oneshot(model, capture=True, **({"judge": function} if judged else {"loss_fn": function}))
    before = pickle.dumps(generator(model, function))
    reason = f"draws from a {name} of its own, and a graph would repeat"
    prepared = search._captured._make_iteration(2)
    with pytest.raises(Refused, match=reason):
        prepared.prepare(*batches(2))
    assert pickle.dumps(generator(model, function)) == before
    with pytest.warns(UserWarning, match=reason):
        search.step(*batches(2))


def test_long_lists_are_not_searched_for_generators():
    class Reads:
        numbers: list[Any] = [random.Random(0)] * 10_000

    assert len(host_generators(torch.device("cpu"), find_held([Reads()]))) == 2


def repeat_draw(draw):
    """What two calls will return."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    drawn = [draw(), draw()]
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    return drawn


def test_random_numbers_of_the_cpu_are_noticed_beside_a_gpu():
    gpu = torch.device("cuda")
    generators = host_generators(gpu)
    before = snapshot(generators)
    torch.rand(())
    pairs = zip(generators, before, snapshot(generators), strict=True)
    assert [name for (name, _), old, new in pairs if new != old] == ["torch's generator of the CPU"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(torch.cuda, "synchronize"), (torch.accelerator, "synchronize"), (torch.cuda.Event, "elapsed_time")],
)
def test_waits_by_hand_are_refused(owner, name):
    before = getattr(owner, name)
    with pytest.raises(RuntimeError, match="synchronizing"), refuse_waits():
        getattr(owner, name)(None)
    assert getattr(owner, name) is before


def test_a_choice_that_is_recomputed_in_the_backward_pass_is_refused():
    class Recomputes(Choosy):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    with pytest.raises(Refused, match=r"runs again in the backward pass; leave out torch.utils.checkpoint around it"):
        iteration(oneshot(Recomputes()), batches(1)[0])


class Rectifies(nn.Module):
    def __init__(self, *, inplace):
        super().__init__()
        self.body = nn.Sequential(OneOf("op", [nn.Identity(), nn.Linear(4, 4)]), nn.ReLU(inplace=inplace))
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.body(x))


def test_writes_into_what_an_option_passes_on_are_refused():
    with pytest.raises(Refused, match=r"^'op' \(body.0\) can pass its input on, and one of both is written later"):
        iteration(oneshot(Rectifies(inplace=True)), batches(1)[0])
    assert_same_steps(Rectifies(inplace=False))


def with_step_hook(parameters):
    optimizer = torch.optim.SGD(parameters, 0.1)
    optimizer.register_step_post_hook(lambda *args: None)
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (torch.optim.Adagrad, "is Adagrad, and only SGD, ASGD, Adadelta, Adam"),
        (torch.optim.Adam, "capturable=False; give Adam capturable=True"),
        (lambda p: torch.optim.Adam(p, capturable=True), None),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1), "dampening=0.1"),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), None),
        (with_step_hook, "hooks on its step"),
    ],
)
def test_optimizers_that_cannot_be_captured_are_named(optimizer, reason):
    got = unsupported_reason(optimizer(nn.Linear(2, 2).parameters()))
    assert got is reason if reason is None else reason in str(got)


def test_a_state_that_is_loaded_leaves_the_way_in_which_the_optimizer_computes():
    model = Choosy()
    adam = partial(torch.optim.Adam, lr=0.01)
    plain, captured, other = (
        oneshot(m, weight_optimizer=kind(m.parameters()))
        for m, kind in ((copy.deepcopy(model), kind) for kind in (adam, partial(adam, capturable=True), adam))
    )
    first, second = pairs(2)
    plain.step(*first)
    captured.load_state_dict(plain.state_dict())  # of a search without capture
    assert unsupported_reason(captured.weight_optimizer) is None
    other.load_state_dict(copy.deepcopy(captured.state_dict()))  # and back, to a machine without a GPU
    assert other.step(*second) == plain.step(*second)


def on_a_gpu():
    """All that is looked at of an optimizer of weights on a GPU."""
    found: Any = SimpleNamespace(param_groups=[{"params": [SimpleNamespace(device=torch.device("cuda:0"))]}])
    return found


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
    assert reason in str(_capture.find_obstacle(model if wrap is None else wrap(model), [on_a_gpu()], amp_dtype))


@pytest.fixture
def two_processes():
    """As if another process were there, which takes part in nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_processes")
def test_several_processes_are_against_a_capture():
    model = nn.Linear(2, 2)
    assert _capture.find_obstacle(model, [on_a_gpu()], None) == "there are several processes"


RECENT = Versions(torch="2.11.0+cu130", cuda="13.0", hip=None, bindings="13.0.1", driver=13000)


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        (RECENT, None),
        (RECENT._replace(torch="3.0.0a0+git1234", cuda="14.2", bindings="14.1", driver=14020), None),
        (RECENT._replace(torch="2.10.2+cu130"), "torch 2.10.2+cu130 is older than 2.11"),
        (
            RECENT._replace(torch="2.11.0+cu128", cuda="12.8"),
            "torch 2.11.0+cu128 is made for CUDA 12.8, and 13.0 is needed",
        ),
        (RECENT._replace(cuda=None, hip="7.1.0", bindings=None, driver=0), "ROCm 7.1.0 has no conditional graph nodes"),
        (RECENT._replace(bindings=None, driver=0), "cuda-bindings is missing; pip install 'asng[gpu]'"),
        (RECENT._replace(bindings="12.9.4"), "cuda-bindings 12.9.4 is older than 13.0; pip install 'asng[gpu]'"),
        (
            RECENT._replace(driver=12090),
            "the driver supports CUDA 12.9, and 13.0 is needed; install a newer one",
        ),
    ],
    ids=["oldest", "newer", "torch", "cuda", "rocm", "no bindings", "bindings", "driver"],
)
def test_what_is_missing_or_too_old_is_named_with_its_version(versions, reason):
    assert outdated_reason(versions) == reason


def test_the_versions_of_this_machine_are_read():
    versions = installed_versions()
    assert versions[:3] == (torch.__version__, torch.version.cuda, torch.version.hip)
    try:
        assert versions.bindings == metadata.version("cuda-bindings")
        assert versions.driver >= 0
    except metadata.PackageNotFoundError:
        assert versions[3:] == (None, 0)


def test_minimum_versions_are_in_the_documentation_and_in_the_extra():
    page, project = ((ROOT / name).read_text() for name in ("docs/speed.md", "pyproject.toml"))
    said = " ".join(page.split())
    assert f"torch {'.'.join(map(str, MIN_TORCH))} or later made for CUDA {MIN_CUDA}.0 or later" in said
    assert f"a driver for CUDA {MIN_CUDA}.0 or later" in said
    assert f"cuda-bindings {MIN_CUDA}.0 or later" in said
    assert f'"cuda-bindings>={MIN_CUDA}.0"' in project


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
        (Waits, cross_entropy, tuple, r"synchronizing .*; leave out what reads .* \(in 1\.options\.0 \(Waits\)\)$"),
        (Noise, cross_entropy, tuple, r"normal_ draws from a generator of its own.* \(in 1\.options\.0 \(Noise\)\)$"),
        (nn.Tanh, weighted_loss, tuple, r"usual: decision 'op' \(1\) is read in Python outside of a choice$"),
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


@pytest.mark.usefixtures("graphless")
def test_a_number_that_changes_from_batch_to_batch_ends_captures():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    first, second, third = [[(*batch, number) for batch in pair] for number, pair in enumerate(pairs(3))]
    assert captured.step(*first) == plain.step(*first)
    with pytest.warns(UserWarning, match="a batch holds 1 instead of 0, and only tensors may change") as caught:
        assert captured.step(*second) == plain.step(*second)
    assert caught[0].filename == __file__
    assert captured.step(*third) == plain.step(*third)
    torch.testing.assert_close(captured.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


@pytest.mark.usefixtures("graphless")
def test_a_population_that_grows_ends_captures():
    model = Choosy()
    twin = copy.deepcopy(model)
    plain, captured = (
        OneShot(
            net,
            ASNG(nas.space_of(net), adapt="population_size", delta_init=1.0, seed=3),
            torch.optim.SGD(net.parameters(), lr=0.1),
            cross_entropy,
            capture=capture,
        )
        for net, capture in ((model, False), (twin, True))
    )
    data = pairs(20)
    reason = "the candidates of a step change from 2 to 3, and a graph holds a pass for each"
    with pytest.warns(UserWarning, match=reason) as caught:
        got = [captured.step(*pair) for pair in data]
    assert len(caught) == 1
    assert got == [plain.step(*pair) for pair in data]
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
    with pytest.warns(UserWarning, match="it was captured 4 times, and the optimizer's momentum changes again"):
        assert_same_step(fifth[0], *fifth[1])
    assert_same_step(sixth[0], *sixth[1])  # without a warning, which would be an error


@pytest.mark.usefixtures("graphless")
def test_captures_that_are_released_do_not_count():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    for train, valid in pairs(6):
        assert captured.step(train, valid) == plain.step(train, valid)  # without a warning, which would be an error
        captured.release_capture()


@pytest.mark.usefixtures("graphless")
def test_batches_that_keep_another_shape_are_captured_anew(monkeypatch):
    monkeypatch.setattr(_capture, "MAX_MISFITS", 2)
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    first, *others = pairs(6)
    shorter = [tuple(tensor[:3] for tensor in batch) for batch in first]
    captures = []
    for train, valid in (first, shorter, others[0], shorter, shorter, shorter, shorter):
        assert captured.step(train, valid) == plain.step(train, valid)
        captures.append(captured._captured._captures)
    assert captures == [1, 1, 1, 1, 1, 2, 2]


def test_capture_on_the_cpu_warns_once_and_runs_as_usual():
    model = Choosy()
    plain, captured = oneshot(model), oneshot(copy.deepcopy(model), capture=True)
    (first, second) = pairs(2)
    with pytest.warns(UserWarning, match="not captured as a CUDA graph.*the weights are on cpu"):
        step_one = captured.step(*first)
    assert (step_one, captured.step(*second)) == (plain.step(*first), plain.step(*second))
    assert captured.capture_cost == plain.capture_cost == {}


def test_a_search_that_is_not_captured_says_so_at_the_line_that_called_it():
    with pytest.warns(UserWarning, match="the weights are on cpu") as caught:
        nas.search(Choosy(), batches(5, 1), batches(5, 2), cross_entropy, epochs=5, capture=True, progress=False)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_the_reason_is_told():
    assert unavailable_reason() == "torch sees no CUDA device"
