"""Reports of files that are damaged, or written to harm."""

import json

import pytest

from asng import report
from tests.helpers.report_pages import Page, values_of, write_run

MARKUP = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "</style></title></textarea><!--",
    "a\nb\r\u2028c\x00\x1b[2J",
    "\u202egnp.exe",
    "\ud800",
    "]]>&lt;&#60;",
    "x" * 5000,
]
ALLOWED = {"class", "content", "id", "charset", "http-equiv", "name", "lang", "style", "tabindex", "role", "aria-label"}
ALLOWED |= {
    "data-run",
    "data-switch",
    "href",
    "aria-live",
    "aria-hidden",
    "data-chart",
    "type",
    "value",
    "checked",
    "scope",
    "d",
    "x",
    "y",
    "cx",
    "cy",
    "r",
}
ALLOWED |= {"width", "height", "rx", "viewbox", "refx", "refy", "markerwidth", "markerheight", "markerunits", "orient"}


def write(tmp_path, *folders):
    return Page(report.write(folders, tmp_path / "report.html"))


def assert_harmless(page):
    assert [own.get("id") for own in page.tags("script")] == ["data", None]
    assert {tag for tag, _ in page.elements}.isdisjoint({"img", "iframe", "object", "link", "base", "form"})
    assert all((own["href"] or "").startswith("#") for _, own in page.elements if "href" in own)
    assert {name for _, own in page.elements for name in own} <= ALLOWED
    assert "alert(1)" not in page.code["script"] + page.code["style"]
    assert json.loads(page.code["data"])["charts"] is not None
    assert not any(letter in page.source for letter in "\x00\x1b\u202e\u2028\r")


@pytest.mark.parametrize("text", MARKUP)
def test_names_and_values_stay_text_wherever_they_stand(text, tmp_path):
    distribution = {text: {text: 0.5, "b": 0.5}, "op": {"conv": 0.5, text: 0.5}}
    records = [{"epoch": epoch, f"train_{text}": 0.5, "distribution": distribution} for epoch in (1, 2)]
    config = {"experiment": text, "kind": text, "version": text, "format": 2, text: text, "seed": text, "list": [text]}
    summary = {"machine": text, text: text, "feasible": text, "inactive": [text], "points": [{"method": text}]}
    summary["tree"] = [{"name": "op", "inside": {text: [{"name": text}], "conv": [{"name": "list"}]}}]
    summary["front"] = {"measures": [text], "points": [{"score": 1, "costs": [1], "values": {text: text}}]}
    summary["limits"] = [{"name": text, "at_most": text, "cost": text}]
    runs = [
        write_run(
            tmp_path / f"run{number}",
            {**config, "other": number},
            records,
            architecture=values_of(**{text: text, "op": "conv", "list": [text]}),
            summary=summary,
            evaluation={text: 0.5},
        )
        for number in range(2)
    ]
    for run in runs:
        (run / "results.jsonl").write_text(json.dumps({"kind": text, text: 1.0}) + "\n")
        (run / "environment.jsonl").write_text(json.dumps({"command": text, text: text}) + "\n")
    assert_harmless(write(tmp_path, *runs))
    assert_harmless(write(tmp_path, runs[0]))


def test_the_name_of_a_folder_stays_text(tmp_path):
    config = {
        "experiment": "cifar10",
        "kind": "retrain",
        "version": "0.1.0",
        "format": 2,
        "seed": 0,
        "mask": "$(reboot)",
    }
    run = write_run(tmp_path / "<script>alert(1)<\u2028\n'x", config, [{"epoch": 1, "train_loss": 0.5}])
    page = Page(report.write([run], tmp_path / "report.html"))
    assert_harmless(page)
    assert "--mask '$(reboot)'" in page.text("Settings")


