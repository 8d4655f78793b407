"""Parts of captured steps alone: columns of numbers, zeros for gradients, convolutions by group."""

# mypy: disable-error-code="union-attr"

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from asng.nas import OneOf, select
from asng.nas._capture.branch import SplitGroups, zeros_like
from asng.nas._capture.cases import Columns
from asng.nas.supernet import Supernet
from tests.helpers.captures import Body, Choosy

pytestmark = pytest.mark.usefixtures("same_numbers")


def test_the_index_of_a_decision_is_the_position_of_its_value():
    model = nn.Sequential(OneOf("op", {"a": nn.ReLU(), "b": nn.Tanh()}), Body())
    select(model, {"op": "b", "depth": 3})
    assert (model[0].index, model[1].depth.index) == (1, 2)


def test_columns_tell_the_case_of_an_architecture():
    columns = Columns(Supernet(Choosy()))
    columns.add_cases([(("op", 0),), (("op", 1), ("inner", 0)), (("op", 1), ("inner", 1)), (("op", 2),)])
    assert columns.add_decision("depth") == 1
    values = {"op": 1, "inner": 1, "depth": 3, "source": 0, "last": 0}
    assert columns.encode(values) == [2, 2]


def times(values, factor):
    return [factor * values["op"], values["depth"]]


def test_columns_hold_the_numbers_that_functions_make_of_the_values():
    columns = Columns(Supernet(Choosy()))
    assert [columns.add_function(times, (factor,), 2) for factor in (10, 20, 10)] == [0, 2, 0]
    values = {"op": 1, "inner": 1, "depth": 3, "source": 0, "last": 0}
    assert columns.encode(values) == [10, 3, 20, 3]


def test_zeros_in_one_piece_of_memory_are_like_the_tensors():
    alike = [torch.ones(3, 5).t(), torch.ones(2, 3, 4, 4, dtype=torch.bfloat16), torch.ones(()), torch.ones(0, 2)]
    alike[1] = alike[1].to(memory_format=torch.channels_last)
    zeros = zeros_like([tensor.to("meta") for tensor in alike], torch.device("cpu"))
    for tensor, expected in zip(zeros, map(torch.zeros_like, alike), strict=True):
        assert torch.equal(tensor, expected)
        assert (tensor.stride(), tensor.dtype) == (expected.stride(), expected.dtype)
        tensor.fill_(1)  # and no other
    assert [tensor.untyped_storage().data_ptr() for tensor in zeros[::2]] == [zeros[0].data_ptr()] * 2


@pytest.mark.parametrize("settings", [{}, {"stride": 2, "padding": 1}, {"bias": False}])
@pytest.mark.parametrize("transposed", ["", "Transpose"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_grouped_convolutions_are_split_into_one_per_group(settings, transposed, axes):
    conv = getattr(nn, f"Conv{transposed}{axes}d")(8, 12, 3, groups=4, **settings)
    x = torch.randn(2, 8, *[6] * axes)
    names = []

    class Names(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function)
            return function(*args, **(kwargs or {}))

    with Names(), SplitGroups():
        split = conv(x)
    torch.testing.assert_close(split, conv(x))
    assert names.count(getattr(torch, f"conv{'_transpose' if transposed else ''}{axes}d")) == 4
