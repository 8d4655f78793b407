"""The state of OneShot: it goes on with the same bits, and the state of another search changes nothing."""

import copy
from typing import Any

import pytest
import torch

from asng.nas import Limit, parameters
from tests.helpers.searches import Net, Switch, batches, cross_entropy, make_oneshot

pytestmark = pytest.mark.usefixtures("same_numbers")


def test_a_loaded_state_goes_on_with_the_same_bits():
    train, valid = batches(16, seed=1), batches(16, seed=2)
    whole = make_oneshot(Net(dropout=0), population_size=3)
    half = make_oneshot(Net(dropout=0), population_size=3)
    half.model.load_state_dict(whole.model.state_dict())
    for place in range(8):
        whole.step(train[place], valid[place])
        half.step(train[place], valid[place])
    resumed = make_oneshot(Net(dropout=0), population_size=3, seed=99)
    resumed.load_state_dict(copy.deepcopy(half.state_dict()))
    for place in range(8, 16):
        assert whole.step(train[place], valid[place]) == resumed.step(train[place], valid[place])
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def with_a_weight_in_the_loss():
    """A search whose loss has a weight, which its optimizer trains, too; and that weight."""
    model, log_scale = Net(dropout=0), torch.nn.Parameter(torch.zeros(1))

    def loss_fn(model, batch):
        return (cross_entropy(model, batch) * (-log_scale).exp() + log_scale).sum()

    sgd = torch.optim.SGD([*model.parameters(), log_scale], lr=0.1, momentum=0.9)
    return make_oneshot(model, loss_fn=loss_fn, weight_optimizer=sgd), log_scale


def test_weights_outside_of_the_model_that_its_optimizer_trains_are_part_of_the_state():
    train, valid = batches(4, seed=1), batches(4, seed=2)
    whole, scale = with_a_weight_in_the_loss()
    for place in range(2):
        whole.step(train[place], valid[place])
    state = copy.deepcopy(whole.state_dict())
    resumed, resumed_scale = with_a_weight_in_the_loss()
    resumed.load_state_dict(state)
    assert torch.equal(scale, resumed_scale)
    assert scale.item() != 0
    for place in range(2, 4):
        assert whole.step(train[place], valid[place]) == resumed.step(train[place], valid[place])
    assert torch.equal(scale, resumed_scale)


class Beside(torch.nn.Module):
    """A model with tensors that its state dict lacks: a frozen layer, and buffers, one of which grows."""

    def __init__(self):
        super().__init__()
        self.net, self.frozen = Net(dropout=0), torch.nn.Linear(4, 4).requires_grad_(False)
        self.count: Any
        self.seen: Any
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("seen", torch.zeros(0), persistent=False)
        self.register_state_dict_post_hook(drop_frozen)

    def forward(self, x):
        if self.training:
            self.count, self.seen = self.count + 1, torch.cat([self.seen, x[:1, 0].detach()])
        return self.net(self.frozen(x)) / self.count + self.seen.mean()


def drop_frozen(model, state, prefix, metadata):
    for name in [name for name in state if name.startswith(f"{prefix}frozen.")]:
        del state[name]


def test_tensors_that_the_models_state_dict_lacks_are_part_of_the_state():
    def make():
        model = Beside()  # with other numbers in the frozen layer each time
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return make_oneshot(model, weight_optimizer=torch.optim.SGD(trained, lr=0.1))

    train, valid = batches(4, seed=1), batches(4, seed=2)
    whole, resumed = make(), make()
    for place in range(2):
        whole.step(train[place], valid[place])
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for place in range(2, 4):
        assert whole.step(train[place], valid[place]) == resumed.step(train[place], valid[place])
    assert torch.equal(whole.model.seen, resumed.model.seen)
    assert torch.equal(whole.model.frozen.weight, resumed.model.frozen.weight)


def set_nothing(model):
    model.register_buffer("made", None, persistent=False)


def set_repeated(model):
    model.register_buffer("made", torch.ones(1).expand(3), persistent=False)


