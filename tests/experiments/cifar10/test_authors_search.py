"""The authors' procedures in plain PyTorch, baselines of benchmarks/gpu_*.py, compute what asng computes."""

# mypy: disable-error-code="index, union-attr, operator, arg-type"

import authors_retrain
import pytest
import torch
from authors_search import Net as AuthorsNet
from authors_search import Search

from asng import nas
from asng.experiments.cifar10.network import Net
from asng.experiments.cifar10.space import NODES, code_of, random_values

pytestmark = pytest.mark.slow


def layers_of(module):
    """The weights of convolutions in the order in which they run; a grouped one of a reduction is two."""
    convolutions = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
    return [part for conv in convolutions for part in conv.weight.chunk(2 if conv.groups == 2 else 1)]


def copy_weights(ours, theirs):
    """Give the authors' network the weights of a `Net`."""
    pairs = list(zip(ours.stem.parameters(), theirs.stem.parameters(), strict=True))
    pairs += list(zip(ours.classifier.parameters(), theirs.classifier.parameters(), strict=True))
    for our_cell, cell in zip(ours.cells, theirs.cells, strict=True):
        modules = list(zip(our_cell.entries, (cell.first, cell.second), strict=True))
        for node in range(NODES):
            for source, operations in enumerate(cell.paths[node]):
                our_operations = our_cell.slots[2 * node].options[source].operation.options
                modules += list(zip(our_operations, operations, strict=True))
        for our_module, module in modules:
            pairs += list(zip(layers_of(our_module), layers_of(module), strict=True))
        pairs.append((our_cell.join.weight, cell.join))
    with torch.no_grad():
        for ours_, theirs_ in pairs:
            theirs_.copy_(ours_)


@pytest.fixture(scope="module")
def nets():
    torch.manual_seed(0)
    ours, theirs = Net(4, 3).double(), AuthorsNet(4, 3).double()
    copy_weights(ours, theirs)
    return ours, theirs


@pytest.mark.parametrize("seed", range(5))
def test_both_networks_give_the_same_scores_and_gradients(nets, seed):
    ours, theirs = nets
    values, images = random_values(seed), torch.randn(4, 3, 16, 16, dtype=torch.double)
    nas.select(ours, values)
    scores, expected = ours(images), theirs(images, code_of(values))
    torch.testing.assert_close(scores, expected)
    gradients = [
        torch.autograd.grad(result.square().sum(), net.stem.parameters())
        for result, net in ((scores, ours), (expected, theirs))
    ]
    torch.testing.assert_close(*gradients)


def test_both_networks_have_the_same_parameters(nets):
    counts = [sum(parameter.numel() for parameter in net.parameters()) for net in nets]
    assert counts[0] == counts[1]


def test_a_search_moves_weights_and_distribution():
    torch.manual_seed(0)
    search = Search(AuthorsNet(4, 3))
    batches = [(torch.randn(4, 3, 16, 16), torch.randint(10, (4,))) for _ in range(2)]
    weight = search.model.classifier.weight.clone()
    losses = [search.step(*batches) for _ in range(2)]
    assert len(losses[0]) == len(losses[1]) == 2
    assert not torch.equal(search.model.classifier.weight, weight)
    assert any(p.max() != p.min() for p in search.arch_optimizer.distribution().values())


# Training from scratch -----------------------------------------------------------------------------


def static_pair(values, channels=4, cells=4):
    """Both static networks of an architecture, with the same weights."""
    torch.manual_seed(0)
    ours = nas.extract(Net(channels, cells, affine=True, auxiliary=True), values).double()
    theirs = authors_retrain.Net(channels, cells, code_of(values)).double()
    modules = [(getattr(ours, name), getattr(theirs, name)) for name in ("stem", "auxiliary", "classifier")]
    for our_cell, cell in zip(ours.cells, theirs.cells, strict=True):
        modules += list(zip(our_cell.entries, (cell.first, cell.second), strict=True))
        modules += [(our_cell.join, cell.join), (our_cell.norm, cell.norm)]
        for pairs in zip(our_cell.paths, cell.paths, strict=True):
            modules += [(our_cell.operations[index], module) for (_, index), module in zip(*pairs, strict=True)]
    with torch.no_grad():
        for our_module, module in modules:
            for ours_, theirs_ in zip(layers_of(our_module), layers_of(module), strict=True):
                theirs_.copy_(ours_)
    theirs.classifier.load_state_dict(ours.classifier.state_dict())
    theirs.auxiliary[-1].load_state_dict(ours.auxiliary[-1].state_dict())
    return ours, theirs


@pytest.mark.parametrize("seed", range(5))
def test_both_static_networks_give_the_same_scores_gradients_and_parameters(seed):
    ours, theirs = static_pair(random_values(seed))
    images = torch.randn(4, 3, 32, 32, dtype=torch.double)
    scores, expected = ours(images), theirs(images)
    torch.testing.assert_close(scores, expected)
    gradients = [
        torch.autograd.grad(result[0].square().sum() + result[1].sum(), net.stem.parameters())
        for result, net in ((scores, ours), (expected, theirs))
    ]
    torch.testing.assert_close(*gradients)
    assert len({sum(p.numel() for p in net.parameters()) for net in (ours, theirs)}) == 1


def test_a_training_moves_weights_and_drops_paths():
    torch.manual_seed(0)
    model = authors_retrain.Net(4, 4, code_of(random_values(0)))
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    assert torch.equal(model(images)[0], model(images)[0])
    assert not torch.equal(model(images, 0.5)[0], model(images, 0.5)[0])
    training = authors_retrain.Training(model, 0.1)
    weights = [parameter.clone() for parameter in model.parameters()]
    first, *_, last = [training.step(images, labels) for _ in range(12)]
    assert last < first
    assert not any(torch.equal(*pair) for pair in zip(weights, model.parameters(), strict=True))
