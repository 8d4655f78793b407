"""Layers of torch without weights, quickly made."""

from functools import lru_cache
from typing import Any

import torch
from torch import nn


def on_meta(kind: Any, **settings: Any) -> nn.Module:
    """A torch layer on the device "meta"; the constructor runs once for equal settings, which are hashable."""
    return _copy_layer(kind, *_prototype(kind, tuple(settings.items())))


def _copy_layer(kind: Any, attributes: dict[str, Any], containers: list[str]) -> nn.Module:
    layer: nn.Module = kind.__new__(kind)
    layer.__dict__.update(attributes)
    for name in containers:
        layer.__dict__[name] = attributes[name].copy()
    if attributes["_modules"]:
        for name, child in attributes["_modules"].items():
            layer._modules[name] = _copy_layer(type(child), child.__dict__, _containers(child.__dict__))
    return layer


@lru_cache(maxsize=1024)
def _prototype(kind: Any, settings: tuple[tuple[str, Any], ...]) -> tuple[dict[str, Any], list[str]]:
    """The attributes of a layer without initialization, which takes most of the time; and which of them to copy."""
    bare = type(kind.__name__, (kind,), {"reset_parameters": lambda self: None})
    with torch.device("meta"):  # constructors of other libraries have no argument for it
        attributes = bare(**dict(settings)).__dict__
    return attributes, _containers(attributes)


def _containers(attributes: dict[str, Any]) -> list[str]:
    return [name for name, value in attributes.items() if isinstance(value, (dict, list, set))]


def owner_of(layer: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that has a parameter or buffer, and its name there."""
    inner, _, name = path.rpartition(".")
    return (layer.get_submodule(inner) if inner else layer), name
