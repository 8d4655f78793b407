"""Extraction keeps shared weights shared and leaves nothing of the search behind, wherever modules are kept."""

# mypy: disable-error-code="arg-type, index, union-attr, operator, attr-defined"
# (torch's modules are looked into)

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import asng
from asng import nas
from asng.nas import Decision, OneOf, Pick, Repeat, Value, Width, extract, parameters, select, space_of
from asng.nas.decision import Sized
from asng.space import Categorical

torch.set_num_threads(1)


def size_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Weights that layers share.


class Coder(nn.Module):
    """The decoder is the encoder backwards, with the same weight."""

    def __init__(self, hidden: Any, back: Any = None) -> None:
        super().__init__()
        self.there = nas.Linear(4, hidden, bias=False)
        self.last = nn.Parameter(torch.randn(8, 4))
        self.also = nas.Linear(4, hidden if back is None else back, bias=False)
        self.also.weight = self.there.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.there(x) + self.also(2 * x)


def test_elastic_layers_that_share_a_weight_share_the_same_part_of_it():
    model = Coder(Width("w", 2, 8))
    for w in (2, 5, 8):
        extracted: Any = extract(model, {"w": w})
        assert extracted.there.weight is extracted.also.weight
        assert type(extracted.there) is type(extracted.also) is nn.Linear
        assert extracted.there.weight.shape == (w, 4)
        assert parameters(model, {"w": w}) == size_of(extracted) == 4 * w + 32
        x = torch.randn(3, 4)
        select(model, {"w": w})
        assert torch.equal(extracted(x), model(x))
        extracted(x).sum().backward()
        assert torch.allclose(extracted.there.weight.grad, 3 * x.sum(0).expand(w, -1), atol=1e-5)
    assert model.there.ties is None  # nothing stays behind


def test_different_parts_of_a_shared_weight_are_an_error_that_names_both():
    model = nn.Sequential(Coder(Width("w", 2, 8), Width("v", 2, 8)), OneOf("op", [nn.Identity(), nn.ReLU()]))
    assert extract(model, {"w": 3, "v": 3, "op": 0})[0].also.weight.shape == (3, 4)
    for use in (extract, parameters):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            use(model, {"w": 3, "v": 5, "op": 0})
        assert str(error.value) == (
            "0.there.weight and 0.also.weight share one parameter, but this architecture needs (3, 4) and (5, 4) "
            "of it; give them sizes that are always the same, or weights of their own"
        )
    assert model[0].also.ties is None


class Embedded(nn.Module):
    """The usual tie of a language model: an embedding, which is plain, and an output layer."""

    def __init__(self, vocabulary: int = 11) -> None:
        super().__init__()
        width = Width("w", [2, 4])
        self.embedding = nn.Embedding(vocabulary, 4)
        self.body = nas.Linear(4, width)
        self.head = nas.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(x)))


def test_an_elastic_and_a_plain_layer_share_where_the_elastic_one_uses_all():
    model = Embedded()
    whole: Any = extract(model, {"w": 4})
    assert whole.head.weight is whole.embedding.weight
    assert whole.head.weight is not model.embedding.weight
    assert parameters(model, {"w": 4}) == size_of(whole) == 11 * 4 + 20
    twin = pickle.loads(pickle.dumps(whole))
    assert twin.head.weight is twin.embedding.weight
    message = r"embedding\.weight and head\.weight share one parameter.*needs \(11, 4\) and \(11, 2\)"
    with pytest.raises(ValueError, match=message):
        extract(model, {"w": 2})
    assert model.head.weight is model.embedding.weight


def test_a_tie_with_a_branch_that_is_not_taken_binds_nothing():
    width = Width("w", [2, 4])
    plain, elastic = nn.Linear(3, 4), nas.Linear(3, width)
    elastic.weight = plain.weight
    model = nn.ModuleList([OneOf("op", [plain, nn.Identity()]), elastic])
    assert extract(model, {"op": 1, "w": 2})[1].weight.shape == (2, 3)
    assert parameters(model, {"op": 1, "w": 2}) == 6 + 2
    with pytest.raises(ValueError, match=r"0\.options\.0\.weight and 1\.weight share"):
        extract(model, {"op": 0, "w": 2})
    assert size_of(extract(model, {"op": 0, "w": 4})) == parameters(model, {"op": 0, "w": 4}) == 12 + 4 + 4


def test_a_convolution_and_its_opposite_share_a_kernel():
    kernel, width = Value("k", Categorical([1, 3])), Width("w", 2, 6)
    there = nas.Conv2d(3, width, kernel, padding=1, bias=False)
    back = nas.ConvTranspose2d(width, 3, kernel, padding=1, bias=False)
    back.weight = there.weight
    model = nn.Sequential(there, back)
    x = torch.randn(1, 3, 5, 5)
    for k in (1, 3):
        values = {"k": k, "w": 4}
        extracted: Any = extract(model, values)
        assert extracted[0].weight is extracted[1].weight
        assert parameters(model, values) == size_of(extracted) == 4 * 3 * k * k
        select(model, values)
        assert torch.allclose(extracted(x), model(x), atol=1e-6)


def test_groups_of_a_shared_weight_are_told_apart():
    """Parts of equal shape: the first half of all channels, and the first half of each group."""
    width = Width("w", [2, 4])
    dense, grouped = nas.Conv2d(2, width * 2, 1, bias=False), nas.Conv2d(4, width * 2, 1, groups=2, bias=False)
    grouped.weight = dense.weight
    assert dense.weight.shape == (8, 2, 1, 1)
    model = nn.ModuleList([dense, grouped])
    whole: Any = extract(model, {"w": 4})
    assert whole[0].weight is whole[1].weight
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight share one parameter"):
        extract(model, {"w": 2})


