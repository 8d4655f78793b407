"""Statistics of batch norms re-estimated: averaged over the batches, with nothing else changed."""

import copy
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn

from asng.nas import BatchNorm2d, Width, extract, recalibrate, select
from tests.helpers.counted_net import LARGE, Net, everything


def batches(n, size=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(size, 1, 6, 6, generator=generator) + 2 for _ in range(n)]


def test_recalibration_averages_over_the_batches():
    net: Any = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), nn.BatchNorm2d(1, affine=False))
    net[0].momentum = 0.3
    net[1].eval()
    net(batches(1, seed=9)[0] + 99)  # what has to be forgotten
    data = batches(4)
    recalibrate(net, iter(data))
    torch.testing.assert_close(net[0].running_mean, torch.stack([batch.mean() for batch in data]).mean()[None])
    torch.testing.assert_close(net[0].running_var, torch.stack([batch.var() for batch in data]).mean()[None])
    # without dropout in between, what the second one sees is normal
    assert net[2].running_mean.abs() < 1e-6
    assert abs(net[2].running_var - 1) < 0.01
    assert (net[0].momentum, net[2].momentum) == (0.3, 0.1)
    assert [module.training for module in net.modules()] == [True, True, False, True]
    assert net[0].num_batches_tracked == 4


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms_without_a_batch_count_are_recalibrated(affine):
    width = Width("w", 1, 3)
    layers: list[Any] = [nn.Conv2d(1, 3, 1), BatchNorm2d(width, affine=affine), nn.Conv2d(3, 1, 1), nn.BatchNorm2d(1)]
    counting: Any = nn.Sequential(*layers)
    silent = copy.deepcopy(counting)
    for norm in (silent[1], silent[3]):
        norm.num_batches_tracked = None
    networks: list[Any] = [extract(model, {"w": 3}) for model in (counting, silent)]
    for network in networks:
        recalibrate(network, batches(4))
    for place in (1, 3):
        one, other = [network[place] for network in networks]
        assert torch.equal(one.running_mean, other.running_mean)
        assert torch.equal(one.running_var, other.running_var)
        assert one.num_batches_tracked == 4
        assert other.num_batches_tracked is None
        assert other.momentum == 0.1
    assert list(networks[1].state_dict()) == [
        name for name in networks[0].state_dict() if "num_batches_tracked" not in name
    ]


@pytest.mark.parametrize("counts", [True, False])
def test_an_elastic_norm_is_recalibrated_in_its_active_part(counts):
    net: Any = nn.Sequential(BatchNorm2d(Width("w", 1, 3)))
    if not counts:
        net[0].num_batches_tracked = None
    select(net, {"w": 1})
    recalibrate(net, batches(4))
    plain: Any = nn.Sequential(nn.BatchNorm2d(1))
    recalibrate(plain, batches(4))
    assert torch.equal(net[0].running_mean, torch.cat([plain[0].running_mean, torch.zeros(2)]))
    assert (net[0].num_batches_tracked is None) == (not counts)


