"""Errors of candidates say in which module of which architecture they were raised, and the cure of usual mistakes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from asng import nas
from tests.helpers.searches import Net, batches, cross_entropy, make_oneshot

pytestmark = pytest.mark.usefixtures("same_numbers")


def notes_of(model, batch, loss_fn=lambda model, x: model(x).sum(), **settings):
    """The notes of the error of a step."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        make_oneshot(model, loss_fn=loss_fn, **settings).step(batch, batch)
    return caught.value.__notes__


@pytest.mark.parametrize(
    "options", [[nn.Linear(4, 6)], [nas.Linear(4, nas.Width("op", [2, 3]))]], ids=["of another width", "an elastic one"]
)
def test_the_layer_that_gets_another_shape_is_named(options):
    model = nn.Sequential(nas.OneOf("only", options), nn.Sequential(nas.OneOf("act", [nn.ReLU()]), nn.Linear(4, 2)))
    (note,) = notes_of(model, torch.zeros(3, 4))
    assert note.startswith("in 1.1 (Linear) of the architecture {'only': 0, ")


def test_a_module_whose_own_code_fails_is_named():
    class Wrong(nn.Module):
        def forward(self, x):
            return x + torch.zeros(7)

    model = nn.Sequential(nas.OneOf("op", [Wrong()]), nn.Linear(4, 2))
    assert notes_of(model, torch.zeros(3, 4)) == ["in 0.options.0 (Wrong) of the architecture {'op': 0}"]


LAYERS = [nas.Linear(4, 4), nn.Linear(4, 4), nas.Conv1d(4, 4, 1), nas.ConvTranspose1d(4, 4, 1), nas.LayerNorm(4)]


@pytest.mark.parametrize("layer", [*LAYERS, nas.BatchNorm1d(4)], ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize(
    ("weights", "inputs"),
    [(torch.float32, torch.float64), (torch.float64, torch.float32), (torch.float16, torch.float32)],
)
def test_a_layer_whose_weights_have_another_dtype_is_named_with_the_cure(layer, weights, inputs):
    model = nn.Sequential(nas.OneOf("op", [nn.Identity()]), layer.to(weights))
    where, cure = notes_of(model, torch.zeros(3, 4, 4, dtype=inputs))
    assert where.startswith("in 1 (")
    assert cure == f"its weights are {weights}: convert its inputs, as by x.to({weights}), or the model"


def test_numbers_to_an_embedding_and_wrong_targets_are_no_matter_of_the_weights():
    embedding = nn.Sequential(nas.Embedding(10, nas.Width("width", [2, 4])))
    assert len(notes_of(embedding, torch.zeros(3, 5))) == 1
    assert len(notes_of(Net(), (torch.zeros(3, 4), torch.zeros(3)), cross_entropy)) == 1


@pytest.mark.parametrize("named", ["loss_fn", "judge"])
def test_another_model_than_the_given_one_is_told_from_one_without_values(named):
    other = Net()

    def wrong(_, batch):
        return cross_entropy(other, batch)

    functions = {"loss_fn": cross_entropy, named: wrong}
    notes = notes_of(Net(), batches(1)[0], **functions)
    assert notes[1:] == [f"{named} has to run the model that it is given: this decision is one of another model"]


OUTPUTS_AND_TARGETS = [
    lambda x, y: (x - y).sum(),
    lambda x, y: F.mse_loss(x, y).sum(),
    lambda x, y: F.cross_entropy(x, y).sum(),
    lambda x, y: x.sub(y).sum(),
]


@pytest.mark.parametrize("loss_fn", OUTPUTS_AND_TARGETS)
def test_a_loss_of_outputs_and_targets_is_told_what_it_is_called_with(loss_fn):
    _, note = notes_of(Net(), torch.zeros(3, 4), loss_fn)
    assert note == (
        "loss_fn is called as loss_fn(model, batch); call the model in it, as in loss(model(x), y) where x, y = batch"
    )


def test_an_attribute_that_the_code_of_the_model_lacks_is_no_matter_of_the_loss():
    class Lacking(Net):
        def forward(self, x):
            return super().forward(x) + self.bias

    assert len(notes_of(Lacking(), batches(1)[0], cross_entropy)) == 1


def test_a_score_has_the_notes_of_a_search():
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        nas.score(Net(), {"first": 1, "depth": 2}, [torch.zeros(3, 5)], lambda model, x: model(x).sum())
    assert caught.value.__notes__ == ["in first.options.1.0 (Linear) of the architecture {'first': 1, 'depth': 2}"]


def test_a_loss_that_differentiates_is_told_to_enable_gradients():
    def penalty(model, x):
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return gradient.square().mean()

    model = nn.Sequential(nas.OneOf("op", [nn.Linear(4, 4)]), nn.Tanh(), nn.Linear(4, 2))
    _, cure = notes_of(model, torch.zeros(3, 4), penalty)
    assert cure.endswith("where loss_fn differentiates, let it do so in `with torch.enable_grad():`")
    make_oneshot(model, loss_fn=torch.enable_grad()(penalty)).step(torch.zeros(3, 4), torch.zeros(3, 4))
