"""Extraction keeps shared what is shared: modules used twice, and weights of which layers take the same part."""
# mypy: disable-error-code="index, union-attr"
# (torch's modules are looked into)

import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from asng import nas
from asng.nas import OneOf, Pick, Value, Width, extract, parameters, select
from asng.space import Categorical
from tests.helpers.decisions import size_of

# Modules and weights that are used twice.


def test_modules_used_twice_stay_shared():
    block = nn.Sequential(OneOf("op", [nn.Linear(3, 3), nn.Identity()]), nas.Linear(3, Width("w", 3, 5)))
    fixed = nn.Linear(3, 3)
    model = nn.ModuleList([block, block, fixed, nn.Sequential(fixed), block[1]])
    extracted = extract(model, {"op": 0, "w": 3})
    assert extracted[0] is extracted[1]
    assert extracted[2] is extracted[3][0]
    assert extracted[4] is extracted[0][1]
    assert extracted[2] is not fixed
    assert size_of(extracted) == 3 * 12


def test_tied_weights_stay_tied():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), Pick("from", 2)])
    model[1].weight = model[0].weight
    extracted = extract(model, {"from": 0})
    assert extracted[0].weight is extracted[1].weight
    assert extracted[0].weight is not model[0].weight


# Weights of which elastic layers take a part.


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


def test_ties_survive_a_build_static_of_ones_own():
    class Own(nas.Searchable):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (
                nas.Linear(nas.AnySize(6), 3, bias=False),
                nas.Linear(nas.AnySize(6), 3, bias=False),
            )
            self.second.weight = self.first.weight
            self.takes = Width("w", 2, 6)

        def build_static(self) -> nn.Module:
            return nn.ModuleList(
                [self.first.build_static(in_channels=self.takes.value), self.second.build_static(in_channels=2)]
            )

    extracted: Any = extract(Own(), {"w": 2})
    assert extracted[0].weight is extracted[1].weight
    with pytest.raises(ValueError, match=r"first\.weight and second\.weight.* \(3, 4\) and \(3, 2\)"):
        extract(Own(), {"w": 4})


def test_layers_without_a_bias_and_with_computed_weights_share_nothing():
    model = nn.ModuleList([nas.Linear(3, Width(name, 2, 5), bias=False) for name in ("one", "other")])
    for layer in model:
        nn.utils.parametrizations.weight_norm(layer)
    values = {"one": 2, "other": 4}
    assert [layer.weight.shape for layer in extract(model, values)] == [(2, 3), (4, 3)]  # type: ignore[attr-defined]
    assert parameters(model, values) == 2 * 3 + 4 * 3


