"""Repeat: further arguments reach every block, and it is the sequence of the blocks that run, as its Chain is."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from asng import Integer
from asng.nas import Chain, Repeat, Searchable, extract, parameters, select, space_of
from asng.nas.supernet import Supernet
from tests.helpers.captures import assert_same_steps


class Masked(nn.Module):
    """A layer of an encoder: it takes states, a mask and a setting by keyword."""

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, mask, *, scale=1.0):
        return x + self.linear(x) * mask * scale


class Encoder(nn.Module):
    """Runs its layers one by one, as Hugging Face's models do."""

    def __init__(self, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(Masked() for _ in range(depth))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for index, layer in enumerate(self.layers[:8]):
            assert layer is self.layers[index]
            x = layer(x, x > 0, scale=0.5)
        return self.head(x)


def searchable_encoder(depth=3):
    model = Encoder(depth)
    model.layers = Repeat("depth", model.layers)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_further_arguments_reach_every_block(depth):
    blocks = [Masked() for _ in range(3)]
    model = Repeat("depth", blocks, low=0)
    select(model, {"depth": depth})
    x, mask = torch.randn(2, 4), torch.tensor([0.0, 1.0, 1.0, 0.0])
    expected = x
    for block in blocks[:depth]:
        expected = block(expected, mask, scale=2.0)
    assert torch.equal(model(x, mask, scale=2.0), expected)
    assert torch.equal(extract(model)(x, mask, scale=2.0), expected)


def test_one_line_makes_the_depth_of_an_iterating_model_a_decision():
    model = searchable_encoder()
    assert space_of(model) == {"depth": Integer(1, 3)}
    x = torch.randn(2, 4)
    for depth in (1, 2, 3):
        select(model, {"depth": depth})
        shorter = Encoder(depth)
        shorter.load_state_dict(extract(model).state_dict())  # its names are those of the plain model
        assert torch.equal(model(x), shorter(x))
        assert torch.equal(extract(model)(x), shorter(x))
        assert parameters(model, {"depth": depth}) == sum(p.numel() for p in shorter.parameters())


@pytest.mark.parametrize("static", [False, True])
def test_it_is_the_sequence_of_the_blocks_that_run(static):
    model = Repeat("depth", [Masked() for _ in range(3)])
    select(model, {"depth": 2})
    layers: Any = extract(model) if static else model
    first, second = layers
    assert len(layers) == 2
    assert (layers[0], layers[-1]) == (first, second)
    assert list(layers[1:]) == [second]
    assert list(reversed(layers)) == [second, first]
    assert second in layers
    with pytest.raises(IndexError):
        layers[2]


def test_a_repeat_is_true_also_without_a_value_or_blocks():
    model = Repeat("depth", [nn.ReLU()], low=0)
    assert model
    select(model, {"depth": 0})
    assert model


def test_without_a_value_it_has_no_length():
    with pytest.raises(RuntimeError, match=r"'depth' has no value yet; call asng\.nas\.select"):
        len(Repeat("depth", [nn.ReLU()] * 2))


def test_a_chain_is_a_sequential_that_is_copied_sliced_and_pickled():
    chain: Any = extract(Repeat("depth", [Masked() for _ in range(3)]), {"depth": 3})
    assert isinstance(chain, Chain)
    assert isinstance(chain, nn.Sequential)
    x, mask = torch.randn(2, 4), torch.ones(4)
    for twin in (copy.deepcopy(chain), pickle.loads(pickle.dumps(chain))):
        assert torch.equal(twin(x, mask), chain(x, mask))
    assert torch.equal(chain[1:](chain[:1](x, mask), mask), chain(x, mask))
    exported = torch.export.export(chain, (x, mask))
    torch.testing.assert_close(exported.module()(x, mask), chain(x, mask))


def test_a_module_may_say_that_a_repeat_alone_runs():
    class Body(Searchable):
        def __init__(self):
            super().__init__()
            self.layers, self.unused = Repeat("depth", [nn.Linear(2, 2), nn.ReLU()]), nn.Linear(2, 2)

        def forward(self, x):
            return self.layers(x)

        def active_modules(self):
            return [self.layers]

        def build_static(self):
            return self.layers

    assert Supernet(Body()).active({"depth": 1}) == {"depth"}
    assert parameters(Body(), {"depth": 1}) == 6


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (nn.ReLU(), r"Repeat 'd' takes a list of blocks, got ReLU\(\); give one for each repetition"),
        (3, "Repeat 'd' takes a list of blocks, got 3; give one for each repetition"),
        ([nn.ReLU(), nn.ReLU], "Repeat 'd' runs modules, got .*ReLU.* for block 1; give instances"),
    ],
)
def test_blocks_that_are_no_list_of_modules_are_refused(blocks, message):
    with pytest.raises(ValueError, match=message):
        Repeat("d", blocks)


@pytest.mark.slow
@pytest.mark.usefixtures("same_numbers")
def test_a_model_that_iterates_its_layers_is_captured():
    assert_same_steps(searchable_encoder())


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Summed(nn.ModuleList):
    def forward(self, x):
        return sum(layer(x) for layer in self)


def make_stage(change=lambda stage: None, kind: Any = nn.Sequential):
    stage = kind(*[nn.Linear(4, 4), nn.Linear(4, 4)])
    change(stage)
    return stage


@pytest.mark.parametrize(
    ("stage", "found"),
    [
        (make_stage(kind=Residual), "a Residual with a forward of its own"),
        (Summed([nn.Linear(4, 4), nn.Linear(4, 4)]), "a Summed with a forward of its own"),
        (make_stage(lambda stage: setattr(stage, "forward", stage[0].forward)), "a Sequential with a forward of its"),
        (make_stage(lambda stage: stage.register_forward_hook(print)), "a Sequential with a hook"),
        (make_stage(lambda stage: stage.register_buffer("gate", torch.ones(4))), "a tensor of its own, gate"),
    ],
    ids=["Sequential", "ModuleList", "patched", "hook", "tensor"],
)
def test_a_stage_that_does_more_than_to_run_its_blocks_is_refused(stage, found):
    with pytest.raises(
        ValueError, match=f"Repeat 'depth' takes a list of blocks, got .*{found}.* would be lost; .*list"
    ):
        Repeat("depth", stage)
    assert len(Repeat("depth", list(stage)).blocks) == 2


def test_a_stage_that_is_no_list_is_shown_briefly_with_its_list():
    stage: Any = nn.Module()
    stage.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
    with pytest.raises(ValueError, match=r"takes a list of blocks, got .{,150}; give .*, such as layers of it$"):
        Repeat("depth", stage)


def test_a_block_beyond_those_that_run_is_refused_with_the_cure():
    layers = Repeat("depth", [nn.Identity(), nn.Identity(), nn.Identity()])
    select(layers, {"depth": 2})
    with pytest.raises(IndexError, match=r"Repeat 'depth' runs 2 of its 3 blocks now, not block 2; iterate over it"):
        layers[2]
