"""The documentation site as `make docs` builds it: complete, linked, and read from files without a network.

The environment variable ASNG_SITE names its folder, so that a site of yesterday is not tested by accident.
"""

import os
import re
import shutil
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import asng
from asng import fused, nas, report
from asng.cli import commands

ROOT = Path(__file__).parents[2]
SITE = (ROOT / os.environ.get("ASNG_SITE", "not built")).resolve()
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGES = sorted(path for path in SITE.glob("*.html") if path.stem != "404")
PUBLIC = {module.__name__: module.__all__ for module in (asng, nas, fused, report)}

pytestmark = [pytest.mark.long, pytest.mark.skipif(not PAGES, reason="make docs builds the site")]


def text_of(name: str) -> str:
    return (SITE / f"{name}.html").read_text(encoding="utf-8")


def test_every_page_of_the_documentation_is_there():
    generated = {"changelog", "contributing", "examples", "notebook"}
    assert {path.stem for path in PAGES} == {path.stem for path in (ROOT / "docs").glob("*.md")} | generated


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_explains_every_public_name(module):
    anchors = set(re.findall(r'id="([\w.]+)"', text_of("api")))
    names = {f"{module}.{name}" for name in PUBLIC[module]}
    hidden = {name for name in names if f"{name}.{name.split('.')[-1]}" in anchors}  # behind a module of that name
    assert names - hidden <= anchors


def test_examples_of_docstrings_are_code():
    assert re.search(r'<span class="gp">&gt;&gt;&gt; ?</span>', text_of("api"))
    assert "&gt;&gt;&gt;" not in re.sub(r"<code>.*?</code>", "", text_of("api"), flags=re.DOTALL)


def test_every_block_of_code_is_shown_as_one():
    assert [path.name for path in PAGES if "<p>```" in path.read_text(encoding="utf-8")] == []


def test_links_lead_to_files_and_anchors_that_are_there():
    anchors = {path: set(re.findall(r'\sid="([^"]+)"', path.read_text(encoding="utf-8"))) for path in PAGES}
    missing, checked = [], 0
    for page in PAGES:
        text = re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r'\s(?:href|src)="([^"]+)"', text):
            path, _, anchor = unquote(unescape(link)).partition("#")
            if re.match(r"(?:https?|mailto|data):", path):
                continue
            target = (page.parent / path).resolve() if path else page
            checked += 1
            if not target.exists() or (anchor and target in anchors and anchor not in anchors[target]):
                missing.append((page.name, link))
    assert checked > 1000
    assert missing == []


def test_links_to_other_hosts_are_listed():
    listed = (SITE.parent / "external-links.txt").read_text(encoding="utf-8").splitlines()
    assert "https://arxiv.org/abs/1905.08537" in listed
    assert all(re.match(r"https?://\S+$", link) for link in listed)


def test_formulas_are_mathml():
    assert text_of("algorithm").count("<math") > 20
    assert not any("arithmatex" in path.read_text(encoding="utf-8") for path in PAGES)


def test_every_command_is_shown_with_its_help():
    shown = re.sub(r"<[^>]*>", "", text_of("commands"))
    assert [name for name in commands() if f"usage: asng {name} " not in shown] == []
    assert len(commands()) > 5


# In a browser, from files ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser):
    """A function that opens a page; at the end no error may have been reported, and no other host asked."""
    contexts, faults = [], []

    def open_page(path, **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.append(request.url) if "file:" not in request.url else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_a_page_asks_no_other_host_and_fits_a_phone(path, show):
    page = show(path, viewport={"width": 390, "height": 800})
    page.wait_for_timeout(300)  # for what scripts ask for after the page is loaded
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_search_works_from_files(show):
    page = show(SITE / "index.html")
    page.locator(".md-search__input").first.click()
    page.keyboard.type("recalibrate")
    for name in ("api", "export"):
        page.locator(f'.md-search-result__link[href*="{name}.html"]').first.wait_for(state="attached")
    assert "matching documents" in page.locator(".md-search-result__meta").inner_text()


def test_a_page_can_be_dark(show):
    page = show(SITE / "index.html", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).getPropertyValue('color-scheme')") == "dark"
