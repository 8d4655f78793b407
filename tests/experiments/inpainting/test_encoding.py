"""Autoencoders as values: the two spaces of the paper, the chain that values stand for, the baselines."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asng import Categorical, Integer, nas
from asng.experiments.inpainting.encoding import (
    LAYER_KINDS,
    Encoding,
    Layer,
    base_values,
    chain,
    depth,
    describe_chain,
    layers_in,
    random_values,
    read_values,
    runnable_layers,
    search_space,
)
from asng.space import family_of

ENCODINGS: tuple[Encoding, ...] = ("cat", "int")
SPACES = st.builds(
    search_space,
    encoding=st.sampled_from(ENCODINGS),
    layers=st.integers(2, 25),
    levels=st.integers(2, 7),
    widths=st.just((4, 8)),
)


@pytest.mark.parametrize(("encoding", "choices", "integers", "parameters"), [("cat", 60, 0, 214), ("int", 40, 40, 174)])
def test_the_spaces_have_the_dimensions_of_the_paper(encoding, choices, integers, parameters):
    space = search_space(encoding)
    categoricals = [variable for variable in space.values() if isinstance(variable, Categorical)]
    assert len(categoricals) == choices
    assert len(space) - choices == integers
    assert all(len(variable.choices) > 1 for variable in categoricals)
    assert sum(len(variable.choices) - 1 for variable in categoricals) + 2 * integers == parameters
    assert family_of(space).dimension == parameters


def test_connections_are_the_numbers_of_the_five_nodes_before():
    for encoding in ENCODINGS:
        space = search_space(encoding)
        assert "layer1.connection" not in space
        for node in range(2, 21):
            expected = [n for n in range(21) if node - 5 <= n < node]
            assert space[f"layer{node}.connection"] == Categorical(expected)
        assert space["output.connection"] == Categorical((16, 17, 18, 19, 20))
        assert layers_in(space) == 20


def test_layers_choose_kernel_and_skip_in_both_encodings():
    cat, integer = search_space("cat"), search_space("int")
    assert cat["layer3.type"] == Categorical(tuple(LAYER_KINDS))
    assert sorted(LAYER_KINDS.values()) == [(k, skip) for k in (1, 3, 5) for skip in (False, True)]
    assert cat["layer3.channels"] == Categorical((64, 128, 256))
    assert integer["layer3.skip"] == Categorical((True, False))
    assert (integer["layer3.kernel"], integer["layer3.channels"]) == (Integer(1, 3), Integer(64, 256))


def chain_slowly(values: dict[str, Any]) -> list[Layer]:
    """Every node, latest first, marks the one that it continues if it is marked itself."""
    layers = max(int(name[5 : name.index(".")]) for name in values if name.startswith("layer"))
    marked = [False] * (layers + 1)
    marked[values["output.connection"]] = True
    for node in range(layers, 1, -1):
        if marked[node]:
            marked[values[f"layer{node}.connection"]] = True
    result = []
    for node in range(1, layers + 1):
        if marked[node]:
            if f"layer{node}.type" in values:
                size, way = values[f"layer{node}.type"].split()
                kernel, skip = int(size.split("x")[0]), way == "skip"
            else:
                kernel, skip = 2 * values[f"layer{node}.kernel"] - 1, values[f"layer{node}.skip"]
            result.append(Layer(node, kernel, skip, values[f"layer{node}.channels"]))
    return result


@settings(max_examples=200)
@given(space=SPACES, seed=st.integers(0, 2**32))
def test_the_chain_is_that_of_a_slow_decoder(space, seed):
    values = random_values(space, seed)
    layers = chain(values)
    assert layers == chain_slowly(values)
    assert 1 <= len(layers) <= layers_in(space)


@settings(max_examples=100)
@given(space=SPACES, seed=st.integers(0, 2**32), size=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_layers_are_left_out_where_torch_says_that_a_side_is_1(space, seed, size):
    layers = chain(random_values(space, seed))
    x = torch.empty(1, 1, *size, device="meta")
    expected = []
    for layer in layers:
        if not layer.skip and 1 in x.shape[-2:]:
            continue
        expected.append(layer)
        weight = torch.empty(1, 1, layer.kernel, layer.kernel, device="meta")
        x = torch.nn.functional.conv2d(x, weight, stride=1 if layer.skip else 2, padding=layer.kernel // 2)
    assert runnable_layers(layers, size) == expected


def test_an_output_never_continues_the_image_itself():
    assert search_space("cat", layers=3, levels=5)["output.connection"] == Categorical((1, 2, 3))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_architectures_are_readable_json_and_come_back(encoding):
    space = search_space(encoding)
    values = random_values(space, 7)
    text = nas.to_json(values)
    assert nas.from_json(text, space) == values
    assert '"layer3.connection": ' in text


@settings(max_examples=100)
@given(encoding=st.sampled_from(ENCODINGS), layers=st.integers(2, 25), seed=st.integers(0, 2**32))
def test_architectures_are_read_without_knowing_their_space(encoding, layers, seed):
    values = random_values(search_space(encoding, layers, widths=(4, 8)), seed)
    assert read_values(nas.to_json(values)) == values


def test_random_architectures_follow_the_seed_and_differ():
    space = search_space("int")
    assert random_values(space, 3) == random_values(space, 3)
    assert random_values(space, 3) != random_values(space, 4)
    depths = [depth(random_values(space, seed)) for seed in range(200)]
    # A walk back from node 21 in steps of 1 to 5 passes about 7 nodes.
    assert 5.5 < np.mean(depths) < 9
    assert min(depths) >= 4


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("wanted", range(4, 21))
def test_base_has_the_wanted_depth_and_layers_that_are_all_alike(encoding, wanted):
    space = search_space(encoding)
    values = base_values(space, wanted)
    layers = chain(values)
    assert len(layers) == wanted == depth(values)
    assert {(layer.kernel, layer.skip, layer.channels) for layer in layers} == {(3, True, 64)}
    assert nas.from_json(nas.to_json(values), space) == values


@settings(max_examples=100)
@given(space=SPACES, seed=st.integers(0, 2**32))
def test_base_exists_at_the_depth_of_any_architecture(space, seed):
    wanted = len(chain(random_values(space, seed)))
    values = base_values(space, wanted, channels=4)
    assert len(chain(values)) == wanted
    assert nas.from_json(nas.to_json(values), space) == values


def test_a_description_names_what_runs_and_what_is_left_out():
    values = base_values(search_space(), 20) | {f"layer{n}.type": "5x5 down" for n in range(3, 11)}
    values |= {"layer10.channels": 128, "layer11.connection": 10}
    lines = describe_chain(values, (64, 60)).splitlines()
    assert len(lines) == 20
    assert lines[1] == " 2  3x3 skip   64 channels  64x60"
    assert lines[2] == " 3  5x5 down   64 channels  32x30"
    assert lines[7] == " 8  5x5 down   64 channels  1x1"
    assert lines[8] == " 9  5x5 down  left out at 1x1"
    assert lines[-1] == "20  3x3 skip   64 channels  1x1"
    assert depth(values, (64, 60)) == 18
    assert depth(values, (512, 512)) == 20


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"encoding": "int", "widths": (4, 8, 16)}, r"least and the most, got \(4, 8, 16\)"),
        ({"widths": (0, 4)}, "at least 1 channel"),
        ({"widths": ()}, "at least 1 channel"),
    ],
)
def test_spaces_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        search_space(**wrong)
