"""One-shot search inside any PyTorch model: decisions, elastic layers, search, extraction."""

from asng.nas.architecture import from_json, to_json
from asng.nas.choices import Decision, Decisions, OneOf, Pick, Repeat, Value, Width, extract, select, space_of
from asng.nas.cost import Costs, Flops, Latency, Limit, parameters, recalibrate
from asng.nas.decision import UpTo
from asng.nas.elastic import Conv2d, ConvTranspose2d, Linear
from asng.nas.norms import BatchNorm1d, BatchNorm2d, LayerNorm
from asng.nas.oneshot import OneShot, Step
from asng.nas.search import Found, found, search

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "ConvTranspose2d",
    "Costs",
    "Decision",
    "Decisions",
    "Flops",
    "Found",
    "Latency",
    "LayerNorm",
    "Limit",
    "Linear",
    "OneOf",
    "OneShot",
    "Pick",
    "Repeat",
    "Step",
    "UpTo",
    "Value",
    "Width",
    "extract",
    "found",
    "from_json",
    "parameters",
    "recalibrate",
    "search",
    "select",
    "space_of",
    "to_json",
]
