"""The runs table as widgets, driven in this process as a page would drive it."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import ipywidgets as widgets
import pytest
from matplotlib.image import imread
from workbench.ui.runs_table_plot import Plot

from tests.runs.helpers import wait_for
from tests.unit.ui.made_up_records import (
    HOSTILE,
    failed,
    fill,
    fill_many,
    key_of,
    put,
    put_timeline,
    record,
)
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store
from workbench.ui import runs_table_panel
from workbench.ui.helper_process import HelperProcess
from workbench.ui.runs_table_panel import RunsTablePanel

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def helper() -> Iterator[HelperProcess]:
    """One process for all panels of this file."""
    process = HelperProcess()
    yield process
    process.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the folder as often as the test ticks."""
    monkeypatch.setattr(runs_table_panel, "LOOK_S", 0.02)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def panel(store: Store, helper: HelperProcess) -> Iterator[RunsTablePanel]:
    """30 good runs, and one that failed in a hostile way."""
    fill(store, 30)
    log = f"step 1\nTraceback (most recent call last):\n  File 'x'\nValueError: {HOSTILE}\n"
    started = "2026-12-01T00:00:00+00:00"
    put(store, failed(100, "error", HOSTILE, notes=[HOSTILE], started=started), log=log)
    found = RunsTablePanel(store, helper=helper)
    yield found
    found.close()


def settle(panel: RunsTablePanel) -> None:
    """Tick until everything that was asked for is shown."""
    wait_for(lambda: (panel.tick(), panel.settled)[1])


def look(panel: RunsTablePanel) -> None:
    """Tick until the folder was looked at from now on, and what follows from that is shown."""
    now = time.monotonic()
    wait_for(lambda: (panel.tick(), panel._look_at > now and panel._looking.free)[1])
    settle(panel)