def test_ties_survive_a_freeze_of_ones_own():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nas.Linear(nas.UpTo(6), 3, bias=False), nas.Linear(nas.UpTo(6), 3, bias=False)
            self.second.weight = self.first.weight
            self.takes = Width("w", 2, 6)

        def freeze(self) -> nn.Module:
            return nn.ModuleList([self.first.freeze(takes=self.takes.value), self.second.freeze(takes=2)])

    extracted: Any = extract(Own(), {"w": 2})
    assert extracted[0].weight is extracted[1].weight
    with pytest.raises(ValueError, match=r"first\.weight and second\.weight.* \(3, 4\) and \(3, 2\)"):
        extract(Own(), {"w": 4})


# Counting without copying counts what is extracted.


class Mixed(nn.Module):
    """Ties, modules used twice, a freeze of one's own, choices inside choices."""

    def __init__(self) -> None:
        super().__init__()
        width = Width("w", 2, 6)
        self.stem = nas.Linear(3, width)
        shared = nn.Linear(5, 5)
        self.op = OneOf("op", [nas.Linear(width, width), OneOf("inner", [nas.LayerNorm(width), nn.Identity()])])
        self.again = self.op
        self.twin = nas.Linear(3, width)
        self.twin.weight = self.stem.weight
        self.plain = Repeat("depth", [shared, nn.Sequential(shared, nn.Linear(5, 5))], low=0)
        self.norm = nas.BatchNorm1d(width, affine=True)
        self.own = Joined(width)


class Joined(nn.Module):
    def __init__(self, width: Width) -> None:
        super().__init__()
        self.width, self.pick = width, Pick("from", 3)
        self.columns = nn.Parameter(torch.randn(4, 6 * 3))
        self.inner = OneOf("inner", [nn.Linear(2, 2), nn.ReLU()])

    def freeze(self) -> nn.Module:
        plain = nn.Linear(int(self.width.value) * (self.pick.value + 1), 4)
        plain.weight = nn.Parameter(self.columns[:, : plain.in_features].detach().clone())
        return nn.Sequential(plain, self.inner)  # which is frozen after it


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_parameters_are_counted_as_they_are_extracted(seed):
    torch.manual_seed(0)
    model = Mixed()
    values = asng.ASNG(space_of(model), seed=seed).ask(1)[0].values
    state = torch.get_rng_state()
    counted = parameters(model, values)
    assert torch.equal(torch.get_rng_state(), state)
    assert counted == nas.Costs(model, [nas.Limit(parameters, 1)]).of(values)[0]
    assert counted == size_of(extract(model, values))


# Modules where torch does not look.


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
        (lambda: Width("w", 3, 4) * 2, "body.kept, a plain Size, holds Width 'w'"),
    ],
)
def test_decisions_where_torch_does_not_see_them_are_named_with_the_cure(kept, message):
    model = nn.ModuleDict({"body": Holder(kept(), act=OneOf("act", [nn.ReLU(), nn.Tanh()]))})
    cure = "; use nn.ModuleList, nn.ModuleDict or an attribute, or keep it outside of the model"
    for use in (space_of, lambda m: select(m, {"act": 0}), lambda m: extract(m, {"act": 0})):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            use(model)
        assert str(error.value).startswith(message)
        assert str(error.value).endswith(cure)


def test_the_model_itself_may_be_the_one_that_hides():
    with pytest.raises(ValueError, match=r"^kept, a plain list, holds OneOf 'op'"):
        space_of(Holder([op()]))


def test_what_is_also_registered_or_has_no_decision_or_is_further_out_is_fine():
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


def test_a_list_of_modules_has_what_became_of_them_and_none_for_those_left_out():
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
    assert not any(isinstance(thing, (Decision, Sized)) for thing in reached)
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


def test_a_freeze_that_hides_modules_is_named():
    class Hiding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.op, self.layer = op(), nn.Linear(2, 2)

        def freeze(self) -> nn.Module:
            return Holder([self.layer], op=self.op)

    message = r"freeze\(\) of Hiding returned a Holder whose kept, a plain list, holds Linear, where torch does not"
    with pytest.raises(ValueError, match=message):
        extract(nn.Sequential(Hiding()), {"op": 0})


def test_a_layer_with_a_forward_of_its_own_needs_a_freeze_of_its_own():
    class Scaled(nas.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    class Finished(Scaled):
        def freeze(self, takes: int | None = None) -> nn.Module:
            weight = self.weight[: self.gives.value].detach()
            plain = nn.Linear(3, len(weight))
            plain.weight, plain.bias = nn.Parameter(2 * weight), nn.Parameter(torch.zeros(len(weight)))
            return plain

    message = r"^0 is a Scaled with a forward\(\) of its own, which the plain layer would not have; give it a "
    with pytest.raises(ValueError, match=message):
        extract(nn.Sequential(Scaled(3, Width("w", 2, 4))), {"w": 2})
    model = nn.Sequential(Finished(3, Width("w", 2, 4), bias=False))
    select(model, {"w": 2})
    x = torch.randn(1, 3)
    assert torch.allclose(extract(model, {"w": 2})(x), model(x))
    assert parameters(model, {"w": 2}) == 2 * 3 + 2  # with the bias that only the plain layer has
