"""Sums of choices in captured steps, as far as a CPU can run them: a switch adds to the result of the one before."""

# mypy: disable-error-code="operator"

import pytest
import torch
from torch import nn

from asng.nas import OneOf, Searchable
from asng.nas._capture import trace
from asng.nas._capture.branch import Branch
from tests.helpers.captures import assert_same_steps, iteration, oneshot, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


class Summing(nn.Module):
    """Adds up what modules make of the same: choices that may pass it on, one with a hook, and a plain layer."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.terms = nn.ModuleList(OneOf(name, [nn.Identity(), nn.Tanh(), nn.Linear(8, 8)]) for name in "abc")
        self.terms[2].register_forward_hook(lambda module, inputs, output: 2 * output)
        self.terms.append(nn.Linear(8, 8))

    def forward(self, x):
        return self.head(trace.add_up(list(self.terms), self.stem(x)))


@pytest.mark.parametrize("terms", [1, 2, 4])
def test_switches_add_to_the_results_of_those_before_them(terms):
    model = Summing()
    model.terms = model.terms[:terms]
    assert_same_steps(model, dtype=torch.double, same=terms < 4)  # gradients of the input are added in another order


def hook(module):
    module.register_forward_hook(square)


def replace_forward(module):
    module.forward = module.forward


def leave(module):
    pass


@pytest.mark.parametrize("path", ["terms.0", "terms.1.options.1"])
@pytest.mark.parametrize(("change", "adding"), [(leave, 4), (hook, 0), (replace_forward, 0)])
def test_a_switch_has_memory_of_its_own_only_where_its_result_may_be_read(path, change, adding, monkeypatch):
    """Each of four passes has a second switch."""
    model = Summing()
    model.terms = model.terms[:2]
    change(model.get_submodule(path))
    train, valid = pairs(1)[0]
    opened, totals = iteration(oneshot(model), train), []

    class Recorded(Branch):
        def __init__(self, *args):
            totals.append(args[-1])
            super().__init__(*args)

    monkeypatch.setattr(trace, "Branch", Recorded)
    values = 2 * [dict.fromkeys("ab", 2)]
    opened.step(values, train, values, valid)
    assert len(totals) == 8
    assert sum(total is not None for total in totals) == adding


class Sum(nn.Module):
    def __init__(self, terms):
        super().__init__()
        self.terms = nn.ModuleList(terms)

    def forward(self, x):
        return trace.add_up(list(self.terms), x)


class Nested(Searchable):
    """A sum of choices, itself a choice."""

    def __init__(self):
        super().__init__()
        self.sum = Sum(Summing().terms[:2])

    def forward(self, x):
        return self.sum(x)

    def build_static(self):
        return Sum(term.build_static() for term in self.sum.terms)


def square(module, inputs, output):
    module.__dict__["penalty"] = output.square().mean()


def triple(module, gradients):
    return [3 * gradient for gradient in gradients]


@pytest.mark.parametrize("first", [nn.Identity(), nn.Tanh()])
def test_no_switch_adds_to_memory_that_others_read(first):
    model = Summing()
    model.terms[0] = first
    model.terms = model.terms[:2]
    assert_same_steps(model, dtype=torch.double, same=False)


def test_no_switch_adds_to_what_a_hook_has_read():
    class Penalized(Summing):
        def forward(self, x):
            return super().forward(x) + self.terms[0].__dict__["penalty"] * torch.arange(3)

    model = Penalized()
    model.terms[0].register_forward_hook(square)
    assert_same_steps(model, dtype=torch.double, same=False)


def test_a_hook_on_the_gradient_of_a_term_leaves_the_others_alone():
    model = Summing()
    model.terms[1].register_full_backward_pre_hook(triple)
    assert_same_steps(model, dtype=torch.double, same=False)


def test_a_sum_whose_terms_are_sums_with_too_many_cases(monkeypatch):
    monkeypatch.setattr(trace, "MAX_CASES", 4)
    model = Summing()
    model.terms[1] = Nested()
    assert_same_steps(model, dtype=torch.double, same=False)