class Reader(HTMLParser):
    """Elements and texts of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def everything(widget: widgets.Widget) -> Iterator[widgets.Widget]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from everything(child)


def changes(widget: widgets.Widget) -> list[str]:
    """Filled with the values that the widget is given from now on."""
    found: list[str] = []
    widget.observe(lambda change: found.append(change["new"]), "value")
    return found


def test_it_opens_on_a_page_of_the_table(panel: RunsTablePanel) -> None:
    page = Reader(panel.table.value)
    assert len(page.of("tr")) == 26
    assert len(page.of("caption")) == 1
    assert [a["scope"] for a in page.of("th")].count("row") == 25
    assert all(a["scope"] in ("row", "col") for a in page.of("th"))
    assert "31 runs: 30 ✓ ok, 1 ! failed." in Reader(panel.told.value).texts
    assert len(panel.choice.options) == 25
    assert panel.previous.disabled
    assert not panel.next.disabled


def test_hostile_text_is_text_everywhere(panel: RunsTablePanel) -> None:
    panel.choose([key_of(100)])
    panel.columns.value = ("method", "status", "message", "notes")
    panel.chosen.show_commands()
    settle(panel)
    shown = [w for w in everything(panel.widget) if isinstance(w, widgets.HTML)]
    for widget in shown:
        found = Reader(widget.value)
        assert not {"script", "img"} & {tag for tag, _ in found.elements} or widget in (
            panel.plot.picture,
        )
        assert not [name for _, a in found.elements for name in a if name.startswith("on")]
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e\ud800]", widget.value)
        json.dumps(widget.value).encode()
    details = " ".join(Reader(panel.chosen.details.value).texts)
    assert "! failed: </td><script>alert(1)</script>" in details
    assert "ValueError: </td><script>" in details
    assert "Traceback" not in details
    assert "File 'x'" not in details


def test_pages_turn_and_a_filter_narrows_or_says_what_is_wrong(panel: RunsTablePanel) -> None:
    panel.next.click()
    assert "Page 2 of 2" in panel.where.value
    assert len(Reader(panel.table.value).of("tr")) == 7
    assert panel.next.disabled
    panel.filter.value = "layers=8"
    assert "Page 1 of 1" in panel.where.value
    rows = len(Reader(panel.table.value).of("tr")) - 1
    assert rows == len(panel.runs_table.rows(panel.query)) < 25
    before = panel.table.value
    panel.filter.value = "<script>=1 'x"
    assert "a quote without its end" in Reader(panel.wrong.value).texts[0]
    settle(panel)
    assert "a quote" not in panel.plot.state.value, "it is said once on the page"
    assert panel.table.value == before
    panel.filter.value = "layers=1000"
    assert "No run matches." in panel.table.value
    panel.filter.value = ""
    panel.status.value = "error"
    assert len(panel.choice.options) == 1
    panel.sort.value = "layers"
    assert panel.query.sort == "layers"


def test_what_did_not_change_is_not_sent_and_not_drawn_again(
    panel: RunsTablePanel, helper: HelperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(panel)
    tables, pictures, ask = changes(panel.table), [], helper.ask
    monkeypatch.setattr(
        helper, "ask", lambda what, **data: pictures.append(what) or ask(what, **data)
    )
    look(panel)
    assert (tables, pictures) == ([], [])
    old = record(29, notes=["seen again"])  # on the second page, and the plot does not show notes
    put(panel.runs_table.store, old)
    look(panel)
    assert (tables, pictures) == ([], [])
    assert panel.runs_table.row(old.key)["notes"] == "seen again"
    put(panel.runs_table.store, record(200, started="2026-12-24T00:00:00+00:00", layers=64))
    look(panel)
    assert len(tables) == len(pictures) == 1
    assert key_of(200) in tables[0]
    assert "32 runs" in panel.told.value
    panel.next.click()
    look(panel)
    assert len(pictures) == 1, "the plot is of all pages"


def test_the_plot_is_a_picture_with_words(panel: RunsTablePanel) -> None:
    settle(panel)
    (picture,) = Reader(panel.plot.picture.value).of("img")
    assert picture["alt"].startswith("throughput (samples/s) over layers, points, 30 runs")
    assert "1 run without a result at the edge" in picture["alt"]
    data = base64.b64decode(picture["src"].removeprefix("data:image/png;base64,"))
    height, width, _ = imread(io.BytesIO(data)).shape
    assert 1000 <= width <= 1100
    assert height < width


def test_the_plot_follows_its_controls(panel: RunsTablePanel) -> None:
    settle(panel)
    first = panel.plot.picture.value
    plot = Plot(x="layers", y="step_seconds", colour="layers", facet="method", kind="lines",
                log_y=True)  # fmt: skip
    panel.plot.show(plot)
    settle(panel)
    assert panel.plot.plot == plot
    assert panel.plot.order["plot"]["facet"] == "method"
    assert panel.plot.picture.value != first
    panel.plot.fields["y"].value = "method"
    assert panel.plot.logs["y"].value
    assert not panel.plot.plot.log_y, "words have no logarithm"
    names = [name for _, name in panel.plot.fields["x"].options]
    assert names.index("layers") < names.index("heads"), "fields that vary come first"
    with pytest.raises(ValueError, match="no record has"):
        panel.plot.show(Plot(x="speed", y="layers"))


def test_two_runs_are_compared_when_two_are_chosen(panel: RunsTablePanel) -> None:
    chosen = panel.chosen
    assert chosen.compare.disabled
    assert chosen.timeline.disabled
    panel.choose([key_of(3), key_of(100)])
    assert not chosen.compare.disabled
    chosen.compare.click()
    settle(panel)
    (shown,) = chosen.shown.children
    found = Reader(shown.value)
    captions = {"Settings that differ", "Results", "Bytes moved in a step"}
    assert captions <= set(found.texts)
    assert found.of("img")[0]["alt"]
    assert any("B: it made no step" in text for text in found.texts)
    chosen.pair.click()
    settle(panel)
    folder = panel.runs_table.store.root / "reports" / "board"
    assert {path.suffix for path in folder.iterdir()} == {".csv", ".pdf", ".png"}


def test_choices_survive_turning_the_page_and_end_with_their_record(panel: RunsTablePanel) -> None:
    first = panel.choice.options[0][1]
    panel.choice.value = (first,)
    assert "chosen" in panel.table.value
    panel.next.click()
    assert panel.choice.options[0][0].startswith("chosen: ")
    other = panel.choice.options[1][1]
    panel.choice.value = (first, other)
    assert panel.chosen.chosen == (first, other)
    shutil.rmtree(panel.runs_table.store.folder(first))
    look(panel)
    assert panel.chosen.chosen == panel.choice.value == (other,)
    with pytest.raises(ValueError, match="no key of a run"):
        panel.choose([".."])


def test_a_timeline_is_shown_or_why_there_is_none(panel: RunsTablePanel) -> None:
    put_timeline(panel.runs_table.store, key_of(0))
    panel.choose([key_of(0)])
    panel.chosen.timeline.click()
    settle(panel)
    (timeline,) = panel.chosen.shown.children
    assert [block["source"] for block in timeline.data["blocks"]] == ["measured"]
    panel.choose([key_of(100)])
    panel.chosen.timeline.click()
    settle(panel)
    assert "kept no timeline" in panel.chosen.state.value


def test_exports_lie_in_the_results_folder_under_the_name_that_was_given(
    panel: RunsTablePanel,
) -> None:
    settle(panel)
    panel.filter.value = "status=ok"
    panel.chosen.name.value = "../../evil"
    panel.chosen.csv.click()
    assert "cannot name an export" in panel.chosen.state.value
    panel.chosen.name.value = "mine"
    for button in (panel.chosen.csv, panel.chosen.figure):
        button.click()
        settle(panel)
        assert "Written to reports/board in the results folder" in panel.chosen.state.value
        if button is panel.chosen.csv:
            exported = (panel.runs_table.store.root / "reports/board/mine.csv").read_text()
            assert exported.count("\n") == 31
    folder = panel.runs_table.store.root / "reports" / "board"
    assert sorted(p.name for p in folder.iterdir()) == ["mine.csv", "mine.pdf", "mine.png"]


def test_commands_of_runs_and_sweeps_are_shown(panel: RunsTablePanel) -> None:
    panel.chosen.commands.click()
    assert "Choose a run" in panel.chosen.state.value
    Campaign.create(panel.runs_table.store, {"name": "grid", "base": {"method": "l2l"}})
    panel.choose([key_of(2)])
    panel.chosen.commands.click()
    (shown,) = panel.chosen.shown.children
    text = " ".join(Reader(shown.value).texts)
    assert "workbench run --method" in text
    assert "papermill notebooks/sweep.ipynb" in text
    assert "workbench sweep" in text


def test_problems_are_sentences_and_the_rest_is_shown(panel: RunsTablePanel) -> None:
    path = put(panel.runs_table.store, record(60))
    path.write_text('{"schema": 99}')
    look(panel)
    assert "1 cannot be read, see below" in panel.told.value
    assert f"runs/{key_of(60)}/record.json is not counted" in panel.problems.value
    path.unlink()
    look(panel)
    assert panel.problems.value == ""


def test_an_empty_folder_waits_for_its_first_run(store: Store, helper: HelperProcess) -> None:
    panel = RunsTablePanel(store, helper=helper)
    settle(panel)
    assert "No run yet." in panel.table.value
    assert panel.plot.plot is None
    put(store, record(1))
    look(panel)
    assert "1 run: 1 ✓ ok." in panel.told.value
    assert Reader(panel.plot.picture.value).of("img")
    panel.close()
    assert not store.runs.parent.joinpath("reports").exists(), "looking writes no report"


def test_every_control_has_a_label_and_a_tooltip(panel: RunsTablePanel) -> None:
    kinds = (widgets.Button, widgets.Text, widgets.Dropdown, widgets.SelectMultiple,
             widgets.Checkbox)  # fmt: skip
    controls = [w for w in everything(panel.widget) if isinstance(w, kinds)]
    assert len(controls) > 20
    assert all(control.description and control.tooltip for control in controls)
    for widget in (panel.told, panel.wrong, panel.where, panel.plot.state, panel.chosen.state):
        assert Reader(widget.value).elements[0][1]["role"] == "status"


OPEN = """
import asyncio, sys, time
began = time.perf_counter() - time.clock_gettime(time.CLOCK_BOOTTIME) + float(sys.argv[2])
from contextlib import suppress
import psutil
from workbench.runs.store import Store
from workbench.ui.runs_table_panel import RunsTablePanel

