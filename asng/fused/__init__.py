"""Layers of torch on Triton kernels: fewer launches and less memory traffic, for channels last on CUDA.

`fuse(model)` puts them in the place of torch's, `unfuse(model)` undoes it.
Each but `ScaledSum` is a subclass of torch's layer, with its signature, parameters and state dict, and is called as it.
On float32, float16 and bfloat16 tensors in channels-last format on a CUDA device it runs kernels of its own; on all
others, or where Triton is not installed (`asng[kernels]`), torch's function. Results are the same from run to run: no
sum depends on the order in which a GPU's programs finish.
"""

from asng.fused._maps import ScaledSum, fan_out
from asng.fused._norm import BatchNorm2d, batch_norm
from asng.fused._pointwise import PointwiseConv2d
from asng.fused._pool import AvgPool2d, MaxPool2d
from asng.fused._separable import SeparableConv2d
from asng.fused._swap import fuse, unfuse

__all__ = [
    "AvgPool2d",
    "BatchNorm2d",
    "MaxPool2d",
    "PointwiseConv2d",
    "ScaledSum",
    "SeparableConv2d",
    "batch_norm",
    "fan_out",
    "fuse",
    "unfuse",
]
