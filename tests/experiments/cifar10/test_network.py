"""The network of CIFAR-10: against a slow, obvious version, extracted, and with dropped paths."""

import copy
import io
import pickle
import zipfile
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from asng import nas
from asng.experiments.cifar10.layers import AveragePool, FactorizedReduce, _AveragePool, norm
from asng.experiments.cifar10.network import Cell, Net, SharedCell, count_without_auxiliary, set_drop_path
from asng.experiments.cifar10.nodes import draw_masks
from asng.experiments.cifar10.space import (
    NODES,
    OPERATIONS,
    SPACE,
    cell_paths,
    num_parameters,
    random_values,
    values_of,
)
from asng.nas.supernet import Supernet

pytestmark = pytest.mark.slow

CUDA = torch.cuda.is_available()

ALL_ZERO = values_of([0] * 40)
CHAIN = values_of([1, 1, 4, 4, 2, 2, 4, 4, 3, 3, 4, 4, 4, 4, 4, 4, 5, 5, 4, 4] * 2)
RANDOM = [random_values(seed) for seed in range(20)]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net(channels=2, cells=5)


@pytest.fixture(scope="module")
def exact(net):
    """In double precision, with a stem that scales and shifts."""
    double = copy.deepcopy(net).double()
    nn.init.normal_(double.stem[1].weight)
    nn.init.normal_(double.stem[1].bias)
    return double


def images(n=3, side=8, seed=0):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(seed))


def select(net, values):
    nas.select(net, values)
    return net


# A slow, obvious version.


def normalize(x):
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt()


