"""Models of torchvision and timm become supernets: their code is unchanged, and their weights are kept."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from asng import ASNG, nas
from tests.helpers.pages import DOCS

pytestmark = pytest.mark.long

X = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)


def largest(model: nn.Module) -> dict[str, Any]:
    """The architecture that the model was before; activations are the first of their choices."""
    last = {name: (variable.values() or [None])[-1] for name, variable in nas.space_of(model).items()}
    return last | ({"activation": "relu"} if "activation" in last else {})


def assert_is_supernet_of(supernet: nn.Module, model: nn.Module) -> None:
    """Its largest architecture is the model, and others are those that are extracted."""
    nas.select(supernet, largest(supernet))
    assert torch.equal(supernet(X), model(X))
    torch.testing.assert_close(nas.extract(supernet).state_dict(), model.state_dict(), rtol=0, atol=0)
    for candidate in ASNG(nas.space_of(supernet), seed=0).ask(2):
        nas.select(supernet, candidate.values)
        static = nas.extract(supernet)
        torch.testing.assert_close(static(X), supernet(X))
        assert nas.parameters(supernet, candidate.values) == sum(p.numel() for p in static.parameters())
        assert not any(isinstance(module, nas.Decision | nas.Searchable) for module in static.modules())


@pytest.fixture
def resnet(torchvision):
    """What the page on models defines."""
    text = (DOCS / "model.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"nn": nn, "nas": nas}
    exec(re.findall(r"```python torchvision\n(.*?)```", text, re.DOTALL)[0], names)
    return names


def test_a_resnet_of_torchvision_becomes_a_supernet_with_its_weights(resnet):
    assert_is_supernet_of(nas.convert(resnet["resnet"].eval(), resnet["replace"]), resnet["resnet"])


@pytest.mark.filterwarnings("ignore:the search was too short")
def test_a_resnet_of_torchvision_is_searched_under_a_limit(resnet):
    torch.manual_seed(0)
    batches = [(X + 0.1 * torch.randn_like(X), torch.tensor([0, 1])) for _ in range(2)]
    result = nas.search(
        resnet["supernet"],
        batches,
        [*batches],
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        epochs=1,
        limits=[nas.Limit(nas.parameters, 5e6), nas.Limit(nas.Flops(X), 5e7)],
        progress=False,
    )
    assert result.feasible
    assert type(result.model) is type(resnet["resnet"])
    assert result.model(X).shape == (2, 1000)


def test_the_widths_of_an_efficientnet_of_timm_become_decisions(timm):
    class BatchNormAct2d(nas.ElasticLayer, timm.layers.BatchNormAct2d):  # type: ignore[name-defined]
        torch_layer, elastic = timm.layers.BatchNormAct2d, ("num_features",)

        def active_tensors(self) -> dict[str, Any]:
            n = self.sizes["num_features"]()
            tensors = {name: getattr(self, name)[:n] for name in ("weight", "bias", "running_mean", "running_var")}
            return {**tensors, "num_batches_tracked": self.num_batches_tracked}

        @classmethod
        def settings_of(cls, layer: Any) -> dict[str, Any]:
            return {"eps": layer.eps, "momentum": layer.momentum, "act_layer": type(layer.act)}

    def replace(path: str, module: Any) -> None:
        if isinstance(module, timm.models._efficientnet_blocks.InvertedResidual):
            width = nas.Width(f"{path}.width", [16, module.conv_pw.out_channels])
            module.conv_pw = nas.Conv2d.from_torch(module.conv_pw, out_channels=width)
            module.bn1 = BatchNormAct2d.from_torch(module.bn1, num_features=width)
            module.conv_dw = nas.Conv2d.from_torch(module.conv_dw, in_channels=width, out_channels=width, groups=width)
            module.bn2 = BatchNormAct2d.from_torch(module.bn2, num_features=width)
            module.se.conv_reduce = nas.Conv2d.from_torch(module.se.conv_reduce, in_channels=width)
            module.se.conv_expand = nas.Conv2d.from_torch(module.se.conv_expand, out_channels=width)
            module.conv_pwl = nas.Conv2d.from_torch(module.conv_pwl, in_channels=width)

    model = timm.create_model("efficientnet_b0", num_classes=3).eval()
    assert_is_supernet_of(nas.convert(model, replace), model)
