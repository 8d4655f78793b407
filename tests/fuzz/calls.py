"""Calls of the public functions in which one argument is exchanged for a value that belongs elsewhere."""

import copy
import itertools
import math
import os
from collections.abc import Callable
from functools import cache
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

import asng
from asng import fused, nas, plot, report
from tests.fuzz.mutations import OBJECTS, SCALARS, SPACE, is_refused

VALUES: dict[str, Any] = {"width": 2, "op": "relu", "depth": 1}
BATCHES = [torch.ones(4, 2)] * 2
# Functions and modules are called with what they do not expect, and say so by errors of their own.
ODD = [value for value in (*SCALARS, *OBJECTS) if not callable(value)]
ODD += [[], [[]], {"op": 1}, {"op": [0.5, math.nan]}, {1: 2}, torch.zeros(0), torch.zeros(2, device="meta"), 2**31, b""]
HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)
ODD.append(HOLDS_ITSELF)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    width = nas.Width("width", [2, 4])
    layers = [nas.Linear(2, width), nas.OneOf("op", {"relu": nn.ReLU(), "tanh": nn.Tanh()}), nas.BatchNorm1d(width)]
    return nn.Sequential(
        *layers, nas.Repeat("depth", [nas.Linear(width, width) for _ in range(2)]), nas.Linear(width, 1)
    )


def loss_fn(model: nn.Module, batch: Any) -> Any:
    return model(batch).square().mean()


def make_oneshot(**settings: Any) -> nas.OneShot:
    model = make_model()
    weight_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"arch_optimizer": asng.ASNG(nas.space_of(model), seed=0), "weight_optimizer": weight_optimizer}
    return nas.OneShot(model, **{**given, "loss_fn": loss_fn, **settings})


def make_costs() -> nas.Costs:
    costs = nas.Costs(nas.Supernet(make_model()), [nas.Limit(nas.parameters, 5)])
    costs.measure(VALUES)
    return costs


def make_optimizer(method: Any, **settings: Any) -> None:
    optimizer = method(**settings)
    optimizer.tell(optimizer.ask(), list(range(optimizer.population_size)))
    optimizer.state_dict(), optimizer.best, optimizer.mode()


def tell(**given: Any) -> None:
    optimizer = asng.ASNG(SPACE, seed=0)
    optimizer.tell(**{"candidates": optimizer.ask(2), "losses": [1.0, 2.0], **given})


def minimize(**given: Any) -> None:
    """As by a user who has seen enough after 20 evaluations, however many were asked for."""
    count = itertools.count(1)

    def interrupt(values: dict[str, Any]) -> Any:
        if next(count) > 20:
            raise KeyboardInterrupt
        return values.get("n", 0)

    asng.minimize(interrupt, progress=False, **given)


Call = tuple[Callable[..., Any], dict[str, Any]]  # a function, and arguments that fit


def _of_variables() -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for name, variable in SPACE.items():
        value, parameters = variable.decode(0.0), asng.ASNG(SPACE).distribution()[name]
        calls[f"{name}.decode"] = variable.decode, {"x": 0.0}
        calls[f"{name}.contains"] = variable.contains, {"value": value}
        calls[f"{name}.to_json"] = variable.to_json, {"value": value}
        calls[f"{name}.from_json"] = variable.from_json, {"data": value}
        calls[f"{name}.to_internal"] = variable.to_internal, {"prior": parameters}
        calls[f"{name}.to_external"] = variable.to_external, {"params": parameters}
        calls[f"{name}.log_prob"] = variable.log_prob, {"params": parameters, "value": value}
        if variable.values() is not None:
            calls[f"{name}.index"] = variable.index, {"value": value}
    return calls


