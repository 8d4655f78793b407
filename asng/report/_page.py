"""The page of a report, section by section."""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from asng import __version__
from asng._html import TABLE_STYLE, Html, decisions_table, element, join, script_json, to_html
from asng.report import _tables as tables
from asng.report._autoencoder import can_draw_autoencoder, draw_autoencoder
from asng.report._cells import draw_cell_graphs, is_cells
from asng.report._curves import Panel, front_panels, group_runs, metric_panels, probability_panels, sweep_panels
from asng.report._pictures import draw_pictures
from asng.report._read import RunData, front_of
from asng.report._tables import section
from asng.report._tree import draw_tree
from asng.report._warnings import find_warnings

MAX_CHARTS = 200  # of a section
EXPERIMENT_NAMES = {"cifar10": "CIFAR-10"}  # of experiments, as they are written
LINKS = {  # of sections at the top of a page, where they are shorter than the title
    "probabilities-over-time": "Probabilities",
    "pareto-front": "Front",
    "limits-and-costs": "Limits",
    "results-and-baselines": "Results",
}


class Page:
    """Sections of a page, and the data of its charts."""

    def __init__(self, runs: Sequence[RunData], max_points: int, reload_every: int | None) -> None:
        self._runs, self._groups = runs, group_runs(runs)
        self._max_points, self._reload_every = max_points, reload_every
        self._charts: list[dict[str, Any]] = []
        self._columns: dict[tuple[float, ...], int] = {}  # steps and seconds, which many curves share

    def render(self) -> str:
        """The whole page."""
        sections = join(
            [
                tables.overview_section(self._groups),
                self._warnings(),
                self._switch_runs("Architecture", self._architecture),
                self._curves(),
                self._switch_runs("Probabilities over time", self._probabilities),
                self._switch_runs("Pareto front", self._front),
                tables.limits_section(self._runs),
                tables.results_section(self._groups),
                self._pictures(),
                tables.settings_section(self._groups),
            ]
        )
        kinds = " and ".join(dict.fromkeys(_title_of(run) for run in self._runs))
        names = list(dict.fromkeys(run.name for run in self._runs))
        listed = ", ".join(names if len(names) <= 12 else [*names[:12], f"and {len(names) - 12} more"])
        count = "1 run" if len(self._runs) == 1 else f"{len(self._runs)} runs"
        ids = re.findall('<section id="([^"]+)"', sections)
        links = [element("a", LINKS.get(name, name.capitalize()), href=f"#{name}") for name in ids]
        return _fill_page(
            title=f"{kinds}: asng report",
            kinds=kinds,
            runs=f"{count}: {listed} · asng {__version__}",
            reload=self._reload_switch(),
            links=join(links),
            sections=sections,
            data=script_json({"columns": list(self._columns), "charts": self._charts, "reload": self._reload_every}),
        )

    def _reload_switch(self) -> Html:
        if self._reload_every is None:
            return Html("")
        box = element("input", type="checkbox", id="reload", checked=True)
        text = f" reload every {self._reload_every} seconds, except while a chart is zoomed or a table open"
        return element("label", box, text, class_="hint")

    def _chart(self, panel: Panel, look: str = "") -> Html:
        data = panel.to_json(self._max_points)
        for curve in data["curves"]:
            for name in ("step", "time"):
                curve[name] = self._columns.setdefault(tuple(curve[name]), len(self._columns))
        self._charts.append(data)
        keys = "Left and right arrows read values, plus and minus zoom, 0 shows all."
        plot = element("div", class_="plot", tabindex="0", role="application", aria_label=f"{panel.describe()} {keys}")
        named = [curve for curve in panel.curves if curve.name and (not curve.faint or curve.labels)]
        legend = [element("li", _swatch(c.color, c.dash, c.labels is not None), c.name) for c in named]
        return element(
            "figure",
            element("figcaption", element("h4", panel.title), element("span", panel.note, class_="note")),
            plot,
            element("ul", *legend, class_="legend") if [c.name for c in named] not in ([], ["mean"]) else None,
            element("output", aria_live="polite", class_="reading"),
            element("details", element("summary", "Numbers"), element("div", class_="scroll"), class_="numbers"),
            class_=f"chart {look}".strip(),
            data_chart=len(self._charts) - 1,
        )

    def _warnings(self) -> Html:
        texts: dict[str, list[str]] = {}  # runs by what they are warned of
        for run in self._runs:
            for text in find_warnings(run):
                texts.setdefault(text, []).append(run.title)
        items = [
            element("li", element("b", f"{', '.join(runs)}: ") if len(self._runs) > 1 else None, text)
            for text, runs in texts.items()
        ]
        listed = element("ul", *items) if items else element("p", "None.")
        return section("Warnings", listed, class_="warnings" if items else "quiet")

    def _curves(self) -> Html | None:
        panels = metric_panels(self._groups)
        for run in self._runs:
            panels.setdefault("Initial step size", []).extend(sweep_panels(run))
        parts = []
        for title, members in panels.items():
            if members:
                charts = element("div", *(self._chart(panel) for panel in members[:MAX_CHARTS]), class_="charts")
                parts += [element("h3", title), charts]
        if not parts:
            return None
        spread = any(len(runs) > 1 for runs in self._groups.values())
        note = "Lines are means over the runs, bands one standard deviation to both sides, thin lines the runs."
        hint = (
            "Hover to read, drag to zoom, double-click to show all; with the keyboard: Tab, arrows, plus and minus, 0."
        )
        has_time = any(any(run.seconds) for run in self._runs)
        units = {f"{run.unit}s" for run in self._runs if run.records}
        steps = units.pop() if len(units) == 1 else "steps"
        switch = _radio_buttons("Against", "axis", "", {"step": steps, "time": "time"}) if has_time else None
        return section(
            "Curves", element("p", f"{hint} {note if spread else ''}".strip(), class_="hint"), switch, *parts
        )

    def _switch_runs(self, title: str, draw: Callable[[RunData], Sequence[Html | None]]) -> Html | None:
        """A section in which a switch chooses the run; without a script, and printed, all are there."""
        drawn = {str(index): parts for index, run in enumerate(self._runs) if (parts := draw(run))}
        if len(drawn) == len(self._runs) and all(parts == drawn["0"] for parts in drawn.values()):
            return section(title, *drawn["0"])
        names = {index: self._runs[int(index)].title for index in drawn}
        panels = [element("div", element("h3", names[index]), *drawn[index], data_run=index) for index in drawn]
        switch = _radio_buttons("Run", "run", title, names) if len(drawn) > 1 else None
        return section(title, switch, *panels) if panels else None

    def _architecture(self, run: RunData) -> list[Html | None]:
        if not run.values:
            return []
        distribution = run.final_distribution
        if is_cells(run.values):
            note = "A node adds two operations. Numbers, and how strong lines and boxes are, are probabilities."
            drawing = [element("div", *draw_cell_graphs(run.values, distribution, run.title), class_="graphs")]
            drawing += [element("p", note, class_="hint")] if distribution else []
        elif can_draw_autoencoder(run.values):
            drawing = [draw_autoencoder(run.values, run.title)]
        else:
            drawing = [draw_tree(run)]
        table = decisions_table(run.values, distribution, run.inactive, f"Decisions of {run.title}")
        return [*drawing, element("details", element("summary", f"All {len(run.values)} decisions as a table"), table)]

    def _probabilities(self, run: RunData) -> list[Html | None]:
        charts = [self._chart(panel, "small") for panel in probability_panels(run)[:MAX_CHARTS]]
        if charts:
            return [element("div", *charts, class_="charts")]
        lost = "The records of this search hold no distributions, so their course is not known"
        is_lost = len(run.records) > 1 and bool(run.final_distribution)
        return [element("p", f"{lost}; the last one is shown with the architecture.", class_="hint")] if is_lost else []

    def _front(self, run: RunData) -> list[Html | None]:
        front = front_of(run)
        if front is None:
            return []
        charts = [self._chart(panel) for panel in front_panels(front)]
        folded = element("details", element("summary", "The front as a table"), tables.front_table(front))
        return [element("div", *charts, class_="charts wide"), folded]

    def _pictures(self) -> Html | None:
        figures = draw_pictures(dict.fromkeys(run.folder for run in self._runs))
        return section("Pictures", *figures) if figures else None


