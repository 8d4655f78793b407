"""Make the relative links of README.md absolute, in place: PyPI shows the page without the repository around it.

python .github/absolute_links.py https://github.com/OWNER/NAME v0.1.0
"""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def absolute_links(text: str, repository: str, tag: str) -> str:
    """The text with links to files of the repository at a tag; pictures lead to their bytes.

    >>> absolute_links("![a](docs/a.png) [b](docs/b.md#c) [d](#e) [f](https://g.h)", "https://host/me/it", "v1")
    '![a](https://host/me/it/raw/v1/docs/a.png) [b](https://host/me/it/blob/v1/docs/b.md#c) [d](#e) [f](https://g.h)'
    """

    def replace(match: re.Match[str]) -> str:
        kind = "raw" if match["picture"] else "blob"
        return f"{match['picture']}[{match['words']}]({repository}/{kind}/{tag}/{match['path']})"

    return re.sub(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)\s]+)\)", replace, text)


if __name__ == "__main__":
    README.write_text(absolute_links(README.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
