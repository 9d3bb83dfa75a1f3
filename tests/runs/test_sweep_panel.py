"""The page of sweeps, driven without a browser: values are set, buttons clicked, ticks made by
hand, and sweeps really run."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from html import unescape
from io import StringIO
from pathlib import Path

import ipywidgets as widgets
import pytest

from tests.runs.helpers import HANG_S, end_kernel, kernel_with, left_behind, role, wait_for
from tests.runs.in_process import InProcess
from workbench.core.notebook_files import quick_nbformat
from workbench.runs.campaign import Campaign
from workbench.runs.columns import label
from workbench.runs.confines import confine
from workbench.runs.store import Store
from workbench.ui.sweeps import control as sweep_control
from workbench.ui.sweeps import html as sweep_html
from workbench.ui.sweeps.batch import run_to_end
from workbench.ui.sweeps.panel import SweepPanel
from workbench.ui.watch import Tail, WatchedPoint


@pytest.fixture(autouse=True)
def previewed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_control, "TYPING_S", 0.0)


@pytest.fixture
def opened(store: Store) -> Iterator[Callable[..., SweepPanel]]:
    """Opens pages on the store."""
    panels = []

    def opened(**more: object) -> SweepPanel:
        panels.append(SweepPanel(store, helper=InProcess(), **more))
        return panels[-1]

    yield opened
    for panel in panels:
        panel.close()


@pytest.fixture
def panel(opened: Callable[..., SweepPanel]) -> SweepPanel:
    return opened()


def text(widget: widgets.HTML) -> str:
    """The readable text, without markup."""
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", widget.value).split()))


def fill(panel: SweepPanel, **values: str) -> None:
    for name, value in values.items():
        panel.fields.fields[name].value = (value,) if name == "method" else value


def make(panel: SweepPanel, text: str = "steps", seeds: str = "0..1", **more: str) -> None:
    fill(panel, method="fake", text=text, steps="5", seed=seeds, name="mine", **more)


def tick_until(panel: SweepPanel, condition: Callable[[], object]) -> None:
    wait_for(lambda: panel.tick() and condition())


def state(panel: SweepPanel) -> str:
    sweep = panel.control.shown
    return "" if sweep is None or panel.control.starting else sweep.status.state


def enabled(panel: SweepPanel) -> set[str]:
    return {action for action, button in panel.buttons.items() if not button.disabled}


def test_a_sweep_from_the_first_click_to_the_last_row(
    panel: SweepPanel, store: Store, tmp_path: Path, answered
) -> None:
    assert enabled(panel) == set()
    assert "no method is chosen" in panel.buttons["start"].tooltip
    make(panel, text=f"until {tmp_path}")
    assert enabled(panel) == {"start"}
    tick_until(panel, lambda: "2 runs: 0 finished already, 2 to run" in text(panel.preview))
    panel.buttons["start"].click()
    assert "being started" in text(panel.state)
    assert enabled(panel) == set()
    # It may have begun to run after a tick has drawn the buttons; the next one enables them.
    tick_until(panel, lambda: state(panel) == "running" and enabled(panel) == {"pause", "cancel"})
    tick_until(panel, lambda: "▶ running the processors 4 of 5" in text(panel.points))
    for _ in range(20):
        with answered("sweeps: a look at one that runs", 0.02, "process"):
            panel.tick()
    (tmp_path / "0").touch()
    tick_until(panel, lambda: "left" in text(panel.state))
    for seed in (1, 2):
        (tmp_path / str(seed)).touch()
    tick_until(
        panel, lambda: state(panel) == "done" and text(panel.points).count("✓ finished") == 2
    )
    assert (panel.progress.value, panel.progress.max) == (2, 2)
    assert "2 runs: 2 finished" in text(panel.state)
    tick_until(panel, lambda: "2 runs: 2 finished already, 0 to run" in text(panel.preview))
    assert enabled(panel) == set()
    assert "all its runs have ended" in panel.buttons["start"].tooltip
    assert list(panel.table()["status"]) == ["ok", "ok"]
    commands = text(panel.repeat)
    assert f"workbench sweep {store.root}/sweeps/mine/sweep.json" in commands
    assert "papermill notebooks/sweep.ipynb" in commands
    fill(panel, seed="0..2")
    assert enabled(panel) == {"start"}
    panel.buttons["start"].click()
    assert text(panel.refusal) == (
        "there is another sweep named 'mine'; give this one a name of its own, such as mine-2"
    )
    fill(panel, name="mine-2")
    tick_until(panel, lambda: "3 runs: 2 finished already, 1 to run" in text(panel.preview))
    panel.buttons["start"].click()
    assert text(panel.refusal) == ""
    tick_until(
        panel, lambda: state(panel) == "done" and text(panel.points).count("✓ finished") == 3
    )
    assert len(store.records()) == 3, "what was there was not run again"


def test_pause_go_on_cancel_and_go_on(panel: SweepPanel, store: Store, tmp_path: Path) -> None:
    make(panel, text=f"until {tmp_path}", seeds="0..2")
    panel.start()
    tick_until(panel, lambda: panel.control.shown.status.running)
    panel.buttons["pause"].click()
    (tmp_path / "0").touch()
    tick_until(panel, lambda: state(panel) == "paused" and not panel.control.shown.status.running)
    assert enabled(panel) == {"go_on", "cancel"}
    assert "1 finished, 2 to run" in text(panel.state).replace(
        "2 to run, 1 finished", "1 finished, 2 to run"
    )
    panel.buttons["go_on"].click()
    tick_until(panel, lambda: state(panel) == "running")
    panel.buttons["cancel"].click()
    tick_until(panel, lambda: state(panel) == "cancelled")
    assert left_behind(store.root) == []
    assert enabled(panel) == {"go_on"}
    assert "press Resume" in panel.buttons["start"].tooltip
    for seed in (1, 2):
        (tmp_path / str(seed)).touch()
    panel.buttons["go_on"].click()
    tick_until(panel, lambda: state(panel) == "done")


def test_what_failed_says_why_and_runs_again_when_asked(panel: SweepPanel, store: Store) -> None:
    make(panel, text="bug", seeds="0")
    panel.start()
    tick_until(panel, lambda: state(panel) == "done" and "KeyError" in text(panel.tail))
    assert "✗ failed" in text(panel.points)
    assert "Traceback" not in text(panel.tail)
    assert enabled(panel) == {"retry"}
    before = store.records()[0].started
    panel.buttons["retry"].click()
    tick_until(panel, lambda: state(panel) == "done" and store.records()[0].started != before)


def test_a_page_opened_again_finds_what_runs(
    panel: SweepPanel, opened: Callable[..., SweepPanel], store: Store, tmp_path: Path
) -> None:
    make(panel, text=f"until {tmp_path}", seeds="0..2")
    panel.start()
    wait_for(lambda: role("worker", store.root))
    other = opened()
    assert state(other) == "running"
    assert other.form.text("seed") == "0, 1, 2"
    assert other.chosen.value == "mine"
    other.control.start()
    assert other.control.shown.status.pid == panel.control.shown.campaign.status().pid
    assert len(role("worker", store.root)) == 1
    other.buttons["cancel"].click()
    tick_until(panel, lambda: state(panel) == "cancelled")
    assert state(opened()) == "", "nothing runs and nothing was interrupted"


def test_a_sweep_whose_kernel_ended_is_found_interrupted_and_goes_on(
    opened: Callable[..., SweepPanel], store: Store, tmp_path: Path
) -> None:
    data = {"name": "mine", "base": {"method": "fake", "text": f"until {tmp_path}", "seed": 0}}
    Campaign.create(store, data)
    end_kernel(kernel_with(store, "attached"))
    wait_for(lambda: Campaign(store, "mine").status().state == "interrupted")
    panel = opened()
    assert state(panel) == "interrupted"
    assert enabled(panel) == {"go_on"}
    assert "start it again" in text(panel.state)
    (tmp_path / "0").touch()
    panel.buttons["go_on"].click()
    tick_until(panel, lambda: state(panel) == "done")


def test_two_sweeps_that_want_one_place_say_so(
    panel: SweepPanel, opened: Callable[..., SweepPanel], tmp_path: Path
) -> None:
    make(panel, text=f"until {tmp_path}", seeds="0")
    panel.start()
    tick_until(panel, lambda: panel.control.shown.status.running)
    other = opened()
    other.chosen.value = ""
    make(other, seeds="7")
    fill(other, name="second")
    other.buttons["start"].click()
    tick_until(other, lambda: state(other) == "waiting" and "waits" in text(other.state))
    assert "it waits for the processors (taken by the sweep mine" in text(other.state)
    assert enabled(other) == {"pause", "cancel"}
    (tmp_path / "0").touch()
    tick_until(other, lambda: state(other) == "done")


def test_the_checkbox_is_what_detaches(panel: SweepPanel, tmp_path: Path) -> None:
    make(panel, text=f"until {tmp_path}", seeds="0")
    panel.keep.value = True
    panel.start()
    assert panel.control.shown.status.detached
    assert "it goes on if this page or notebook closes" in text(panel.state)


def test_a_click_does_not_wait_for_the_process_it_starts(
    panel: SweepPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(panel, seeds="0")
    clicked = threading.Event()
    slow = lambda self, detached: clicked.wait(HANG_S)  # noqa: E731
    monkeypatch.setattr(Campaign, "start", slow)
    panel.buttons["start"].click()
    panel.buttons["start"].click()
    assert panel.control.starting
    clicked.set()
    tick_until(panel, lambda: not panel.control.starting)


def test_bad_input_is_one_sentence_and_breaks_nothing(
    panel: SweepPanel, store: Store, tmp_path: Path
) -> None:
    make(panel, seeds="9..1")
    assert text(panel.fields.told).startswith("seed is '9..1'; the end is below the start")
    assert "wb-refused" in panel.fields.fields["seed"]._dom_classes
    panel.tick()
    assert text(panel.preview) == "", "once is enough"
    assert enabled(panel) == set()
    assert "the end is below" in panel.buttons["start"].tooltip
    fill(panel, seed="1")
    assert text(panel.fields.told) == ""
    assert "wb-refused" not in panel.fields.fields["seed"]._dom_classes
    fill(panel, batch="4", microbatches="3")
    panel.buttons["start"].click()
    assert "a batch of 4 does not divide into 3 micro-batches" in text(panel.refusal)
    for content, words in (("{", "not JSON"), ('{"a": 1}', "unknown field"), (None, "cannot be")):
        path = tmp_path / f"{words}.json"
        if content is not None:
            path.write_text(content)
        panel.path.value = str(path)
        panel.load_file.click()
        assert words in text(panel.refusal)
    assert panel.form.text("seed") == "1"
    fill(panel, batch="", microbatches="")
    store.root.write_text("a file, not a folder")
    panel.buttons["start"].click()
    assert "the results folder" in text(panel.refusal)
    store.root.unlink()
    panel.buttons["start"].click()
    tick_until(panel, lambda: state(panel) == "done")


def test_a_damaged_sweep_is_shown_with_its_reason(
    opened: Callable[..., SweepPanel], store: Store
) -> None:
    folder = store.root / "sweeps" / "torn"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text('{"base": ')
    panel = opened()
    panel.chosen.value = "torn"
    tick_until(panel, lambda: "not JSON" in text(panel.state))
    assert text(panel.refusal) == "", "once is enough"
    assert text(panel.repeat) == "", "there is nothing to repeat"
    assert "start" not in enabled(panel)


def test_a_confined_page_reads_nothing_outside(
    opened: Callable[..., SweepPanel],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    panel = opened(confined=True)
    outside = tmp_path / "outside.json"
    outside.write_text('{"base": {"method": "fake"}}')
    store.root.mkdir()
    (store.root / "own.json").write_text('{"base": {"method": "fake", "seq": 24}}')
    for path in ("results/own.json", "own.json", store.root / "own.json"):
        panel.control.new()
        panel.path.value = str(path)
        panel.load_file.click()
        assert panel.fields.fields["seq"].value == "24", path
    panel.control.new()
    (store.root / "link.json").symlink_to(outside)
    for path in (outside, store.root / ".." / "outside.json", "../outside.json", "link.json"):
        panel.path.value = str(path)
        panel.load_file.click()
        assert "here it must lie in the results folder" in text(panel.refusal)
    make(panel, text=str(outside))
    panel.buttons["start"].click()
    assert f"text is '{outside}'; here it must lie in the results folder" in text(panel.refusal)
    assert Campaign.all(store) == []


def test_a_confined_page_makes_nothing_of_what_it_may_not_name(
    opened: Callable[..., SweepPanel],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not when it is typed, not at Start, not of a sweep that lies in the folder already."""
    monkeypatch.chdir(tmp_path)
    package, outside = tmp_path / "evilpkg", tmp_path / "config.json"
    package.mkdir()
    outside.write_text("{}")
    for name in ("__init__", "mod"):
        (package / f"{name}.py").write_text(
            "open('ran', 'w')\ndef fn(spec):\n    open('ran', 'w')\n"
        )
    theirs = Campaign.create(store, {"base": {"method": "plain", "family": "evilpkg.mod:fn"}})
    panel = opened(confined=True)
    (store.root / "own").mkdir()
    for typed, said in (
        ({"family": "evilpkg.mod:fn"}, "family is 'evilpkg.mod:fn'; here no function can be named"),
        ({"family": str(outside)}, f"family is '{outside}'; here it must lie in the results"),
        ({"family": f"gpt, {outside}"}, f"family is '{outside}'; here it must lie"),
        ({"family": "gpt", "start_from": str(tmp_path)}, "here it must lie in the results folder"),
        ({"start_from": "", "text": "own/../../a"}, "text is 'own/../../a'; here it must lie"),
        ({"text": "stdlib", "executor": "ray"}, "executor is 'ray'; here it must be local"),
    ):
        fill(panel, method="plain", layers="2", hidden="32", heads="2", **typed)
        tick_until(panel, lambda said=said: said in text(panel.preview))
        panel.buttons["start"].click()
        assert said in text(panel.refusal)
    fill(panel, executor="local", text=str(store.root / "own"), start_from="0123456789abcdef")
    fill(panel, family="bert")
    tick_until(panel, lambda: "1 run:" in text(panel.preview))
    for family in ("vgg", "resnet", str(store.root / "own")):
        confine({"grid": {"model": [{"family": family}]}}, store.root)
    panel.chosen.value = theirs.name
    assert "here no function can be named" in text(panel.refusal)
    assert panel.control.shown is None, "so nothing of it can be run or looked at"
    assert [campaign.name for campaign in Campaign.all(store)] == [theirs.name]
    assert not theirs.alive
    assert not (tmp_path / "ran").exists()
    assert not {"evilpkg", "evilpkg.mod"} & sys.modules.keys()
    with pytest.raises(ValueError, match="is no key of a run"):
        store.folder("../sweeps")