def test_recalibration_leaves_weights_and_random_numbers_alone():
    net: Any = extract(Net(), LARGE)
    weights = {name: parameter.clone() for name, parameter in net.named_parameters()}
    generator = torch.get_rng_state()
    recalibrate(net, batches(3))
    assert all(torch.equal(parameter, weights[name]) for name, parameter in net.named_parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_recalibrated_network_normalizes_what_it_is_shown():
    net: Any = extract(Net(), LARGE).eval()
    data = batches(5, size=50)
    recalibrate(net, data)
    with torch.no_grad():
        normal = net.blocks[0][0](net.op(net.stem(torch.cat(data))))
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(normal.var((0, 2, 3)), torch.ones(4), atol=0.05, rtol=0)


def test_batches_are_inputs_pairs_or_what_forward_takes():
    results = []
    data = batches(2)
    for given, forward in [
        (data, None),
        ([(batch, "label") for batch in data], None),
        ([[batch, "label"] for batch in data], None),
        ([{"image": batch} for batch in data], lambda model, batch: model(batch["image"])),
    ]:
        net: Any = nn.Sequential(nn.BatchNorm2d(1))
        recalibrate(net, given, forward)
        results.append((net[0].running_mean.item(), net[0].running_var.item()))
    assert len(set(results)) == 1


def test_a_model_of_several_inputs_is_told_how_to_give_them():
    class TwoInputs(nn.BatchNorm2d):
        def forward(self, x, lengths):  # type: ignore[override]
            return super().forward(x)

    data, net = [(batch, len(batch)) for batch in batches(2)], TwoInputs(1)
    with pytest.raises(TypeError, match="lengths") as raised:
        recalibrate(net, data)
    assert raised.value.__notes__ == [
        "recalibrate gives batch[0] to the model; for more pass forward=lambda model, batch: ..."
    ]
    recalibrate(net, data, forward=lambda model, batch: model(*batch))


class ByKeyword(nn.Module):
    """Takes its inputs by keyword, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)

    def forward(self, *, image, labels=None):
        return self.norm(image)


class OfDicts(ByKeyword):
    def forward(self, batch):  # type: ignore[override]
        return self.norm(batch["image"])


def test_dicts_are_given_by_keyword_where_forward_has_their_names():
    data = batches(2)
    plain: Any = nn.Sequential(nn.BatchNorm2d(1))
    recalibrate(plain, data)
    named: list[Any] = [{"image": batch, "labels": torch.zeros(len(batch))} for batch in data]
    for net, given in [
        (ByKeyword(), named),
        (ByKeyword(), [(batch, "more") for batch in named]),
        (ByKeyword(), [UserDict(batch) for batch in named]),
        (ByKeyword(), [{**batch, "weights of rows": 1.0} for batch in named]),  # which forward does not take
        (OfDicts(), named),
    ]:
        recalibrate(net, given)
        torch.testing.assert_close(net.norm.running_mean, plain[0].running_mean, rtol=0, atol=0)


def fail(model, batch):
    model(batch)
    raise RuntimeError("no memory")


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(
    ("data", "forward", "error"),
    [([], None, "there are no batches"), (iter([]), None, "there are no batches"), (batches(2), fail, "no memory")],
)
def test_a_recalibration_that_fails_changes_nothing(data, forward, error, counts):
    net: Any = nn.Sequential(nn.BatchNorm2d(1))
    net(batches(1)[0])
    if not counts:
        net[0].num_batches_tracked = None
    before = everything(net)
    with pytest.raises((ValueError, RuntimeError), match=error):
        recalibrate(net, data, forward)
    assert everything(net) == before
    assert net[0].momentum == 0.1
    assert (net[0].num_batches_tracked is None) == (not counts)


def test_a_batch_norm_that_does_not_run_keeps_its_statistics():
    net: Any = nn.ModuleDict({"runs": nn.BatchNorm2d(1), "rests": nn.BatchNorm2d(1)})
    net["rests"].running_mean.fill_(5)
    recalibrate(net, batches(2), forward=lambda model, batch: net["runs"](batch))
    assert net["rests"].running_mean == 5
    assert net["runs"].running_mean != 0


@pytest.mark.parametrize("net", [nn.Linear(2, 2), nn.BatchNorm2d(1, track_running_stats=False)])
def test_without_batch_norm_there_is_nothing_to_recalibrate(net):
    with pytest.raises(ValueError, match="no batch norm with running statistics"):
        recalibrate(net, batches(1))


class Pretrained(nn.Sequential):
    """Keeps its first norm in evaluation mode, as is usual for a part that is not trained."""

    def train(self, mode=True):
        super().train(mode)
        self[0].eval()
        return self


@pytest.mark.parametrize("before", ["new", "eval", "train"])
def test_norms_that_a_model_keeps_in_evaluation_mode_are_left_alone(before):
    net: Any = nn.Sequential(Pretrained(nn.BatchNorm2d(1), nn.Conv2d(1, 1, 1)), nn.BatchNorm2d(1))
    if before != "new":
        getattr(net, before)()
    modes, frozen = [module.training for module in net.modules()], copy.deepcopy(net[0][0].state_dict())
    recalibrate(net, batches(2))
    assert str(net[0][0].state_dict()) == str(frozen)
    assert net[1].num_batches_tracked == 2
    assert [module.training for module in net.modules()] == modes


def test_norms_set_to_eval_stay_so_while_the_model_trains():
    net: Any = nn.Sequential(nn.BatchNorm2d(1), nn.BatchNorm2d(1))
    net[0].eval()
    recalibrate(net, batches(2))
    assert [norm.num_batches_tracked.item() for norm in net] == [0, 2]
    recalibrate(net.eval(), batches(2))  # where all are, none of them is frozen
    assert [norm.num_batches_tracked.item() for norm in net] == [2, 2]


def test_a_model_whose_norms_are_all_frozen_is_refused():
    net = nn.Sequential(nn.BatchNorm2d(1))
    net[0].eval()
    with pytest.raises(ValueError, match="all batch norms stay in evaluation mode while the model trains"):
        recalibrate(net, batches(2))
