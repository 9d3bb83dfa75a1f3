"""Sliders in a browser: the planner answers, also while a sweep runs beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.servers import Server, page
from tests.runs.helpers import left_behind, role, wait_for
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import Open

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CLOCK = """window.clock = () => {
  const slider = document.activeElement;
  const command = "pre[aria-label='command line that asks the same']";
  const read = () => [
    slider.getAttribute("aria-valuetext"), document.querySelector(command).textContent,
  ];
  const before = read();
  window.took = [null, null];
  slider.addEventListener("input", () => {
    const began = performance.now();
    const look = () => {
      read().forEach((text, n) => {
        if (text !== before[n]) window.took[n] ??= (performance.now() - began) / 1000;
      });
      if (window.took.includes(null)) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, { once: true });
};"""
"""From the slider's own event to the frame in which its value, and an answer to it, are there."""
MOVES = (
    ("layers", "ArrowRight"), ("layers", "ArrowRight"), ("batch", "ArrowLeft"),
    ("device memory", "ArrowLeft"), ("device memory", "ArrowLeft"), ("host memory", "ArrowLeft"),
    ("link speed", "ArrowLeft"), ("batch", "ArrowRight"), ("disk", "ArrowRight"),
    ("layers", "ArrowLeft"),
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("plan") / "results")


@pytest.fixture(scope="module")
def server(store: Store) -> Iterator[Server]:
    with page(store.root) as server:
        yield server
    assert left_behind(store.root) == []


@pytest.fixture
def tab(open_page: Open, server: Server) -> Page:
    """The page, with the planner asked about 100 layers of a published machine."""
    watched = open_page(server.url, before=CLOCK)
    tab = watched.page
    tab.get_by_role("tab", name="Plan", exact=True).click()
    tab.get_by_label("machine").select_option("v100-32gb")
    box = tab.get_by_label("layers, exact value")
    box.fill("100")
    box.press("Enter")
    tab.locator(".wb-answer", has_text="100 layers, 5.14 billion parameters").wait_for()
    yield tab
    assert watched.errors == []


def moved(tab: Page, slider: str, key: str) -> list[float]:
    """Seconds from a key on a slider to its value in its box, and to the planner's answer."""
    tab.get_by_role("slider", name=slider, exact=True).focus()
    tab.evaluate("window.clock()")
    tab.keyboard.press(key)
    tab.wait_for_function("!window.took.includes(null)")
    return tab.evaluate("window.took")


def test_every_slider_is_answered_in_words(tab: Page, shots: Path, answered) -> None:
    for move in MOVES:
        echo, answer = moved(tab, *move)
        answered.enter("page: a slider shows its value", 0.2, echo)
        answered.enter("page: the planner answers a slider, 100 layers", 0.3, answer)
    tab.get_by_text("Bound by").first.wait_for()
    for tier in ("device", "host"):
        tab.get_by_role("img", name=re.compile(rf"^{tier} memory: [\d.]+ GiB of ")).wait_for()
    tab.get_by_text(re.compile("Largest model under these budgets with .* layers")).wait_for()
    rows = tab.get_by_role("table", name="Which method").get_by_role("row")
    assert rows.count() >= 6
    assert rows.filter(has_text="(this answer)").count() == 1
    tab.get_by_role("application", name=re.compile(", 101 layers$")).wait_for()
    assert tab.get_by_text("hatched: simulated").count() == 1
    tab.screenshot(path=shots / "plan.png", full_page=True)
    tab.get_by_role("button", name="Use this").click()
    field = tab.get_by_label("layers", exact=True).locator("visible=true")
    tab.get_by_role("tab", name="Sweep", selected=True).wait_for()
    field.wait_for()
    assert field.input_value() == "101"


def test_sliders_answer_while_a_sweep_runs(tab: Page, store: Store, answered) -> None:
    tab.get_by_role("tab", name="Sweep", exact=True).click()
    tab.get_by_label("method", exact=True).locator("visible=true").select_option(
        label="plain torch: everything on the device, in torch alone"
    )
    tiny = {
        "layers": "2", "hidden size": "32", "attention heads": "2", "sequence length": "16",
        "vocabulary": "256", "batch": "2",
    }  # fmt: skip
    for name, text in {**tiny, "steps": "3..60"}.items():
        field = tab.get_by_label(name, exact=True).locator("visible=true")
        field.fill(text)
        field.press("Tab")
    tab.get_by_role("button", name="Start", exact=True).locator("visible=true").click()
    wait_for(lambda: role("worker", store.root))
    (campaign,) = Campaign.all(store)

    tab.get_by_role("tab", name="Plan", exact=True).click()
    for move in MOVES:
        echo, answer = moved(tab, *move)
        answered.enter("page: a slider shows its value, beside a sweep", 0.4, echo)
        answered.enter("page: the planner answers a slider, beside a sweep", 0.6, answer)
    assert campaign.status().state == "running", "all the while"

    tab.get_by_role("tab", name="Sweep", exact=True).click()
    tab.get_by_role("button", name="Cancel", exact=True).locator("visible=true").click()
    wait_for(lambda: campaign.status().state == "cancelled")
