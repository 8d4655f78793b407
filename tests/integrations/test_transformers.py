"""Models of Hugging Face, with random weights and small: depth, heads and widths become decisions, weights are kept."""

from typing import Any

import pytest
import torch
from torch import nn

from asng import ASNG, nas
from asng.nas import Repeat, Width, convert, extract, parameters, select, space_of
from asng.nas._capture import step as _capture
from asng.nas._capture.iteration import Iteration
from tests.helpers.examples import EXAMPLES, check_better_than_random, run

transformers: Any = pytest.importorskip("transformers")

pytestmark = pytest.mark.long
HEAD_DIM = 8


def bert() -> Any:
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **no_dropout, intermediate_size=64))


def vit() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 8, "patch_size": 4}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, intermediate_size=64, num_labels=5))


def llama() -> Any:
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, intermediate_size=64, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


IDS = {"input_ids": torch.tensor([[3, 7, 9, 1], [5, 2, 0, 0]]), "attention_mask": torch.tensor([[1] * 4, [1, 1, 0, 0]])}
MODELS: dict[str, Any] = {
    "bert": (bert, "bert.encoder.layer", IDS),
    "vit": (vit, None, {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)}),
    "llama": (llama, "model.layers", IDS),
}


def layers_of(model: nn.Module) -> str:
    """The path of the list of layers."""
    return next(
        path for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == 3
    )


@pytest.mark.parametrize("name", MODELS)
def test_one_line_makes_the_depth_a_decision(name):
    make, path, inputs = MODELS[name]
    model = make().eval()
    path = path or layers_of(model)
    expected = model(**inputs).logits
    model.set_submodule(path, Repeat("depth", model.get_submodule(path)))
    assert set(space_of(model)) == {"depth"}
    for depth in (1, 2, 3):
        select(model, {"depth": depth})
        static = extract(model)
        assert len(static.get_submodule(path)) == depth  # type: ignore[arg-type]
        torch.testing.assert_close(static(**inputs).logits, model(**inputs).logits)
        assert parameters(model, {"depth": depth}) == sum(p.numel() for p in static.parameters())
    assert torch.equal(model(**inputs).logits, expected)


def search_bert(path: str, module: Any) -> Any:
    if path.endswith("encoder.layer"):
        return Repeat("depth", module)
    if type(module).__name__ == "BertLayer":
        heads, hidden = Width(f"{path}.heads", [1, 2, 4]), Width(f"{path}.hidden", [16, 32, 64])
        attention = module.attention
        for role in ("query", "key", "value"):
            linear = nas.Linear.from_torch(getattr(attention.self, role), out_features=heads * HEAD_DIM)
            setattr(attention.self, role, linear)
        attention.output.dense = nas.Linear.from_torch(attention.output.dense, in_features=heads * HEAD_DIM)
        module.intermediate.dense = nas.Linear.from_torch(module.intermediate.dense, out_features=hidden)
        module.output.dense = nas.Linear.from_torch(module.output.dense, in_features=hidden)
    return None


def test_a_bert_becomes_a_supernet_with_its_weights():
    model = bert().eval()
    supernet = convert(model, search_bert)
    assert len(space_of(supernet)) == 1 + 3 * 2
    select(supernet, {name: (variable.values() or [None])[-1] for name, variable in space_of(supernet).items()})
    assert torch.equal(supernet(**IDS).logits, model(**IDS).logits)
    static: Any = extract(supernet)
    assert torch.equal(static(**IDS).logits, model(**IDS).logits)
    torch.testing.assert_close(static.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert static.cls.predictions.decoder.weight is static.bert.embeddings.word_embeddings.weight


def test_every_architecture_of_a_bert_equals_its_static_network():
    supernet = convert(bert().eval(), search_bert)
    for candidate in ASNG(space_of(supernet), seed=0).ask(6):
        select(supernet, candidate.values)
        static = extract(supernet)
        torch.testing.assert_close(static(**IDS).logits, supernet(**IDS).logits)
        assert parameters(supernet, candidate.values) == sum(p.numel() for p in static.parameters())


def test_a_bert_is_searched_under_a_limit():
    torch.manual_seed(0)
    supernet = convert(bert(), search_bert)
    batches = [{**IDS, "labels": IDS["input_ids"]}] * 4
    limits = [nas.Limit(parameters, 25_000), nas.Limit(nas.Flops(kwargs=IDS), 300_000)]
    weight_optimizer = torch.optim.AdamW(supernet.parameters(), 1e-3)
    result = nas.search(
        supernet,
        batches,
        [*batches],
        lambda model, batch: model(**batch).loss,
        epochs=2,
        weight_optimizer=weight_optimizer,
        limits=limits,
        progress=False,
    )
    assert result.feasible
    assert torch.isfinite(result.model(**IDS).logits).all()


@pytest.mark.parametrize(
    "replace",
    [lambda path, module: Repeat("depth", module) if path.endswith("encoder.layer") else None, search_bert],
    ids=["depth", "everything, with masks"],
)
def test_a_bert_is_captured(replace, monkeypatch):
    monkeypatch.setattr(_capture, "find_obstacle", lambda *given: None)  # as on a GPU; only the graph is missing
    monkeypatch.setattr(Iteration, "capture", lambda self: None)
    batch = {**IDS, "labels": IDS["input_ids"]}
    losses: list[Any] = []
    for capture in (False, True):
        torch.manual_seed(0)
        model = convert(bert(), replace)
        weight_optimizer = torch.optim.SGD(model.parameters(), 0.1)
        arch_optimizer = ASNG(space_of(model), seed=0)
        oneshot = nas.OneShot(model, arch_optimizer, weight_optimizer, lambda m, b: m(**b).loss, capture=capture)
        losses.append([oneshot.step(batch, batch).train_losses for _ in range(4)])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=0.0)


def test_the_example_finds_what_it_says(tmp_path):
    path = next(path for path in EXAMPLES if path.stem == "hugging_face")
    check_better_than_random(run(["-W", "error", str(path)], tmp_path))
