"""The results page as widgets, driven in this process as a page would drive it."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import ipywidgets as widgets
import pytest
from matplotlib.image import imread

from tests.runs.helpers import wait_for
from tests.unit.ui.made_up_records import (
    HOSTILE,
    failed,
    fill,
    fill_many,
    key_of,
    lines_in,
    put,
    put_sweep,
    put_timeline,
    record,
)
from workbench.runs.store import Store
from workbench.ui.helper_process import HelperProcess
from workbench.ui.runs import panel as runs_table_panel
from workbench.ui.runs.panel import RunsTablePanel
from workbench.ui.runs.plot import Plot, draw, plot_rows

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
    wait_for(lambda: (panel.tick(), panel._look_at > now and panel._looking is None)[1])
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


def rows_of(panel: RunsTablePanel) -> dict[str, list[object]]:
    return {line[0]: line for line in lines_in(panel.grid.rows)}


def test_it_opens_on_all_runs_in_words(panel: RunsTablePanel) -> None:
    assert len(rows_of(panel)) == 31
    assert "31 runs: 30 ✓ finished, 1 ! failed." in Reader(panel.told.value).texts
    titles = [column["title"] for column in panel.grid.columns if column["shown"]]
    assert titles[:4] == ["run", "method", "status", "layers"]
    assert rows_of(panel)[key_of(0)][1:3] == ["STRONGHOLD", "✓ finished"]


def test_hostile_text_is_text_everywhere(panel: RunsTablePanel) -> None:
    panel.choose([key_of(100)])
    panel.chosen.show_commands()
    settle(panel)
    pictures = (panel.plot.picture.image, panel.chosen.curves.image)
    for widget in [w for w in everything(panel.widget) if isinstance(w, widgets.HTML)]:
        found = Reader(widget.value)
        assert not {"script", "img"} & {tag for tag, _ in found.elements} or widget in pictures
        assert not [name for _, a in found.elements for name in a if name.startswith("on")]
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e\ud800]", widget.value)
        json.dumps(widget.value).encode()
    assert not re.search(
        r"[\x00-\x1f\u202e\ud800]|ud800|u202e|u001b", gzip.decompress(panel.grid.rows).decode()
    )
    details = " ".join(Reader(panel.chosen.details.value).texts)
    assert "! failed: </td><script>alert(1)</script>" in details
    assert "ValueError: </td><script>" in details
    assert "Traceback" not in details
    assert "File 'x'" not in details


def test_what_did_not_change_is_not_sent_and_not_drawn_again(
    panel: RunsTablePanel, helper: HelperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(panel)
    tables, pictures, ask = [], [], helper.ask
    panel.grid.observe(lambda change: tables.append(change["new"]), "rows")
    monkeypatch.setattr(
        helper, "ask", lambda function, **data: pictures.append(1) or ask(function, **data)
    )
    look(panel)
    assert (tables, pictures) == ([], [])
    panel.choose([key_of(3), key_of(5)])
    settle(panel)
    assert len(pictures) == 1, "their losses"
    put(panel.runs_table.store, record(200, layers=64))
    look(panel)
    assert len(tables) == 1
    assert len(pictures) == 2
    assert key_of(200) in rows_of(panel)
    assert "32 runs" in panel.told.value
    assert panel.grid.chosen == [key_of(3), key_of(5)], "what was chosen stays chosen"


def test_the_plot_is_a_picture_with_words_and_follows_its_controls_and_filters(
    panel: RunsTablePanel,
) -> None:
    settle(panel)
    (picture,) = Reader(panel.plot.picture.image.value).of("img")
    assert picture["alt"].startswith("throughput over layers, 30 runs, coloured by method")
    assert "1 run without a result above" in picture["alt"]
    data = base64.b64decode(picture["src"].removeprefix("data:image/png;base64,"))
    height, width, _ = imread(io.BytesIO(data)).shape
    assert 1000 <= width <= 1100
    assert height < width
    panel.plot.fields["y"].value, panel.plot.logs["y"].value = "step_seconds", True
    panel.grid.listed = [key_of(n) for n in range(7)]
    settle(panel)
    assert panel.plot.plot.log_y
    assert "step time over layers, 7 runs" in panel.plot.picture.image.value
    panel.plot.fields["y"].value = "method"
    settle(panel)
    assert not panel.plot.plot.log_y, "words have no logarithm"
    names = [name for _, name in panel.plot.fields["x"].options]
    assert names.index("layers") < names.index("heads"), "fields that vary come first"


def test_the_plot_is_chosen_again_as_rows_come_until_somebody_chooses(
    store: Store, helper: HelperProcess
) -> None:
    put(store, record(0))
    panel = RunsTablePanel(store, helper=helper)
    settle(panel)
    assert panel.plot.plot.x == "started", "nothing varies"
    put(store, record(1, method="stronghold", layers=64))
    look(panel)
    assert panel.plot.plot.x == "layers"
    panel.plot.fields["x"].value = "seed"
    put(store, record(2, batch=16))
    look(panel)
    assert panel.plot.plot.x == "seed"
    panel.close()


def test_chosen_runs_show_losses_are_compared_and_end_with_their_record(
    panel: RunsTablePanel,
) -> None:
    chosen = panel.chosen
    assert chosen.compare.disabled
    assert chosen.timeline.disabled
    keys = [key_of(n) for n in (3, 7, 100)]
    panel.choose(keys)
    settle(panel)
    assert "Losses over steps of A: " in chosen.curves.image.value
    chosen.compare.click()
    settle(panel)
    (shown,) = chosen.shown.children
    assert {"A", "B", "C", "B ÷ A", *keys, "✓ finished", "! failed"} <= {*Reader(shown.value).texts}
    shutil.rmtree(panel.runs_table.store.folder(keys[0]))
    look(panel)
    assert panel.grid.chosen == [*chosen.chosen] == keys[1:]
    with pytest.raises(ValueError, match="no key of a run"):
        panel.choose([".."])


def test_a_sweep_has_its_runs_plot_commands_and_end(panel: RunsTablePanel) -> None:
    store = panel.runs_table.store
    campaign = put_sweep(store, "grid", (0, 4, 100))
    look(panel)
    panel.sweep.value = "grid"
    settle(panel)
    assert rows_of(panel).keys() == {key_of(0), key_of(4), key_of(100)}
    assert "grid: new" in panel.about.value
    assert "over layers, 2 runs" in panel.plot.picture.image.value
    panel.chosen.commands.click()
    assert "papermill notebooks/sweep.ipynb" in panel.chosen.shown.children[0].value
    panel.chosen.remove.click()
    assert "Press again to delete the sweep grid and 1 failed run" in panel.chosen.state.value
    assert campaign.folder.exists()
    panel.chosen.remove.click()
    look(panel)
    assert panel.sweep.value == ""
    assert rows_of(panel).keys() == {key_of(n) for n in range(30)}, "what finished stays"


def test_a_sweep_over_two_fields_is_a_line_for_each_value_of_the_second(
    panel: RunsTablePanel,
) -> None:
    store, batches = panel.runs_table.store, [1 << power for power in range(10)]
    for place, (layers, batch) in enumerate(product((8, 16, 24), batches)):
        speed = {"samples_per_second": 100 * batch / layers}
        put(store, record(200 + place, method="l2l", layers=layers, batch=batch, **speed))
    put_sweep(store, "two", range(200, 230), layers=[8, 16, 24], batch=batches)
    look(panel)
    panel.sweep.value = "two"
    settle(panel)
    plot = panel.plot.plot
    assert plot == Plot("layers", "samples_per_second", colour="batch", lines=True)
    assert "over layers, 30 runs, a line for each batch" in panel.plot.picture.image.value
    rows, fields = panel.runs_table.rows(), panel.runs_table.state.fields
    figure = draw(plot, plot_rows(plot, rows, fields), fields)
    drawn = figure.axes[0].get_lines()
    lines = [line for line in drawn if line.get_linestyle() not in ("None", "none")]
    assert [[*line.get_ydata()] for line in lines] == [
        [100 * batch / layers for layers in (8, 16, 24)] for batch in batches
    ]
    dashes = [line._unscaled_dash_pattern for line in lines]
    marks = [line.get_marker() for line in drawn if line not in lines]
    assert len(set(zip(dashes, marks, strict=True))) == 10, "told apart without colours, in print"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [str(batch) for batch in batches]
    panel.sweep.value = ""
    settle(panel)
    assert panel.plot.plot.colour == "method"
    assert not panel.plot.lines.value


def test_losses_of_what_runs_are_drawn_as_it_runs(
    panel: RunsTablePanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel.runs_table.sweeps, "running", lambda names: ["running"])
    folder = panel.runs_table.store.folder("running")
    folder.mkdir()
    step = {"time": 1.0, "event": "step", "step": 0, "loss": 6.5, "seconds": 0.1}
    (folder / "events.jsonl").write_text(json.dumps(step) + "\n")
    look(panel)
    assert "Losses over steps of A: running: current run." in panel.chosen.curves.state.value


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


def test_exports_are_links_and_lie_in_the_results_folder_under_their_name(
    panel: RunsTablePanel,
) -> None:
    settle(panel)
    panel.grid.listed = [key_of(n) for n in range(5)]
    panel.chosen.name.value = "../../evil"
    panel.chosen.exports["CSV"].click()
    assert "cannot name an export" in panel.chosen.state.value
    panel.chosen.name.value = "mine"
    for words in ("CSV", "JSONL", "Plot"):
        panel.chosen.exports[words].click()
        settle(panel)
        links = Reader(panel.chosen.state.value).of("a")
        file = panel.runs_table.store.root / "reports" / "board" / links[0]["download"]
        data = base64.b64decode(links[0]["href"].partition("base64,")[2])
        assert data == file.read_bytes()
        assert words == "Plot" or data.count(b"\n") == 5 + (words == "CSV")
    folder = panel.runs_table.store.root / "reports" / "board"
    names = ["mine.csv", "mine.jsonl", "mine.pdf", "mine.png"]
    assert sorted(p.name for p in folder.iterdir()) == names


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
    assert not rows_of(panel)
    assert panel.plot.plot is None
    put(store, record(1))
    look(panel)
    assert "1 run: 1 ✓ finished." in panel.told.value
    assert Reader(panel.plot.picture.image.value).of("img")
    panel.close()
    assert not store.runs.parent.joinpath("reports").exists(), "looking writes no report"


def test_every_control_has_a_label_and_a_tooltip(panel: RunsTablePanel) -> None:
    kinds = (widgets.Button, widgets.Text, widgets.Dropdown, widgets.Checkbox)  # fmt: skip
    controls = [w for w in everything(panel.widget) if isinstance(w, kinds)]
    assert len(controls) > 18
    assert all(control.description and control.tooltip for control in controls)
    for widget in (panel.told, panel.about, panel.plot.picture.state, panel.chosen.state):
        assert Reader(widget.value).elements[0][1]["role"] == "status"


OPEN = """
import asyncio, sys, time
began = time.perf_counter() - time.clock_gettime(time.CLOCK_BOOTTIME) + float(sys.argv[2])
from contextlib import suppress
import psutil
from workbench.runs.store import Store
from workbench.ui.runs.panel import RunsTablePanel

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
    assert len(panel.grid.rows) > 2, panel.grid.rows
    before = await settled(panel)
    assert "10,000 runs: 10,000" in panel.told.value, panel.told.value
    assert "10,000 runs" in panel.plot.picture.state.value, panel.plot.picture.state.value
    sent = len(panel.grid.rows) + len(panel.plot.picture.image.value)
    heavy = [name for name in ("pandas", "matplotlib", "torch") if name in sys.modules]
    panel.plot.fields["y"].value = "step_seconds"
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
    assert sent < 200_000, f"{sent} bytes: rows are sent whole, as compressed columns"
    assert heavy == "[]", "what draws is beside the kernel, not in it"
