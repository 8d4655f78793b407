"""Captured steps with more combinations of widths than a switch has cases: the layers run masked."""

# mypy: disable-error-code="attr-defined, index, union-attr"

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from asng import Categorical, Integer, nas
from asng.nas import OneOf, Value, Width, select
from asng.nas._capture import masked
from asng.nas._capture.cases import Refused
from asng.nas._capture.mask_check import relative_difference
from tests.helpers.captures import assert_same_steps, iteration, oneshot
from tests.helpers.searches import cross_entropy, pairs

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


class Attends(nn.Module):
    """Random numbers in attention, by a module and by a function, and of whole samples."""

    def __init__(self):
        super().__init__()
        width = Width("w", 1, 99)
        self.first, self.second = nas.Linear(4, width), nas.Linear(width, 8)
        self.attention, self.head = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        x = self.second(nn.functional.dropout(self.first(x[:, None].expand(-1, 3, -1)), 0.2))
        x = self.attention(x, x, x)[0] * (torch.rand(len(x), 1, 1) < 0.8)
        return self.head(nn.functional.scaled_dot_product_attention(x, x, x, None, 0.3).mean(1))


def test_other_random_numbers_are_the_same_with_masks_and_without():
    assert iteration(oneshot(Attends()), pairs(1, torch.float)[0][0])._masked


class Casts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x):
        return self.body(x.to(torch.float32) + torch.zeros(len(x), 1, dtype=torch.float32)).float()


def test_a_model_that_casts_to_float32_runs_masked():
    model = Casts()
    weights = [*model.parameters()]
    before = [weight.detach().clone() for weight in weights]
    assert iteration(oneshot(model), pairs(1, torch.float)[0][0])._masked
    assert torch.get_default_dtype() == torch.float
    torch.testing.assert_close([weight.detach() for weight in weights], before, rtol=0, atol=0)


def test_a_model_in_bfloat16_runs_masked():
    x, y = pairs(1, torch.float)[0][0]
    assert iteration(oneshot(mlp().bfloat16()), (x.bfloat16(), y))._masked


def norm_net(norm):
    width = Width("w", 1, 99)
    return nn.Sequential(nas.Linear(4, width), norm(width), nn.Tanh(), nas.Linear(width, 3))


@pytest.mark.parametrize(
    "norm",
    [
        lambda w: nas.GroupNorm(1, w),
        lambda w: nas.BatchNorm1d(w, momentum=0),
        lambda w: nas.LayerNorm(w, elementwise_affine=False),
        nas.RMSNorm,
    ],
    ids=["one group", "no momentum", "no weight", "rms"],
)
def test_norms_run_masked(norm):
    assert_same_steps(norm_net(norm), dtype=torch.double, same=False)


def test_a_batch_norm_without_weights_runs_masked_in_mixed_precision():
    model = norm_net(lambda width: nas.BatchNorm1d(width, affine=False))
    assert iteration(oneshot(model), pairs(1, torch.float)[0][0], amp_dtype=torch.bfloat16)._masked


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # by torch's kernel
def test_the_default_eps_of_an_rms_norm_is_that_of_its_arithmetic():
    norm = nas.RMSNorm(Width("w", [2, 4]))
    select(norm, {"w": 4})
    x = torch.full((1, 4), 0.01, dtype=torch.bfloat16)
    got = masked.forward_of(norm, lambda size, centered: torch.ones(size.max, dtype=torch.bool))(x)
    torch.testing.assert_close(got, norm(x).to(got.dtype))


class Samples(nn.Module):
    """An instance norm with running statistics, of samples one by one."""

    def __init__(self, momentum):
        super().__init__()
        width = Width("w", 1, 99)
        self.first = nas.Conv1d(1, width, 3)
        self.norm = nas.InstanceNorm1d(width, momentum=momentum, affine=True, track_running_stats=True)
        self.head = nas.Linear(width, 3)

    def forward(self, x):
        return torch.stack([self.head(self.norm(self.first(row[None])).square().sum(1)) for row in x])


