"""Reports in a browser: Chromium, driven by Playwright; skipped where either is missing.

axe-core, an npm package, looks for what keeps people out; the environment variable AXE_CORE names its axe.min.js.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from asng import report
from tests.helpers.report_pages import SEEDS, values_of, write_run

playwright = pytest.importorskip("playwright.sync_api")
Image = pytest.importorskip("PIL.Image")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(os.environ.get("AXE_CORE", ".venv/node_modules/axe-core/axe.min.js"))

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


HOSTILE = "</script><script>window.harm = 1</script><img src=x onerror='window.harm = 1'>\"' onfocus='window.harm = 1"
TREE = [
    {"name": "rate", "range": [0.001, 0.1], "log": True},
    {"name": "depth", "range": [1, 3], "inside": {"1": [{"name": "op", "inside": {"conv": [{"name": "width"}]}}]}},
]


def hostile_run(folder):
    """A run of which every file holds markup wherever a text can be."""
    distribution = {HOSTILE: {HOSTILE: 0.5, "b": 0.5}, "op": {"conv": 0.5, HOSTILE: 0.5}}
    records = [{"epoch": epoch, f"train_{HOSTILE}": 0.5, "distribution": distribution} for epoch in (1, 2)]
    front = {"measures": [HOSTILE], "points": [{"score": 1, "costs": [2], "values": {HOSTILE: HOSTILE}}]}
    summary = {
        "machine": HOSTILE,
        HOSTILE: HOSTILE,
        "inactive": [HOSTILE],
        "front": front,
        "limits": [{"name": HOSTILE}],
    }
    summary["tree"] = [{"name": "op", "inside": {HOSTILE: [{"name": HOSTILE}]}}]
    config = {"experiment": HOSTILE, "kind": HOSTILE, HOSTILE: HOSTILE, "seed": HOSTILE}
    run = write_run(
        folder, config, records, architecture=values_of(**{HOSTILE: HOSTILE, "op": "conv"}), summary=summary
    )
    (run / "results.jsonl").write_text(json.dumps({"kind": HOSTILE, HOSTILE: 1.0}) + "\n")
    return run


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Paths of pages of all kinds."""
    folder = tmp_path_factory.mktemp("pages")
    distribution = {
        "op": {"conv": 0.5, "skip": 0.5},
        "width": {"mean": 8.0, "std": 2.0},
        "rate": {"mean": 0.01, "std": 1.0},
    }
    records = [
        {
            "epoch": epoch,
            "train_loss": 1 / epoch,
            "valid_loss": 2 / epoch,
            "distribution": distribution,
            "seconds": 60.0,
        }
        for epoch in range(1, 9)
    ]
    points = [{"score": 1 / cost, "costs": [cost], "values": {"width": cost}} for cost in (1, 2, 4)]
    others = [{"score": 1.5, "costs": [3]}]
    summary = {"tree": TREE, "front": {"measures": ["parameters"], "points": points, "others": others}}
    architecture = values_of(op="conv", width=8, depth=2, rate=0.01)
    small = write_run(folder / "small", records=records, architecture=architecture, summary=summary)
    hostile = hostile_run(folder / "hostile")
    empty = write_run(folder / "empty")
    folders = {"seeds": SEEDS, "one": SEEDS[:1], "small": [small], "empty": [empty]}
    folders |= {"hostile": [hostile], "mixed": [small, hostile, *SEEDS[:1]]}
    return {name: report.write(runs, folder / f"{name}.html") for name, runs in folders.items()}


@pytest.fixture
def show(browser, pages):
    """A function that opens a page; at the end nothing may have been reported on the console."""
    contexts, messages = [], []

    def open_page(name, **options):
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: messages.append(request.url) if "file:" not in request.url else None)
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert messages == []


def chart(page, title):
    return page.locator("figure.chart", has=page.get_by_role("heading", name=title, exact=True))


