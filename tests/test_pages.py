"""The code of the documentation runs as it stands, page by page, and finds what the pages say."""

import itertools
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

import asng
from asng import ASNG, fused, nas, report
from tests.helpers.commands import wait_until
from tests.helpers.examples import run
from tests.helpers.pages import DOCS, RECIPES, blocks_of, run_page

ROOT = DOCS.parent


def test_every_page_with_code_has_a_test():
    tested = set(re.findall(r'(?:run_page|blocks_of)\("([\w-]+)"', Path(__file__).read_text(encoding="utf-8")))
    assert {path.stem for path in DOCS.glob("*.md") if blocks_of(path.stem)} == tested


def test_every_page_is_in_the_navigation_of_the_site():
    listed = set(re.findall(r"(\w+)\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE))
    generated = {"changelog", "contributing", "examples", "notebook"}  # from files outside of docs/
    assert {path.stem for path in DOCS.glob("*.md")} == listed - generated


def test_the_reference_lists_every_public_name_once():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: ([\w.]+)$", text, flags=re.MULTILINE)
    for hidden in (
        "asng.minimize",
        "asng.nas.export",
        "asng.nas.result",
        "asng.nas.search",
    ):  # functions behind modules of their names
        listed[listed.index(f"{hidden}.{hidden.split('.')[-1]}")] = hidden
    exported = [f"{module.__name__}.{name}" for module in (asng, nas, fused, report) for name in module.__all__]
    figures = [f"asng.plot.{name}" for name in ("history", "probabilities", "distribution", "front")]
    bridges = [f"asng.integrations.{name}" for name in ("optuna.ASNGSampler", "tensorboard.TensorBoard")]
    assert sorted(listed) == sorted([*exported, *figures, *bridges])


def test_files_that_pages_link_to_are_there():
    for page in DOCS.glob("*.md"):
        links = re.findall(r"\]\(((?!http)[^)#\s]+)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (DOCS / link).exists()] == [], page.name


def test_the_index_of_results_names_every_folder_and_sections_that_exist():
    index = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([^`]+)` \|", index, flags=re.MULTILINE)
    patterns = [re.sub("ROW|S$", "[^/]+", folder) for folder in listed]
    holding = {path.parent.relative_to(ROOT / "results") for path in (ROOT / "results").rglob("*.json*")}
    assert [f for f in holding if not any(re.fullmatch(p, f.as_posix()) for p in patterns)] == []
    assert [p for p in patterns if not any(re.fullmatch(p, f.as_posix()) for f in holding)] == []
    for title, page, anchor in re.findall(r"\[([^]]+)\]\(\.\./docs/(\w+\.md)#([^)]+)\)", index):
        assert re.search(rf"^#+ {re.escape(title)}$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE), title
        assert anchor == re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.long
def test_the_first_run_of_the_page_on_commands_leaves_a_report(tmp_path):
    section = (DOCS / "commands.md").read_text(encoding="utf-8").split("## A first run")[1].split("\n## ")[0]
    shown = [run(["-m", *command.split()], tmp_path) for command in re.findall(r"^\$ (.*)$", section, re.MULTILINE)]
    assert len(shown) == 3
    assert "finished" in shown[1]
    assert "<h1>" in (tmp_path / "first.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_first_search_finds_a_network_within_its_limit(tmp_path, monkeypatch):
    names = run_page("first_search", tmp_path, monkeypatch)
    result, network = names["result"], names["network"]
    assert result.feasible
    assert sum(parameter.numel() for parameter in network.parameters()) <= 1000
    assert not any(isinstance(module, nas.Decision) for module in network.modules())
    x = torch.linspace(-1, 1, 201)[:, None]
    assert names["loss_fn"](network, x) < 0.2 * torch.sin(3 * x).var()
    assert {path.name for path in tmp_path.iterdir()} == {"history.png", "probabilities.png", "network.pt"}


def test_the_page_on_models_extracts_static_networks(tmp_path, monkeypatch):
    names = run_page("model", tmp_path, monkeypatch)
    assert list(names["space"]) == ["width", "depth", "activation"]
    assert names["small"].eval()(torch.zeros(2, 4)).shape == (2, 1)
    assert not any(isinstance(module, nas.Decision) for module in names["small"].modules())
    assert type(names["static_cell"]) is torch.nn.GRUCell
    assert [names["static_cell"].hidden_size, len(names["short"].layers), len(names["body"].blocks)] == [16, 2, 2]


def test_the_page_on_loops_searches_and_continues_from_a_checkpoint(tmp_path, monkeypatch):
    names = run_page("loop", tmp_path, monkeypatch)
    nas.select(names["model"], names["result"].values)
    assert names["result"].feasible
    assert names["again"].values == names["result"].values
    for one, other in zip(names["again"].model.parameters(), names["result"].model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert len(names["best"]) == 3
    assert isinstance(names["penalized"](names["model"], names["train"][0]), float)
    assert names["done"] == 20


@pytest.mark.parametrize("call", [*range(25, 29), 60])  # all candidates of the seventh step, and a later one
@pytest.mark.parametrize("is_error", [True, False])
def test_the_loop_of_the_page_on_loops_continues_bit_for_bit(tmp_path, monkeypatch, call, is_error):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = blocks_of("loop")
    exec("\n".join([blocks[0], *(block for block in blocks if "def run_own_loop" in block)]), names)
    calls = itertools.count(1)

    def fail(model, batch):
        if next(calls) == call:
            if is_error:
                raise ArithmeticError
            signal.raise_signal(signal.SIGINT)
        return names["loss_fn"](model, batch)

    with pytest.raises(ArithmeticError) if is_error else nullcontext():
        names["run_own_loop"]("stopped.pt", loss_fn=fail)
    saved = torch.load("stopped.pt", weights_only=True)["done"]
    assert saved == ((call - 1) // 4 // 5 * 5 if is_error else (call - 1) // 4 + 1)
    model, done = names["run_own_loop"]("stopped.pt")
    assert done == 20
    for name, expected in names["model"].state_dict().items():
        assert torch.equal(model.state_dict()[name], expected)


def test_the_page_on_limits_stays_within_them_and_finds_a_front(tmp_path, monkeypatch):
    names = run_page("limits", tmp_path, monkeypatch)
    assert names["best"].score <= min(architecture.score for architecture in names["others"])
    assert len(names["trade_off"].points) > 1
    assert not any(isinstance(module, nas.Decision) for module in names["network"].modules())


def test_the_page_on_hyperparameters_prunes_trials(tmp_path, monkeypatch):
    names = run_page("hyperparameters", tmp_path, monkeypatch)
    assert names["result"].values["noise"] == names["result"].model.noise.value
    assert names["tuned"].evaluations == len(names["curves"]) == 8
    assert {len(curve) for curve in names["curves"]} > {3}  # some trials are pruned, some are not


def test_the_page_on_speed_fuses_layers(tmp_path, monkeypatch):
    network = run_page("speed", tmp_path, monkeypatch)["network"]
    assert any(type(module).__module__.startswith("asng.fused") for module in network.modules())


def test_the_page_on_reports_writes_one(tmp_path, monkeypatch):
    run_page("reports", tmp_path, monkeypatch)
    assert "my search" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_on_distributions_finds_how_many_newspapers_to_buy(tmp_path, monkeypatch):
    assert run_page("distributions", tmp_path, monkeypatch)["result"].values == {"papers": 18, "place": "station"}


def test_the_page_on_the_algorithm_computes_what_the_optimizer_does(tmp_path, monkeypatch):
    names = run_page("algorithm", tmp_path, monkeypatch)
    assert names["optimizer"].mode() == {"op0": 0, "op1": 1, "op2": 2, "op3": 3, "op4": 0, "op5": 1}


def test_the_page_with_the_comparison_searches_within_its_limit(tmp_path, monkeypatch):
    names = run_page("comparison", tmp_path, monkeypatch)
    assert names["result"].feasible
    assert sum(parameter.numel() for parameter in names["network"].parameters()) <= 3000


def test_the_page_on_black_boxes_finds_the_optimum(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of("black_boxes")
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    first, *values = capsys.readouterr().out.splitlines()[:4]
    assert first.startswith("loss ")
    assert [line.split() for line in values[:2]] == [["optimizer", "'adam'"], ["layers", "5"]]
    assert values[2].startswith("lr         0.00")
    assert names["result"].loss < 0.02
    exec("\n".join(blocks[1:]), names)
    assert names["result"].evaluations == 100
    assert (tmp_path / "search.json").exists()


@pytest.mark.slow
def test_the_page_on_black_boxes_has_a_pool_that_ctrl_c_ends_silently(tmp_path):
    (block,) = re.findall(r"```python file\n(.*?)```", (DOCS / "black_boxes.md").read_text("utf-8"), re.DOTALL)
    endless = block.replace("time.sleep(0.1)", "time.sleep(0)").replace("evaluations=1000", "evaluations=10**9")
    (tmp_path / "parallel.py").write_text(endless)  # in which some processes always wait for work
    words, pipe = [sys.executable, "parallel.py"], subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        wait_until((tmp_path / "parallel.json").exists)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[0].endswith(" evaluations, stopped: interrupted")


# Torch's own warnings while exporting and saving.
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")
@pytest.mark.long
def test_the_page_on_export_writes_files_that_compute_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the page imports network.py
    names = run_page("export", tmp_path, monkeypatch)
    x = torch.zeros(5, 1, 8, 8)
    expected = names["network"](x).detach()
    torch.testing.assert_close(torch.from_numpy(names["scores"]), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(names["again"](x).detach(), expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(sys.modules.pop("network").load()(x), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["architecture.json", "exported"]
    assert set(names["files"]) == {"json", "safetensors", "python", "torch", "onnx"}


# Recipes ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_recipes_run_as_they_stand_and_find_good_networks(tmp_path, monkeypatch):
    names = run_page("recipes", tmp_path, monkeypatch)
    assert names["accuracy"] > 0.9
    assert [len(names["front"].points) > 2, len(names["history"])] == [True, 10]
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 5
    distances = [record["score"] for record in names["result"].history]  # of a GAN
    assert min(distances) < 0.8 * distances[0]
    found = names["with_skips"]
    assert [found.values[f"block{i}"] for i in range(4)].count("skip") >= 2
    assert [isinstance(block, nn.Identity) for block in found.model.blocks] == [
        found.values[f"block{i}"] == "skip" for i in range(4)
    ]
    for name in ("network.pt", "front.png", "history.png"):
        assert (tmp_path / name).exists()


@pytest.mark.slow
def test_the_steps_that_the_recipes_plan_for_are_those_measured():
    text = RECIPES.read_text()
    source = text.split("## How many steps")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"ASNG": ASNG}
    exec(source, names)
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| \d+ \|$", text, flags=re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        decisions, choices, free, *steps = map(int, row)
        assert free == decisions * (choices - 1)
        for noise, expected in enumerate(steps):  # that of 3 takes too long to repeat
            assert median(names["steps_needed"](decisions, choices, noise, seed) for seed in range(5)) == expected
    assert "take 250, 75 and 30 steps with 2, 4 and 8 candidates" in text
    for size, expected in ((4, 75), (8, 30)):
        assert median(names["steps_needed"](20, 5, 0, seed, size) for seed in range(5)) == expected
