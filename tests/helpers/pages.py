"""The pages of the documentation, and their code."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = DOCS / "recipes.md"


def blocks_of(page: str) -> list[str]:
    """The Python blocks of a page; blocks that name another library beside `python` are run where it is installed."""
    return re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def run_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is defined after all blocks of a page have run, one after another, in an empty folder."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec("\n".join(blocks_of(page)), names)
    return names
