"""Arguments of types that belong nowhere are refused by ValueErrors that name the value."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asng import ASNG, Categorical
from asng.nas import (
    Latency,
    OneOf,
    OneShot,
    Repeat,
    Supernet,
    Width,
    extract,
    recalibrate,
    search,
    select,
    selected,
    space_of,
)

ODD: list[Any] = [None, 5, 1.5, "x", b"x", 1j, [], {}, object(), torch.ones(2), np.array("x"), nn.Linear, torch.float16]


@pytest.mark.parametrize("wrong", ODD, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize(
    "call",
    [
        space_of,
        selected,
        extract,
        Supernet,
        lambda model: select(model, {}),
        lambda model: recalibrate(model, []),
        lambda model: search(model, [1], [1], lambda *given: torch.zeros(()), epochs=1),
    ],
)
def test_a_model_that_is_no_module_is_refused(call, wrong):
    with pytest.raises(ValueError, match=r"the model must be an instance of torch\.nn\.Module, got "):
        call(wrong)


@pytest.mark.parametrize("wrong", [wrong for wrong in ODD if wrong != {}], ids=lambda wrong: type(wrong).__name__)
def test_values_that_are_no_dict_are_refused(wrong):
    if wrong is not None:  # for extract: as selected
        with pytest.raises(ValueError, match="values must be a dict, with one for each name of the space, got "):
            extract(OneOf("op", [nn.ReLU(), nn.Tanh()]), wrong)
    with pytest.raises(ValueError, match="values must be a dict, with one for each name of the space, got "):
        select(OneOf("op", [nn.ReLU(), nn.Tanh()]), wrong)


NO_INTEGERS: list[Any] = [None, 1.5, "x", 1j, {}, object(), torch.ones(2), np.array("x"), True]
REFUSED: list[tuple[Any, str, list[Any]]] = [
    (
        lambda wrong: Repeat("d", [nn.ReLU()] * 3, low=wrong),
        r"Repeat 'd' runs from low to all .* got low=",
        NO_INTEGERS,
    ),
    (lambda wrong: Width("w", 1, wrong), r"Width 'w' needs low < high, .* got low=1 and high=", NO_INTEGERS),
    (lambda wrong: Latency(torch.ones(1), repeats=wrong), "repeats must be an integer, got ", NO_INTEGERS),
    (
        lambda wrong: Latency(torch.ones(1), device=wrong),
        "device must be one of torch's, such as 'cpu'",
        NO_INTEGERS[1:],
    ),
    (lambda wrong: recalibrate(nn.BatchNorm1d(1), wrong), "batches must give batches when it is iterated", [None, 5]),
    (lambda wrong: OneOf("op", wrong), "OneOf 'op' chooses among modules, got ", [None, 5, 1.5, "x", {}, object()]),
]


@pytest.mark.parametrize(("call", "message", "wrongs"), REFUSED, ids=[message[:12] for _, message, _ in REFUSED])
def test_a_number_a_device_or_a_list_that_is_none_is_refused(call, message, wrongs):
    for wrong in wrongs:
        with pytest.raises(ValueError, match=message):
            call(wrong)


def step_with(**wrong):
    model = nn.Sequential(OneOf("op", [nn.ReLU(), nn.Tanh()]), nn.Linear(1, 1))
    given = {"loss_fn": lambda model, x: model(x).mean(), **wrong}
    return OneShot(model, ASNG(space_of(model)), torch.optim.SGD(model.parameters(), 0.1), **given)


@pytest.mark.parametrize(
    ("name", "message", "wrongs"),
    [
        ("loss_fn", r"loss_fn must be a function \(model, batch\) -> loss, got ", [None, 5, "x", torch.ones(2)]),
        (
            "max_grad_norm",
            "max_grad_norm must be above 0, or None",
            [0, -1.0, "x", "5", 1j, [], torch.ones(2), math.nan],
        ),
        ("amp_dtype", "amp_dtype must be torch.bfloat16, torch.float16", ["x", torch.float32, np.array(None), 5]),
        ("mask_inactive", "mask_inactive must be True or False", [None, 1, "yes", torch.ones(2)]),
        ("capture", "capture must be True or False", [None, 1, "yes", torch.ones(2)]),
    ],
)
def test_options_of_a_step_of_other_types_are_refused(name, message, wrongs):
    for wrong in wrongs:
        with pytest.raises(ValueError, match=message):
            step_with(**{name: wrong})


OTHER_ARGUMENTS = [
    (
        nn.CrossEntropyLoss(),
        r"torch's CrossEntropyLoss\(\), which takes outputs and targets; give a function of the ",
    ),
    (nn.functional.mse_loss, r"such as lambda model, batch: mse_loss\(model\(batch\[0\]\), batch\[1\]\)$"),
    (lambda model, x, y: 0.0, r"\(model, batch\), but takes \(model, x, y\); a batch is .* such as in x, y = batch$"),
    (lambda batch: 0.0, r"\(model, batch\), but takes \(batch\); "),
    (nn.Linear(1, 1), r"\(model, batch\), but takes \(input: .*Tensor\) -> .*; "),
]


@pytest.mark.parametrize(("function", "message"), OTHER_ARGUMENTS)
@pytest.mark.parametrize("name", ["loss_fn", "judge"])
def test_a_loss_or_a_judge_of_other_arguments_is_refused_before_the_first_step(name, function, message):
    with pytest.raises(ValueError, match=f"^{name} is .*{message}"):
        step_with(**{name: function})


def test_functions_of_more_arguments_with_defaults_decorated_and_of_c_are_taken():
    assert isinstance(step_with(judge=max), OneShot)
    assert isinstance(step_with(judge=functools.partial(pow, mod=None)), OneShot)

    @functools.wraps(lambda outputs: outputs.mean())
    def wrapper(model, batch):
        return model(batch).mean()

    for loss_fn in (
        lambda model, batch, scale=1.0: model(batch).mean(),
        lambda *both: both[0](both[1]).mean(),
        wrapper,
    ):
        step = step_with(loss_fn=loss_fn).step(torch.ones(2, 1), torch.ones(2, 1))
        assert all(map(math.isfinite, step.train_losses))


def test_a_callback_of_two_arguments_is_refused():
    with pytest.raises(ValueError, match=r"callback is called as callback\(record\), but takes \(epoch, loss\)$"):
        search(nn.ReLU(), [], [], lambda model, x: x, epochs=1, callback=lambda epoch, loss: None)  # type: ignore[misc, arg-type]


def test_what_is_no_value_of_json_is_outside_of_a_choice():
    for wrong in (b"x", {1, 2}, object(), 1j):
        with pytest.raises(ValueError, match="is outside of Categorical"):
            Categorical(["a", "b"]).from_json(wrong)
