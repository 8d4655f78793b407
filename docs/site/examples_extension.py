"""Examples in docstrings stand at their ends without a heading; the API reference gives them one."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Puts all lines from the first `>>>` on into a section Examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            lines = obj.docstring.value.splitlines()
            first = next((index for index, line in enumerate(lines) if line.startswith(">>>")), len(lines))
            if first < len(lines):
                section = ["Examples:", *(f"    {line}" for line in lines[first:])]
                obj.docstring.value = "\n".join([*lines[:first], *section])
