"""One-shot search inside any PyTorch model: decisions, elastic layers, search, extraction."""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"asng.nas needs PyTorch ({error}): pip install 'asng[nas]'") from None

from asng._violations import Violation
from asng.nas import layers
from asng.nas._candidates import Judge, LossFn, Step
from asng.nas._measures import Flops, Latency, parameters
from asng.nas._size import Size
from asng.nas._static import Chain, Constant, Item
from asng.nas.architecture import from_json, to_json
from asng.nas.conversion import convert
from asng.nas.decisions import Decision, OneOf, Pick, Repeat, Searchable, SizeLike, Value, Width
from asng.nas.export import export
from asng.nas.layers import *  # noqa: F403 - the elastic layers, listed there
from asng.nas.limits import Costs, Limit, Measure
from asng.nas.oneshot import OneShot
from asng.nas.ranking import front, rerank, score
from asng.nas.recalibration import recalibrate
from asng.nas.result import Architecture, Front, SearchResult, result, top
from asng.nas.search import search
from asng.nas.supernet import Supernet, Values, extract, select, selected, space_of

__all__ = [
    "Architecture",
    "Chain",
    "Constant",
    "Costs",
    "Decision",
    "Flops",
    "Front",
    "Item",
    "Judge",
    "Latency",
    "Limit",
    "LossFn",
    "Measure",
    "OneOf",
    "OneShot",
    "Pick",
    "Repeat",
    "SearchResult",
    "Searchable",
    "Size",
    "SizeLike",
    "Step",
    "Supernet",
    "Value",
    "Values",
    "Violation",
    "Width",
    "convert",
    "export",
    "extract",
    "from_json",
    "front",
    "parameters",
    "recalibrate",
    "rerank",
    "result",
    "score",
    "search",
    "select",
    "selected",
    "space_of",
    "to_json",
    "top",
]
__all__ += layers.__all__