EVIL = '<img src=x onerror="alert(1)">&amp;'


def test_text_of_logs_specs_and_records_is_escaped(panel: SweepPanel) -> None:
    point = WatchedPoint(what=EVIL, key="k", state="failed", message=EVIL, where=EVIL)
    shown = [
        sweep_html.points_table([point]),
        sweep_html.tail_html(Tail("k", EVIL, EVIL, (EVIL,))),
    ]
    panel.control.message = EVIL
    make(panel, text=EVIL)
    fill(panel, layers=EVIL)
    panel.show()
    shown += [panel.refusal.value, panel.fields.told.value, panel.preview.value]
    for html in shown:
        assert "<img" not in html
    assert sum("&lt;img" in html for html in shown) >= 4


def controls(widget: widgets.Widget) -> Iterator[widgets.Widget]:
    for child in getattr(widget, "children", ()):
        yield from controls(child)
    if isinstance(widget, widgets.Button | widgets.ValueWidget) and not isinstance(
        widget, widgets.HTML
    ):
        yield widget


def test_every_control_says_what_it_is(panel: SweepPanel) -> None:
    found = list(controls(panel.widget))
    assert len(found) > 45
    for control in found:
        assert control.description, control
        assert control.tooltip, control.description
    for name, made in panel.fields.fields.items():
        assert made.description == label(name), "as tables and figures name it"
    assert panel.fields.fields["seq"].description == "sequence length"
    live = [panel.state, panel.refusal, panel.fields.told]
    assert all('role="status"' in region.value for region in live)


