"""Where a model is, and what is moved there; torch's device "meta" stands for one other than the CPU."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from asng.nas._devices import find_device, to_device

META = torch.device("meta")


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


def test_a_model_is_where_its_first_parameter_is():
    assert find_device(nn.Linear(2, 1, device="meta")) == META
    assert find_device(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1, device="meta"))) == torch.device("cpu")
    buffers_first = nn.Sequential(nn.BatchNorm1d(2, affine=False, device="meta"), nn.Linear(2, 1))
    assert find_device(buffers_first) == torch.device("cpu")


def test_a_model_without_parameters_is_where_its_buffers_are():
    assert find_device(nn.BatchNorm1d(2, affine=False, device="meta")) == META
    assert find_device(nn.ReLU()) == torch.device("cpu")


def test_tensors_are_moved_out_of_whatever_holds_them_and_the_rest_stays():
    x = torch.zeros(2)
    batch: dict[str, Any] = {"images": [x, (x, "name")], "pair": Pair(x, 3), "none": None}
    there = to_device(batch, META)
    assert there["images"][0].device == META
    assert there["images"][1][0].device == META
    assert there["images"][1][1] == "name"
    assert isinstance(there["images"], list)
    assert isinstance(there["images"][1], tuple)
    assert isinstance(there["pair"], Pair)
    assert there["pair"].image.device == META
    assert there["pair"].label == 3
    assert there["none"] is None
    assert x.device == torch.device("cpu")
    assert batch["images"][0] is x


@pytest.mark.parametrize("value", [3, "text", None, 1.5, {1, 2}])
def test_what_holds_no_tensors_is_the_same_afterwards(value):
    assert to_device(value, META) is value


def test_a_tensor_that_is_there_already_is_not_copied():
    x = torch.zeros(2)
    assert to_device(x, torch.device("cpu")) is x