def shifts(x, kernel, outside):
    """All x[:, :, i + dy, j + dx] of a window around (i, j), by dy and dx from the upper left."""
    padded = F.pad(x, [kernel // 2] * 4, value=outside)
    height, width = x.shape[2:]
    return {(dy, dx): padded[:, :, dy : dy + height, dx : dx + width] for dy in range(kernel) for dx in range(kernel)}


def mix(x, weight):
    """A 1x1 convolution."""
    return torch.einsum("ncij,oc->noij", x, weight[:, :, 0, 0])


def slow_reduce(x, reduce):
    x, (even, odd) = x.relu(), reduce.conv.weight.chunk(2)
    return normalize(torch.cat([mix(x[:, :, ::2, ::2], even), mix(x[:, :, 1::2, 1::2], odd)], 1))


def slow_separable(x, module, kernel, stride):
    weights = [layer.weight for layer in module if isinstance(layer, nn.Conv2d)]
    for depthwise, pointwise, step in ((weights[0], weights[1], stride), (weights[2], weights[3], 1)):
        window = shifts(x.relu(), kernel, 0.0)
        x = sum(depthwise[:, 0, dy, dx, None, None] * part for (dy, dx), part in window.items())
        x = normalize(mix(x[:, :, ::step, ::step], pointwise))
    return x


def slow_path(x, module, name, stride):
    match name:
        case "identity":
            return x if stride == 1 else slow_reduce(x, module[1])
        case "avg_pool":
            return (sum(shifts(x, 3, 0.0).values()) / 9)[:, :, ::stride, ::stride]
        case "max_pool":
            return torch.stack(list(shifts(x, 3, -torch.inf).values())).amax(0)[:, :, ::stride, ::stride]
        case "sep_conv3" | "sep_conv5":
            return slow_separable(x, module, int(name[-1]), stride)


def slow_cell(cell, values, kind, before, previous):
    older, newer = cell.entries
    if isinstance(older, FactorizedReduce):
        outputs = {0: slow_reduce(before, older)}
    else:
        outputs = {0: normalize(mix(before.relu(), older[0].weight))}
    outputs[1] = normalize(mix(previous.relu(), newer[0].weight))
    loose: dict[int, torch.Tensor] = {}
    for node in range(5):
        ends = []
        for number in "12":
            source, name = values[f"{kind}{node}.in{number}"], values[f"{kind}{node}.op{number}"]
            stride = 2 if kind == "reduction" and source < 2 else 1
            operations = cell.slots[2 * node].options[source].operation.options
            module = operations[OPERATIONS.index(name)]
            ends.append(slow_path(outputs[source], module, name, stride))
            loose.pop(source - 2, None)
        outputs[2 + node] = loose[node] = ends[0] + ends[1]
    joined = torch.cat(list(loose.values()), 1).relu()
    columns = cell.join.weight.chunk(5, 1)
    return normalize(mix(joined, torch.cat([columns[node] for node in loose], 1)))


def slow_net(net, values, x):
    x = F.conv2d(x, net.stem[0].weight, padding=1)
    x = normalize(x) * net.stem[1].weight[:, None, None] + net.stem[1].bias[:, None, None]
    before = previous = x
    for place, cell in enumerate(net.cells):
        kind = "reduction" if place in (len(net.cells) // 3, 2 * len(net.cells) // 3) else "normal"
        before, previous = previous, slow_cell(cell, values, kind, before, previous)
    return previous.mean((2, 3)) @ net.classifier.weight.T + net.classifier.bias


@pytest.mark.long
@pytest.mark.parametrize("values", [ALL_ZERO, CHAIN, *RANDOM[:6]])
def test_outputs_and_gradients_are_those_of_a_slow_obvious_version(exact, values):
    x, names, weights = images().double(), *zip(*exact.named_parameters(), strict=True)
    outputs = select(exact, values)(x), slow_net(exact, values, x)
    torch.testing.assert_close(*outputs)
    mine, slow = (torch.autograd.grad(output.square().sum(), weights, allow_unused=True) for output in outputs)
    for name, gradient, expected in zip(names, mine, slow, strict=True):
        assert (gradient is None) == (expected is None), name  # what does not run has none
        if gradient is not None:
            torch.testing.assert_close(gradient, expected)


# Layout.


def test_the_space_of_the_network_is_the_papers_with_the_normal_cell_first(net):
    assert nas.space_of(net) == nas.space_of(Net(1, 3)) == SPACE
    assert [name[0] for name in nas.space_of(net)] == ["n"] * 20 + ["r"] * 20


def test_both_slots_of_a_node_choose_among_the_same_operations(net):
    for cell in net.cells:
        for node in range(NODES):
            slots = cell.slots[2 * node : 2 * node + 2]
            assert [len(slot.options) for slot in slots] == [2 + node] * 2
            for paths in zip(*(slot.options for slot in slots), strict=True):
                first, second = (list(path.operation.options) for path in paths)
                assert list(map(id, first)) == list(map(id, second))


def test_tied_operations_take_no_more_room_in_a_file(net):
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    tensors = {t.data_ptr(): t.nbytes for t in net.state_dict().values()}
    assert sum(info.file_size for info in zipfile.ZipFile(file).infolist() if "/data/" in info.filename) == sum(
        tensors.values()
    )


def test_two_reduction_cells_halve_the_size_and_double_the_channels():
    shapes = []
    net = select(Net(channels=3, cells=8), RANDOM[0])
    for cell in net.cells:
        cell.register_forward_hook(lambda cell, inputs, output: shapes.append(tuple(output.shape)))
    assert net(images(2, side=32)).shape == (2, 10)
    small, middle, large = (2, 12, 8, 8), (2, 6, 16, 16), (2, 3, 32, 32)
    assert shapes == [large] * 2 + [middle] * 3 + [small] * 3


def test_factorized_reduce_sees_every_other_pixel_and_those_shifted_by_one():
    reduce = FactorizedReduce(1, 2, affine=False).eval()
    nn.init.ones_(reduce.conv.weight)
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    expected = torch.tensor([[[0.0, 2], [8, 10]], [[5, 7], [13, 15]]])
    torch.testing.assert_close(reduce(x)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="no GPU"))])
def test_means_have_the_right_gradient_for_channels_last(device, stride):
    x = torch.randn(2, 3, 8, 12, requires_grad=True)
    expected = F.avg_pool2d(x, 3, stride, 1)
    weights = torch.randn_like(expected)
    there = x.detach().to(device, memory_format=torch.channels_last).requires_grad_()
    mine = AveragePool(stride)(there) if device == "cuda" else _AveragePool.apply(there, stride)
    torch.testing.assert_close(mine.cpu(), expected)
    (gradient,) = torch.autograd.grad(mine, there, weights.to(device))
    torch.testing.assert_close(gradient.cpu(), *torch.autograd.grad(expected, x, weights))


