"""Weights that come from elsewhere, are kept, have hooks or are written by passes are against a capture."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from asng.nas import OneOf
from asng.nas._capture.cases import Refused
from tests.helpers.captures import Choosy, iteration, oneshot
from tests.helpers.searches import batches, cross_entropy, pairs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("same_numbers")]


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
    reason = r"^parameter of shape \(8,\), which is not the model's, is used inside and outside a choice$"
    with pytest.raises(Refused, match=reason):
        iteration(search, batches(1)[0], loss_fn=lambda *given: cross_entropy(*given) + weight.square().sum())


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


def test_a_hook_on_accumulated_gradients_is_refused_with_the_parameter():
    model = Choosy()
    model.stem.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(Refused, match=r"^parameter stem.weight has a hook on its accumulated gradient"):
        iteration(oneshot(model), batches(1)[0])


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
