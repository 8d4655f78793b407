"""Elastic layers: torch's own signatures, with a decision where torch takes a size."""

from asng.nas.layers._base import AnySize, ElasticLayer
from asng.nas.layers.conv import Conv2d, ConvTranspose2d
from asng.nas.layers.linear import Linear
from asng.nas.layers.norm import BatchNorm1d, BatchNorm2d, LayerNorm

__all__ = [
    "AnySize",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "ConvTranspose2d",
    "ElasticLayer",
    "LayerNorm",
    "Linear",
]
