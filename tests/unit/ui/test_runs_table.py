"""The runs table without widgets: listing, plots, comparison, commands and exports."""

from __future__ import annotations

import csv
import os
import shlex
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tests.unit.ui.made_up_records import (
    HOSTILE,
    METHODS,
    failed,
    fill,
    key_of,
    put,
    put_timeline,
    record,
)
from workbench.cli import make_parser
from workbench.cli_spec import specs_from
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.figures.draw import SHORT
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store
from workbench.ui.runs_table import PAGE_ROWS, RunsTable
from workbench.ui.runs_table_classes import Classes
from workbench.ui.runs_table_commands import run_command
from workbench.ui.runs_table_fields import ENDINGS, cell, plain
from workbench.ui.runs_table_files import as_csv, export
from workbench.ui.runs_table_plot import EDGE, NOWHERE, VALUE, Plot, words_of
from workbench.ui.runs_table_query import Query

THROUGHPUT = Plot(x="layers", y="samples_per_second")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def runs_table(store: Store) -> RunsTable:
    """40 good runs, and three that ended otherwise."""
    fill(store, 40)
    put(store, failed(100, "oom_device", "28 GiB do not fit in 16 GiB", layers=64))
    put(store, failed(101, "timeout", layers=48))
    put(store, failed(102, "error", HOSTILE, layers=48))
    found = RunsTable(store)
    found.refresh()
    return found


