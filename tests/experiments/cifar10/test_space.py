"""The search space of CIFAR-10: names, codes, loose ends and the parameter counts of the paper's setting."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asng import ASNG, nas
from asng.experiments.cifar10 import space
from asng.experiments.cifar10.network import Net
from asng.experiments.cifar10.space import (
    OPERATIONS,
    SPACE,
    code_of,
    effective_cells,
    num_parameters,
    random_values,
    values_of,
)

ALL_ZERO = values_of([0] * 40)
CHAIN = values_of([1, 1, 4, 4, 2, 2, 4, 4, 3, 3, 4, 4, 4, 4, 4, 4, 5, 5, 4, 4] * 2)  # each node on the one before it

codes = st.tuples(*(st.integers(0, len(variable.choices) - 1) for variable in SPACE.values())).map(list)


def test_there_are_40_variables_with_140_free_probabilities():
    assert len(SPACE) == 40
    assert sum(len(variable.choices) - 1 for variable in SPACE.values()) == 140
    assert list(SPACE)[:5] == ["normal0.in1", "normal0.in2", "normal0.op1", "normal0.op2", "normal1.in1"]
    assert list(SPACE)[20:] == [name.replace("normal", "reduction") for name in list(SPACE)[:20]]
    for kind in ("normal", "reduction"):
        for node in range(5):
            assert SPACE[f"{kind}{node}.in1"].choices == SPACE[f"{kind}{node}.in2"].choices == tuple(range(2 + node))
            assert SPACE[f"{kind}{node}.op1"].choices == SPACE[f"{kind}{node}.op2"].choices == OPERATIONS


@given(codes)
def test_a_code_and_its_values_are_the_same_architecture(code):
    values = values_of(code)
    assert code_of(values) == code
    assert all(values[name] in variable.choices for name, variable in SPACE.items())


def test_a_code_is_read_node_by_node_and_the_normal_cell_first():
    values = values_of([0, 1, 2, 3] * 5 + [1, 0, 4, 1] * 5)
    assert space.cell_paths(values, "normal") == [((0, "max_pool"), (1, "sep_conv3"))] * 5
    assert space.cell_paths(values, "reduction") == [((1, "sep_conv5"), (0, "avg_pool"))] * 5
    assert space.cell_paths(CHAIN, "normal")[3] == ((4, "sep_conv5"), (4, "sep_conv5"))


@given(codes)
def test_loose_ends_are_the_nodes_without_successors(code):
    for kind in ("normal", "reduction"):
        values = values_of(code)
        successors: dict[int, list[int]] = {node: [] for node in range(5)}
        for node in range(5):
            for slot in ("in1", "in2"):
                if values[f"{kind}{node}.{slot}"] >= 2:
                    successors[values[f"{kind}{node}.{slot}"] - 2].append(node)
        ends = [node for node in range(5) if not successors[node]]
        assert space.loose_ends(space.cell_paths(values, kind)) == ends
        assert ends[-1] == 4


@pytest.mark.parametrize(
    ("values", "channels", "cells", "affine", "count"),
    [
        (ALL_ZERO, 60, 20, True, 3_981_310),
        (ALL_ZERO, 36, 20, True, 1_440_118),
        (ALL_ZERO, 16, 8, False, 132_602),
        (CHAIN, 42, 20, True, 3_867_496),
        (CHAIN, 36, 20, True, 2_910_214),
        (CHAIN, 16, 8, False, 282_234),
    ],
)
def test_parameters_are_those_of_the_papers_setting(values, channels, cells, affine, count):
    assert num_parameters(values, channels, cells, affine=affine) == count


@pytest.mark.parametrize(("values", "channels"), [(ALL_ZERO, 60), (CHAIN, 42)])
def test_channels_are_as_many_as_fit_into_four_million_parameters(values, channels):
    assert space.channels_for(values) == channels
    assert num_parameters(values, channels, 20) <= 4_000_000 < num_parameters(values, channels + 1, 20)


@settings(max_examples=25)
@given(codes, st.integers(3, 20), st.integers(20_000, 1_000_000))
def test_the_number_of_channels_is_the_largest_that_fits(code, cells, at_most):
    values = values_of(code)
    channels = space.channels_for(values, cells, at_most)
    assert num_parameters(values, channels, cells) <= at_most < num_parameters(values, channels + 1, cells)


@given(codes, st.integers(1, 4), st.integers(3, 8), st.booleans())
def test_no_architecture_has_fewer_parameters_than_the_least(code, channels, cells, affine):
    least = num_parameters(space.SMALLEST, channels, cells, affine=affine)
    assert least <= num_parameters(values_of(code), channels, cells, affine=affine)


def test_a_seed_draws_the_same_architecture_again_and_all_choices_occur():
    assert space.random_values(7) == space.random_values(7)
    drawn = [space.random_values(seed) for seed in range(100)]
    for name, variable in SPACE.items():
        assert {values[name] for values in drawn} == set(variable.choices)


def test_asng_searches_the_space():
    optimizer = ASNG(SPACE, seed=0)
    assert all(len(code_of(candidate.values)) == 40 for candidate in optimizer.ask())


def test_too_few_parameters_for_one_channel_are_refused():
    with pytest.raises(ValueError, match=r"one channel.*more than max_params=1,000"):
        space.channels_for(CHAIN, max_params=1000)


# Influence


NEVER_PREVIOUS = values_of([0, 0, 3, 2] * 10)  # every node takes cell k-2 alone
ALWAYS_PREVIOUS = values_of([0, 1, 3, 2] * 10)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cells", [3, 8, 11])
def test_effective_parameters_are_those_that_get_a_gradient(seed, cells):
    values = random_values(seed) if seed else NEVER_PREVIOUS
    network = nas.extract(Net(2, cells, affine=True), values)
    network(torch.randn(2, 3, 32, 32)).sum().backward()
    reached = sum(parameter.numel() for parameter in network.parameters() if parameter.grad is not None)
    assert num_parameters(values, 2, cells, effective=True) == reached


def test_cells_that_only_skipped_ones_look_at_have_no_influence():
    assert effective_cells(NEVER_PREVIOUS, 8) == {1, 3, 5, 7}
    assert effective_cells(ALWAYS_PREVIOUS, 8) == set(range(8))


def test_where_all_cells_matter_only_unused_entries_are_not_effective():
    assert num_parameters(ALWAYS_PREVIOUS, 4, 8, effective=True) == num_parameters(ALWAYS_PREVIOUS, 4, 8)