def test_a_batch_norm_without_scale_equals_torchs():
    mine, theirs, x = norm(3, affine=False), nn.BatchNorm2d(3, affine=False), images()
    assert torch.equal(mine(x), theirs(x))
    assert torch.equal(mine.eval()(x), theirs.eval()(x))
    assert list(mine.parameters()) == []
    assert list(mine.state_dict()) == ["running_mean", "running_var"]


@pytest.mark.parametrize("values", [ALL_ZERO, CHAIN, RANDOM[0]])
def test_what_is_selected_runs_once_and_nothing_else(net, values):
    class Calls(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.count: Counter[str] = Counter()

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            self.count[operator.__name__.split(".")[0]] += 1
            return operator(*args, **(kwargs or {}))

    with Calls() as calls:
        select(net, values)(images())
    convolutions, pools = 1, 0
    for kind, times in (("normal", 3), ("reduction", 2)):
        paths = cell_paths(values, kind)
        once = {(node, *path) for node, pair in enumerate(paths) for path in pair}
        convolutions += times * len({source for _, source, _ in once if source < 2})  # the ways into the cell
        convolutions += times * 4 * sum(name.startswith("sep_conv") for _, _, name in once)
        convolutions += times * (kind == "reduction") * sum(name == "identity" and s < 2 for _, s, name in once)
        convolutions += times  # the way out
        pools += times * len({(source, name) for _, source, name in once if name.endswith("pool")})
    assert calls.count["convolution"] == convolutions
    assert calls.count["avg_pool2d"] + calls.count["max_pool2d_with_indices"] == pools
    assert calls.count["add"] == 5 * 5
    assert calls.count["relu"] + calls.count["relu_"] <= 2 * 5 + convolutions // 2


def test_all_40_decisions_have_an_effect_in_every_architecture(net):
    supernet = Supernet(net)
    assert all(supernet.active(values) == set(SPACE) for values in RANDOM)


# Extraction.


@pytest.mark.long
def test_the_extracted_network_equals_the_supernet_in_both_modes(net):
    supernet = copy.deepcopy(net)
    for name, statistic in supernet.named_buffers():
        if "running" in name:
            nn.init.uniform_(statistic, 0.5, 2)
    extracted = [(values, nas.extract(supernet, values)) for values in [ALL_ZERO, CHAIN, *RANDOM]]
    for training in (False, True):
        supernet.train(training)
        for seed, (values, small) in enumerate(extracted):
            x = images(seed=seed)
            assert torch.equal(small.train(training)(x), select(supernet, values)(x))
            assert not any(isinstance(module, (nas.Decision, SharedCell)) for module in small.modules())


@pytest.mark.parametrize("values", RANDOM[:3])
def test_the_extracted_network_learns_by_the_same_gradients(net, values):
    norms = []
    for model in (select(net, values), nas.extract(net, values)):
        loss = model(images()).square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        norms.append(nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None]))
    torch.testing.assert_close(*norms)


@pytest.mark.parametrize("affine", [False, True])
def test_parameters_are_counted_without_making_the_network(affine):
    with torch.device("meta"):
        net = Net(channels=3, cells=4, affine=affine, auxiliary=True)
    for values in [ALL_ZERO, CHAIN, *RANDOM[:6]]:
        small = nas.extract(net, values)
        assert count_without_auxiliary(small) == num_parameters(values, 3, 4, affine=affine)
        assert count_without_auxiliary(small) < sum(parameter.numel() for parameter in small.parameters())


@pytest.mark.long
@pytest.mark.parametrize(
    ("channels", "cells", "affine", "counts"),
    [
        (36, 20, True, [1_440_118, 2_910_214]),
        (16, 8, False, [132_602, 282_234]),
    ],
)
def test_networks_of_the_papers_setting_have_their_number_of_parameters(channels, cells, affine, counts):
    with torch.device("meta"):
        net = Net(channels, cells, affine=affine, auxiliary=True)
    assert [count_without_auxiliary(nas.extract(net, values)) for values in (ALL_ZERO, CHAIN)] == counts