def set_shared(model):
    model.register_buffer("made", torch.ones(2), persistent=False)
    model.net.register_buffer("made", model.made, persistent=False)


def load_without_strict(model):
    set_nothing(model)
    load = model.load_state_dict
    model.load_state_dict = lambda state: load(state, strict=False)


@pytest.mark.parametrize("change", [set_nothing, set_repeated, set_shared, load_without_strict])
def test_buffers_of_all_kinds_are_loaded(change):
    def make():
        model = Beside()
        change(model)
        return make_oneshot(model, weight_optimizer=torch.optim.SGD(model.net.parameters(), lr=0.1))

    whole, resumed = make(), make()
    whole.model.made = torch.arange(5.0)  # it was made, or grew
    if change is set_shared:
        whole.model.net.made = whole.model.made
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert torch.equal(resumed.model.made, torch.arange(5.0))
    assert change is not set_shared or resumed.model.net.made is resumed.model.made


@pytest.mark.parametrize("damage", [lambda w: w.to("meta"), lambda w: w.to_sparse()], ids=["meta", "sparse"])
def test_damaged_weights_outside_of_the_model_change_nothing(damage):
    oneshot, scale = with_a_weight_in_the_loss()
    state = copy.deepcopy(oneshot.state_dict())
    state["other_tensors"] = {name: damage(weight) for name, weight in state["other_tensors"].items()}
    oneshot.step(batches(1, seed=1)[0], batches(1, seed=2)[0])
    before, before_scale = copy.deepcopy(oneshot.model.state_dict()), scale.detach().clone()
    with pytest.raises(ValueError, match="the state does not fit"):
        oneshot.load_state_dict(state)
    for name, tensor in oneshot.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert torch.equal(scale, before_scale)


@pytest.mark.parametrize(
    "other",
    [
        lambda: make_oneshot(Net(width=9)),
        lambda: with_a_weight_in_the_loss()[0],
        lambda: make_oneshot(Net(depth=4)),
        lambda: make_oneshot(Switch()),
        lambda: make_oneshot(amp_dtype=torch.float16),
        lambda: make_oneshot(limits=[Limit(parameters, 200)]),
        lambda: (
            lambda net: make_oneshot(
                net, weight_optimizer=torch.optim.SGD([{"params": [p]} for p in net.parameters()], 0.1)
            )
        )(Net()),
    ],
)
def test_a_state_of_another_search_changes_nothing(other):
    oneshot = make_oneshot()
    oneshot.step(*batches(2))
    mine = copy.deepcopy(oneshot.state_dict())
    foreign = other().state_dict()
    if "scale" in foreign["scaler"]:
        oneshot, foreign = other(), oneshot.state_dict()
        mine = copy.deepcopy(oneshot.state_dict())
    with pytest.raises(ValueError, match=r"the state does not fit: (?!the state)"):
        oneshot.load_state_dict(foreign)
    after = oneshot.state_dict()
    assert after["arch_optimizer"] == mine["arch_optimizer"]
    assert all(torch.equal(value, mine["model"][name]) for name, value in after["model"].items())
    assert after["touched"] == mine["touched"]
    assert str(after["weight_optimizer"]) == str(mine["weight_optimizer"])


def changes(state, path=()):
    """States in which one part is something else."""
    for key, value in state.items():
        if isinstance(value, dict):
            yield from changes(value, (*path, key))
        others: list[Any] = [None, "x", 3, []]
        for other in others:
            if type(other) is not type(value):
                yield (*path, key), other


def test_a_state_of_which_a_part_is_something_else_does_not_fit():
    oneshot = make_oneshot()
    oneshot.step(*batches(2))
    whole = oneshot.state_dict()
    messages = []
    for path, other in changes({key: whole[key] for key in ("model", "arch_optimizer", "touched", "limits", "costs")}):
        state = copy.deepcopy(whole)
        *way, last = path
        part = state
        for key in way:
            part = part[key]
        part[last] = other
        try:
            make_oneshot().load_state_dict(state)  # numbers of other types may do
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 40
    assert all(message.startswith("the state does not fit: ") for message in messages)
