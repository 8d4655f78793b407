"""Captured steps with more combinations of widths than a switch has cases: the layers run masked."""

# mypy: disable-error-code="attr-defined, index, union-attr"

import copy
from typing import Any

import pytest
import torch
from torch import nn

from asng import Categorical, Integer, nas
from asng.nas import OneOf, Value, Width
from asng.nas._capture import masked
from asng.nas._capture.cases import Refused
from tests.helpers.captures import assert_same_steps, iteration, oneshot
from tests.helpers.searches import pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


def mlp():
    """512 architectures, in one switch if shapes decide."""
    widths: list[Any] = [Width(f"w{i}", [2, 3, 4, 5, 6, 7, 8, 9]) for i in range(3)]
    layers: list[nn.Module] = []
    for before, width in zip([4, *widths], widths, strict=False):
        layers += [nas.Linear(before, width), nas.BatchNorm1d(width), nn.Sigmoid()]
    return nn.Sequential(*layers, nas.Linear(widths[-1], 3))


class Images(nn.Module):
    """A convolutional network of which channels, kernels, groups and the features of a head are searched."""

    def __init__(self, norm=nas.BatchNorm2d, dropout=0.0):
        super().__init__()
        a, b = Width("a", 2, 9), Width("b", 2, 9)
        kernel = Value("kernel", Integer(1, 3)) * 2 - 1
        self.layers = nn.Sequential(
            nas.Conv2d(1, a, 3, padding=1),
            norm(a),
            nn.ReLU(),
            nas.Conv2d(a, a, kernel, padding=2, groups=a, bias=False),
            nas.ConvTranspose2d(a, b * 2, kernel, padding=2),
            nas.PReLU(b * 2),
            nas.Conv2d(b * 2, b * 2, 3, groups=b, padding="same"),
            nn.Dropout(dropout),
            OneOf("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2)]),
            nn.Flatten(),
            nas.Linear(b * 8, a + 1),
            nas.LayerNorm(a + 1),
            nas.RMSNorm(a + 1),
        )
        self.head = nas.Linear(a + 1, 3)

    def forward(self, x):
        return self.head(self.layers(x.view(-1, 1, 4, 4)))


def image_pairs(n, dtype):
    generator = torch.Generator().manual_seed(0)

    def batch():
        images = torch.randn(6, 16, generator=generator, dtype=dtype)
        return images, torch.randint(3, (6,), generator=generator)

    return [(batch(), batch()) for _ in range(n)]


def test_widths_of_512_combinations_run_masked_and_equal_the_plain_step():
    assert_same_steps(mlp(), dtype=torch.double, same=False)


@pytest.mark.parametrize("norm", [nas.BatchNorm2d, nas.InstanceNorm2d, lambda c: nas.GroupNorm(c, c)])
def test_every_masked_layer_equals_the_plain_step(norm):
    assert_same_steps(Images(norm), dtype=torch.double, same=False, data=image_pairs(20, torch.double))


def test_running_statistics_of_channels_that_are_left_out_stay():
    model, twin = (m := mlp().double()), copy.deepcopy(m)
    plain, other = oneshot(model), oneshot(twin)
    data = pairs(8, torch.double)
    opened = iteration(other, data[0][0])
    assert opened._masked
    for train, valid in data:
        plain.step(train, valid)
        drawn, candidates = other.arch_optimizer.ask(), other.arch_optimizer.ask()
        numbers = opened.step([c.values for c in drawn], train, [c.values for c in candidates], valid)[1]
        other.arch_optimizer.tell(candidates, [n.loss for n in numbers])
    torch.testing.assert_close(dict(twin.named_buffers()), dict(model.named_buffers()))


def test_masks_are_only_used_where_switches_have_too_many_cases():
    width = Width("w", [2, 3])
    model = nn.Sequential(nas.Linear(4, width), nas.Linear(width, 3))
    assert not iteration(oneshot(model), pairs(1, torch.float)[0][0])._masked


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = Width("w", 1, 99)
        self.embedding, self.head = nas.Embedding(5, self.width), nas.Linear(self.width, 3)

    def forward(self, x):
        return self.head(self.embedding((x * 4).long().clamp(0, 4)).mean(1))


def test_an_embedding_runs_masked():
    assert_same_steps(Tokens(), dtype=torch.double, same=False)


def test_dropout_does_not_count_as_a_difference():
    model = Images(dropout=0.5)
    assert iteration(oneshot(model), image_pairs(1, torch.float)[0][0])._masked


class Between(nn.Module):
    """Something between two elastic layers."""

    def __init__(self, function, width=None, after=None):
        super().__init__()
        self.width = width or Width("w", 1, 99)
        self.first = nas.Linear(4, self.width)
        self.second = nas.Linear(self.width if after is None else after(self.width), 3)
        self.function = function

    def forward(self, x):
        return self.second(self.function(self.first(x)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x / x.shape[1],
        lambda x: x.softmax(1),
        lambda x: x.flip(1),
    ],
    ids=["mean", "number", "softmax", "order"],
)
def test_masks_that_change_what_the_model_computes_are_refused(function):
    with pytest.raises(Refused, match=r"with masks its gradient differs by [0-9]+% from the plain one; something but"):
        iteration(oneshot(Between(function)), pairs(1, torch.float)[0][0])


def test_concatenated_widths_are_refused():
    model = Between(lambda x: torch.cat([x, x.tanh()], 1), after=lambda width: width * 2)
    with pytest.raises(Refused, match="with masks its gradient differs"):
        iteration(oneshot(model), pairs(1, torch.float)[0][0])


class OwnLinear(nas.Linear):
    def forward(self, input):
        return super().forward(input).tanh()


@pytest.mark.parametrize(
    "layer",
    [
        lambda w: OwnLinear(w, 3),
        lambda w: nn.Sequential(nas.BatchNorm1d(w, momentum=None), nas.Linear(w, 3)),
    ],
    ids=["own forward", "cumulative average"],
)
def test_layers_without_a_masked_form_are_refused(layer):
    width = Width("w", 1, 99)
    model = nn.Sequential(nas.Linear(4, width), layer(width))
    with pytest.raises(
        Refused, match=r"^0 has more than 64 cases, .*; with masks for widths, 1\S* has more than 64 cases"
    ):
        iteration(oneshot(model), pairs(1, torch.float)[0][0])


def test_a_layer_for_any_size_takes_what_is_left_out_as_zeros():
    assert_same_steps(
        nn.Sequential(nas.Linear(4, Width("w", 1, 99)), nn.ReLU(), nas.Linear(nas.AnySize(99), 3)), same=False
    )


def test_a_width_that_is_read_in_python_is_refused():
    width = Width("w", 1, 99)
    model = Between(lambda x: x * width.value, width)
    with pytest.raises(Refused, match="more than 64 cases"):
        iteration(oneshot(model), pairs(1, torch.float)[0][0])


def test_without_a_masked_layer_the_reason_is_that_of_the_switches():
    model = nn.Sequential(nn.Linear(4, 3), Body())
    with pytest.raises(Refused, match="more than 64 cases") as info:
        iteration(oneshot(model), pairs(1, torch.float)[0][0])
    assert "masks" not in str(info.value)


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Value("scale", Categorical(range(99)))

    def forward(self, x):
        return x * self.scale.value


def test_masks_are_checked_without_tf32():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with masked.without_tf32():
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)


def test_a_difference_is_relative_to_the_expected_gradient():
    expected = {0: torch.tensor([3.0, 4.0]), 1: torch.tensor([0.0])}
    assert masked.difference({0: torch.tensor([3.0, 4.0]), 1: torch.tensor([0.5])}, expected) == pytest.approx(0.1)
