"""Runs without widgets: the table, plots, comparison, commands, exports and removal."""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from matplotlib.figure import Figure

from tests.unit.ui.made_up_records import (
    HOSTILE,
    failed,
    fill,
    key_of,
    lines_in,
    put,
    put_sweep,
    put_timeline,
    record,
)
from workbench.cli import make_parser
from workbench.cli.spec import specs_from
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.figures.style import lighter
from workbench.runs.campaign import Campaign
from workbench.runs.columns import ENDINGS, Row, cell, label, plain
from workbench.runs.store import Store
from workbench.ui.runs import work
from workbench.ui.runs.commands import run_command, sweep_commands
from workbench.ui.runs.compare import compare, losses_of
from workbench.ui.runs.files import export, export_rows, log_lines
from workbench.ui.runs.plot import (
    EDGE,
    NOWHERE,
    VALUE,
    Plot,
    draw,
    draw_losses,
    plot_rows,
    words_of,
)
from workbench.ui.runs.table import RunsTable

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


def lines_of(runs_table: RunsTable) -> dict[str, dict[str, object]]:
    """Key -> title -> cell, as the page shows them."""
    titles = [column["title"] for column in runs_table.state.columns]
    lines = lines_in(runs_table.state.cells)
    return {line[0]: dict(zip(titles, line, strict=True)) for line in lines}


def points(runs_table: RunsTable, plot: Plot) -> dict[str, Row]:
    rows = plot_rows(plot, runs_table.rows(), runs_table.state.fields)
    return {row["key"]: row for row in rows}


def drawn(runs_table: RunsTable, plot: Plot) -> Figure:
    fields = runs_table.state.fields
    return draw(plot, plot_rows(plot, runs_table.rows(), fields), fields)


# -- the table -------------------------------------------------------------------------------
def test_a_row_a_run_in_words_with_one_unit_a_column(runs_table: RunsTable) -> None:
    lines = lines_of(runs_table)
    assert len(lines) == 43
    first, out = lines[key_of(0)], lines[key_of(100)]
    assert (first["method"], first["status"]) == ("STRONGHOLD", "\u2713 finished")
    assert first["layers"] == 8
    assert first["peak device (GiB)"] == 0.5, "a number, to be sorted and compared"
    assert out["status"] == "\u2715 out of device memory"
    assert out["throughput (samples/s)"] == "", "no result, and not 0"
    assert out["message"] == "28 GiB do not fit in 16 GiB", "found, though the column is hidden"
    assert all(isinstance(c, int | float) or c.isprintable() for line in lines.values()
               for c in line.values())  # fmt: skip


def test_the_columns_are_those_that_tell_runs_apart(runs_table: RunsTable) -> None:
    shown = {column["name"] for column in runs_table.state.columns if column["shown"]}
    every = {column["name"] for column in runs_table.state.columns}
    assert {"key", "method", "layers", "status", "samples_per_second"} <= shown
    assert not {"heads", "tied", "hidden", "source"} & every, "the same in all"
    assert {"seed", "message"} <= every - shown
    assert list(runs_table.state.fields)[0] == "method"
    assert runs_table.state.fields["layers"].kind == "number"


def test_a_look_says_what_changed_and_costs_nothing_where_nothing_did(
    runs_table: RunsTable,
) -> None:
    before = runs_table.state
    assert runs_table.refresh() == set()
    assert runs_table.state is before
    put(runs_table.store, record(7, message="again"))
    assert runs_table.refresh() == {key_of(7)}
    assert runs_table.state.version > before.version
    assert lines_of(runs_table)[key_of(7)]["message"] == "again"