def mebibytes():
    me = psutil.Process()
    found = 0
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # what two share counts once
            found += process.memory_full_info().pss
    return found / 2**20

async def settled(panel):
    most, late, looks = 0.0, 0.0, 0
    while not panel.settled:
        asked = time.perf_counter()
        await asyncio.sleep(0.01)
        late = max(late, time.perf_counter() - asked)
        if looks % 20 == 0:  # each goes through all that the processes map
            most = max(most, mebibytes())
        looks += 1
    return max(most, mebibytes()), late

async def main():
    panel = RunsTablePanel(Store(sys.argv[1]))
    opened = time.perf_counter() - began
    assert panel.table.value.count("<tr") == 26, panel.table.value[:300]
    before = await settled(panel)
    assert "10,000 runs: 10,000" in panel.told.value, panel.told.value
    assert "10,000 runs" in panel.plot.state.value, panel.plot.state.value
    sent = len(panel.table.value) + len(panel.plot.picture.value)
    heavy = [name for name in ("pandas", "matplotlib", "torch") if name in sys.modules]
    panel.filter.value = "layers>=16"
    most, late = map(max, before, await settled(panel))
    panel.close()
    print(opened, most, late, sent, heavy)

asyncio.run(main())
"""


def opened(store: Store) -> tuple[list[float], str]:
    """A process of its own, without the index's cache: seconds from its start to the first table,
    MiB, the longest that anything else had to wait, bytes sent; and what is heavy in the kernel."""
    (store.root / ".index.sqlite").unlink(missing_ok=True)
    started = str(time.clock_gettime(time.CLOCK_BOOTTIME))
    words = [sys.executable, "-c", OPEN, str(store.root), started]
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    *numbers, heavy = answer.stdout.split(maxsplit=4)
    return [float(number) for number in numbers], heavy.strip()


def test_ten_thousand_records_take_260_mib_and_are_drawn_elsewhere(store: Store, answered) -> None:
    fill_many(store, 10_000)
    (seconds, most, late, sent), heavy = opened(store)
    answered.enter("results: 10,000 records without a cache, to the first table", 3, seconds)
    answered.enter("results: meanwhile, the longest that a slider had to wait", 0.2, late)
    assert most < 260
    assert sent < 200_000
    assert heavy == "[]", "what draws is beside the kernel, not in it"
