"""The page of a report, section by section."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from asng import __version__
from asng.report._autoencoder import draw_autoencoder, is_autoencoder
from asng.report._cells import draw_cells, is_cells
from asng.report._curves import Panel, group_runs, metric_panels, probability_panels, sweep_panels
from asng.report._html import Html, element, join, script_json
from asng.report._read import RunData
from asng.report._tables import (
    decisions_table,
    limits_section,
    overview_section,
    results_section,
    section,
    settings_section,
)
from asng.report._warnings import find_warnings

MAX_CHARTS = 200  # of a section


class Page:
    """Sections of a page, and the data of its charts."""

    def __init__(self, runs: Sequence[RunData], max_points: int, reload_every: int | None) -> None:
        self._runs, self._groups = runs, group_runs(runs)
        self._max_points, self._reload_every = max_points, reload_every
        self._charts: list[dict[str, Any]] = []

    def render(self) -> str:
        """The whole page."""
        sections = [
            self._warnings(),
            overview_section(self._groups),
            self._curves(),
            *(self._architecture(run) for run in self._runs),
            *(self._probabilities(run) for run in self._runs),
            results_section(self._runs),
            limits_section(self._runs),
            settings_section(self._runs),
        ]
        kinds = " and ".join(dict.fromkeys(run.kind for run in self._runs))
        count = "1 run" if len(self._runs) == 1 else f"{len(self._runs)} runs"
        head = element(
            "header",
            element("h1", kinds),
            element("p", f"Report of {count} by asng {__version__}: ", ", ".join(run.title for run in self._runs)),
            self._reload_switch(),
        )
        body = join([head, element("main", *sections), element("noscript", "Charts need JavaScript.")])
        return _document(f"{kinds}: asng report", body, {"charts": self._charts, "reload": self._reload_every})

    def _reload_switch(self) -> Html | None:
        if self._reload_every is None:
            return None
        box = element("input", type="checkbox", id="reload", checked=True)
        return element("label", box, f" reload every {self._reload_every} seconds")

    def _chart(self, panel: Panel, look: str = "") -> Html:
        number = len(self._charts)
        self._charts.append(panel.to_json(self._max_points))
        keys = "Left and right arrows read values, plus and minus zoom, 0 shows all."
        plot = element("div", class_="plot", tabindex="0", role="application", aria_label=f"{panel.describe()} {keys}")
        legend = [
            element(
                "li",
                Html(f'<svg aria-hidden="true"><path class="c{c.color} d{c.dash}" d="M0 6H26"></path></svg>'),
                c.name,
            )
            for c in panel.curves
            if not c.faint
        ]
        return element(
            "figure",
            element("figcaption", element("h3", panel.title)),
            element("ul", *legend, class_="legend") if any(curve.name for curve in panel.curves) else None,
            plot,
            element("output", aria_live="polite", class_="reading"),
            element("details", element("summary", "Numbers"), element("div", class_="scroll"), class_="numbers"),
            class_=f"chart {look}".strip(),
            data_chart=str(number),
        )

    def _warnings(self) -> Html:
        items = [
            element("li", element("b", f"{run.title}: ") if len(self._runs) > 1 else None, text)
            for run in self._runs
            for text in find_warnings(run)
        ]
        listed = element("ul", *items) if items else element("p", "None.")
        return section("Warnings", listed, class_="warnings" if items else "quiet")

    def _curves(self) -> Html | None:
        panels = metric_panels(self._groups) + [panel for run in self._runs for panel in sweep_panels(run)]
        if not panels:
            return None
        spread = any(len(runs) > 1 for runs in self._groups.values())
        note = (
            "Bands are one standard deviation over the runs to both sides; thin lines are the runs." if spread else ""
        )
        charts = element("div", *(self._chart(panel) for panel in panels[:MAX_CHARTS]), class_="charts")
        hint = "Drag across a chart to zoom in; a double click shows all again."
        switch = None if all(panel.log_x for panel in panels) else _axis_switch()
        return section("Curves", element("p", f"{hint} {note}".strip(), class_="hint"), switch, charts)

    def _architecture(self, run: RunData) -> Html | None:
        if not run.values:
            return None
        distribution = run.final_distribution
        if is_cells(run.values):
            drawn = element("div", *draw_cells(run.values, distribution, run.title), class_="graphs")
            note = "A node adds two operations. Numbers, and how strong lines and boxes are, are probabilities."
            drawing = [drawn, element("p", note, class_="hint")] if distribution else [drawn]
        elif is_autoencoder(run.values):
            drawing = [draw_autoencoder(run.values, run.title)]
        else:
            return self._section_of("Architecture", run, decisions_table(run))
        folded = element("details", element("summary", "All decisions"), decisions_table(run))
        return self._section_of("Architecture", run, *drawing, folded)

    def _probabilities(self, run: RunData) -> Html | None:
        panels = probability_panels(run)
        if not panels:
            return None
        charts = [self._chart(panel, "small") for panel in panels[:MAX_CHARTS]]
        return self._section_of("Probabilities over time", run, element("div", *charts, class_="charts"))

    def _section_of(self, title: str, run: RunData, *children: Any) -> Html:
        return section(f"{title}: {run.title}" if len(self._runs) > 1 else title, *children)


def _axis_switch() -> Html:
    choices = [("step", "steps"), ("time", "time")]
    buttons = [
        element("label", element("input", type="radio", name="axis", value=value, checked=value == "step"), f" {text}")
        for value, text in choices
    ]
    return element("fieldset", element("legend", "Against"), *buttons, class_="axis")


def _document(title: str, body: Html, data: Mapping[str, Any]) -> str:
    """The page around its content. The script is known by its hash: no other one runs, and nothing is loaded."""
    style, script = ((files("asng.report") / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        Html(f"<style>{style}</style>"),
    )
    arrow = Html(
        '<svg class="defs" aria-hidden="true"><defs><marker id="head" viewBox="0 0 8 6" refX="6" refY="3" '
        'markerWidth="8" markerHeight="6" markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0L8 3L0 6z"></path></marker></defs></svg>'
    )
    content = element("body", arrow, body, script_json(data, "data"), Html(f"<script>{script}</script>"))
    return f'<!DOCTYPE html>\n<html lang="en">{head}{content}</html>\n'