@pytest.mark.parametrize("momentum", [0.1, None])
def test_an_instance_norm_keeps_its_statistics_as_the_plain_one(momentum):
    model = Samples(momentum)
    opened = iteration(oneshot(model), pairs(1, torch.float)[0][0])
    assert opened._masked
    values = [{"w": 5}, {"w": 7}]
    opened.step(values, pairs(1, torch.float)[0][0], values, pairs(1, torch.float)[0][0])
    assert model.norm.num_batches_tracked == 0  # as torch's


def spectral(layer):
    return nn.utils.parametrizations.spectral_norm(layer)


def test_a_parametrization_is_computed_once():
    width = Width("w", 1, 99)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 4)), spectral(nas.Conv1d(1, width, 3)), nn.Flatten(), spectral(nas.Linear(width * 2, 3))
    )
    assert_same_steps(model, dtype=torch.double, same=False)


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
    with pytest.raises(
        Refused, match=r"with masks its gradient differs by [0-9.]+% from the plain one; something other than"
    ):
        iteration(oneshot(Between(function)), pairs(1, torch.float)[0][0])


class Recomputes(Between):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def test_masked_layers_may_be_recomputed_in_the_backward_pass():
    assert_same_steps(Recomputes(torch.tanh), dtype=torch.double, same=False)


class Remembers(Between):
    """Lets losses and judges see what is between the layers."""

    def __init__(self):
        super().__init__(torch.tanh)

    def forward(self, x):
        self.hidden = self.first(x)
        return self.second(self.function(self.hidden))


def penalize_channels(model, batch):
    return cross_entropy(model, batch) + 0.01 * model.hidden.shape[1]


@pytest.mark.parametrize(
    "functions",
    [
        {"loss_fn": penalize_channels},
        {"judge": penalize_channels},
        {"loss_fn": lambda model, batch: (cross_entropy(model, batch), {"channels": model.hidden.shape[1]})},
    ],
    ids=["loss", "judge", "metric"],
)
def test_masks_that_change_losses_scores_or_metrics_are_refused(functions):
    with pytest.raises(Refused, match=r"with masks its loss, its score or a metric is [0-9.]+ instead of [0-9.]+; "):
        iteration(oneshot(Remembers()), pairs(1, torch.float)[0][0], **functions)


def test_masks_that_change_a_small_part_of_the_gradient_are_refused():
    def loss_fn(model, batch):
        return cross_entropy(model, batch) + 1e-4 * model.hidden.square().mean()

    with pytest.raises(Refused, match=r"with masks its gradient differs by 0.0[0-9]% from the plain one"):
        iteration(oneshot(Remembers()), pairs(1, torch.float)[0][0], loss_fn=loss_fn, judge=cross_entropy)


class Averages(Between):
    """Has an average over channels that nothing reads."""

    def __init__(self):
        super().__init__(self.average)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(()))

    def average(self, x):
        self.mean.lerp_(x.detach().mean(), 0.1)
        return x


def test_masks_that_change_a_buffer_are_refused():
    model = Averages()
    with pytest.raises(Refused, match="with masks its buffer mean differs from the plain one"):
        iteration(oneshot(model), pairs(1, torch.float)[0][0])
    assert model.mean == 0


def test_concatenated_widths_are_refused():
    model = Between(lambda x: torch.cat([x, x.tanh()], 1), after=lambda width: width * 2)
    with pytest.raises(Refused, match="with masks its gradient differs"):
        iteration(oneshot(model), pairs(1, torch.float)[0][0])


class OwnLinear(nas.Linear):
    def forward(self, input):
        return super().forward(input).tanh()


class OwnSlices(nas.Linear):
    def active_tensors(self):
        tensors: Any = super().active_tensors()
        return {name: tensor * 1.00001 for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "layer",
    [
        lambda w: OwnLinear(w, 3),
        lambda w: OwnSlices(w, 3),
        lambda w: nn.Sequential(nas.BatchNorm1d(w, momentum=None), nas.Linear(w, 3)),
    ],
    ids=["own forward", "own slices", "cumulative average"],
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


def test_a_difference_is_relative_to_the_expected_gradient():
    expected = {0: torch.tensor([3.0, 4.0]), 1: torch.tensor([0.0])}
    found = {0: torch.tensor([3.0, 4.0]), 1: torch.tensor([0.5])}
    assert relative_difference(found, expected) == pytest.approx(0.1)
