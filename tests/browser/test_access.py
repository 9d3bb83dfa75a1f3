"""The page for everybody: names, keyboard, themes, a projector; and text that means harm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.reading import controls, outside, unnamed, walk
from tests.browser.servers import Server, page
from tests.unit.ui.made_up_records import HOSTILE, failed, fill, key_of, put, put_timeline, record
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Open

pytestmark = [pytest.mark.browser, pytest.mark.slow]
EVIL = '<img src=x onerror="alert(1)">'
READ = "</td><script>alert(1)</script><img src=x onerror=alert(2)>"
"""Readable rest of the hostile text, after all harmful parts are gone."""
PROJECTOR = {"width": 960, "height": 540}
"""1920 x 1080 at twice the size."""
TABS = {"Results": 25, "Plan": 17, "Sweep": 25, "Evaluate": 12}
"""Title -> how many controls there are at least."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Good runs, one that failed with hostile words, one of a newer version, a torn sweep."""
    store = Store(tmp_path_factory.mktemp("access") / "results")
    fill(store, 8)
    put_timeline(store, key_of(0))
    put(store, failed(100, "error", HOSTILE), log=f"first line\n{HOSTILE}\nlast line\n")
    newer = store.folder(key_of(200))
    newer.mkdir(parents=True)
    told = {**json.loads(record(200).to_json()), "schema": 99}
    (newer / "record.json").write_text(json.dumps(told))
    torn = store.root / "sweeps" / "torn"
    torn.mkdir(parents=True)
    (torn / "sweep.json").write_text('{"base": ')
    return store


@pytest.fixture(scope="module")
def server(store: Store) -> Iterator[Server]:
    with page(store.root) as server:
        yield server


def seen(found: Locator) -> Locator:
    """The first of these that is not in a tab behind."""
    return found.locator("visible=true").first


def go_to(tab: Page, title: str) -> None:
    """Open a tab, and wait for what it shows first."""
    tab.get_by_role("tab", name=title, exact=True).click()
    first = {
        "Results": tab.locator(".wb-card img"),
        "Plan": tab.get_by_text("On the device for good"),
        "Sweep": tab.get_by_label("vocabulary", exact=True),
        "Evaluate": tab.get_by_role("button", name="figure 8b: Scaling with depth"),
    }
    seen(first[title]).wait_for()


def test_all_of_it_is_named_and_reached_with_the_keyboard(
    open_page: Open, server: Server, shots: Path
) -> None:
    tab = open_page(server.url).page
    for title, at_least in TABS.items():
        go_to(tab, title)
        assert unnamed(tab, at_least) == [], title
        reached = walk(tab)
        if title == "Plan":
            sliders = controls(tab)["slider"]
            assert sliders == [
                "layers", "batch", "devices", "device memory", "host memory", "disk", "link speed",
            ]  # fmt: skip
            assert [name for name in reached if name in sliders] == sliders
        if title == "Evaluate":
            fold = seen(tab.get_by_role("button", name="figure 8b: Scaling with depth"))
            assert fold.get_attribute("aria-expanded") == "false"
            fold.focus()
            tab.keyboard.press("Enter")
            seen(tab.get_by_role("img", name=re.compile("^fig8b: "))).wait_for()
            assert fold.get_attribute("aria-expanded") == "true"
            assert unnamed(tab, at_least + 4) == []
            walk(tab)
        tab.screenshot(path=shots / f"{title}.png")
    tab.get_by_role("tab", name="Evaluate", exact=True).focus()
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("Enter")
    seen(tab.get_by_label("vocabulary", exact=True)).wait_for()


def test_light_or_dark_as_the_reader_has_it_and_nothing_is_cut_off_on_a_projector(
    open_page: Open, server: Server, shots: Path
) -> None:
    watched = open_page(server.url, color_scheme="dark", viewport=PROJECTOR)
    tab = watched.page
    ground = "() => getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor"
    words = "() => getComputedStyle(document.querySelector('.wb-panel .wb')).color"
    for title in TABS:
        go_to(tab, title)
        assert outside(tab) == [], title
        assert _light(tab.evaluate(ground)) < 0.2 < 0.7 < _light(tab.evaluate(words))
        tab.screenshot(path=shots / f"{title}-dark.png")
        tab.emulate_media(color_scheme="light")
        assert _light(tab.evaluate(words)) < 0.3 < 0.9 < _light(tab.evaluate(ground))
        tab.screenshot(path=shots / f"{title}-light.png")
        tab.emulate_media(color_scheme="dark")
    assert watched.left == [], "nothing is asked of another server"


def test_what_is_wrong_is_a_sentence_and_nothing_that_was_written_is_executed(
    open_page: Open, server: Server, store: Store, shots: Path
) -> None:
    watched = open_page(server.url)
    tab, dialogs = watched.page, []
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))

    go_to(tab, "Results")
    tab.get_by_role("row").filter(has_text="failed").click()
    log = tab.get_by_label("last lines of the log")
    log.wait_for()
    assert [line[: len(READ)] for line in log.inner_text().splitlines()] == [
        "first line", READ, "last line",
    ]  # fmt: skip
    assert f"! failed: {READ}" in tab.locator(".wb p.bad", has_text="failed:").inner_text()
    newer = tab.get_by_text("is not counted: the record has schema 99, this version reads up to 2")
    assert newer.count() == 1
    tab.get_by_label("find").fill(EVIL)
    tab.get_by_text("No run matches.").wait_for()

    go_to(tab, "Sweep")
    wrong = tab.locator(".wb-panel .wb.bad:visible")
    tab.get_by_label("show", exact=True).select_option(label="torn (new)")
    tab.get_by_text("torn: new; the sweep").wait_for()
    assert [re.sub("^.*is not", "is not", text) for text in wrong.all_inner_texts() if text] == [
        "is not JSON: Expecting value: line 1 column 10 (char 9)"
    ]
    methods = seen(tab.get_by_label("method", exact=True))
    methods.select_option(label="plain torch: everything on the device, in torch alone")
    for field, typed, said in (
        ("layers", "9..1", "layers is '9..1'; the end is below the start"),
        ("layers", EVIL, f"layers is '{EVIL}'"),
    ):
        box = seen(tab.get_by_label(field, exact=True))
        box.fill(typed)
        box.press("Tab")
        seen(wrong.filter(has_text=said)).wait_for()
        seen(tab.get_by_role("button", name="Start", exact=True, disabled=True)).wait_for()
    box.fill("-3")
    box.press("Tab")
    seen(tab.get_by_role("button", name="Start", exact=True, disabled=False)).click()
    seen(wrong.filter(has_text="layers is -3; it must be")).wait_for()
    assert [campaign.name for campaign in Campaign.all(store)] == ["torn"], "nothing was started"
    tab.screenshot(path=shots / "wrong.png")

    go_to(tab, "Plan")
    box = tab.get_by_label("layers, exact value")
    box.fill(EVIL)
    box.press("Enter")
    seen(wrong.filter(has_text=f"layers: '{EVIL}' is not a whole number.")).wait_for()
    assert box.get_attribute("aria-invalid") == "true"

    assert tab.locator("img[src=x]").count() == 0
    assert dialogs == []
    assert watched.errors == []
    assert len(store.records()) == 9, "and nothing was lost"


def _light(color: str) -> float:
    """How light a colour of CSS is, from 0 to 1."""
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", color)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
