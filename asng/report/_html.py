"""HTML that is safe by construction: all text is escaped, unless it is `Html` already."""

import json
import math
from collections.abc import Iterable
from html import escape
from typing import Any

from asng._untrusted import printable

VOID = {"br", "input", "meta"}  # elements without an end tag
MAX_TEXT = 300  # characters of a name or a value


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
    try:
        text = str(value)
    except (RecursionError, ValueError):  # an integer of too many digits
        return f"a {type(value).__name__} that cannot be shown"
    text = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return printable(text)


def script_json(data: Any, name: str) -> Html:
    """Data for the script of the page; no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{name}">{text}</script>')


def format_number(value: Any) -> str:
    """A number with four significant digits, integers whole; any other value as text.

    >>> [format_number(x) for x in (39000, 0.123456, 12345.678, 1e-7, True, None, [1, 2])]
    ['39,000', '0.1235', '12,346', '1e-07', 'yes', 'none', '1, 2']
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return clean(f"{value:,}") if abs(value) < 10**15 else clean(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if math.isfinite(value) and 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, list):
        return clean(", ".join(clean(each) if isinstance(each, list) else format_number(each) for each in value[:50]))
    return clean(value)


def round_number(value: float) -> float:
    """A number as it is given to the page: six significant digits."""
    return float(f"{value:.6g}")


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]], caption: str, **attributes: Any) -> Html:
    """A table that scrolls sideways where it does not fit; the first cell of a row is its heading."""
    cells = [element("th", cell, scope="col") for cell in head]
    body = []
    for first, *rest in rows:
        body.append(element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest)))
    inner = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *cells)),
        element("tbody", *body),
        **attributes,
    )
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)