def test_many_runs_are_a_short_table() -> None:
    points = [WatchedPoint(what=f"run {n}", key=str(n), state="done") for n in range(3000)]
    points[2500].state = "running"
    html = sweep_html.points_table(points)
    assert html.count("<tr>") == sweep_html.MOST_ROWS + 1
    assert html.index("run 2500") < html.index("run 1<")
    assert "100 of 3,000 runs" in html


def test_a_file_runs_to_its_end_without_anybody(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "batch.json"
    base = {"method": "fake", "text": "steps 0.02", "steps": 3}
    path.write_text(json.dumps({"base": base, "runs": [{"seed": 1}, {"text": "bug"}]}))
    stream = StringIO()
    sweep = run_to_end(store, path, stream)
    assert sweep.status.counts == {"done": 1, "failed": 1}
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("[1/2] Fake, 16 layers, text steps 0.02, seed 1: ok")
    assert lines[1].startswith("[2/2] Fake, 16 layers, text bug, seed 1234: error: KeyError")
    assert lines[-1] == "batch: finished; 1 finished, 1 failed"
    again = StringIO()
    run_to_end(store, path, again)
    assert again.getvalue() == "batch: finished; 1 finished, 1 failed\n", "nothing ran again"


def test_the_notebook_is_short_and_its_cells_run(root: Path, tmp_path: Path) -> None:
    notebook = quick_nbformat().read(root / "notebooks" / "sweep.ipynb", as_version=4)
    parameters, *rest = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    from papermill.inspection import inspect_notebook  # takes long, which every worker would spend

    known = inspect_notebook(notebook)
    assert {name: p["default"] for name, p in known.items()} == {
        "sweep": '""',
        "results": '"results"',
    }
    assert all(p["help"] for p in known.values())
    assert max(len(source.splitlines()) for source in rest) <= 10
    names: dict[str, object] = {}
    for source in (parameters, f"results = {str(tmp_path)!r}", *rest):
        exec(source, names)
    assert names["panel"].store.root == tmp_path
    assert list(names["panel"].table()) == ["sweep", "state", "runs"]
    names["panel"].close()