def test_a_sweep_is_its_runs_its_field_a_column(runs_table: RunsTable) -> None:
    put_sweep(runs_table.store, "depth", (0, 4, 8))
    put_sweep(runs_table.store, "other", [0])
    runs_table.refresh()
    assert lines_of(runs_table)[key_of(0)]["sweep"] == "depth, other"
    runs_table.sweep = "depth"
    runs_table.refresh()
    assert lines_of(runs_table).keys() == {key_of(0), key_of(4), key_of(8)}
    fields = runs_table.state.fields
    assert (fields["layers"].values, fields["method"].values) == (3, 1)
    assert "depth: new" in runs_table.sweeps.words("depth")


def test_what_failed_is_removed_and_nothing_else(runs_table: RunsTable) -> None:
    store = runs_table.store
    assert set(runs_table.failed()) == {key_of(n) for n in (100, 101, 102)}
    with pytest.raises(ValueError, match="a run that finished is not removed"):
        runs_table.remove([key_of(100), key_of(1)])
    with store.lock(key_of(101)), pytest.raises(ValueError, match="is in work; cancel it first"):
        runs_table.remove([key_of(101)])
    outside = store.root.parent / "outside"
    store.folder(key_of(102)).rename(outside)
    store.folder(key_of(102)).symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of the results folder"):
        runs_table.remove([key_of(102)])
    Campaign.create(store, {"name": "bad", "base": {"method": "l2l"}})
    runs_table.remove([key_of(100)], sweep="bad")
    assert (outside / "record.json").exists()
    assert not store.folder(key_of(100)).exists()
    assert store.folder(key_of(101)).exists()
    assert Campaign.all(store) == []


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
    assert cell("samples_per_second", 11.29) == "11.29 samples/s"
    assert cell("method", "varuna-paced") == "policies, paced"
    assert label("predicted_moved_p2p_bytes") == "predicted moved in messages"