VALUES: list[object] = [
    None,
    True,
    -1,
    10**30,
    1e308,
    -1e308,
    "x",
    [],
    {},
    [[1]],
    {"a": {"b": 1}},
    [None],
    {"values": []},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_of_any_type_do_no_harm_anywhere(value, tmp_path):
    names = ["epoch", "step", "seconds", "train_loss", "distribution", "architecture", "feasible", "not_finite"]
    records = [dict.fromkeys(names, value), *({**dict.fromkeys(names, 1), name: value} for name in names)]
    records += [{"distribution": {"op": value}}, {"distribution": {"op": {"a": value}}}]
    keys = ["values", "feasible", "distribution", "parameters", "effective_parameters", "machine", "points", "inactive"]
    keys += ["tree", "front", "limits", "certainty"]
    config_names = ["experiment", "kind", "seed", "epochs", "iterations", "cells", "max_params", "limits", "method"]
    for number, config in enumerate([dict.fromkeys(config_names, value), {"epochs": 3, "cells": 8, "limits": value}]):
        run = write_run(
            tmp_path / f"run{number}",
            config,
            records,
            summary={**dict.fromkeys(keys, value), "points": [value, {"lr": 1, "step": value, "measure": value}]},
            architecture=value if number else values_of(op=value, **{"layer1.channels": value}),
            evaluation={"test": value},
        )
        (run / "results.jsonl").write_text(json.dumps({"kind": value, "number": value}) + "\n")
    assert_harmless(write(tmp_path, tmp_path / "run0", tmp_path / "run1"))


@pytest.mark.parametrize("depth", [50, 300, 900, 980, 100_000])
def test_endless_nesting_does_no_harm(depth, tmp_path):
    nested = "[" * depth + "]" * depth
    run = write_run(tmp_path / "run", {"experiment": "mine"})
    (run / "summary.json").write_text(f'{{"parameters": {nested}, "inactive": {nested}, "distribution": {nested}}}')
    (run / "architecture.json").write_text(f'{{"version": 1, "values": {{"op": {nested}}}}}')
    (run / "metrics.jsonl").write_text(f'{{"epoch": 1, "architecture": {nested}}}\n' * 2)
    assert_harmless(write(tmp_path, run))
    (run / "config.json").write_text(f'{{"experiment": "mine", "limits": {nested}}}')
    try:
        assert_harmless(write(tmp_path, run))
    except ValueError as error:
        assert "nested too deeply" in str(error)  # noqa: PT017 - either is fine, and nothing else


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.jsonl", "summary.json", "architecture.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe{\n", b"[1, 2]\n", b'{"a": \n', b"nothing\n"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(name, content, tmp_path):
    run = write_run(tmp_path / "run", records=[{"epoch": 1, "train_loss": 0.5}], summary={"parameters": 7})
    (run / name).write_bytes(content)
    page = write(tmp_path, run)
    assert f"{run / name} is damaged" in page.text("Warnings")
    assert ("Loss" in page.charts) == (name != "metrics.jsonl")


def test_lines_that_are_damaged_are_left_out_and_counted(tmp_path):
    run = write_run(tmp_path / "run", records=[{"epoch": epoch, "train_loss": epoch} for epoch in (1, 2, 3)])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], "{", "[]", lines[2]]) + "\n")
    page = write(tmp_path, run)
    assert "2 of its lines are left out" in page.text("Warnings")
    assert page.curves("Loss")["train"]["step"] == [1, 3]


def test_a_line_that_is_being_written_is_no_damage(tmp_path):
    run = write_run(tmp_path / "run", records=[{"epoch": 1, "train_loss": 0.5}])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 2, "train_lo')
    page = write(tmp_path, run)
    assert page.text("Warnings") == "Warnings None."
    assert page.curves("Loss")["train"]["step"] == [1]


def test_a_damaged_configuration_is_refused_in_one_line(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged") as refused:
        report.write([run], tmp_path / "report.html")
    assert "\n" not in str(refused.value)


def test_files_that_are_none_are_named(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "summary.json").mkdir()
    (run / "metrics.jsonl").symlink_to("/dev/zero")
    text = write(tmp_path, run).text("Warnings")
    assert "metrics.jsonl is not a regular file" in text
    assert "summary.json" in text
