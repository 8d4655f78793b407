"""Tables for notebooks."""

from collections.abc import Sequence
from html import escape


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as an HTML table, of which the first row is the head; all text is escaped.

    >>> html_table([("a", "b"), ("x < y", "c")])
    '<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>x &lt; y</td><td>c</td></tr></tbody></table>'
    """
    head, *body = rows
    lines = "".join(_row(row, "td") for row in body)
    return f"<table><thead>{_row(head, 'th')}</thead><tbody>{lines}</tbody></table>"


def _row(texts: Sequence[str], cell: str) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"
