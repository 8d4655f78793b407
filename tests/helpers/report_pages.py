"""Runs to report, and pages taken apart."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from asng import report

SEEDS = [Path(__file__).parents[2] / "results" / "cifar10" / f"seed{seed}" for seed in range(3)]
VOID = {"meta", "input", "br", "img"}


class Page(HTMLParser):
    """The elements of a page, each with its attributes, and its text by section."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.sections: list[str] = [""]
        self.code: dict[str, str] = {}  # of scripts and styles
        self.source = path.read_text()
        self.feed(self.source)
        self.close()
        assert self.open == [], "elements are closed"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self.sections.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.code[dict(self.elements[-1][1]).get("id") or self.open[-1]] = data
        else:
            self.sections[-1] += f"{data} "

    def tags(self, name: str, /, **attributes: str) -> list[dict[str, str | None]]:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return [own for tag, own in self.elements if tag == name and wanted.items() <= own.items()]

    def text(self, title: str = "") -> str:
        """The text of the sections whose titles begin so."""
        return " ".join(" ".join(part.split()) for part in self.sections if part.strip().startswith(title))

    @property
    def charts(self) -> dict[str, dict[str, Any]]:
        data = json.loads(self.code["data"])
        for curve in (curve for chart in data["charts"] for curve in chart["curves"]):
            curve |= {name: data["columns"][curve[name]] for name in ("step", "time")}
        return {chart["title"]: chart for chart in data["charts"]}

    def curves(self, title: str) -> dict[str, dict[str, Any]]:
        return {curve["name"]: curve for curve in self.charts[title]["curves"]}


def write_run(folder: Path, config=None, records=(), **files: Any) -> Path:
    """A folder with the files of a run; `summary={...}` becomes summary.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"experiment": "mine", "kind": "search", "seed": 0, "epochs": 4} if config is None else config
    (folder / "config.json").write_text(json.dumps(config))
    if records:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def read_page(*folders: Path) -> Page:
    """The page of some runs, written beside the first of them if that is not one of the project."""
    return Page(report.write(folders, folders[0] / "report.html"))


def values_of(**values: Any) -> dict[str, Any]:
    """The content of architecture.json."""
    return {"version": 1, "values": values}
