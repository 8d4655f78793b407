"""Libraries of models that need more than an import."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """torchvision, also where its compiled operators cannot be loaded: PyPI's need a torch for CUDA.

    It then fails to import, as it describes two of them to torch. They find boxes in images, which no model here does.
    make test-integrations installs it, and timm, into a folder of their own.
    """
    sys.path.append(str(Path(sys.prefix) / "models"))
    try:
        return pytest.importorskip("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return pytest.importorskip("torchvision")


@pytest.fixture(scope="session")
def timm(torchvision: ModuleType) -> Any:
    return pytest.importorskip("timm")