# -- plots -----------------------------------------------------------------------------------
def test_a_failed_run_is_above_and_never_zero(runs_table: RunsTable) -> None:
    put(runs_table.store, failed(103, "oom_host", layers=96, peak_bytes={"disk": 0, "device": 0}))
    put(runs_table.store, record(104, status="diverged", losses=[3.0, float("nan")]))
    put(runs_table.store, record(105, losses=[3.0, float("nan")]))
    runs_table.refresh()
    for y in ("samples_per_second", "peak_disk_bytes", "peak_device_bytes", "final_loss"):
        rows = points(runs_table, Plot(x="layers", y=y))
        for number in (100, 101, 102, 103):
            row = rows[key_of(number)]
            assert (row["drawn"], row["y"]) == (EDGE, None), (y, row["status"])
            assert isinstance(row["x"], float)
        assert rows[key_of(0)]["drawn"] == VALUE
    assert (rows[key_of(104)]["drawn"], rows[key_of(105)]["drawn"]) == (EDGE, NOWHERE)
    plot = Plot(x="layers", y="final_loss")
    words = words_of(plot, [*points(runs_table, plot).values()], runs_table.state.fields)
    assert "5 runs without a result above" in words
    assert "1 run without such a value" in words
    axes = drawn(runs_table, THROUGHPUT).axes[0]
    above = [line for line in axes.get_lines() if line.get_label() == "out of device memory"]
    assert [list(line.get_xdata()) for line in above] == [[64.0]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layers", "throughput (samples/s)")
    assert axes.get_ylim()[0] == 0
    assert axes.get_xlim()[1] > 64, "what ended otherwise has a place too"


def test_a_method_that_no_figure_shows_is_grey(store: Store) -> None:
    for number, method in enumerate(("varuna", "varuna-replay", "harmony-pp")):
        made = record(number, method="stronghold", layers=8 + number)
        put(store, replace(made, method=method, spec=made.spec | {"method": method, "options": {}}))
    runs_table = RunsTable(store)
    runs_table.refresh()
    put(store, failed(100, "oom_host", method="l2l"))  # no other mark tells its colour
    runs_table.refresh()
    lines = drawn(runs_table, THROUGHPUT).axes[0].get_lines()
    assert {line.get_label(): line.get_color() for line in lines if line.get_label() != "_"} == {
        "L2L, out of host memory": "#E69F00",
        "Varuna": "#5B3A8C", "Varuna, hosts come and go": "#444444", "Harmony-PP": "#0072B2",
    }  # fmt: skip
    assert lines[[line.get_label() for line in lines].index("Varuna")].get_mec() == "#5B3A8C"


def test_what_a_planner_said_is_simulated_and_0_has_no_logarithm(runs_table: RunsTable) -> None:
    said = points(runs_table, Plot(x="layers", y="predicted_step_seconds"))
    assert {row["source"] for row in said.values()} == {"simulated"}
    assert {r["source"] for r in points(runs_table, THROUGHPUT).values()} == {"measured"}
    rows = points(runs_table, Plot(x="moved_read_bytes", y="layers", log_x=True)).values()
    assert {row["drawn"] for row in rows if row["status"] == "ok"} == {NOWHERE}
    for name in ("speed", "predicted_settings"):
        with pytest.raises(ValueError, match="a field that no record has"):
            points(runs_table, Plot(x="layers", y=name))


def test_sources_never_share_a_mark_and_methods_look_as_in_all_figures(store: Store) -> None:
    for number, source in enumerate(("measured", "simulated", "published")):
        put(store, record(number, method="stronghold", source=source, layers=8 + number))
    runs_table = RunsTable(store)
    runs_table.refresh()
    lines = drawn(runs_table, THROUGHPUT).axes[0].get_lines()
    looks = {(line.get_fillstyle(), line.get_markerfacecolor()) for line in lines}
    assert len(looks) == 3
    assert {line.get_color() for line in lines} == {"#D55E00"}
    assert {line.get_label() for line in lines} == {
        "STRONGHOLD", "STRONGHOLD, simulated", "STRONGHOLD, published",
    }  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("x", "more"),
    [
        ("layers", {}),
        ("method", {"lines": True}),
        ("started", {"colour": ""}),
        ("step_seconds", {"colour": "seed"}),
        ("seed", {"colour": "started", "log_y": True}),
        ("step_seconds", {"colour": "status", "log_x": True, "lines": True}),
        ("dtype", {"colour": "layers"}),
    ],
)
def test_any_field_can_be_an_axis_or_a_colour(runs_table: RunsTable, x: str, more) -> None:
    figure = drawn(runs_table, Plot(x=x, y="samples_per_second", **more))
    figure.savefig(BytesIO(), format="png")
    ended = {ending.words for ending in ENDINGS.values()}
    lines = [line for line in figure.axes[0].get_lines() if line.get_label() not in ended]
    count = sum(len(line.get_xdata()) for line in lines if line.get_marker() not in ("", "None"))
    assert count == 40


# -- files -----------------------------------------------------------------------------------
def test_a_plot_is_saved_with_the_rows_behind_it(runs_table: RunsTable) -> None:
    root = str(runs_table.store.root)
    keys = [row["key"] for row in runs_table.rows() if row["method"] == "l2l"]
    links = work.save_plot(root, keys, list(THROUGHPUT), "throughput.v1")
    folder = runs_table.store.root / "reports" / "board"
    names = ["throughput.v1.csv", "throughput.v1.pdf", "throughput.v1.png"]
    assert [link["name"] for link in links] == names
    assert sorted(path.name for path in folder.iterdir()) == names, "nothing half written is left"
    assert (folder / names[1]).read_bytes()[:5] == b"%PDF-"
    with (folder / names[0]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"l2l"}
    assert {row["drawn"] for row in rows} == {"value", "edge"}
    first = next(row for row in rows if row["drawn"] == "value")
    assert float(first["y"]) == runs_table.row(first["key"])["samples_per_second"]


