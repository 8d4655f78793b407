"""An image experiment of one's own, which takes no time: a network, a task and a line in the table of commands."""
# mypy: disable-error-code="override"

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from asng import cli, nas
from asng.experiments._images import ImageSet
from asng.experiments._settings import EpochSettings, SearchSettings, parse_device
from asng.experiments._task import Task

LINE = cli.Images(f"{__name__}:Stripes", "which way stripes run", "accuracy")
TINY = ["--epochs", "2", "--batch-size", "8", "--device", "cpu"]


class Net(nn.Module):
    """Images (n, 3, 8, 8) to two scores."""

    def __init__(self):
        super().__init__()
        width = nas.Width("width", 2, 6)
        pool = nas.OneOf("pool", {"max": nn.AdaptiveMaxPool2d(1), "mean": nn.AdaptiveAvgPool2d(1)})
        self.layers = nn.Sequential(nas.Conv2d(3, width, 3), nn.ReLU(), pool, nn.Flatten(), nas.Linear(width, 2))

    def forward(self, images):
        return self.layers(images)


@dataclass(frozen=True, kw_only=True)
class StripesSearchSettings(SearchSettings, EpochSettings):
    """Search a network that tells which way stripes run.

    Examples:
      asng stripes search
    """


@dataclass(frozen=True, kw_only=True)
class StripesRetrainSettings(EpochSettings):
    """Train a network that tells which way stripes run.

    Examples:
      asng stripes retrain runs/stripes-asng-seed0
    """


class Stripes(Task):
    """Noise that is the same along rows or along columns."""

    name = "stripes"
    search_settings, train_settings = StripesSearchSettings, StripesRetrainSettings
    small_search, small_train = StripesSearchSettings(batch_size=8), StripesRetrainSettings(batch_size=8)

    @classmethod
    def load(cls, where, progress=lambda fraction: None):
        generator, sets = torch.Generator().manual_seed(0), []
        for n in (32, 10):
            labels = torch.arange(n) % 2
            rows = torch.randint(256, (n, 3, 8, 1), generator=generator).expand(n, 3, 8, 8)
            images = torch.where(labels[:, None, None, None] == 1, rows, rows.transpose(2, 3)).byte()
            sets.append(ImageSet(images, labels).subset(torch.arange(n, device=parse_device(where.device))))
        return cls(*sets)

    def transform(self, settings):
        return lambda images, chosen, generators: (images.images[chosen] / 255, images.labels[chosen])

    @classmethod
    def search_space(cls, searched):
        return nas.space_of(Net())

    def build_supernet(self, settings):
        return Net().to(self.device)

    def search_loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def build_network(self, settings, values):
        return nas.extract(Net(), values).to(self.device)

    def measure(self, model, settings=None, progress=lambda fraction: None):
        with torch.no_grad():
            right = model(self.test.images / 255).argmax(1) == self.test.labels
        return {"test_accuracy": right.double().mean().item()}
