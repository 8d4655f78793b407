"""A decision that nothing reads in the first steps is named in a warning; one that is merely inactive is not."""

import warnings

import pytest
import torch
from torch import nn

from asng import Integer, nas
from asng.nas import Decision, OneOf, Repeat, Value, Width
from tests.helpers.searches import Net, batches, make_oneshot, pairs

pytestmark = pytest.mark.usefixtures("same_numbers", "nothing_compiled")


class Forgotten(nn.Module):
    """Decisions in use, and others that forward() forgets."""

    def __init__(self, *forgotten):
        super().__init__()
        self.body = Net()
        self.forgotten = nn.ModuleList(forgotten)

    def forward(self, x):
        return self.body(x)


def warnings_of(oneshot, steps=12):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for pair in pairs(steps):
            oneshot.step(*pair)
    return [str(warning.message) for warning in caught]


def test_decisions_that_nothing_reads_are_named_once():
    forgotten = [Value("head_dim", Integer(1, 4)), OneOf("op", [nn.ReLU(), nn.Tanh()])]
    assert warnings_of(make_oneshot(Forgotten(*forgotten))) == [
        "nothing has read the decisions 'head_dim', 'op' in the first 10 steps, so no architecture depends on "
        "them; does forward() use them?"
    ]


def test_a_layer_that_does_not_run_reads_nothing():
    (message,) = warnings_of(make_oneshot(Forgotten(nas.Linear(3, Width("width", 2, 4)))))
    assert message.startswith("nothing has read the decision 'width' in the first 10 steps, so no architecture")


def test_it_takes_ten_steps():
    assert warnings_of(make_oneshot(Forgotten(Value("v", Integer(1, 4)))), steps=9) == []


def test_one_reader_of_a_shared_name_suffices():
    assert warnings_of(make_oneshot(Forgotten(Value("depth", Integer(1, 3))))) == []


def test_a_value_that_only_the_loss_reads_is_read():
    model = Forgotten(Value("v", Integer(1, 4)))
    assert (
        warnings_of(make_oneshot(model, loss_fn=lambda model, batch: model(batch[0]).mean() * model.forgotten[0].value))
        == []
    )


def test_a_loss_that_asks_what_is_selected_reads_it():
    model = Forgotten(Value("v", Integer(1, 4)))
    loss = lambda model, batch: model(batch[0]).mean() * nas.selected(model)["v"]  # noqa: E731
    assert warnings_of(make_oneshot(model, loss_fn=loss)) == []


def test_a_loss_that_selects_by_itself_is_watched_as_any_other():
    def loss(model, batch):
        values = nas.selected(model.body)
        nas.select(model, {**values, "v": 1, "w": 2})
        return model(batch[0]).mean() * model.forgotten[0].value

    (message,) = warnings_of(make_oneshot(Forgotten(*(Value(name, Integer(1, 4)) for name in "vw")), loss_fn=loss))
    assert message.startswith("nothing has read the decision 'w' in the first 10 steps")


def test_what_is_inactive_may_stay_unread():
    rare = OneOf("rare", [nn.Linear(4, 3), nn.Linear(4, 3)])
    model = nn.Sequential(OneOf("op", [*(nn.Linear(4, 3) for _ in range(50)), rare]))
    depth = Repeat("depth", [nn.Sequential(OneOf(f"op{i}", [nn.Linear(4, 4), nn.Tanh()])) for i in range(6)])
    assert warnings_of(make_oneshot(model)) == []
    assert warnings_of(make_oneshot(nn.Sequential(depth, nn.Linear(4, 3)))) == []


def test_measuring_a_limit_is_no_reading():
    limits = [nas.Limit(nas.parameters, 10_000)]
    assert len(warnings_of(make_oneshot(Forgotten(nas.Linear(3, Width("width", 2, 4))), limits=limits))) == 1


@pytest.mark.filterwarnings("ignore:nothing has read")
def test_watching_changes_nothing_and_ends():
    torch.manual_seed(1)
    model = Forgotten(Value("v", Integer(1, 4)))
    oneshot = make_oneshot(model)
    seen = []

    def loss(model, batch):
        seen.append({len(module.selected) for module in model.modules() if isinstance(module, Decision)})
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    oneshot = make_oneshot(model, loss_fn=loss)
    for pair in pairs(11):
        oneshot.step(*pair)
    assert seen == [{2}] * 40 + [{1}] * 4


@pytest.mark.slow
def test_what_is_compiled_is_not_watched():
    compiled = torch.compile(Forgotten(Value("v", Integer(1, 4))), backend="eager")
    assert warnings_of(make_oneshot(compiled)) == []
    make_oneshot(Net()).step(*batches(2))


@pytest.mark.slow
def test_what_a_compiled_loss_reads_is_not_seen_and_not_missed():
    compiled = torch.compile(lambda model, batch: model(batch[0]).mean() * model.forgotten[0].value, backend="eager")
    assert warnings_of(make_oneshot(Forgotten(Value("v", Integer(1, 4))), loss_fn=compiled)) == []