def test_copies_and_states_give_the_same_network(net):
    small, x = nas.extract(net, RANDOM[0]).eval(), images()
    assert torch.equal(copy.deepcopy(small)(x), small(x))
    assert torch.equal(pickle.loads(pickle.dumps(small))(x), small(x))
    file = io.BytesIO()
    torch.save(small.state_dict(), file)
    file.seek(0)
    other = nas.extract(Net(channels=2, cells=5), RANDOM[0]).eval()
    assert not torch.equal(other(x), small(x))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), small(x))


def test_statistics_are_estimated_anew_for_an_extracted_network(net):
    small = nas.extract(net, RANDOM[1])
    nas.recalibrate(small, [images(64)])
    trained, tested = small.train()(images(64)), small.eval()(images(64))
    torch.testing.assert_close(trained, tested, rtol=0.05, atol=0.05)  # a variance over n or n - 1 numbers


# Auxiliary head.


def test_the_auxiliary_head_scores_in_training_alone():
    net = Net(channels=2, cells=3, affine=True, auxiliary=True)
    models: list[Any] = [select(net, RANDOM[0]), nas.extract(net, RANDOM[0])]
    for model in models:
        scores, second = model.train()(images(side=32))
        assert scores.shape == second.shape == (3, 10)
        assert model.eval()(images(side=32)).shape == (3, 10)
        second.sum().backward()
        assert model.classifier.weight.grad is None
        assert all(parameter.grad is not None for parameter in model.auxiliary.parameters())


def test_the_auxiliary_head_sees_the_second_reduction_cell():
    net = select(Net(channels=2, cells=8, auxiliary=True), CHAIN)
    net(images(side=32))[1].sum().backward()
    reached = [any(p.grad is not None for p in cell.parameters()) for cell in net.cells]
    assert reached == [True] * 6 + [False] * 2


def test_the_auxiliary_head_is_that_of_a_slow_obvious_version():
    net: Any = select(Net(channels=2, cells=3, affine=True, auxiliary=True).double(), RANDOM[0])
    seen: list[torch.Tensor] = []
    net.cells[2].register_forward_hook(lambda cell, inputs, output: seen.append(output))
    second = net(images(side=32).double())[1]
    convolutions = [layer.weight for layer in net.auxiliary if isinstance(layer, nn.Conv2d)]
    assert [tuple(weight.shape) for weight in convolutions] == [(128, 8, 1, 1), (768, 128, 2, 2)]
    x = seen[0].relu()
    x = torch.stack([x[:, :, i : i + 5, j : j + 5].mean((2, 3)) for i in (0, 3) for j in (0, 3)], 2).unflatten(
        2, (2, 2)
    )
    x = normalize(mix(x, convolutions[0])).relu()
    x = normalize(torch.einsum("ncij,ocij->no", x, convolutions[1])[:, :, None, None]).relu()
    last = net.auxiliary[-1]
    torch.testing.assert_close(second, x.flatten(1) @ last.weight.T + last.bias)


# Drop path.


def identity_cell(rate, names):
    """A cell whose nodes, all loose ends, are shown one by one: the paths of each node lead from source 0."""
    nodes = [[(0, nn.Identity() if name == "identity" else nn.AvgPool2d(1)) for name in pair] for pair in names]
    join = nn.Conv2d(len(nodes), len(nodes), 1, bias=False)
    nn.init.zeros_(join.weight)
    with torch.no_grad():
        join.weight[:, :, 0, 0].fill_diagonal_(1)
    cell = Cell(nn.ModuleList([nn.Identity(), nn.Identity()]), nodes, range(len(nodes)), join, nn.Identity())
    set_drop_path(cell, rate)
    return cell


