"""Modules kept where torch does not look: named where they decide, and left behind by extraction."""

from typing import Any

import pytest
import torch
from torch import nn

from asng import Integer, nas
from asng.nas import Decision, OneOf, Pick, Width, extract, select, space_of
from asng.nas.layers import ElasticLayer


class Holder(nn.Module):
    """Keeps something in a plain attribute, besides what is registered."""

    def __init__(self, kept: Any, **registered: nn.Module) -> None:
        super().__init__()
        for name, module in registered.items():
            self.add_module(name, module)
        self.kept = kept


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


def op() -> OneOf:
    return OneOf("op", [nn.ReLU(), nn.Tanh()])


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (lambda: [op()], "body.kept, a plain list, holds OneOf 'op', where torch does not see it"),
        (lambda: (nn.Sequential(nn.ReLU(), op()),), "body.kept, a plain tuple, holds OneOf 'op'"),
        (lambda: {"a": nn.ReLU(), "b": op()}, "body.kept, a plain dict, holds OneOf 'op'"),
        (lambda: [[nn.ReLU()], [{"x": op()}]], "body.kept, a plain list, holds OneOf 'op'"),
        (lambda: {Pick("from", 2)}, "body.kept, a plain set, holds Pick 'from'"),
        (lambda: [nas.Linear(3, 4)], "body.kept, a plain list, holds Linear"),
        (lambda: [nas.Linear(3, Width("w", 3, 4))], "body.kept, a plain list, holds Linear"),
        (lambda: Box(op()), "body.kept, a plain Box, holds OneOf 'op'"),
        (lambda: Width("w", 3, 4) * 2, "body.kept, a plain LinearSize, holds Width 'w'"),
    ],
)
def test_decisions_where_torch_does_not_see_them_are_named_with_the_cure(kept, message):
    model = nn.ModuleDict({"body": Holder(kept(), act=OneOf("act", [nn.ReLU(), nn.Tanh()]))})
    cure = "; use nn.ModuleList, nn.ModuleDict or an attribute, or keep it outside the model"
    for use in (space_of, lambda m: select(m, {"act": 0}), lambda m: extract(m, {"act": 0})):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            use(model)
        assert str(error.value).startswith(message)
        assert str(error.value).endswith(cure)


def test_the_model_itself_may_be_the_one_that_hides():
    with pytest.raises(ValueError, match=r"^kept, a plain list, holds OneOf 'op'"):
        space_of(Holder([op()]))


def test_registered_modules_and_those_without_decisions_are_fine():
    first, second = op(), nas.Linear(3, Width("w", 3, 4))
    width = Width("v", 2, 4)
    for kept in (
        [first, second],
        {"a": (first, [second])},
        [nn.Linear(3, 3)],
        Box([first, nn.ReLU()]),
        width * 2,
        list(range(10**6)),
        [None, "op", torch.zeros(3), Box, len, torch],
    ):
        model = Holder(kept, first=first, other=nn.Sequential(second, nas.Linear(4, width)))
        assert space_of(model).keys() == {"op", "w", "v"}
    child = Holder(None, act=OneOf("act", [nn.ReLU(), nn.Tanh()]))
    parent = Holder(None, child=child, first=first)
    child.kept = [parent]
    assert space_of(parent).keys() == {"act", "op"}
    assert space_of(child).keys() == {"act"}