def test_rows_are_exported_whole_and_no_cell_is_a_formula(runs_table: RunsTable) -> None:
    put(runs_table.store, record(50, message="=cmd|' /C calc'!A0"))
    runs_table.refresh()
    (path,) = export_rows(runs_table.store, runs_table.rows(), "csv", "all")
    with path.open(newline="", encoding="utf-8") as file:
        rows = {row["key"]: row for row in csv.DictReader(file)}
    assert len(rows) == 44
    assert rows[key_of(50)]["message"].startswith("'=cmd")
    assert all(text.isprintable() for row in rows.values() for text in row.values())
    assert float(rows[key_of(0)]["predicted_step_seconds"]) > 0
    (path,) = export_rows(runs_table.store, runs_table.rows(), "jsonl", "all")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["key"] for line in lines] == [row["key"] for row in runs_table.rows()]
    assert {line["layers"] for line in lines} == {8, 16, 24, 32, 48, 64}


def test_tensorboard_gets_each_loss_and_what_was_asked(
    runs_table: RunsTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = runs_table.rows([key_of(0), key_of(100)])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="tensorboard is not here; `pip install tensorboard`"):
        export_rows(runs_table.store, rows, "tensorboard", "board")
    told = []

    class Writer(SimpleNamespace):
        def __init__(self, folder: str) -> None:
            Path(folder).mkdir(parents=True)

        __enter__, __exit__ = (lambda self: self), (lambda *_: None)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            told.append((name, value, step))

        def add_hparams(self, asked: Row, results: Row, run_name: str) -> None:
            told.append((asked["layers"], asked["status"], results.get("samples_per_second")))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    (folder,) = export_rows(runs_table.store, rows, "tensorboard", "board")
    assert {path.name for path in folder.iterdir()} == {key_of(0), key_of(100)}
    assert told[:2] == [("loss", 6.0, 1), ("loss", 5.7, 2)]
    assert told[5:] == [(8, "ok", rows[0]["samples_per_second"]), (64, "oom_device", None)]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\x00", "x" * 65, "..", "ä"])
