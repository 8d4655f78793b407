"""The supernet of autoencoders: only the active chain, only the channels in use, and equal once extracted."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from asng import ASNG, nas
from asng.experiments.inpainting.encoding import base_values, chain, depth, random_values, runnable_layers, search_space
from asng.experiments.inpainting.network import Autoencoder, Net, new_autoencoder
from asng.nas.supernet import Supernet

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

ENCODINGS = ("cat", "int")
WIDTHS = {"cat": (2, 5, 8), "int": (2, 8)}
SIZE = (16, 16)


@pytest.fixture(scope="module")
def nets() -> dict[str, Net]:
    torch.manual_seed(0)
    return {encoding: small(encoding) for encoding in ENCODINGS}


def small(encoding: Any, size: tuple[int, int] = SIZE) -> Net:
    return Net(search_space(encoding, layers=8, levels=3, widths=WIDTHS[encoding]), size)


def alive(net: Net) -> Net:
    """With weights that are all positive: no ReLU hides that something has an effect."""
    for weight in net.parameters():
        weight.detach().abs_()
    return net


def images(*size: int, seed: int = 0) -> Tensor:
    return torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(seed))


def architectures(net: Net, count: int, first: int = 0) -> list[dict[str, Any]]:
    space = nas.space_of(net)
    return [random_values(space, first + number) for number in range(count)]


def out_of(net: nn.Module, values: dict[str, Any], x: Tensor) -> Tensor:
    nas.select(net, values)
    with torch.no_grad():
        return net(x)


def pad(net: Any, values: dict[str, Any], x: Tensor) -> Tensor:
    """The same network with 8 channels everywhere: missing ones are zeros, and so are the weights from and to them."""

    def weights(layer: Any, channels: int, transposed: bool) -> Tensor:
        kept = torch.zeros_like(layer.weight)
        place = (slice(None), slice(channels)) if transposed else (slice(channels), slice(None))
        kept[place] = layer.weight[place]
        return kept

    x = F.pad(x, (0, 0, 0, 0, 0, 8 - 3))
    layers = runnable_layers(chain(values), (x.shape[-2], x.shape[-1]))
    sizes, outputs = [], []
    for layer in layers:
        sizes.append(x.shape[-2:])
        weight = weights(net.encoder[layer.number - 1][layer.kind], layer.channels, transposed=False)
        x = F.conv2d(x, weight, stride=1 if layer.skip else 2, padding=layer.kernel // 2).relu()
        outputs.append(x)
    while layers:
        layer, (height, width), beside = layers.pop(), sizes.pop(), outputs.pop()
        weight = weights(net.decoder[layer.number - 1][layer.kind], layer.channels, transposed=True)
        half = layer.kernel // 2
        if layer.skip:
            x = F.conv_transpose2d(x, weight, padding=half) + beside
        else:  # one row and column too many, where the side is odd
            x = F.conv_transpose2d(x, weight, stride=2, padding=half, output_padding=1)[..., :height, :width]
        x = x.relu()
    return F.conv_transpose2d(x, net.last.weight, padding=1)


@pytest.mark.long
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [(16, 16), (5, 7), (1, 6), (13, 4)])
def test_channel_slices_equal_a_padded_computation(nets, encoding, size):
    net, x = nets[encoding], images(*size)
    for values in architectures(net, 25):
        with torch.no_grad():
            torch.testing.assert_close(out_of(net, values, x), pad(net, values, x))


@pytest.mark.long
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_hundred_extracted_networks_have_equal_outputs(nets, encoding):
    net, x = nets[encoding], images(*SIZE)
    for values in architectures(net, 100):
        plain = nas.extract(net, values)
        assert torch.equal(out_of(net, values, x), plain(x))
        kinds = {type(module) for module in plain.modules()}
        assert kinds <= {Autoencoder, nn.ModuleList, nn.Conv2d, nn.ConvTranspose2d}


@pytest.mark.long
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 7), (2, 9)])
def test_extraction_is_for_the_size_that_the_net_is_for(size):
    x = images(*size)
    for encoding in ENCODINGS:
        net = small(encoding, size)
        for values in architectures(net, 12):
            plain: Any = nas.extract(net, values)
            assert torch.equal(out_of(net, values, x), plain(x))
            assert len(plain.encoder) == len(plain.decoder) == depth(values, size)


def test_an_extracted_network_has_exactly_the_parameters_of_its_layers(nets):
    for encoding, net in nets.items():
        for values in architectures(net, 20):
            count, came = 0, 3
            layers = runnable_layers(chain(values), SIZE)
            for layer in layers:
                count += came * layer.channels * layer.kernel**2
                came = layer.channels
            for layer in reversed(layers):
                count += came * layer.channels * layer.kernel**2
                came = layer.channels
            assert nas.parameters(net, values) == count + came * 3 * 9, encoding


@pytest.mark.parametrize("size", [(5, 7), (1, 1), (1, 9), (33, 17), (6, 64)])
def test_the_decoder_comes_back_to_the_sizes_of_the_encoder(nets, size):
    net = nets["cat"]
    seen: dict[nn.Module, tuple[torch.Size, torch.Size]] = {}

    def note(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        seen[module] = inputs[0].shape[-2:], output.shape[-2:]

    hooks = [part.register_forward_hook(note) for part in net.modules() if isinstance(part, nas.Conv2d)]
    hooks += [part.register_forward_hook(note) for part in net.modules() if isinstance(part, nas.ConvTranspose2d)]
    reached_one = 0
    for values in architectures(net, 30):
        seen.clear()
        assert out_of(net, values, images(*size)).shape == (2, 3, *size)
        layers = runnable_layers(chain(values), size)
        assert len(seen) == 2 * len(layers) + 1
        for layer in layers:
            before, after = seen[net.encoder[layer.number - 1][layer.kind]]
            assert seen[net.decoder[layer.number - 1][layer.kind]] == (after, before)
            reached_one += 1 in after
    assert reached_one or min(size) > 8
    for hook in hooks:
        hook.remove()


def test_at_even_sizes_output_padding_is_stride_minus_1(nets):
    net = nets["cat"]
    nas.select(net, base_values(nas.space_of(net), 8, channels=8))
    for kind, layer in net.decoder[0].items():
        x = torch.rand(1, 8, 6, 3)
        stride = 1 if "skip" in kind else 2
        assert layer.output_padding == (stride - 1, stride - 1)
        assert torch.equal(layer(x), layer(x, output_size=(6 * stride, 3 * stride)))


def test_layers_that_would_halve_a_side_of_1_do_nothing_on_either_side():
    net = alive(small("cat"))
    down = base_values(nas.space_of(net), 8, channels=5) | {f"layer{n}.type": "3x3 down" for n in range(1, 8)}
    fewer = down | {"layer8.connection": 5}
    x = images(*SIZE)  # at 1x1 after four layers; the fifth to seventh are left out
    assert depth(down, SIZE) == 5
    assert torch.equal(out_of(net, down, x), out_of(net, fewer, x))
    assert not torch.equal(out_of(net, down, images(64, 64)), out_of(net, fewer, images(64, 64)))


def test_where_no_layer_fits_the_last_one_runs_alone():
    net = small("cat", (1, 1))
    values = base_values(nas.space_of(net), 8, channels=5) | {f"layer{n}.type": "3x3 down" for n in range(1, 9)}
    x = images(1, 1)
    expected = F.conv_transpose2d(x, net.last.weight[:3], padding=1)
    torch.testing.assert_close(out_of(net, values, x), expected.detach())
    assert nas.parameters(net, values) == 3 * 3 * 9


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_only_the_active_chain_and_the_used_channels_have_a_gradient(nets, encoding):
    net = copy.deepcopy(nets[encoding])
    for values in architectures(net, 5):
        net.zero_grad()
        nas.select(net, values)
        net(images(*SIZE)).square().mean().backward()
        layers = runnable_layers(chain(values), SIZE)
        ran = [part[layer.number - 1][layer.kind].weight for layer in layers for part in (net.encoder, net.decoder)]
        touched = {id(p) for p in net.parameters() if p.grad is not None}
        assert touched == {id(weight) for weight in [*ran, net.last.weight]}
        for layer in layers:
            assert not net.encoder[layer.number - 1][layer.kind].weight.grad[layer.channels :].any()
            assert not net.decoder[layer.number - 1][layer.kind].weight.grad[:, layer.channels :].any()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_full_supernet_computes_no_more_than_the_extracted_network(encoding):
    with torch.device("meta"):
        net, x = Net(search_space(encoding)), torch.empty(16, 3, 64, 64)
    assert nas.space_of(net) == search_space(encoding)
    assert list(nas.space_of(net)) == list(search_space(encoding))
    assert sum(p.numel() for p in net.parameters()) == 20 * 2 * 2 * (1 + 9 + 25) * 256 * 256 + 256 * 3 * 9
    for values in architectures(net, 3):
        nas.select(net, values)
        assert flops(net, x) == flops(nas.extract(net, values), x)


def flops(model: nn.Module, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x)
    return counter.get_total_flops()


@pytest.mark.long
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [(16, 16), (2, 2)])
def test_variables_that_are_not_active_have_no_effect_and_the_others_have(encoding, size):
    net, x = alive(small(encoding, size)), images(*size)
    supernet, space = Supernet(net), nas.space_of(net)
    for values, other in zip(architectures(net, 12), architectures(net, 12, first=1000), strict=True):
        active = supernet.active(values)
        names = {f"layer{layer.number}" for layer in chain(values)} | {"output"}
        assert {name.partition(".")[0] for name in active} == names
        inactive = {name: other[name] for name in space if name not in active}
        assert inactive
        before = out_of(net, values, x)
        assert torch.equal(before, out_of(net, values | inactive, x))
        kept = runnable_layers(chain(values), size)
        for layer in kept:
            wider = values | {f"layer{layer.number}.channels": 2 if layer.channels > 2 else 8}
            assert not torch.equal(before, out_of(net, wider, x))
        left = {layer.number for layer in chain(values)} - {layer.number for layer in kept}
        assert not {f"layer{number}.{part}" for number in left for part in ("kernel", "channels")} & active


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_weights_begin_within_the_bound_of_their_largest_input(encoding):
    net = small(encoding)
    for layer in [layer for kinds in [*net.encoder, *net.decoder] for layer in kinds.values()] + [net.last]:
        bound = 1 / math.sqrt(8 * math.prod(layer.kernel_size))
        assert 0.8 * bound < layer.weight.abs().max() <= bound
    every = torch.cat([kinds["5x5 skip"].weight.flatten() for kinds in [*net.encoder, *net.decoder]])
    assert every.var().item() == pytest.approx(1 / (3 * 8 * 25), rel=0.05)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_new_network_is_the_extracted_one_with_new_weights(nets, encoding):
    net = nets[encoding]
    for values in architectures(net, 20):
        model = new_autoencoder(values, SIZE)
        assert str(model) == str(nas.extract(net, values))
        assert model(images(*SIZE)).shape == (2, 3, *SIZE)
        for layer in model.modules():
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                bound = 1 / math.sqrt(layer.in_channels * math.prod(layer.kernel_size))
                assert 0.4 * bound < layer.weight.abs().max() <= bound


def test_base_of_the_paper_has_64_channels_and_known_parameters():
    model = new_autoencoder(base_values(search_space("int"), 10))
    assert sum(p.numel() for p in model.parameters()) == 9 * (3 * 64 + 9 * 64 * 64 + 10 * 64 * 64 + 64 * 3)


def test_the_same_seed_gives_the_same_weights_again(nets):
    values = architectures(nets["int"], 1)[0]

    def weights(seed: int, make: Callable[[], nn.Module]) -> list[Tensor]:
        torch.manual_seed(seed)
        return list(make().parameters())

    for make in (lambda: new_autoencoder(values, SIZE), lambda: small("cat")):
        first, second, other = (weights(seed, make) for seed in (1, 1, 2))
        assert all(map(torch.equal, first, second))
        assert not any(map(torch.equal, first, other))


@pytest.mark.long
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_search_follows_its_seed_and_lowers_the_loss(encoding):
    def mse(model: nn.Module, batch: Tensor) -> Tensor:
        return F.mse_loss(model(batch * (torch.arange(8) % 4 > 0)), batch)

    def run() -> tuple[list[tuple[float, ...]], dict[str, Any]]:
        torch.manual_seed(1)
        net = small(encoding)
        arch_optimizer = ASNG(nas.space_of(net), seed=1)
        weight_optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        oneshot = nas.OneShot(net, arch_optimizer, weight_optimizer, mse, max_grad_norm=5.0)
        steps = [oneshot.step(images(8, 8, seed=2 * n), images(8, 8, seed=2 * n + 1)) for n in range(20)]
        return [step.train_losses for step in steps], arch_optimizer.mode()

    (losses, found), again = run(), run()
    assert (losses, found) == again
    assert sum(map(sum, losses[-5:])) < 0.9 * sum(map(sum, losses[:5]))