@pytest.mark.parametrize("name", ["seeds", "one", "small", "empty", "hostile", "mixed"])
def test_a_page_draws_all_of_its_charts_without_errors(name, show):
    page = show(name)
    count = page.locator("figure.chart").count()
    assert page.locator("figure.chart .plot > svg").count() == count
    assert (count > 0) == (name != "empty")
    assert page.evaluate("window.harm") is None
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0
    assert page.evaluate("[...document.querySelectorAll('path.curve')].every(p => !/NaN|Infinity/.test(p.outerHTML))")


def test_cells_are_seen(show):
    cells = show("one").locator("figure.graph svg")
    assert cells.count() == 2
    assert all(cells.nth(index).bounding_box()["width"] > 200 for index in range(2))


def test_decisions_of_any_model_are_nested_boxes(show):
    tree = show("small").locator("section#architecture > ul.tree")
    assert tree.locator("> li > .head .name").all_inner_texts() == ["rate", "depth"]
    block = tree.locator(".part", has_text="block 1").first
    assert block.get_by_text("width", exact=True).is_visible()
    outer, inner = tree.locator("> li").nth(1).bounding_box(), block.bounding_box()
    assert outer["x"] < inner["x"] < inner["x"] + inner["width"] < outer["x"] + outer["width"]


def test_a_front_tells_the_architecture_of_a_point(show):
    front = chart(show("small"), "Score over parameters")
    assert front.locator("circle.dot:not(.faint)").count() == 3
    assert front.locator("circle.dot.faint").count() == 1
    front.locator(".plot").focus()
    front.page.keyboard.press("End")
    assert front.locator("output").text_content() == "parameters 4, front 0.25: width 4"


def test_a_switch_shows_one_run_at_a_time_and_print_shows_all(show):
    page = show("seeds")
    panels = page.locator("section#architecture [data-run]")
    assert [panels.nth(index).is_visible() for index in range(3)] == [True, False, False]
    page.locator("section#architecture").get_by_role("radio", name="seed1").check()
    assert [panels.nth(index).is_visible() for index in range(3)] == [False, True, False]
    page.reload()
    assert [panels.nth(index).is_visible() for index in range(3)] == [False, True, False]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert [panels.nth(index).is_visible() for index in range(3)] == [True, True, True]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert [panels.nth(index).is_visible() for index in range(3)] == [False, True, False]


def test_links_at_the_top_lead_to_the_sections(show):
    page = show("seeds")
    for link in page.locator("nav a").all():
        link.click()
        target = page.locator(link.get_attribute("href"))
        assert 0 <= target.bounding_box()["y"] < 900


def test_a_logarithmic_variable_has_a_band_by_factors(show):
    rate = chart(show("small"), "rate")
    rate.locator(".plot").focus()
    rate.page.keyboard.press("End")
    assert rate.locator("output").text_content() == "epoch 8, mean 0.01 ×/÷ 2.718"


def test_hovering_reads_the_values_at_a_step(show):
    page = show("small")
    loss = chart(page, "Loss")
    loss.scroll_into_view_if_needed()
    box = loss.locator(".plot").bounding_box()
    assert loss.locator(".tip").is_hidden()
    page.mouse.move(box["x"] + box["width"] - 13, box["y"] + 60)
    assert loss.locator(".tip").inner_text().split("\n") == ["epoch 8", "train 0.125", "valid 0.25"]
    page.mouse.move(0, 0)
    assert loss.locator(".tip").is_hidden()


def test_an_axis_has_at_least_two_numbers(show):
    page = show("small")
    for count in (2, 3, 4):
        assert page.evaluate("count => linearTicks(390, 9750, count)", count) == [2500, 5000, 7500]
    assert page.evaluate("linearTicks(1, 8, 2)") == [2, 4, 6, 8]
    assert page.evaluate("linearTicks(0, 1, 5)") == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])