def _of_core() -> dict[str, Call]:
    base = {"space": SPACE, "population_size": 2, "mirrored": True, "initial": None, "seed": 0}
    own: dict[Any, dict[str, Any]] = {
        asng.ASNG: {"alpha": 1.5, "delta_init": 1.0, "delta_max": 2.0, "max_beta": 1.0, "adapt": "delta"},
        asng.SNG: {"delta": 0.1},
        asng.Adam: {"lr": 0.1},
        asng.RandomSearch: {},
    }
    calls: dict[str, Call] = {
        method.__name__: (lambda method=method, **given: make_optimizer(method, **given), {**base, **more})
        for method, more in own.items()
    }
    priors = {"op": [0.2, 0.3, 0.5], "n": (3, 1), "x": (0.5, 0.1), "lr": (0.1, 2)}
    limits: dict[str, Any] = {"mirrored": True, "low": [0], "high": [1], "std_min": [0.1]}
    state = asng.ASNG(SPACE).state_dict()
    black_box: dict[str, Any] = {
        name: parameter.default
        for name, parameter in signature(asng.minimize).parameters.items()
        if name not in ("f", "checkpoint", "progress")
    }
    return {
        **calls,
        **_of_variables(),
        "initial": (lambda **given: asng.ASNG(SPACE, initial=given), priors),
        "Categorical": (asng.Categorical, {"choices": ["a", "b"]}),
        "Categorical of": (lambda a, b: asng.ASNG({"v": asng.Categorical([a, b])}).state_dict(), {"a": 1, "b": 2}),
        "Integer": (asng.Integer, {"low": 1, "high": 9}),
        "Real": (asng.Real, {"low": 1.0, "high": 9.0, "log": True}),
        "Custom": (asng.Custom, {"family": asng.NormalFamily(**limits), "value": float}),
        "CategoricalFamily": (asng.CategoricalFamily, {"counts": [2, 3]}),
        "NormalFamily": (asng.NormalFamily, limits),
        "Joint": (asng.Joint, {"parts": [(asng.CategoricalFamily([2]), [0])]}),
        "family_of": (asng.family_of, {"space": SPACE, "mirrored": True}),
        "rank_utilities": (asng.rank_utilities, {"losses": [1.0, 2.0]}),
        "ask": (lambda n: asng.ASNG(SPACE).ask(n), {"n": 2}),
        "tell": (tell, {"candidates": asng.ASNG(SPACE).ask(2), "losses": [1.0, 2.0], "active": None}),
        "load_state_dict": (lambda state: asng.ASNG(SPACE).load_state_dict(state), {"state": state}),
        "minimize": (minimize, {**black_box, "space": SPACE, "evaluations": 6}),
    }


def _of_models() -> dict[str, Call]:
    decisions: dict[str, Call] = {
        "OneOf": (nas.OneOf, {"name": "op", "modules": [nn.ReLU(), nn.Tanh()]}),
        "Pick": (nas.Pick, {"name": "pick", "n": 3}),
        "Repeat": (nas.Repeat, {"name": "depth", "blocks": [nn.ReLU()] * 3, "low": 1}),
        "Width": (nas.Width, {"name": "width", "low": 1, "high": 4}),
        "Value": (nas.Value, {"name": "value", "variable": asng.Real(0, 1)}),
        "AnySize": (nas.AnySize, {"max": 5}),
        "Item": (nas.Item, {"index": 1}),
    }
    of_values = {
        name: (lambda values, name=name: getattr(nas.Supernet(make_model()), name)(values), {"values": VALUES})
        for name in ("select", "active", "canonicalize", "network_key", "key")
    }
    width = nas.Width("width", [2, 4])
    sizes: dict[Any, dict[str, Any]] = {
        nas.Linear: {"in_features": 2, "out_features": width},
        nas.Conv2d: {"in_channels": 2, "out_channels": width, "kernel_size": 3},
        nas.ConvTranspose1d: {"in_channels": 2, "out_channels": width, "kernel_size": 3},
        nas.BatchNorm2d: {"num_features": width},
        nas.InstanceNorm1d: {"num_features": width},
        nas.GroupNorm: {"num_groups": 2, "num_channels": width},
        nas.LayerNorm: {"normalized_shape": width},
        nas.RMSNorm: {"normalized_shape": width},
        nas.PReLU: {"num_parameters": width},
        nas.Embedding: {"num_embeddings": 5, "embedding_dim": width},
        nas.MultiheadAttention: {"embed_dim": width, "num_heads": 2},
    }
    layers: dict[str, Call] = {}
    for layer, given in sizes.items():
        known = signature(layer).parameters.items()
        layers[layer.__name__] = layer, {name: given.get(name, each.default) for name, each in known}
    return {
        **decisions,
        **of_values,
        **layers,
        "space_of": (nas.space_of, {"model": make_model()}),
        "nas.select": (nas.select, {"model": make_model(), "values": VALUES}),
        "extract": (lambda values: nas.extract(make_model(), VALUES if values is None else values), {"values": VALUES}),
        "to_json": (nas.to_json, {"values": VALUES}),
        "to_json of": (lambda value: nas.to_json({"v": value}), {"value": 3}),
        "nas.from_json": (nas.from_json, {"text": nas.to_json(VALUES), "space": nas.space_of(make_model())}),
        "nas.export": (
            lambda example, **given: nas.export(given.pop("model"), given.pop("folder"), example, **given),
            {"model": nas.extract(make_model(), VALUES), "folder": "new", "example": BATCHES[0], "kwargs": None}
            | {"values": VALUES, "formats": ["json"], "description": "A network."},
        ),
        "score": (lambda values: nas.score(make_model(), values, BATCHES, loss_fn), {"values": VALUES}),
        "fuse": (lambda model: fused.unfuse(fused.fuse(model)), {"model": make_model()}),
        "convert": (lambda model: nas.convert(model, lambda path, module: None), {"model": make_model()}),
    }


