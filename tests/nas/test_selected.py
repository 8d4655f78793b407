"""What a model is selected as: readable, kept by each step of OneShot, and what was found after a search."""

import pytest
import torch
from torch import nn

from asng import Integer, nas
from asng.nas import Decision, OneOf, Value, Width, select, selected, space_of
from tests.helpers.searches import Net, batches, cross_entropy, make_oneshot, run_search

pytestmark = pytest.mark.usefixtures("same_numbers")


def test_selected_gives_back_what_was_selected_in_the_order_of_the_space():
    width = Width("width", [2, 4])
    model = nn.Sequential(
        nas.Linear(2, width), OneOf("op", {"id": nn.Identity(), "relu": nn.ReLU()}), nas.Linear(width, 1)
    )
    values = {"op": "relu", "width": 4}
    select(model, values)
    assert selected(model) == values
    assert list(selected(model)) == list(space_of(model)) == ["width", "op"]


def test_the_first_decision_without_a_value_is_named():
    model = nn.ModuleList([Value(name, Integer(1, 3)) for name in ("a", "b", "c")])
    with pytest.raises(RuntimeError, match=r"^decision 'a' has no value yet; call asng\.nas\.select"):
        selected(model)
    select(model[0], {"a": 2})
    with pytest.raises(RuntimeError, match=r"^decision 'b' has no value yet"):
        selected(model)


def test_a_model_without_decisions_is_selected_as_nothing():
    assert selected(nn.Linear(2, 2)) == {}


def test_the_loss_can_ask_for_the_candidate_that_runs():
    judged = []

    def loss(model, batch):
        if not torch.is_grad_enabled():
            judged.append(selected(model))
        return cross_entropy(model, batch)

    step = make_oneshot(loss_fn=loss).step(*batches(2))
    assert tuple(judged) == step.candidates


def failing_at(call):
    calls = iter(range(1, 5))

    def loss(model, batch):
        if next(calls) == call:
            raise ArithmeticError
        return cross_entropy(model, batch)

    return loss


@pytest.mark.parametrize("call", [None, 1, 2, 3, 4])
def test_a_step_leaves_the_selection_as_it_was_also_when_it_fails(call):
    oneshot = make_oneshot(loss_fn=failing_at(call))
    values = {"first": 2, "depth": 2}
    select(oneshot.model, values)
    if call is None:
        oneshot.step(*batches(2))
    else:
        with pytest.raises(ArithmeticError):
            oneshot.step(*batches(2))
    assert selected(oneshot.model) == values


@pytest.mark.parametrize("call", [None, 2])
def test_decisions_without_a_value_have_none_after_a_step(call):
    oneshot = make_oneshot(loss_fn=failing_at(call))
    if call is None:
        oneshot.step(*batches(2))
    else:
        with pytest.raises(ArithmeticError):
            oneshot.step(*batches(2))
    decisions = [module for module in oneshot.model.modules() if isinstance(module, Decision)]
    assert [decision.selected for decision in decisions] == [(), ()]


@pytest.mark.parametrize("seed", range(6))
def test_a_search_leaves_the_model_selected_as_found(seed):
    model = Net()
    found = run_search(model, seed=seed)
    assert selected(model) == found.values
    x = torch.randn(8, 4)
    torch.testing.assert_close(model.eval()(x), found.model.eval()(x), rtol=0, atol=0)


def test_a_search_that_is_done_selects_what_was_found(tmp_path):
    run_search(checkpoint=tmp_path / "c.pt")
    model = Net()
    assert run_search(model, checkpoint=tmp_path / "c.pt").values == selected(model)
