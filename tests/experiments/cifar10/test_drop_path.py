"""Images that dropped paths cut off: against probabilities by hand, and against masks that the network draws."""

import math

import pytest
import torch
from torch import nn

from asng import nas
from asng.experiments.cifar10.drop_path import CutOff, measure_cut_off
from asng.experiments.cifar10.network import Net, set_drop_path
from asng.experiments.cifar10.space import NODES, SPACE, random_values
from asng.experiments.cifar10.task import Cifar10, Cifar10RetrainSettings

CELLS = 3  # one normal cell, two reductions; the auxiliary head looks at the last one
IMAGES = 1000


def chain(operation):
    """Cells of which each node takes the one before it twice, by the same operation, and the first one cell k-1."""
    values = {}
    for name in SPACE:
        kind, entry = name.split(".")
        values[name] = operation if entry.startswith("op") else int(kind[-1]) + 1
    return values


@torch.no_grad()
def count_cut_off(values, cells, drop_path):
    """The same shares of white images, through a network in which positive numbers stay positive."""
    torch.manual_seed(0)
    network = nas.extract(Net(2, cells, affine=True, auxiliary=True), values).double().train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()  # with its initial statistics: the identity
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.fill_(1 / module.weight[0].numel())
        if isinstance(module, nn.Linear):
            module.bias.zero_()
    set_drop_path(network, drop_path)
    pair = network(torch.ones(IMAGES, 3, 32, 32, dtype=torch.double))
    return CutOff(*((scores == 0).all(1).double().mean().item() for scores in pair))


@pytest.mark.parametrize(
    ("operation", "nodes"),
    [
        ("avg_pool", CELLS * NODES),
        ("sep_conv3", CELLS * NODES),
        ("identity", 2),  # it is dropped only where a reduction makes it a convolution, on the way into the cell
    ],
)
@pytest.mark.parametrize("drop_path", [0.1, 0.3])
def test_a_chain_is_cut_where_both_paths_of_a_node_are_dropped(operation, nodes, drop_path):
    expected = 1 - (1 - drop_path**2) ** nodes
    assert measure_cut_off(chain(operation), CELLS, drop_path) == pytest.approx((expected, expected))


@pytest.mark.parametrize("seed", [4, 12, 5])  # of which many images, some and hardly any are cut off
@pytest.mark.parametrize("cells", [pytest.param(3, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.long)])
def test_as_many_images_are_cut_off_as_by_masks_that_the_network_draws(seed, cells):
    values = random_values(seed)
    counted, expected = count_cut_off(values, cells, 0.4), measure_cut_off(values, cells, 0.4)
    for share, probability in zip(counted, expected, strict=True):
        assert share == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / IMAGES) + 1e-12)


def test_nothing_is_cut_off_where_no_path_is_dropped():
    assert measure_cut_off(chain("max_pool"), 20, 0.0) == (0, 0)


def test_the_more_paths_are_dropped_the_more_images_are_cut_off():
    shares = [measure_cut_off(random_values(4), 20, p).output for p in (0.0, 0.1, 0.2, 0.3, 0.5)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[3] == pytest.approx(0.93, abs=0.005)


def test_the_probability_grows_from_0_over_the_epochs():
    settings = Cifar10RetrainSettings(epochs=4, drop_path=0.2)
    assert [settings.drop_path_in(epoch) for epoch in (1, 2, 3, 4)] == pytest.approx([0, 0.05, 0.1, 0.15])


def test_a_training_that_will_lose_many_images_says_so_before_it_begins():
    task = Cifar10.without_images()
    (line,) = task.describe_training(Cifar10RetrainSettings(), random_values(4))
    assert line == (
        "By the end of this training dropped paths cut 93% of the images off from the output, "
        "which then learns nothing from them (41% with --drop-path 0.15)"
    )
    assert task.describe_training(Cifar10RetrainSettings(drop_path=0.05), random_values(4)) == []
    assert task.describe_training(Cifar10RetrainSettings(epochs=1), random_values(4)) == []
    assert task.describe_training(Cifar10RetrainSettings(), random_values(2)) == []