class Embedding(nas.Searchable):
    """An elastic layer of one's own, which is tied to others."""

    def __init__(self, tokens: int, width: Width) -> None:
        super().__init__()
        self.width, self.weight = width, nn.Parameter(torch.randn(tokens, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, self.weight[:, : self.width.value])

    def build_static(self) -> nn.Module:
        weight = self.weight[:, : self.width.value].detach().clone()
        return nn.Embedding.from_pretrained(weight, freeze=False)


class LanguageModel(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.token = Embedding(10, Width("w", [4, 8]))
        self.head = head
        self.out = OneOf("out", [nn.Identity(), nn.ReLU()])


@pytest.mark.parametrize("width", [4, 8])
def test_a_build_static_that_copies_a_shared_weight_is_an_error(width):
    model = LanguageModel(nas.Linear(Width("w", [4, 8]), 10, bias=False))
    model.head.weight = model.token.weight
    message = r"^head.weight shares its weight with token \(Embedding\), whose build_static\(\) does not return it"
    for look in (extract, parameters):
        with pytest.raises(ValueError, match=message):
            look(model, {"w": width, "out": 0})


@pytest.mark.parametrize("width", [4, 8])
def test_two_build_statics_that_copy_a_shared_weight_are_an_error(width):
    model = LanguageModel(Embedding(10, Width("w", [4, 8])))
    model.head.weight = model.token.weight
    with pytest.raises(
        ValueError, match=r"^token \(Embedding\) shares its weight with head \(Embedding\), whose build"
    ):
        extract(model, {"w": width, "out": 0})


class Tied(nas.Searchable):
    """Holds both layers that share a weight; what they become is said by those who derive from it."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.token, self.head = Width("w", [4, 8]), nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.token.weight

    def cut(self) -> nn.Parameter:
        return nn.Parameter(self.token.weight[:, : self.width.value].detach().clone())


class CopiedTwice(Tied):
    def build_static(self) -> nn.Module:
        static = nn.Sequential(nn.Embedding(10, self.width.value), nn.Linear(self.width.value, 10))
        static[0].weight, static[1].weight = self.cut(), self.cut()
        return static


class CopiedTransposed(Tied):
    def build_static(self) -> nn.Module:
        return nn.ParameterList([self.cut(), nn.Parameter(self.cut().T.contiguous())])


@pytest.mark.parametrize("kind", [CopiedTwice, CopiedTransposed])
@pytest.mark.parametrize("width", [4, 8])
def test_a_build_static_that_copies_a_weight_twice_is_an_error(kind, width):
    for look in (extract, parameters):
        with pytest.raises(
            ValueError, match=rf"^build_static\(\) of 0 \({kind.__name__}\) returned two copies of one w"
        ):
            look(nn.Sequential(kind()), {"w": width})


def test_a_build_static_that_ties_its_copies_or_makes_one_is_fine():
    class TiedAgain(Tied):
        def build_static(self) -> nn.Module:
            norms = [nn.LayerNorm(self.width.value), nn.LayerNorm(self.width.value)]  # equal, as new layers are
            static = nn.Sequential(nn.Embedding(10, self.width.value), *norms, nn.Linear(self.width.value, 10))
            static[0].weight = static[3].weight = self.cut()
            return static

    class Merged(Tied):
        def build_static(self) -> nn.Module:
            return nn.ParameterList([nn.Parameter(self.cut() @ self.cut().T)])

    extracted: Any = extract(nn.Sequential(TiedAgain()), {"w": 4})
    assert extracted[0][0].weight is extracted[0][3].weight
    assert parameters(nn.Sequential(Merged()), {"w": 4}) == 100
    assert parameters(nn.Sequential(CopiedTwice()).to("meta"), {"w": 4}) == 2 * 40 + 10  # it has no numbers to compare


def test_a_copy_of_a_shared_weight_is_fine_where_the_others_are_left_out():
    head = OneOf("head", [nn.Linear(8, 10, bias=False), nn.Identity()])
    model = LanguageModel(head)
    model.token.weight = head.options[0].weight  # type: ignore[assignment]
    extracted: Any = extract(model, {"w": 8, "out": 0, "head": 1})
    assert extracted.token.weight.shape == (10, 8)
    with pytest.raises(ValueError, match="no longer be tied"):
        extract(model, {"w": 8, "out": 0, "head": 0})


def test_new_layers_beside_a_shared_weight_are_no_copies_of_it():
    class Normed(Embedding):
        def build_static(self) -> nn.Module:
            static = nn.Sequential(nn.Embedding(10, 8, padding_idx=0), nn.LayerNorm(8))
            static[0].weight = self.weight
            return static

    model = LanguageModel(nn.Linear(8, 10, bias=False))
    model.token = Normed(10, Width("w", [4, 8]))
    with torch.no_grad():
        model.token.weight[0] = 0.0  # as the new bias is
    model.head.weight = model.token.weight
    extracted: Any = extract(model, {"w": 8, "out": 0})
    assert extracted.head.weight is extracted.token[0].weight


def test_a_large_shared_weight_is_counted_without_looking_at_its_numbers():
    model = nn.ModuleList([nas.Linear(Width("w", [256, 512]), 20_000, bias=False) for _ in range(2)])
    model[1].weight = model[0].weight
    with _NoLargeTensors():
        assert parameters(model, {"w": 256}) == 256 * 20_000


class _NoLargeTensors(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "arange" not in str(func)
        return func(*args, **(kwargs or {}))


def test_a_shared_weight_that_is_returned_itself_stays_shared():
    class Whole(Embedding):
        def build_static(self) -> nn.Module:
            static = nn.Embedding(1, 1)
            static.weight = self.weight
            return static

    model = LanguageModel(nn.Linear(8, 10, bias=False))
    model.token = Whole(10, Width("w", [4, 8]))
    model.head.weight = model.token.weight
    extracted: Any = extract(model, {"w": 8, "out": 0})
    assert extracted.head.weight is extracted.token.weight
    assert parameters(model, {"w": 8, "out": 0}) == 80
