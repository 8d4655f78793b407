"""Say whether the version, the changelog and the citation agree, and with a tag whether they are ready for it.

python .github/release_check.py           while the changelog's section may still be called unreleased
python .github/release_check.py v0.1.0    for a release: the section has a date, and the tag is the version
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def find_faults(version: str, changelog: str, citation: str, tag: str | None = None) -> list[str]:
    """What does not agree, a line each."""
    found = []
    sections = dict(re.findall(r"^## \[([^]]+)\](?: - (\S+))?$", changelog, flags=re.MULTILINE))
    cited = re.search(r"^version: (\S+)$", citation, flags=re.MULTILINE)
    if version not in sections:
        found.append(f"CHANGELOG.md has no section ## [{version}]; asng/__init__.py says {version}")
    if cited is None or cited[1] != version:
        found.append(f"CITATION.cff says version {cited and cited[1]}; asng/__init__.py says {version}")
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is {tag}; asng/__init__.py says {version}, so it must be v{version}")
    date = sections.get(version, "")
    if tag is not None and version in sections and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        found.append(f"CHANGELOG.md dates {version} {date!r}; give it the day of the release, as 2030-12-31")
    return found


if __name__ == "__main__":
    text = (ROOT / "asng" / "__init__.py").read_text(encoding="utf-8")
    (number,) = re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff")]
    sys.exit("\n".join(find_faults(number, *pages, *sys.argv[1:2])) or None)