class Kept(nn.Module):
    """Lists for its own convenience; all modules are registered as well."""

    def __init__(self) -> None:
        super().__init__()
        width = Width("w", 2, 6)
        self.options = [nas.Linear(4, width), nn.Linear(4, 6)]
        self.op = OneOf("op", self.options)
        self.norm = nas.LayerNorm(width)
        self.steps: dict[str, Any] = {"norm": self.norm, "rest": (self.op,)}
        self.doubled = width * 2
        self.add_module("me", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in (*self.steps["rest"], self.steps["norm"]):
            x = step(x)
        return x * self.doubled()


def everything_in(thing: Any, found: dict[int, Any] | None = None) -> dict[int, Any]:
    """All that can be reached from a thing, through lists, dicts and attributes."""
    found = {} if found is None else found
    if id(thing) not in found and not isinstance(thing, (int, str, float, type)):
        found[id(thing)] = thing
        inside = [*thing] if isinstance(thing, (list, tuple, set)) else []
        inside += list(thing.values()) if isinstance(thing, dict) else []
        inside += list(getattr(thing, "__dict__", {}).values())
        for inner in inside:
            everything_in(inner, found)
    return found


@pytest.mark.parametrize("is_ordinary", [True, False])  # False: as if they had a __getstate__ of their own
def test_a_list_of_modules_holds_extracted_ones_or_none(is_ordinary, monkeypatch):
    monkeypatch.setattr("asng.nas._extract._is_ordinary", lambda kind: is_ordinary)
    model = Kept()
    values = {"w": 3, "op": 0}
    select(model, values)
    extracted: Any = extract(model, values)
    x = torch.randn(2, 4)
    assert torch.allclose(extracted(x), model(x), atol=1e-6)
    assert extracted.steps["norm"] is extracted.norm
    assert extracted.steps["rest"] == (extracted.op,)
    assert extracted.options == [extracted.op, None]
    assert type(extracted.op) is nn.Linear
    reached = everything_in(extracted).values()
    assert not any(isinstance(thing, (Decision, ElasticLayer)) for thing in reached)
    weights = {id(thing) for thing in reached if isinstance(thing, nn.Parameter)}
    assert weights == {id(parameter) for parameter in extracted.parameters()}
    assert model.options[0] is model.op.options[0]
    assert model.steps["norm"] is model.norm


def test_a_way_back_to_the_whole_leads_to_the_extracted_whole():
    model: Any = nn.Sequential(Holder(None, op=op()), nas.Linear(3, Width("w", 2, 4)))
    model[0].kept = [model, model[1]]
    extracted: Any = extract(model, {"op": 1, "w": 2})
    assert extracted[0].kept[0] is extracted
    assert extracted[0].kept[1] is extracted[1]
    assert type(extracted[1]) is nn.Linear


def test_a_build_static_that_hides_modules_is_named():
    class Hiding(nas.Searchable):
        def __init__(self) -> None:
            super().__init__()
            self.op, self.layer = op(), nn.Linear(2, 2)

        def build_static(self) -> nn.Module:
            return Holder([self.layer], op=self.op)

    message = r"build_static\(\) of 0 \(Hiding\) returned a Holder whose kept, a plain list, holds Linear, where torch"
    with pytest.raises(ValueError, match=message):
        extract(nn.Sequential(Hiding()), {"op": 0})


class Configured(nas.Searchable):
    """Reads a decision that is registered further out."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.blocks = config, nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def active_modules(self) -> Any:
        return self.blocks[: self.config.content.value]

    def build_static(self) -> nn.Module:
        return nn.Sequential(*self.active_modules())


def test_a_searchable_that_reads_through_a_plain_object_is_asked():
    depth = nas.Value("depth", Integer(1, 3))
    model = nn.ModuleDict({"depth": depth, "body": nn.Sequential(Configured(Box(depth)))})
    assert [nas.parameters(model, {"depth": n}) for n in (1, 2, 3)] == [20, 40, 60]
    extracted: Any = extract(model, {"depth": 2})
    assert len(extracted["body"][0]) == 2
    supernet = nas.Supernet(model)
    supernet.select({"depth": 1})
    assert model["body"][0].blocks[1] not in set(supernet.active_modules())  # type: ignore[index]


def test_a_searchable_without_decisions_stays_as_it_is():
    body = Configured(Box(nn.Identity()))
    assert type(extract(nn.Sequential(op(), body), {"op": 0})[1]) is Configured  # type: ignore[index]