def _title_of(run: RunData) -> str:
    experiment, _, kind = run.kind.partition(" ")
    return f"{EXPERIMENT_NAMES.get(experiment, experiment)} {kind}".strip()


def _swatch(color: int, dash: int, is_dot: bool) -> Html:
    shape = '<circle cx="13" cy="6" r="4"></circle>' if is_dot else '<path d="M0 6H26"></path>'
    return Html(f'<svg aria-hidden="true" class="c{color} d{dash}">{shape}</svg>')


def _radio_buttons(legend: str, kind: str, where: str, choices: Mapping[str, str]) -> Html:
    """Radio buttons of which the first is chosen; the script sets all switches of a kind alike."""
    name = f"{kind} {where}".strip()
    buttons = [
        element(
            "label",
            element("input", type="radio", name=name, value=value, checked=not index, data_switch=kind),
            element("span", text),
        )
        for index, (value, text) in enumerate(choices.items())
    ]
    return element("fieldset", element("legend", legend), *buttons, class_="switch")


def _fill_page(**parts: Any) -> str:
    """The page with its parts. The script is known by its hash: no other one runs, and nothing is loaded."""
    names = ("page.html", "report.css", "report.js")
    page, style, script = ((files("asng.report") / name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fixed = {"style": TABLE_STYLE + style, "script": script, "digest": digest}
    return Template(page).substitute(fixed, **{name: to_html(part) for name, part in parts.items()})