def _of_searches() -> dict[str, Call]:
    oneshot = make_oneshot()
    known = signature(nas.OneShot).parameters.items()
    options = {name: each.default for name, each in known if each.default is not each.empty}
    given = {"arch_optimizer": oneshot.arch_optimizer, "limits": (), **options}
    calls: dict[str, Call] = {
        "OneShot": (make_oneshot, given),
        "Limit": (nas.Limit, {"measure": nas.parameters, "at_most": 5, "at_least": None, "name": None}),
        "violation": (nas.Limit(nas.parameters, 5).violation, {"cost": 1.0}),
        "Costs.load_state_dict": (
            lambda state: make_costs().load_state_dict(state),
            {"state": make_costs().state_dict()},
        ),
        "OneShot.load_state_dict": (
            lambda state: make_oneshot().load_state_dict(state),
            {"state": copy.deepcopy(oneshot.state_dict())},
        ),
        "top": (nas.top, {"oneshot": oneshot, "k": 2}),
        "result": (nas.result, {"oneshot": oneshot, "history": ()}),
        "rerank": (lambda **given: nas.rerank(batches=BATCHES, judge=loss_fn, **given), {"oneshot": oneshot, "k": 2}),
        "loss_fn returns": (
            lambda value: make_oneshot(loss_fn=lambda net, batch: value).judge_step(BATCHES[0]),
            {"value": torch.ones(())},
        ),
        "judge returns": (
            lambda value: make_oneshot(judge=lambda net, batch: value).judge_step(BATCHES[0]),
            {"value": 1.0},
        ),
    }
    for name in ("measures", "known", "nearest"):
        calls[f"costs of {name}"] = (
            lambda value, name=name: make_costs().load_state_dict({**make_costs().state_dict(), name: value}),
            {"value": make_costs().state_dict()[name]},
        )
    return calls


def _of_pages() -> dict[str, Call]:
    result = nas.search(make_model(), BATCHES, [*BATCHES], loss_fn, epochs=1, progress=False)
    drawn = {name: (getattr(plot, name), {"result": result}) for name in ("history", "probabilities", "distribution")}
    return {
        **drawn,
        "plot.front": (plot.front, {"front": nas.Front((), (), ("parameters",))}),
        "save": (result.save, {"folder": "new", "settings": None}),
        "write": (report.write, {"folders": ["run"], "path": "report.html", "reload_every": None}),
        "write one": (lambda folder: report.write([folder], "report.html"), {"folder": "run"}),
    }


@cache
def calls() -> dict[str, Call]:
    """All calls, by name."""
    return {**_of_core(), **_of_models(), **_of_searches(), **_of_pages()}


def call_with(name: str, argument: str, value: Any, folder: Path) -> None:
    """Make a call with an argument exchanged, in a folder that is the current one and holds a run."""
    function, given = calls()[name]
    before = Path.cwd()
    os.chdir(folder)
    try:
        (folder / "run").mkdir(exist_ok=True)
        (folder / "run" / "config.json").write_text('{"experiment": "mine", "seed": 0}')
        function(**{**given, argument: value})
    finally:
        os.chdir(before)


def fuzz_calls(rng: Random, folder: Path) -> bool:
    """A public function with an argument of any kind: refused, or taken."""
    name = rng.choice(list(calls()))
    argument = rng.choice(list(calls()[name][1]))
    return not is_refused(lambda: call_with(name, argument, rng.choice(ODD), folder))
