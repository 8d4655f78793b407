"""One-shot search inside any PyTorch model: decisions, elastic layers, search, extraction."""

from asng.nas.architecture import from_json, to_json
from asng.nas.choices import Decision, Decisions, OneOf, Pick, Repeat, Value, Width, extract, select, space_of
from asng.nas.cost import Costs, Flops, Latency, Limit, parameters, recalibrate
from asng.nas.elastic import Conv2d, ConvTranspose2d, Linear
from asng.nas.norms import BatchNorm1d, BatchNorm2d, LayerNorm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "ConvTranspose2d",
    "Costs",
    "Decision",
    "Decisions",
    "Flops",
    "Latency",
    "LayerNorm",
    "Limit",
    "Linear",
    "OneOf",
    "Pick",
    "Repeat",
    "Value",
    "Width",
    "extract",
    "from_json",
    "parameters",
    "recalibrate",
    "select",
    "space_of",
    "to_json",
]
