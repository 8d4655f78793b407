"""One-shot search inside any PyTorch model: decisions, elastic layers, search, extraction."""

from asng.nas.choices import Decision, Decisions, OneOf, Pick, Repeat, Value, Width, extract, select, space_of
from asng.nas.elastic import Conv2d, ConvTranspose2d, Linear
from asng.nas.norms import BatchNorm1d, BatchNorm2d, LayerNorm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "ConvTranspose2d",
    "Decision",
    "Decisions",
    "LayerNorm",
    "Linear",
    "OneOf",
    "Pick",
    "Repeat",
    "Value",
    "Width",
    "extract",
    "select",
    "space_of",
]