def test_dragging_zooms_and_a_double_click_shows_all(show):
    page = show("small")
    loss = chart(page, "Loss")
    plot, button = loss.locator(".plot"), loss.get_by_role("button", name="Show all")
    ticks = plot.locator("text").all_text_contents
    whole = ticks()
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 60, steps=4)
    page.mouse.up()
    assert {"1", "2"} < set(whole)
    assert {"1", "2"}.isdisjoint(ticks())
    assert button.is_visible()
    plot.dblclick()
    assert ticks() == whole
    assert button.is_hidden()


def test_keys_read_zoom_and_show_all(show):
    page = show("small")
    loss = chart(page, "Loss")
    loss.locator(".plot").focus()
    for key, reading in [("ArrowRight", "epoch 1, train 1, valid 2"), ("End", "epoch 8, train 0.125, valid 0.25")]:
        page.keyboard.press(key)
        assert loss.locator("output").text_content() == reading
    page.keyboard.press("+")
    assert loss.get_by_role("button", name="Show all").is_visible()
    page.keyboard.press("0")
    assert loss.get_by_role("button", name="Show all").is_hidden()


def test_curves_can_be_seen_against_time(show):
    page = show("small")
    page.get_by_label("time", exact=True).check()
    texts = chart(page, "Loss").locator(".plot text").all_text_contents()
    assert "minutes" in texts
    assert "8" in texts


def test_numbers_are_there_as_a_table(show):
    loss = chart(show("small"), "Loss")
    loss.get_by_text("Numbers").click()
    loss.locator("tbody tr").first.wait_for()  # filled when it was opened, which an event says later
    assert loss.locator("tbody tr").count() == 8
    assert loss.locator("tbody tr").last.locator("td").all_inner_texts() == ["480", "0.125", "0.25"]


@pytest.mark.parametrize("name", ["seeds", "small", "hostile"])
@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_need_not_scroll_sideways(name, width, show):
    page = show(name, viewport={"width": width, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_printed_pages_have_colors_of_their_own(show):
    page = show("small", color_scheme="dark")
    color = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(color) == "rgb(15, 19, 24)"
    page.emulate_media(media="print")
    assert page.evaluate(color) == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 10_000


@pytest.mark.parametrize("look", ["light", "dark", "phone", "print"])
def test_screenshots_are_made_in_which_the_main_parts_are_seen(look, show, tmp_path):
    options = {"viewport": {"width": 390, "height": 844}} if look == "phone" else {}
    page = show("one", color_scheme="dark" if look == "dark" else "light", **options)
    page.emulate_media(media="print" if look == "print" else "screen")
    page.screenshot(path=tmp_path / f"{look}.png", full_page=True)
    colors = Image.open(tmp_path / f"{look}.png").convert("RGB").getcolors(2**24)
    _, paper = max(colors)
    assert (sum(paper) < 200) == (look == "dark")
    assert len(colors) > 100  # curves, operations and text, not an empty page
    for part in ("dl.tiles", "figure.graph svg", "figure.chart path.curve", "pre"):
        assert page.locator(part).first.is_visible()


def test_a_watched_page_reloads_until_that_is_switched_off(browser, tmp_path):
    run = write_run(tmp_path / "run", records=[{"epoch": 1, "train_loss": 1.0}])
    path = report.write([run], tmp_path / "report.html", reload_every=1)
    page = browser.new_page()
    page.goto(path.as_uri())
    run = write_run(run, records=[{"epoch": epoch, "train_loss": 1.0} for epoch in (1, 2)])
    report.write([run], path, reload_every=1)
    page.get_by_text("2 of 4 epochs").wait_for(timeout=20_000)
    assert page.get_by_label("reload every 1 seconds").is_checked()
    report.write([run], path)
    page.get_by_label("reload every 1 seconds").wait_for(state="detached", timeout=20_000)
    page.close()


@pytest.mark.skipif(not AXE.is_file(), reason=f"there is no {AXE}: npm install axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["seeds", "small", "empty", "hostile"])
def test_axe_finds_no_serious_problem(name, scheme, show):
    page = show(name, color_scheme=scheme, bypass_csp=True)
    found = page.evaluate(AXE.read_text() + "; axe.run()")["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")] == []