# -- the table -------------------------------------------------------------------------------
def test_pages_cover_the_selection_once(runs_table: RunsTable) -> None:
    first, second = (runs_table.page(Query(page=number)) for number in (1, 2))
    assert (first.pages, first.total, len(first.rows)) == (2, 43, PAGE_ROWS)
    assert second.first == PAGE_ROWS + 1
    keys = [row["key"] for row in first.rows + second.rows]
    assert len(set(keys)) == 43
    assert runs_table.page(Query(page=99)).number == 2, "beyond the last page is the last"
    assert runs_table.page(Query(text="layers=1000")).total == 0


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("layers=16", lambda row: row["layers"] == 16),
        (
            "model.layers>=24 method!=l2l",
            lambda row: row["layers"] >= 24 and row["method"] != "l2l",
        ),
        ("status~oom", lambda row: row["status"] == "oom_device"),
        ("'16 gib'", lambda row: row["status"] == "oom_device"),
        ("peak_device_bytes>1GiB", lambda row: (row.get("peak_device_bytes") or 0) > 2**30),
        ("window=none", lambda row: row["window"] is None),
        ("tied=true seed<3", lambda row: row["seed"] < 3),
        ("", lambda row: True),
    ],
)
def test_a_filter_keeps_what_it_says(runs_table: RunsTable, text: str, keeps) -> None:
    wanted = {row["key"] for row in runs_table.rows() if keeps(row)}
    assert {row["key"] for row in runs_table.rows(Query(text=text))} == wanted
    assert wanted


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("nothing=1", "no record has a field 'nothing'"), ("layers<many", "compares with no number"),
     ("'open", "a quote without its end")],
)  # fmt: skip
def test_a_filter_that_says_nothing_is_one_sentence(
    runs_table: RunsTable, text: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        runs_table.rows(Query(text=text))


def test_status_and_method_narrow_and_no_value_is_last_in_both_orders(
    runs_table: RunsTable,
) -> None:
    rows = runs_table.rows(Query(status="ok", method="l2l"))
    assert {(row["status"], row["method"]) for row in rows} == {("ok", "l2l")}
    for descending in (False, True):
        found = runs_table.rows(Query(sort="samples_per_second", descending=descending))
        values = [row["samples_per_second"] for row in found]
        assert values[-3:] == [None] * 3
        assert values[:-3] == sorted(values[:-3], reverse=descending)


def test_the_columns_are_those_that_tell_runs_apart(runs_table: RunsTable) -> None:
    columns = runs_table.columns()
    assert {"method", "layers", "status", "samples_per_second"} <= set(columns)
    assert not {"heads", "tied", "hidden", "source"} & set(columns), "the same in all"
    assert list(runs_table.fields)[0] == "method"
    assert not runs_table.fields["heads"].varies


def test_a_look_says_what_changed_and_costs_nothing_where_nothing_did(
    runs_table: RunsTable,
) -> None:
    assert runs_table.refresh() == set()
    version, rows = runs_table.version, runs_table.rows()
    put(runs_table.store, record(7, message="again", started="2027-01-01T00:00:00+00:00"))
    assert runs_table.refresh() == {key_of(7)}
    assert runs_table.version > version
    assert runs_table.rows() is not rows
    assert runs_table.page().rows[0]["message"] == "again"
    assert runs_table.rows() is runs_table.rows(), "the same question is answered once"


def test_what_cannot_be_read_is_a_sentence_with_the_end_of_its_path(runs_table: RunsTable) -> None:
    newer = put(runs_table.store, record(60))
    newer.write_text(newer.read_text().replace('"schema": 2', '"schema": 99'))
    torn = put(runs_table.store, record(61))
    torn.write_text(torn.read_text()[:100])
    os.utime(newer)
    runs_table.refresh()
    found = "\n".join(runs_table.problems())
    assert f"runs/{key_of(60)}/record.json is not counted" in found
    assert "schema 99, this version reads up to 2" in found
    assert f"runs/{key_of(61)}/record.json" in found
    assert str(runs_table.store.root) not in found
    assert len(runs_table.rows()) == 43


def test_text_of_others_becomes_one_visible_line() -> None:
    words = plain(HOSTILE)
    assert words.isprintable()
    assert words.startswith("</td><script>"), "escaping is the page's business"
    assert plain("\x1b]0;title\x07a\x1b[31mb") == "ab"
    assert len(plain("x" * 10**6)) == 200
    assert cell("device_memory", 2**33) == "8 GiB"
    assert cell("step_seconds", 0.25) == "0.25 s"
    assert cell("final_loss", float("nan")) == "nan"
    assert cell("window", None) == ""


def test_words_of_endings_are_those_of_the_figures() -> None:
    assert {s: e.words for s, e in ENDINGS.items() if s != "ok"} == {
        status: words for status, words in SHORT.items() if status
    }
    assert len({str(e.marker) for e in ENDINGS.values()}) == len(ENDINGS)


# -- plots -----------------------------------------------------------------------------------
def test_a_failed_run_is_at_the_edge_and_never_zero(runs_table: RunsTable) -> None:
    put(runs_table.store, failed(103, "oom_host", layers=96, peak_bytes={"disk": 0, "device": 0}))
    runs_table.refresh()
    for y in ("samples_per_second", "peak_disk_bytes", "peak_device_bytes", "final_loss"):
        rows = {row["key"]: row for row in runs_table.plot_rows(Plot(x="layers", y=y))}
        for number in (100, 101, 102, 103):
            row = rows[key_of(number)]
            assert (row["drawn"], row["y"]) == (EDGE, None), (y, row["status"])
            assert isinstance(row["x"], float)
        assert rows[key_of(0)]["drawn"] == VALUE
    over = {row["key"]: row for row in runs_table.plot_rows(Plot(x="step_seconds", y="layers"))}
    assert (over[key_of(100)]["drawn"], over[key_of(100)]["y"]) == (EDGE, 64.0)


def test_a_loss_that_is_no_number_has_no_place_but_keeps_its_word(runs_table: RunsTable) -> None:
    put(runs_table.store, record(104, status="diverged", losses=[3.0, float("nan")]))
    put(runs_table.store, record(105, losses=[3.0, float("nan")]))
    runs_table.refresh()
    rows = {r["key"]: r for r in runs_table.plot_rows(Plot(x="layers", y="final_loss"))}
    assert rows[key_of(104)]["drawn"] == EDGE
    assert rows[key_of(105)]["drawn"] == NOWHERE
    words = words_of(runs_table.plot_order(Plot(x="layers", y="final_loss")))
    assert "4 runs without a result at the edge" in words
    assert "1 run without such a value" in words


def test_what_a_planner_said_is_simulated_and_what_has_no_logarithm_says_so(
    runs_table: RunsTable,
) -> None:
    said = runs_table.plot_rows(Plot(x="layers", y="predicted_step_seconds"))
    assert {row["source"] for row in said} == {"simulated"}
    assert {row["source"] for row in runs_table.plot_rows(THROUGHPUT)} == {"measured"}
    rows = runs_table.plot_rows(Plot(x="moved_read_bytes", y="layers", log_x=True))
    assert {row["drawn"] for row in rows if row["status"] == "ok"} == {NOWHERE}
    for plot, sentence in (
        (Plot(x="method", y="layers", log_x=True), "has no logarithm"),
        (Plot(x="layers", y="speed"), "y is 'speed', a field that no record has"),
        (Plot(x="layers", y="predicted_settings"), "a field that no record has"),
    ):
        with pytest.raises(ValueError, match=sentence):
            runs_table.plot_rows(plot)
    with pytest.raises(ValueError, match="points or lines, not of 'bars'"):
        Plot(x="layers", y="layers", kind="bars")


def marks(figure: Figure) -> dict[str, set[tuple[str, str, bool]]]:
    """Of each colour, the fills that its points have: (marker, fill style, whether hollow)."""
    found: dict[str, set[tuple[str, str, bool]]] = {}
    for axes in figure.axes:
        for line in axes.get_lines():
            if line.get_linestyle() == "None":
                hollow = line.get_markerfacecolor() == "white"
                look = (str(line.get_marker()), line.get_fillstyle(), hollow)
                found.setdefault(line.get_color(), set()).add(look)
    return found


def test_sources_never_share_a_mark(store: Store) -> None:
    for number, source in enumerate(("measured", "simulated", "published")):
        put(store, record(number, method="stronghold", source=source, layers=8 + number))
    runs_table = RunsTable(store)
    runs_table.refresh()
    (of_method,) = marks(runs_table.figure(THROUGHPUT)).values()
    assert len(of_method) == 3
    put(store, failed(5, "oom_host", method="stronghold", source="simulated", layers=32))
    put(store, failed(6, "oom_host", method="stronghold", layers=32))
    runs_table.refresh()
    strip = runs_table.figure(THROUGHPUT).axes[1]
    words = [label.get_text() for label in strip.get_yticklabels()]
    assert words == ["out of host memory, simulated", "out of host memory"]


def test_axes_have_words_and_units_and_the_strip_names_each_ending(runs_table: RunsTable) -> None:
    figure = runs_table.figure(Plot(x="layers", y="peak_device_bytes", colour="method"))
    panel, strip = figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("layers", "peak device (GiB)")
    assert [label.get_text() for label in strip.get_yticklabels()] == [
        "out of device memory", "timed out", "failed",
    ]  # fmt: skip
    drawn = {line.get_marker(): list(line.get_xdata()) for line in strip.get_lines()}
    assert drawn == {"x": [64.0], "1": [48.0], "4": [48.0]}
    assert panel.get_ylim()[0] == 0
    assert max(y for line in panel.get_lines() for y in line.get_ydata()) == 32 * 2**26 / 2**30
    assert (
        runs_table.figure(Plot(x="layers", y="step_seconds")).axes[0].get_ylabel()
        == "step time (ms)"
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("x", "more"),
    [
        ("layers", {}),
        ("method", {"facet": "method", "kind": "lines"}),
        ("started", {"colour": "", "facet": "status"}),
        ("step_seconds", {"colour": "seed", "facet": "layers"}),
        ("seed", {"colour": "started", "log_y": True}),
        ("step_seconds", {"colour": "status", "log_x": True, "kind": "lines"}),
        ("started", {"colour": "step_seconds", "facet": "seed"}),
        ("dtype", {"colour": "layers", "facet": "started"}),
    ],
)
def test_any_field_can_be_an_axis_a_colour_or_a_panel(runs_table: RunsTable, x: str, more) -> None:
    figure = runs_table.figure(Plot(x=x, y="samples_per_second", **more))
    facets = Classes.of([r.get(more.get("facet")) for r in runs_table.rows()], 6).labels
    panels = [axes for axes in figure.axes if axes.get_ylim()[0] != -0.6]
    assert len(panels) == (len(facets) if more.get("facet") else 1)
    points = sum(
        len(line.get_xdata())
        for axes in panels
        for line in axes.get_lines()
        if line.get_linestyle() == "None" and isinstance(line, Line2D)
    )
    at_left = sum(row["status"] != "ok" for row in runs_table.rows()) if x == "step_seconds" else 0
    assert points == 40 or points == 40 + at_left


def test_many_values_become_few_classes_that_hold_them_all() -> None:
    values = [float(n) for n in range(100)]
    numbers = Classes.of(values, 5, kind="number")
    assert len(numbers.labels) == 5
    sizes = [sum(numbers.place(v) == n for v in values) for n in range(5)]
    assert sizes == [20] * 5
    words = Classes.of([*"aaabbbccdef"], 4)
    assert words.labels == ["a", "b", "c", "other"]
    assert [words.place(letter) for letter in "abcdz"] == [0, 1, 2, 3, 3]
    assert Classes.of([3.0, 1.0, 3.0], 5, name="device_memory").labels == ["1 B", "3 B"]


def test_a_plot_of_nothing_says_so(store: Store) -> None:
    put(store, failed(1, "error"))
    runs_table = RunsTable(store)
    runs_table.refresh()
    figure = runs_table.figure(Plot(x="layers", y="steps_done"))
    assert "No run has a value here yet." in figure.get_supxlabel()


# -- files -----------------------------------------------------------------------------------
def test_a_plot_is_saved_with_the_rows_behind_it(runs_table: RunsTable) -> None:
    paths = runs_table.save(THROUGHPUT, "throughput.v1", Query(method="l2l"))
    folder = runs_table.store.root / "reports" / "board"
    assert [path.name for path in paths] == [
        "throughput.v1.csv", "throughput.v1.pdf", "throughput.v1.png",
    ]  # fmt: skip
    assert sorted(folder.iterdir()) == paths, "nothing half written is left"
    assert paths[1].read_bytes()[:5] == b"%PDF-"
    assert paths[2].read_bytes()[:4] == b"\x89PNG"
    with paths[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"l2l"}
    assert {row["drawn"] for row in rows} == {"value", "edge"}
    first = next(row for row in rows if row["drawn"] == "value")
    assert float(first["y"]) == runs_table.row(first["key"])["samples_per_second"]


def test_the_table_is_exported_whole_and_no_cell_is_a_formula(runs_table: RunsTable) -> None:
    put(runs_table.store, record(50, message="=cmd|' /C calc'!A0"))
    runs_table.refresh()
    path = runs_table.export_csv("all")
    with path.open(newline="", encoding="utf-8") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    assert len(rows) == 44
    assert rows[key_of(50)]["message"].startswith("'=cmd")
    assert all(text.isprintable() for row in rows.values() for text in row.values())
    assert float(rows[key_of(0)]["predicted_step_seconds"]) > 0
    assert as_csv(["a"], [{"a": -1.5}, {"a": "-x"}]) == "a\r\n-1.5\r\n'-x\r\n"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\x00", "x" * 65, "a..b", "ä"])
def test_an_export_has_a_safe_name(runs_table: RunsTable, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name an export"):
        runs_table.export_csv(name)
    assert not (runs_table.store.root / "reports").exists()


def test_links_lead_nowhere_outside_the_folder(runs_table: RunsTable, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret\n")
    (runs_table.store.root / "reports").symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of the results folder"):
        runs_table.export_csv("x")
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    (runs_table.store.folder(key_of(1)) / "log.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(ValueError, match="leads out of the results folder"):
        runs_table.log(key_of(1))


def test_an_export_that_fails_leaves_the_older_one(runs_table: RunsTable) -> None:
    path = runs_table.export_csv("kept")
    before = path.read_bytes()

    def break_off(stem: Path) -> None:
        stem.with_suffix(".csv").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        export(runs_table.store, "kept", break_off)
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == ["kept.csv"]


@pytest.mark.parametrize("key", ["..", ".", "", "a/b", "..\\x", "x\0", "/etc", "y" * 129])
def test_a_key_is_a_key(runs_table: RunsTable, key: str) -> None:
    for ask in (runs_table.row, runs_table.record, runs_table.log, runs_table.command):
        with pytest.raises(ValueError, match="is no key of a run"):
            ask(key)


def test_a_log_is_its_last_plain_lines_without_the_way_there(runs_table: RunsTable) -> None:
    log = (
        "step 1\rstep 2\nTraceback (most recent call last):\n"
        '  File "a.py", line 3, in f\n    g()\n    ^^^\nRuntimeError: <b>no\x1b[31m room\n'
    )
    put(
        runs_table.store, failed(110, "error", "no room"), log="\n".join(["old"] * 500) + "\n" + log
    )
    lines = runs_table.log(key_of(110))
    assert lines[-2:] == ["step 2", "RuntimeError: <b>no room"]
    assert len(lines) == 12
    assert runs_table.log(key_of(0)) == []


# -- two runs --------------------------------------------------------------------------------
def test_two_runs_are_compared_by_what_differs(runs_table: RunsTable) -> None:
    put_timeline(runs_table.store, key_of(0))
    put_timeline(runs_table.store, key_of(1), 1.5)
    pair = runs_table.compare(key_of(0), key_of(1))
    assert pair.settings() == [
        {"setting": "method", "a": METHODS[0], "b": METHODS[1]},
        {"setting": "seed", "a": 0, "b": 1},
    ]
    results = {row["result"]: row for row in pair.results()}
    seconds = [runs_table.row(key_of(n))["step_seconds"] for n in (0, 1)]
    assert results["step_seconds"]["ratio"] == pytest.approx(seconds[1] / seconds[0])
    assert results["peak_disk_bytes"]["ratio"] is None, "0 bytes have no ratio"
    assert [len(losses) for losses in pair.losses()] == [5, 5]
    lanes = {row["lane"]: row for row in pair.lanes()}
    assert lanes["compute"]["a"] == pytest.approx(6e-3)
    assert lanes["host"]["b"] == pytest.approx(9e-3)
    assert pair.bytes_moved()[0]["predicted_a"] == 8 * 10**7
    assert len(pair.figure().axes) == 2
    table = pair.save("pair")[0].read_text()
    assert "busy seconds a step,compute" in table


def test_a_failed_run_is_compared_too_and_the_sentences_say_what_is_missing(
    runs_table: RunsTable,
) -> None:
    put(runs_table.store, record(106, losses=[5.0, float("nan"), float("inf")]))
    runs_table.refresh()
    pair = runs_table.compare(key_of(100), key_of(106))
    notes = " ".join(pair.notes())
    assert "A: out of device memory: 28 GiB do not fit in 16 GiB." in notes
    assert "A: it made no step" in notes
    assert "B: some of its losses are not finite" in notes
    assert "kept no timeline" in notes
    assert pair.losses() == [[], [5.0, None, None]]
    results = {row["result"]: row for row in pair.results()}
    assert results["step_seconds"]["a"] is results["step_seconds"]["ratio"] is None
    assert results["status"] == {"result": "status", "a": "oom_device", "b": "ok", "ratio": None}
    assert len(pair.figure().axes) == 1
    assert len(runs_table.compare(key_of(100), key_of(101)).figure().axes) == 1
    for keys, sentence in (
        ((key_of(1), key_of(1)), "compared with itself"),
        ((key_of(1), "0" * 16), "there is no record"),
        ((key_of(1), ".."), "no key of a run"),
    ):
        with pytest.raises(ValueError, match=sentence):
            runs_table.compare(*keys)


# -- commands --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(method="stronghold"),
        RunSpec.of(
            method="stronghold", window=4, clip=None, text="/data/it's; rm -rf $HOME", lr=3e-4
        ),
        RunSpec.of(
            method="l2l", model=ModelSpec(layers=8, tied=False, dropout=0.1), save_every=2,
            device_memory=3 * 2**30, link_bytes_per_s=1e9, host_workers=3, beta2=0.95,
            text="--help",
        ),
    ],
)  # fmt: skip
def test_the_command_line_repeats_the_record(store: Store, spec: RunSpec) -> None:
    words = shlex.split(run_command(spec.to_dict(), store))
    assert words[:2] == ["workbench", "run"]
    arguments = make_parser().parse_args(words[1:])
    assert specs_from(arguments, window=4) == [spec]
    assert arguments.results == store.root


def test_a_spec_of_another_version_is_a_sentence(runs_table: RunsTable) -> None:
    put(
        runs_table.store,
        record(70, spec=RunSpec(method="l2l").to_dict() | {"warp": 9}, method="l2l"),
    )
    runs_table.refresh()
    with pytest.raises(ValueError, match="unknown field 'warp'"):
        runs_table.command(key_of(70))


def test_a_sweep_is_repeated_by_papermill_and_from_the_command_line(store: Store) -> None:
    Campaign.create(store, {"name": "a.sweep", "base": {"method": "l2l"}})
    notebook, line = RunsTable(store).sweep_commands("a.sweep")
    words = shlex.split(notebook.partition(" && ")[2])
    assert words[:2] == ["papermill", "notebooks/sweep.ipynb"]
    assert words[words.index("sweep") + 1] == str(store.root / "sweeps" / "a.sweep" / "sweep.json")
    arguments = make_parser().parse_args(shlex.split(line)[1:])
    assert arguments.file.is_file()
    assert arguments.results == store.root
    with pytest.raises(ValueError, match="cannot name a sweep"):
        RunsTable(store).sweep_commands("../x")
