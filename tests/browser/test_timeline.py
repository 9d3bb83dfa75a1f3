"""The saved timeline in a browser without a network: seen, moved, read by keyboard, harmless."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.ui.made_up import event, two_steps
from workbench.ui.timeline.data import timeline_data
from workbench.ui.timeline.page import save_html, script, style

if TYPE_CHECKING:
    from tests.browser.conftest import Open, Watched

pytestmark = pytest.mark.browser

RANGE = re.compile(r"(-?[\d.]+) ms to (-?[\d.]+) ms")
SPAN = 48.0
"""Milliseconds of the slower block."""
FIRST_LANE = 26 + 24 + 15 + 11
"""Pixels from the top of the drawing to the middle of its first lane."""
COUNT = """(color) => {
  const canvas = document.querySelector("canvas"), context = canvas.getContext("2d");
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    found += data[i] === color[0] && data[i + 1] === color[1] && data[i + 2] === color[2];
  }
  return found;
}"""
LEFT = """() => {
  const canvas = document.querySelector("canvas"), context = canvas.getContext("2d");
  const y = Math.round((canvas.clientHeight - 8) * devicePixelRatio);
  const row = context.getImageData(0, y, canvas.width, 1).data;
  let x = 0;
  while (row[4 * x] === row[0] && row[4 * x + 1] === row[1]) x++;
  return x / devicePixelRatio;
}"""
"""The left end of the bar below the lanes, which is where times begin."""
BACKWARD = [0xD5, 0x5E, 0x00]
FRAMES = """
const usual = window.requestAnimationFrame.bind(window);
window.spent = [];
window.requestAnimationFrame = (paint) => usual((now) => {
  const start = performance.now();
  paint(now);
  window.spent.push(performance.now() - start);
});
"""


class Timeline:
    """A timeline on a page, as a reader meets it."""

    def __init__(self, watched: Watched) -> None:
        self.watched, self.page = watched, watched.page
        self.canvas = self.page.locator("canvas")
        self.told = self.page.get_by_role("status")
        self.settle()

    def settle(self) -> None:
        """Two frames: what was asked for is painted."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def painted(self, ground: list[int]) -> None:
        """Waits until most of the drawing has this colour."""
        for _ in range(200):
            self.settle()
            if self.page.evaluate(COUNT, ground) > 50_000:
                return
        pytest.fail(f"the ground never became {ground}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def range(self) -> tuple[float, float]:
        """Milliseconds in sight."""
        self.settle()
        found = RANGE.search(self.page.locator(".wb-timeline-range").inner_text())
        assert found
        return float(found[1]), float(found[2])

    def place(self, ms: float, y: float) -> tuple[float, float]:
        """Where a time of the made-up timeline lies on the page while all of it is in sight."""
        box = self.canvas.bounding_box()
        left, share = self.page.evaluate(LEFT), (ms + 0.005 * SPAN) / (1.01 * SPAN)
        return box["x"] + left + share * (box["width"] - left), box["y"] + y


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Measured twice as slow as predicted, 48 ms in all."""
    data = timeline_data(
        measured=two_steps(2.0), predicted=two_steps(), title="a made-up run", layers=4
    )
    return save_html(data, tmp_path / "timeline.html")


def opened(open_page: Open, path: Path, **context: Any) -> Timeline:
    return Timeline(open_page(path, **context))


def test_it_opens_offline_and_says_what_is_what(open_page: Open, saved: Path, shots: Path) -> None:
    timeline = opened(open_page, saved)
    page = timeline.page
    assert page.title() == "a made-up run"
    assert page.get_by_text("hatched: simulated").is_visible()
    assert page.get_by_text("filled: measured").is_visible()
    assert timeline.told.get_attribute("aria-live") == "polite"
    assert timeline.canvas.get_attribute("aria-label") == "a made-up run"
    described = timeline.canvas.get_attribute("aria-describedby").split()
    summary = page.locator(f"#{described[0]}").text_content()
    assert "predicted (simulated): 24 ms. lane compute 60 % busy, longest idle 4 ms" in summary
    assert "measured: 48 ms." in summary
    assert timeline.range() == (0, pytest.approx(48.24))
    page.screenshot(path=shots / "fit.png")
    assert (shots / "fit.png").stat().st_size > 10_000
    assert timeline.watched.left == []
    assert timeline.watched.errors == []


def test_simulated_bars_are_hatched_and_measured_ones_filled(
    open_page: Open, tmp_path: Path
) -> None:
    plain = {}
    for source in ("predicted", "measured"):
        path = save_html(timeline_data(**{source: two_steps()}), tmp_path / f"{source}.html")
        plain[source] = opened(open_page, path).page.evaluate(COUNT, BACKWARD)
    assert 0.2 * plain["measured"] < plain["predicted"] < 0.8 * plain["measured"]


def test_keys_zoom_pan_and_fit(open_page: Open, saved: Path) -> None:
    timeline = opened(open_page, saved)
    whole = timeline.range()
    timeline.canvas.focus()
    timeline.press("+", "+")
    from_ms, to_ms = timeline.range()
    assert to_ms - from_ms == pytest.approx(1.01 * 48 / 4, abs=0.01)
    timeline.press("ArrowRight")
    moved = timeline.range()
    assert moved[0] == pytest.approx(from_ms + 0.2 * (to_ms - from_ms), abs=0.01)
    timeline.press("ArrowLeft", "-")
    assert timeline.range()[1] - timeline.range()[0] == pytest.approx(1.01 * 48 / 2, abs=0.01)
    timeline.press("0")
    assert timeline.range() == whole
    timeline.press(*["-"] * 3, *["ArrowLeft"] * 3)
    assert timeline.range() == whole, "there is nothing outside the whole"


def test_the_pointer_zooms_drags_and_fits(open_page: Open, saved: Path) -> None:
    timeline = opened(open_page, saved)
    page, whole = timeline.page, timeline.range()
    x, y = timeline.place(24, FIRST_LANE)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -400)
    from_ms, to_ms = timeline.range()
    assert to_ms - from_ms < 0.6 * (whole[1] - whole[0])
    assert (from_ms + to_ms) / 2 == pytest.approx(24, abs=1), "what is pointed at stays in place"
    page.mouse.down()
    page.mouse.move(x - 200, y, steps=4)
    page.mouse.up()
    assert timeline.range()[0] > from_ms + 1
    page.mouse.dblclick(x, y)
    assert timeline.range() == whole


def test_pointing_says_what_runs_and_what_idles(open_page: Open, saved: Path) -> None:
    timeline = opened(open_page, saved)
    timeline.page.mouse.move(*timeline.place(6, FIRST_LANE))
    assert timeline.told.inner_text() == (
        "predicted (simulated): backward of layer 1, micro-batch 0 (B1.0), step 0, lane compute; "
        "starts at 4.000 ms, takes 4 ms; measured 8 ms (measured / predicted: 2.00)."
    )
    timeline.page.mouse.move(*timeline.place(1, FIRST_LANE + 22))
    assert timeline.told.inner_text() == (
        "predicted (simulated): weights of layer 1 to the device (L1), step 0, lane h2d (host to "
        "device); starts at 0.000 ms, takes 2 ms; moves 7.629 MiB at 4 GB/s; measured 4 ms "
        "(measured / predicted: 2.00)."
    )
    timeline.page.mouse.move(*timeline.place(10, FIRST_LANE))
    assert timeline.told.inner_text() == (
        "predicted (simulated): lane compute idle for 4 ms, from 8.000 ms to 12.000 ms, after B1.0 "
        "and before F1.0."
    )


def test_all_of_it_is_reached_with_the_keyboard(open_page: Open, saved: Path) -> None:
    timeline = opened(open_page, saved)
    page = timeline.page
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
        if page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    assert reached[:-1] == page.get_by_role("button").all_inner_texts()
    assert {"Zoom in", "Zoom out", "Fit", "Previous event", "Next event"} <= set(reached)
    timeline.press("n")
    assert "forward of layer 1, micro-batch 0 (F1.0), step 0" in timeline.told.inner_text()
    timeline.press("n")
    assert "(B1.0), step 0, lane compute; starts at 4.000 ms" in timeline.told.inner_text()
    timeline.press("o")
    assert timeline.told.inner_text() == (
        "measured: backward of layer 1, micro-batch 0 (B1.0), step 0, lane compute; starts at "
        "8.000 ms, takes 8 ms; predicted 4 ms (measured / predicted: 2.00)."
    )
    timeline.press("ArrowDown", "End")
    assert "measured: weights of layer 1 to the device (L1), step 1" in timeline.told.inner_text()
    timeline.press("n")
    assert timeline.told.inner_text().endswith("It is the lane's last event.")
    timeline.press("p", "Enter")
    assert timeline.range() == (0, pytest.approx(5 * 4 - 0.24)), "five times the event's 4 ms"
    timeline.press("Escape")
    assert timeline.told.inner_text().startswith("Point at an event")


def test_plain_keys_mean_nothing_to_the_page_around(open_page: Open, saved: Path) -> None:
    """A notebook would take them for commands on its cells."""
    timeline = opened(open_page, saved)
    timeline.page.evaluate(
        "() => { window.heard = []; document.onkeydown = (e) => window.heard.push(e.key); }"
    )
    timeline.canvas.focus()
    timeline.press("d", "d", "b", "n", "0", "Escape", "Alt+x")
    timeline.page.get_by_role("button", name="Fit").focus()
    timeline.press("b")
    assert timeline.page.evaluate("window.heard") == ["Alt", "x"]


def test_buttons_do_what_keys_do_and_find_what_idles(open_page: Open, saved: Path) -> None:
    timeline = opened(open_page, saved)
    page, whole = timeline.page, timeline.range()
    page.get_by_role("button", name="Zoom in").click()
    assert timeline.range() != whole
    page.get_by_role("button", name="Fit").click()
    assert timeline.range() == whole
    page.get_by_role("button", name="Longest idle").click()
    assert timeline.told.inner_text() == (
        "measured: lane h2d (host to device) idle for 16 ms, from 4.000 ms to 20.000 ms, after L1 "
        "and before L1."
    )
    page.get_by_role("button", name="Next event").click()
    assert "step 0" in timeline.told.inner_text()


def test_dark_and_light_are_painted_as_the_reader_has_them(
    open_page: Open, saved: Path, shots: Path
) -> None:
    timeline = opened(open_page, saved, color_scheme="dark")
    timeline.painted([0x11, 0x14, 0x17])
    timeline.page.screenshot(path=shots / "dark.png")
    timeline.page.emulate_media(color_scheme="light")
    timeline.painted([255, 255, 255])


def test_a_theme_of_jupyterlab_is_taken_over(open_page: Open, saved: Path) -> None:
    timeline = opened(open_page, saved)
    timeline.page.evaluate("document.body.style.setProperty('--jp-layout-color1', 'rgb(1, 2, 3)')")
    timeline.painted([1, 2, 3])


def test_a_narrow_screen_needs_no_sideways_scrolling(
    open_page: Open, saved: Path, shots: Path
) -> None:
    timeline = opened(open_page, saved, viewport={"width": 360, "height": 640})
    width = timeline.page.evaluate("document.documentElement.scrollWidth")
    timeline.page.screenshot(path=shots / "narrow.png", full_page=True)
    assert width <= 360
    assert timeline.canvas.bounding_box()["width"] > 300


def test_one_rank_can_be_shown_alone(open_page: Open, tmp_path: Path) -> None:
    ranks = [replace(e, rank=rank) for rank in (0, 1) for e in two_steps()]
    path = save_html(timeline_data(measured=ranks), tmp_path / "ranks.html")
    timeline = opened(open_page, path)
    tall = timeline.canvas.bounding_box()["height"]
    timeline.page.get_by_label("Rank shown").select_option("rank 1")
    assert timeline.canvas.bounding_box()["height"] < tall - 3 * 22
    timeline.canvas.focus()
    timeline.press("n")
    assert "rank 1, lane compute" in timeline.told.inner_text()


def test_hostile_text_does_nothing_and_is_read_as_it_is(open_page: Open, tmp_path: Path) -> None:
    evil = '</script><img src=x onerror="window.broken=1"><script>window.broken=1</script>\x1b[2J'
    shown = evil.replace("\x1b", "\\x1b")
    bad = replace(event("F1.0"), name=evil)
    data = timeline_data(measured=[bad, event("B1.0", start=1, end=2)], title=evil, notes=[evil])
    timeline = opened(open_page, save_html(data, tmp_path / "evil.html"))
    page = timeline.page
    timeline.canvas.focus()
    timeline.press("n")
    assert f"({shown})" in timeline.told.inner_text()
    assert page.title() == shown
    assert page.get_by_text(shown, exact=True).count() == 2
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert page.evaluate("window.broken") is None
    assert timeline.watched.left == []
    assert timeline.watched.errors == []


def test_twenty_thousand_events_are_moved(
    open_page: Open, tmp_path: Path, shots: Path, answered
) -> None:
    def run(slower: float) -> list:
        return [
            replace(e, step=step, start_s=e.start_s + step * 0.024, end_s=e.end_s + step * 0.024)
            for step in range(1250)
            for e in two_steps(slower)
        ]

    data = timeline_data(measured=run(1.1), predicted=run(1.0))
    assert sum(len(block["events"]["start"]) for block in data["blocks"]) == 20_000
    timeline = opened(open_page, save_html(data, tmp_path / "large.html"), before=FRAMES)
    timeline.page.evaluate("window.spent.length = 0")
    timeline.page.mouse.move(*timeline.place(24, FIRST_LANE))
    for _ in range(15):
        timeline.page.mouse.wheel(0, -200)
        timeline.settle()
    for ms in timeline.page.evaluate("window.spent"):
        if ms > 0.2:  # the others paint nothing
            answered.enter("timeline: a frame of 20,000 events, 60 a second", 0.016, ms / 1000)
    from_ms, to_ms = timeline.range()
    assert 0 < to_ms - from_ms < 30_000 / 100
    timeline.page.screenshot(path=shots / "large.png")


def test_a_widget_shows_new_data_and_leaves_nothing_behind(open_page: Open, tmp_path: Path) -> None:
    """The module as a notebook calls it: `render` with a model, and what it returns."""
    first = timeline_data(measured=two_steps(), title="first")
    second = timeline_data(predicted=two_steps(), title="second")
    page_of = f"<style>{style()}</style><div id=el></div><script type=module>{script()}\n"
    path = tmp_path / "widget.html"
    path.write_text(page_of + "window.start = (model, el) => render({ model, el });</script>")
    page = open_page(path).page
    page.wait_for_function("window.start !== undefined")
    page.evaluate(
        """([first, second]) => {
          const heard = new Set();
          const model = { data: first, get: (name) => model[name],
            on: (name, act) => heard.add(act), off: (name, act) => heard.delete(act) };
          const close = window.start(model, document.getElementById("el"));
          window.change = () => { model.data = second; heard.forEach((act) => act()); };
          window.close = () => { close(); return heard.size; };
        }""",
        [first, second],
    )
    assert page.get_by_label("first", exact=True).count() == 1
    page.evaluate("window.change()")
    assert page.get_by_label("first", exact=True).count() == 0
    assert page.get_by_label("second", exact=True).count() == 1
    assert page.evaluate("window.close()") == 0
    assert page.locator("canvas").count() == 0


def test_a_request_would_be_seen(open_page: Open, tmp_path: Path) -> None:
    """The watch itself: without it, no other test here could fail for a request."""
    path = tmp_path / "asks.html"
    path.write_text('<img src="http://198.51.100.7/a.png"><img src="other-file.png">')
    watched = open_page(path)
    assert sorted(url.rpartition("/")[2] for url in watched.left) == ["a.png", "other-file.png"]
