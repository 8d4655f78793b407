"""The recipes with other libraries run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from asng import nas
from tests.helpers.examples import run
from tests.helpers.pages import DOCS, RECIPES, run_page

pytestmark = pytest.mark.long

COMMON = ("The model of this page", "Accuracy as the judge")  # sections whose names the recipes use


def recipe(library: str) -> str:
    """The block of a library, behind those that it needs."""
    text = RECIPES.read_text()
    sections = {title: text.split(f"## {title}\n")[1].split("\n## ")[0] for title in COMMON}
    before = [
        block for section in sections.values() for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    ]
    (block,) = re.findall(rf"```python {library}\n(.*?)```", text, re.DOTALL)
    return "\n".join([*before, block])


def run_recipe(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(recipe(library), names)
    return names


@pytest.mark.filterwarnings("ignore:the search was too short")
def test_tensorboard_gets_the_losses_and_the_probabilities(tmp_path, monkeypatch):
    accumulators: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    names = run_recipe("tensorboard", tmp_path, monkeypatch)
    names["logger"].close()
    log = accumulators.EventAccumulator(str(tmp_path / "runs" / "search")).Reload()
    history = names["result"].history
    assert [event.value for event in log.Scalars("train_loss")] == pytest.approx([r["train_loss"] for r in history])
    expected = [record["distribution"]["activation"]["tanh"] for record in history]
    assert [event.value for event in log.Scalars("probability/activation/tanh")] == pytest.approx(expected)


def test_accelerate_saves_a_search_and_loads_it(tmp_path, monkeypatch, capsys):
    pytest.importorskip("accelerate")
    names = run_recipe("accelerate", tmp_path, monkeypatch)
    assert "epoch 5, train loss 0." in capsys.readouterr().out
    state = names["oneshot"].state_dict()
    names["oneshot"].step(names["train"][0], names["valid"][0])
    names["accelerator"].load_state("state")
    again = names["oneshot"].state_dict()
    assert again["arch_optimizer"] == state["arch_optimizer"]
    torch.testing.assert_close(again["model"], state["model"], rtol=0, atol=0)


def test_accelerate_finds_the_same_in_several_processes(tmp_path):
    pytest.importorskip("accelerate")
    script, last = tmp_path / "script.py", 'print(f"{accelerator.num_processes} found {result.values}", flush=True)'
    script.write_text(f"{recipe('accelerate')}\n{last}\n")
    found = {}
    for processes in (1, 2):
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), str(script)]
        printed = run(command, tmp_path, ACCELERATE_USE_CPU="true")  # of two processes, maybe in one line
        found[processes] = re.findall(rf"{processes} found (\{{.*?\}})", printed)
    assert len(found[1]) == 1
    assert found[2] == found[1] * 2


def test_a_model_of_hugging_face_is_searched_and_saved(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("onnxruntime")
    names = run_recipe("transformers", tmp_path, monkeypatch)
    network, again, values = names["network"], names["again"], names["result"].values
    assert isinstance(network, names["BertForSequenceClassification"])
    assert len(network.bert.encoder.layer) == values["depth"]
    batch = names["batches"][0]
    torch.testing.assert_close(again.eval()(**batch).loss, network.eval()(**batch).loss)
    assert not any(isinstance(module, nas.Decision) for module in network.modules())
    exported = torch.export.load(tmp_path / "exported" / "network.pt2").module()
    ids = batch["input_ids"]
    torch.testing.assert_close(exported(input_ids=ids).logits, network(input_ids=ids).logits)
    assert (tmp_path / "exported" / "network.onnx").exists()


def test_the_comparison_with_optuna_finds_a_network_within_the_limit(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    names = run_page("comparison", tmp_path, monkeypatch)
    text = (DOCS / "comparison.md").read_text(encoding="utf-8")
    exec(re.findall(r"```python optuna\n(.*?)```", text, re.DOTALL)[0], names)
    assert names["study"].best_params.keys() == {"channels", "operation"}


@pytest.mark.filterwarnings("ignore:the search was too short")
def test_a_model_of_timm_becomes_a_supernet_with_its_weights(tmp_path, monkeypatch, timm):
    names = run_recipe("timm", tmp_path, monkeypatch)
    vit, supernet, found = names["vit"].eval(), names["supernet"], names["result"]
    x = torch.randn(2, 3, 32, 32)
    assert found.feasible
    torch.testing.assert_close(found.model.eval()(x), supernet.eval()(x))  # which is selected as found
    assert {type(block.attn) for block in found.model.blocks} == {timm.layers.Attention}
    assert [block.attn.num_heads for block in found.model.blocks] == [
        found.values[f"blocks.{index}.attn.heads"] for index in range(found.values["depth"])
    ]
    fresh = nas.convert(vit, names["search_vit"])
    nas.select(fresh, {name: (variable.values() or [None])[-1] for name, variable in nas.space_of(fresh).items()})
    assert torch.equal(fresh(x), vit(x))
