"""Picture grids of runs: PNG files that a page may hold.

These are `restored-NAME.png`, which `asng inpainting evaluate --pictures` makes of a folder of yours, and all in the
folder `pictures` of a run. `restored.png` shows faces of the data, and CelebA's terms forbid to pass these on: it is
named, and not embedded.
"""

import base64
from collections.abc import Iterable
from pathlib import Path

from asng._html import Html, element
from asng._untrusted import read_bytes

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PICTURE = 300_000  # of a picture
MAX_TOTAL = 900_000  # of those of a page


def draw_pictures(folders: Iterable[Path]) -> list[Html]:
    """Figures of the pictures of runs, as far as there is room for them."""
    figures, left = [], MAX_TOTAL
    for folder in folders:
        for path in [*sorted(folder.glob("restored-*.png")), *sorted(folder.glob("pictures/*.png"))][:50]:
            try:
                content = read_bytes(path)
            except (ValueError, OSError):
                continue
            if why := _reason(path, content, left):
                figures.append(element("p", f"{path} is not embedded: {why}.", class_="hint"))
                continue
            left -= len(content)
            source = Html(f"data:image/png;base64,{base64.b64encode(content).decode()}")
            image = element("img", src=source, alt=f"{path.stem.replace('-', ' ')}, a grid of pictures of this run")
            figures.append(element("figure", image, element("figcaption", path.name), class_="picture"))
        if (folder / "restored.png").exists():
            why = "it shows faces of the data, and the terms of CelebA forbid to pass its images on"
            figures.append(element("p", f"{folder / 'restored.png'} is not embedded: {why}.", class_="hint"))
    return figures


def _reason(path: Path, content: bytes, left: int) -> str:
    """Why a picture cannot be in a page; empty if it can."""
    if not content.startswith(SIGNATURE):
        return "it is not a PNG file"
    if "celeba" in path.name.lower():
        return "the terms of CelebA forbid to pass its images on"
    if len(content) > min(MAX_PICTURE, left):
        return f"it has {len(content):,} bytes, and a page may have {MAX_PICTURE:,} for one and {MAX_TOTAL:,} for all"
    return ""