def test_a_path_is_dropped_per_image_or_made_up_for_and_an_identity_never():
    torch.manual_seed(0)
    rate, n = 0.3, 20_000
    cell = identity_cell(rate, [("pool", "pool"), ("identity", "pool"), ("identity", "identity")])
    x = torch.ones(n, 1, 2, 2)
    output = cell(x, x)
    assert torch.equal(output, output[:, :, :1, :1].expand_as(output))  # whole images
    both, one, none = output[:, :, 0, 0].T.double()
    kept = 1 / (1 - rate)
    for values, levels in ((both, [0, kept, 2 * kept]), (one, [1, 1 + kept]), (none, [2])):
        torch.testing.assert_close(values.unique(), torch.tensor(levels).double())
        # The mean is what it is without dropping: 2, within four standard errors.
        assert abs(values.mean() - 2) <= 4 * values.std() / n**0.5 + 1e-6
    assert abs((one == 1).double().mean() - rate) < 4 * (rate * (1 - rate) / n) ** 0.5
    # The same path twice is dropped twice, independently of each other and of other nodes.
    assert abs((both == 0).double().mean() - rate**2) < 4 * (rate**2 * (1 - rate**2) / n) ** 0.5
    assert abs(torch.corrcoef(torch.stack([both, one]))[0, 1]) < 4 / n**0.5


def test_masks_of_cells_are_drawn_with_their_own_probabilities():
    torch.manual_seed(0)
    keep = torch.tensor([1.0, 0.5, 0.8], dtype=torch.float64)
    masks = draw_masks(keep.view(-1, 1, 1, 1, 1, 1, 1), torch.empty(1000), 3, NODES)
    assert masks.shape == (3, NODES, 2, 1000, 1, 1, 1)
    for probability, drawn in zip(keep.tolist(), masks, strict=True):
        assert drawn.unique().tolist() == pytest.approx([1] if probability == 1 else [0, 1 / probability])
        assert drawn.mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("training", "expected"), [(True, [0, 1, 2, 3, 4, 5, 6, 7, 9]), (False, [1, 3, 5, 7, 9])])
def test_static_cells_without_influence_do_not_run(training, expected):
    """Every cell takes cell k-2 alone; in training the auxiliary head takes cell 6."""
    small, ran = nas.extract(Net(2, 10, auxiliary=True), ALL_ZERO).train(training), []
    for number, cell in enumerate(module for module in small.modules() if isinstance(module, Cell)):
        cell.register_forward_hook(lambda cell, inputs, output, number=number: ran.append(number))
    small(torch.randn(2, 3, 32, 32))
    assert ran == expected


def test_an_identity_that_halves_is_a_path_like_others(net):
    small, outputs = nas.extract(net, values_of([0, 1, 0, 0] * 10)), []
    for cell in (module for module in small.modules() if isinstance(module, Cell)):
        cell.register_forward_hook(lambda cell, inputs, output: outputs.append(output))
    for rate in (0.0, 0.5):
        set_drop_path(small, rate)
        small(images())
    assert torch.equal(outputs[0], outputs[5])  # a normal cell
    assert not torch.equal(outputs[1], outputs[6])  # a reduction


def test_dropped_paths_follow_the_seed_and_cost_nothing_at_a_rate_of_zero(net):
    small, x = nas.extract(net, CHAIN), images()
    trained = small(x)
    before = torch.get_rng_state()
    set_drop_path(small, 0.5)
    assert not torch.equal(small(x), trained)
    torch.set_rng_state(before)
    first = small(x)
    torch.set_rng_state(before)
    assert torch.equal(small(x), first)
    before = torch.get_rng_state()
    set_drop_path(small, 0.0)
    assert torch.equal(small(x), trained)
    assert torch.equal(torch.get_rng_state(), before)  # nothing is drawn


def test_no_path_is_dropped_in_evaluation(net):
    small, x = nas.extract(net, CHAIN).eval(), images()
    tested = small(x)
    set_drop_path(small, 0.5)
    assert torch.equal(small(x), tested)


def test_dropped_paths_keep_half_precision(net):
    small = nas.extract(net, CHAIN)
    set_drop_path(small, 0.5)
    kinds = set()
    for cell in (module for module in small.modules() if isinstance(module, Cell)):
        cell.register_forward_hook(lambda cell, inputs, output: kinds.add(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        small(images())
    assert kinds == {torch.bfloat16}


# What is wrong is said.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda net: nas.extract(net, {"normal0.in1": 0}), r"no value for 'normal0\.op1'"),
        (lambda net: nas.select(net, {**CHAIN, "normal0.in1": 2}), r"2 is outside of .*'normal0\.in1'"),
    ],
)
def test_what_does_not_fit_is_refused(net, wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong(net)
