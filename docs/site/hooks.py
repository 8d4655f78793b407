"""What MkDocs does not do by itself: pages from files outside of docs/, MathML, and the help texts of the commands.

The pages stay plain Markdown, which also reads well in a repository's browser.
"""

import contextlib
import html
import io
import json
import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert as to_mathml
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Pages of the site that are files elsewhere in the repository.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOK = ROOT / "examples" / "first_search.ipynb"
EXTERNAL: set[str] = set()


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the project, the examples and the notebook."""
    pages = {page: (ROOT / path).read_text(encoding="utf-8") for path, page in PAGES.items()}
    pages |= {"examples.md": examples_page(), "notebook.md": notebook_page()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def examples_page() -> str:
    parts = [
        "---\nsearch: { boost: 0.2 }\n---\n",
        "# Examples\n",
        "Each of these scripts runs as it stands, also in the tests.\n",
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8").strip()
        parts.append(f"## {path.name} {{ #{path.stem} }}\n\n```python\n{source}\n```\n")
    return "\n".join(parts)


def notebook_page() -> str:
    """The cells of the notebook, which is stored without outputs."""
    shown = []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        shown.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(shown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ to pages of the site, and fill in the help texts."""
    in_root = page.file.src_uri in PAGES.values()

    def rewritten(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = os.path.normpath(target if in_root else f"docs/{target}")
        if path.startswith("docs/"):
            return f"[{text}]({path.removeprefix('docs/')})"
        if path in PAGES:
            return f"[{text}]({PAGES[path]})"
        if path == "examples/first_search.ipynb":
            return f"[{text}](notebook.md)"
        if re.fullmatch(r"examples/\w+\.py", path):
            return f"[{text}](examples.md#{Path(path).stem})"
        return f"`{path}`"  # data of the repository, which the site does not have

    if page.file.src_uri == "commands.md":
        markdown = re.sub(r"<!--.*-->", all_commands(), markdown)
    markdown = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)\s]+)\)", rewritten, markdown)
    # A word behind the language says what a block needs to run; superfences would not see a block.
    markdown = re.sub(r"^```python \w+$", "```python", markdown, flags=re.MULTILINE)
    return re.sub(r"^\$ asng ([^\n]*--help)$", help_text, markdown, flags=re.MULTILINE)


def all_commands() -> str:
    from asng.cli import commands

    return "\n\n".join(f"### asng {name}\n\n```console\n$ asng {name} --help\n```" for name in commands())


def help_text(match: re.Match[str]) -> str:
    """A command and what it prints, called in this process, since every process imports torch for seconds."""
    from asng.cli import main

    os.environ |= {"COLUMNS": "84", "NO_COLOR": "1", "TERM": "dumb"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(match[1].split())
    if len(printed.getvalue()) < 100:
        raise PluginError(f"asng {match[1]} printed no help: {printed.getvalue()!r}")
    return f"{match[0]}\n{printed.getvalue().strip()}"


def on_page_content(content: str, **_: Any) -> str:
    """Render formulas as MathML, which browsers show without scripts and fonts of ours; note links to other hosts."""
    EXTERNAL.update(re.findall(r'href="(https?://[^"]+)"', content))
    pattern = r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>'

    def formula(match: re.Match[str]) -> str:
        return to_mathml(html.unescape(match[2]), display="block" if match[1] == "div" else "inline")

    return re.sub(pattern, formula, content, flags=re.DOTALL)


def on_post_build(config: Any) -> None:
    """List the links to other hosts, which nobody fetches here, beside the site."""
    listed = Path(config.site_dir).parent / "external-links.txt"
    listed.write_text("".join(f"{link}\n" for link in sorted(EXTERNAL)), encoding="utf-8")