def test_an_export_has_a_safe_name(runs_table: RunsTable, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name an export"):
        export_rows(runs_table.store, [], "csv", name)
    assert not (runs_table.store.root / "reports").exists()


def test_links_lead_nowhere_outside_the_folder(runs_table: RunsTable, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret\n")
    (runs_table.store.root / "reports").symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of the results folder"):
        export_rows(runs_table.store, [], "csv", "x")
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    (runs_table.store.folder(key_of(1)) / "log.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(ValueError, match="leads out of the results folder"):
        log_lines(runs_table.store, key_of(1))


def test_an_export_that_fails_leaves_the_older_one(runs_table: RunsTable) -> None:
    (path,) = export_rows(runs_table.store, runs_table.rows(), "csv", "kept")
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
    for ask in (runs_table.row, runs_table.spec, lambda key: log_lines(runs_table.store, key)):
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
    lines = log_lines(runs_table.store, key_of(110))
    assert lines[-2:] == ["step 2", "RuntimeError: <b>no room"]
    assert len(lines) == 12
    assert log_lines(runs_table.store, key_of(0)) == []


# -- several runs ----------------------------------------------------------------------------
def test_runs_are_compared_by_what_differs(runs_table: RunsTable) -> None:
    keys = [key_of(0), key_of(1), key_of(100)]
    table = {line[""]: line for line in compare(runs_table.store, keys)}
    assert [table["run"][letter] for letter in "ABC"] == keys
    assert [table["method"][letter] for letter in "ABC"] == ["STRONGHOLD", "L2L", "STRONGHOLD"]
    assert table["status"]["C"] == "\u2715 out of device memory"
    assert table["message"]["C"] == "28 GiB do not fit in 16 GiB"
    assert "hidden size" not in table, "the same in all"
    seconds = [runs_table.row(key)["step_seconds"] for key in keys[:2]]
    assert float(table["step time"]["B ÷ A"]) == pytest.approx(seconds[1] / seconds[0], rel=5e-3)
    assert table["step time"]["C ÷ A"] == table["step time"]["C"] == ""
    for bad, sentence in (
        ([key_of(1)] * 2, "choose 2 to 12 different ones"),
        ([key_of(1), "0" * 16], "there is no record"),
        ([key_of(1), ".."], "no key of a run"),
    ):
        with pytest.raises(ValueError, match=sentence):
            compare(runs_table.store, bad)


def test_losses_of_any_runs_lie_over_each_other_also_of_one_in_work(
    runs_table: RunsTable,
) -> None:
    put(runs_table.store, record(106, losses=[5.0, float("nan"), 4.0]))
    folder = runs_table.store.folder("running")
    folder.mkdir()
    step = {"time": 1.0, "event": "step", "step": 0, "loss": 6.5, "seconds": 0.1}
    (folder / "events.jsonl").write_text(json.dumps(step) + "\n")
    keys = [key_of(0), key_of(106), "running", key_of(100)]
    found = losses_of(runs_table.store, keys)
    assert [len(values) for values in found.values()] == [5, 3, 1, 0]
    assert list(found)[2] == "C: running: current run"
    root = str(runs_table.store.root)
    told = work.losses(root, keys, False)
    assert "No step yet: D: " in told["words"]
    names = ["stronghold", "plain", "harmony-dp", *["stronghold"] * 9]
    figure = draw_losses(dict.fromkeys("ABCDEFGHIJKL", [5.0, 4.0]), names)
    lines = figure.axes[0].get_lines()
    colors = [line.get_color() for line in lines]
    assert colors[:4] == ["#D55E00", "#000000", lighter("#D55E00"), "#D55E00"], "as in figures"
    assert len({line.get_linestyle() for line in lines[:3]}) == 3, "runs of one hue differ"
    assert [line.get_marker() for line in lines[:4]] == ["o", "P", "s", "o"]
    links = work.save_compared(root, keys[:2], "pair")
    assert [link["name"] for link in links] == ["pair.csv", "pair.pdf", "pair.png"]


def test_timelines_of_several_runs_are_one_trace(runs_table: RunsTable) -> None:
    root = str(runs_table.store.root)
    for number in (0, 1):
        put_timeline(runs_table.store, key_of(number))
    (link,) = work.save_trace(root, [key_of(0), key_of(1), key_of(100)], "both")
    events = json.loads((runs_table.store.root / "reports/board" / link["name"]).read_text())
    assert len([e for e in events["traceEvents"] if e["ph"] == "X"]) == 16
    with pytest.raises(ValueError, match="kept no timeline"):
        work.save_trace(root, [key_of(100)], "none")
    with pytest.raises(ValueError, match="there is no report yet"):
        work.reports(root, "x", None)


def test_a_plot_to_point_at_is_the_same_plot(runs_table: RunsTable) -> None:
    pytest.importorskip("plotly")
    told = work.picture(str(runs_table.store.root), None, list(THROUGHPUT), True)
    marks = [one for one in told["plotly"]["data"] if one["name"] in ("STRONGHOLD", "L2L")]
    assert sorted(len(one["x"]) for one in marks) == [10, 10]
    assert told["words"].startswith("throughput over layers, 40 runs")
    told = work.losses(str(runs_table.store.root), [key_of(n) for n in range(12)], True)
    assert len(told["plotly"]["data"]) == 12


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
        run_command(runs_table.spec(key_of(70)), runs_table.store)


def test_a_sweep_is_repeated_by_papermill_and_from_the_command_line(store: Store) -> None:
    campaign = Campaign.create(store, {"name": "a.sweep", "base": {"method": "l2l"}})
    notebook, line = sweep_commands(campaign)
    words = shlex.split(notebook.partition(" && ")[2])
    assert words[:2] == ["papermill", "notebooks/sweep.ipynb"]
    assert words[words.index("sweep") + 1] == str(store.root / "sweeps" / "a.sweep" / "sweep.json")
    arguments = make_parser().parse_args(shlex.split(line)[1:])
    assert arguments.file.is_file()
    assert arguments.results == store.root
