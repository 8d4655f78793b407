"""Elastic layers: torch's own signatures, with a decision where torch takes a size."""

from asng.nas._size import AnySize
from asng.nas.layers._base import ElasticLayer
from asng.nas.layers.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from asng.nas.layers.linear import Embedding, Linear, MultiheadAttention, PReLU
from asng.nas.layers.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)

__all__ = [
    "AnySize",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ElasticLayer",
    "Embedding",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "Linear",
    "MultiheadAttention",
    "PReLU",
    "RMSNorm",
]
