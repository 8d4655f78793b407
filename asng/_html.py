"""HTML that is safe by construction: all text is escaped, unless it is `Html` already. For reports and notebooks."""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from html import escape
from typing import Any

from asng._untrusted import escape_controls, shorten

VOID = {"br", "img", "input", "meta"}  # elements without an end tag
MAX_TEXT = 300  # characters of a name or a value
MAX_BARS = 40  # choices of a decision that are shown
TABLE_STYLE = """\
.asng table { border-collapse: collapse; font-size: 0.9em; font-variant-numeric: tabular-nums; }
.asng caption { text-align: left; padding: 0.2em 0; opacity: 0.75; }
.asng :is(th, td) { text-align: right; padding: 0.3em 0.8em; border-bottom: 1px solid var(--rule, #8884);
  vertical-align: top; }
.asng :is(th:first-child, .texts th, .texts td) { text-align: left; }
.asng tbody th { font-weight: 500; }
.asng .bars { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 0.1em 1em; }
.asng .bars li { white-space: nowrap; margin: 0; }
.asng .bar { display: inline-block; width: 3.5em; height: 0.6em; margin-right: 0.4em; background: var(--grid, #8883);
  border-radius: 2px; overflow: hidden; }
.asng .bar span { display: block; height: 100%; background: var(--c0, #0072b2); }
"""


class Html(str):
    """Text that is HTML already."""


def element(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element; `class_` is the attribute class, and `aria_label` is aria-label. None and False are left out.

    >>> element("a", "x < y", Html("<br>"), class_="link", href='"')
    '<a class="link" href="&quot;">x &lt; y<br></a>'
    """
    shown = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    pairs = [
        f" {key}" if value is True else f' {key}="{to_html(value)}"'
        for key, value in shown.items()
        if value is not None and value is not False
    ]
    start = f"<{name}{''.join(pairs)}>"
    return Html(start if name in VOID else f"{start}{join(children)}</{name}>")


def join(parts: Iterable[Any]) -> Html:
    """Parts one after the other; None is left out."""
    return Html("".join(to_html(part) for part in parts if part is not None))


def to_html(value: Any) -> Html:
    """Text without control characters and invisible ones, escaped."""
    return value if isinstance(value, Html) else Html(escape(clean(value)))


def clean(value: Any) -> str:
    """One line of at most 300 characters, whatever is in a value; control and invisible characters become escapes.

    >>> clean("a\\n\\u202eb")
    'a\\\\n\\\\u202eb'
    """
    return escape_controls(shorten(value, str, MAX_TEXT, "…"))


def script_json(data: Any) -> Html:
    """JSON for a script element; no text in it can end the element."""
    return Html(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def format_number(value: Any) -> str:
    """A number with four significant digits, integers whole; any other value as text.

    >>> [format_number(x) for x in (39000, 0.123456, 12345.678, 1e-7, True, None, [1, 2], {"mean_cost": 0.5})]
    ['39,000', '0.1235', '12,346', '1e-07', 'yes', 'none', '1, 2', 'mean cost 0.5']
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return clean(f"{value:,}") if abs(value) < 10**15 else clean(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if math.isfinite(value) and 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, dict):
        value = [f"{str(name).replace('_', ' ')} {_format_item(each)}" for name, each in list(value.items())[:50]]
    if isinstance(value, list):
        return clean(", ".join(map(_format_item, value[:50]))) if value else "none"
    return clean(value)


def _format_item(value: Any) -> str:
    return clean(value) if isinstance(value, (dict, list)) else format_number(value)


def format_duration(seconds: float) -> str:
    """Seconds in the two largest units that matter.

    >>> [format_duration(seconds) for seconds in (0.1234, 9.96, 75, 870.6, 5025, 200_000)]
    ['0.12 s', '10 s', '1 min 15 s', '14 min 31 s', '1 h 24 min', '2 d 8 h']
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.5 else f"{seconds:.0f} s"
    units = [(1, "s", 60, "min"), (60, "min", 60, "h"), (3600, "h", 24, "d")]
    size, small, factor, large = units[0] if seconds < 3600 else units[1] if seconds < 86400 else units[2]
    whole, rest = divmod(round(seconds / size), factor)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def round_number(value: float) -> float:
    """A number as it is given to the page: six significant digits."""
    return float(f"{value:.6g}")


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]], caption: str, **attributes: Any) -> Html:
    """A table, with a caption one that scrolls sideways; the first cell of a row is its heading."""
    cells = [element("th", cell, scope="col") for cell in head]
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    inner = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", element("tr", *cells)),
        element("tbody", *body),
        **attributes,
    )
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption) if caption else inner


def probability_bars(parameters: Mapping[str, float], value: Any) -> Html | str:
    """The probabilities of choices as bars, the chosen one in bold; of a number its mean and standard deviation."""
    if is_normal(parameters):
        return f"mean {format_number(parameters['mean'])}, standard deviation {format_number(parameters['std'])}"
    if not all(isinstance(number, int | float) for number in parameters.values()):  # of a family of the user's own
        return ", ".join(map(clean, parameters.values()))
    bars = []
    for choice, probability in list(parameters.items())[:MAX_BARS]:
        width = f"width:{100 * min(max(probability, 0.0), 1.0):.1f}%"
        bar = element("span", element("span", style=width), class_="bar", aria_hidden="true")
        label = element("b", choice) if choice == str(value) else choice
        bars.append(element("li", bar, label, f" {probability:.3f}"))
    return element("ul", *bars, class_="bars") if bars else ""


def is_normal(parameters: Mapping[str, float]) -> bool:
    """Whether the parameters of a decision are a mean and a standard deviation."""
    return parameters.keys() == {"mean", "std"}


def decisions_table(
    values: Mapping[str, Any], distribution: Mapping[str, Mapping[str, float]], inactive: Collection[str], caption: str
) -> Html:
    """A row for each decision: its value, and how likely the choices are."""
    rows: list[list[Any]] = []
    for name, value in values.items():
        shown = format_number(value) + (" (no effect)" if name in inactive else "")
        rows.append([name, shown, *([probability_bars(distribution.get(name, {}), value)] if distribution else [])])
    return table(["decision", "value", *(["probabilities"] if distribution else [])], rows, caption, class_="texts")


def rows_table(rows: Iterable[Iterable[Any]]) -> Html:
    """Rows as a table for a notebook; the first row is the head.

    >>> rows_table([("a", "b"), ("x < y", "c")])
    '<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>x &lt; y</td><td>c</td></tr></tbody></table>'
    """
    head, *body = rows
    lines = [element("tr", *(element("td", cell) for cell in row)) for row in body]
    cells = (element("th", cell) for cell in head)
    return element("table", element("thead", element("tr", *cells)), element("tbody", *lines))


def notebook(*children: Any) -> str:
    """The HTML of `_repr_html_`: elements with the style of reports' tables, light or dark as the notebook is."""
    return element("div", Html(f"<style>{TABLE_STYLE}</style>"), *children, class_="asng")
