"""Libraries of models that need more than an import."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def torchvision() -> Iterator[ModuleType]:
    """torchvision, also where its compiled operators cannot be loaded: PyPI's need a torch for CUDA.

    It then fails to import, as it describes two of them to torch. They find boxes in images, which no model here does.
    make test-integrations installs it, and timm, into a folder of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(Path(sys.prefix) / "models")])
        try:
            yield pytest.importorskip("torchvision")
        except RuntimeError:
            for name in ("nms", "qnms"):
                operator = f"torchvision::{name}"
                torch.library.define(operator, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            yield pytest.importorskip("torchvision")


@pytest.fixture(scope="session")
def timm(torchvision: ModuleType) -> Any:
    return pytest.importorskip("timm")
