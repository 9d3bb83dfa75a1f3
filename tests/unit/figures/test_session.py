"""An exhibit from parameters to verdict, where nothing has to run for it."""

from __future__ import annotations

import html
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.unit.figures.records import record
from workbench.cli import make_parser
from workbench.cli.spec import specs_from
from workbench.core import host
from workbench.exhibits import EXHIBITS, find, open_exhibit
from workbench.exhibits.session import Session
from workbench.exhibits.stronghold.fig9 import Window
from workbench.published.here import OFFLOAD
from workbench.report.page import join
from workbench.report.sections import figures
from workbench.report.summary import by_kind, summary, verdicts
from workbench.runs.resolve import key_of
from workbench.runs.store import Store
from workbench.shown import Shown


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about a machine without one, wherever they run, and about a project that has
    measured nothing yet."""
    monkeypatch.setattr(host, "resolve_device", lambda device: "cpu")
    monkeypatch.setattr(
        "workbench.exhibits.stronghold.base.OFFLOAD", SimpleNamespace(runs=lambda roots: [])
    )


def with_records(figure: str, folder: Path) -> Session:
    """Figure 9 at size tiny with one of its two runs done."""
    session = open_exhibit(figure, "tiny", folder)
    spec = Window().specs(session.size)[0]
    session.store.write(record(spec, 0.2, key=key_of(spec)))
    return session


def test_the_report_renews_figure_files_that_show_other_rows(tmp_path: Path) -> None:
    """A run that was repeated since is in the report, and in PDF, PNG and CSV beside it."""
    session = with_records("9", tmp_path)
    paths = session.figure(session.rows()).paths
    before = [path.read_bytes() for path in paths]
    spec = Window().specs(session.size)[0]
    session.store.write(record(spec, 0.7, key=key_of(spec)))
    figures([(session, session.rows())], {})
    after = [path.read_bytes() for path in paths]
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert paths[-1].read_text() == session.rows().to_csv(index=False)
    times = [path.stat().st_mtime_ns for path in paths]
    figures([(session, session.rows())], {})
    assert [path.stat().st_mtime_ns for path in paths] == times, "nothing to renew"


def test_wrong_parameters_are_answered_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown exhibit '10'"):
        open_exhibit("10", "smoke", tmp_path)
    for name in ("9", "harmony_12"):
        with pytest.raises(ValueError, match="unknown size 'large'"):
            open_exhibit(name, "large", tmp_path)
        with pytest.raises(ValueError, match="'small' needs a GPU.*use smoke"):
            open_exhibit(name, "small", tmp_path)


def test_figure_9_with_another_batch_is_a_run_of_the_command_line(tmp_path: Path) -> None:
    """Its record, title and file say so; and the table of figure 8a has those methods alone."""
    session = open_exhibit("9", "tiny", tmp_path, batch=4, window="2, 3", seed=7)
    words = (
        "-m stronghold --layers 3 --hidden 32 --heads 2 --seq 16 --vocab 256 --steps 3 -b 4 -w 2 "
        "--microbatches 1"
    )
    words += " --seed 7 --device cpu --activations recompute --set link_bytes_per_s=200e6"
    own = [each.spec for each in next(session.stages()).points]
    assert [spec.options.window for spec in own] == [2, 3]
    (told,) = specs_from(make_parser().parse_args(["run", *words.split()]), window=4)
    assert key_of(own[0]) == key_of(told)
    session.store.write(record(own[0], 0.2, key=key_of(own[0])))
    rows = session.rows()
    assert rows[rows["source"] == "measured"]["value"].item() == pytest.approx(200)
    drawing = session.figure(rows)
    assert {path.stem for path in drawing.paths} == {"fig9-batch_4-window_2_3-seed_7"}
    told = " ".join(session.draw(rows).texts[-1].get_text().split())
    assert (
        told == "STRONGHOLD (SC'22), figure 9: Effect of the window; batch 4; window 2, 3; seed 7"
    )
    some = open_exhibit("8a", "tiny", tmp_path, methods="stronghold, l2l")
    assert [each.spec.method for each in next(some.stages()).points] == ["l2l", "stronghold"]


@pytest.mark.parametrize(
    ("figure", "changes", "words"),
    [
        ("9", {"bacth": 8}, "figure 9 has no parameter 'bacth'; it has size, .* batch, window"),
        ("9", {"batch": "eight"}, "batch is 'eight'; it must be a whole number"),
        ("9", {"batch": 0}, "batch is 0; it must be"),
        ("9", {"batch": "2, 4"}, "batch is '2, 4'; it must be one value"),
        ("9", {"hidden": 33}, "33"),
        ("8a", {"methods": "plain"}, "runs no method 'plain'; it runs megatron-lm, l2l"),
        ("8a", {"methods": "zero"}, "unknown method 'zero'; known: megatron-lm"),
        ("harmony_13", {"window": 2}, "Harmony, figure 13 has no parameter 'window'"),
        ("here_offload", {"batch": 8}, "it has size, results, force, machine"),
        ("varuna_accuracy", {"batch": 3}, "batch is 3, which no shape divides; 8 and its"),
    ],
)
def test_a_wrong_parameter_is_one_sentence(
    figure: str, changes: dict, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        open_exhibit(figure, "tiny" if figure != "here_offload" else "smoke", tmp_path, **changes)
    assert raised.value._render_traceback_() == [str(raised.value)], "no frames in a notebook"


def test_what_papermill_only_warns_of_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    cells = ["", "size: str = 'smoke'\nbatch: int = None", "# Parameters\nbacth = 8\n"]
    shell = SimpleNamespace(user_ns={"In": cells})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    with pytest.raises(ValueError, match="no parameter 'bacth'"):
        open_exhibit("9")
    cells[2] = "# Parameters\nbatch = 8\n"
    assert open_exhibit("9").size.name == "smoke"


@pytest.mark.parametrize("figure", [n for n in EXHIBITS if find(n).takes and find(n).runs])
def test_every_parameter_reaches_the_runs(figure: str, tmp_path: Path) -> None:
    takes = find(figure).takes
    values = {"layers": 4, "hidden": 64, "batch": 8, "window": 2, "steps": 4, "seed": 5}
    values |= {"batch": 12} if figure == "varuna_morphing" else {}
    given = {name: value for name, value in values.items() if name in takes}
    session = open_exhibit(figure, "tiny", tmp_path, **given)
    specs = session.exhibit.specs(session.size, *([{"l2l": 2}] if figure == "7a" else []))
    assert specs
    for spec in specs:
        own = {"layers": spec.model.layers, **spec.to_dict()} | {"hidden": spec.model.hidden}
        own["window"] = spec.to_dict()["options"].get("window", 2)
        varied = {"window"} if spec.method != "stronghold" else set()
        assert {n: own[n] for n in given if n not in varied} == {
            n: given[n] for n in given if n not in varied
        }


def test_opening_an_exhibit_writes_nothing(tmp_path: Path) -> None:
    open_exhibit("9", "paper", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_relative_folder_is_the_command_lines(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for here, there in ((root / "notebooks" / "figures", root), (root, root), (tmp_path, tmp_path)):
        monkeypatch.chdir(here)
        assert open_exhibit("9", "paper", "results").store.root == there / "results"
        assert Store("results").root == there / "results"


def test_paper_without_a_gpu_is_simulated_and_says_so(tmp_path: Path) -> None:
    session = open_exhibit("8b", "paper", tmp_path)
    assert session.preview()["note"].str.contains("nothing runs").all()
    assert list(session.stages()) == []
    rows = session.run()
    assert set(rows["source"]) == {"published", "simulated"}
    drawing = session.figure(rows)
    assert [path.suffix for path in drawing.paths] == [".pdf", ".png", ".csv"]
    png, options = drawing._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert options["width"] < 400  # a column
    assert set(session.verdict(rows)["verdict"]) == {"holds"}
    assert "nothing was measured" in session.provenance().to_string()
    with pytest.raises(ValueError, match="is simulated here, with published settings; batch can"):
        open_exhibit("8b", "paper", tmp_path, batch=8)


def test_measurements_kept_in_the_project_are_shown_as_measured(tmp_path: Path) -> None:
    session = open_exhibit("9", "paper", tmp_path)
    csv = session.figure(session.run()).paths[-1]
    kept = pd.read_csv(csv).query("source == 'simulated' and variant == 'as this code runs it'")
    kept = kept.assign(source="measured", variant="", hardware="NVIDIA H200", device="cuda")
    folder = tmp_path / "published-here" / "nvidia-h200"
    folder.mkdir(parents=True)
    kept.to_csv(folder / "stronghold_9.csv", index=False)
    again = open_exhibit("9", "paper", tmp_path)
    rows = again.run()
    assert (rows["source"] == "measured").sum() == len(kept)
    over = open_exhibit("9", "paper", tmp_path, overlay=True).draw(rows)
    assert (len(over.axes), len(again.draw(rows).axes)) == (1, 3), "published values laid over"
    assert set(again.verdict(rows)["judged"]) == {"measured"}


def test_what_is_done_is_shown_and_what_is_not_is_planned(tmp_path: Path) -> None:
    session = with_records("9", tmp_path)
    preview = session.preview()
    assert preview["state"].tolist()[:-1] == ["finished 2026-11-21 06:00", "to run"]
    assert preview["state"].iloc[-1] == "1 finished, 1 to run"
    assert "not measured here yet" in preview["note"].iloc[-1]
    assert all(word.endswith("iB") for word in preview["device"].iloc[1:-1])
    rows = session.rows()
    assert rows.query("source == 'measured'")["x"].tolist() == [2]
    assert session.verdict(rows)["verdict"].tolist() == ["no result", "no result"]


def test_records_of_other_code_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = with_records("9", tmp_path)
    monkeypatch.setattr("workbench.core.methods.code_version", lambda name: "changed")
    assert session.records() == []


def test_a_preview_of_a_search_says_what_will_not_fit(tmp_path: Path) -> None:
    preview = open_exhibit("6a", "smoke", tmp_path).preview()
    first = preview.iloc[0]
    assert first["run"] == "Megatron-LM: largest model"
    assert f"at {first['layers'] + 1} layers device memory" in first["note"]
    assert "not measured yet" in first["note"]
    assert len(preview) == 6


def test_tables_show_all_of_their_text() -> None:
    long = " ".join(["word"] * 60)
    shown = Shown({"why": [long], "n": [0.123456]})
    html = shown._repr_html_()
    assert long in html
    assert "0.1235" in html
    assert isinstance(shown.head(1), Shown)


def test_a_machine_chooses_committed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.exhibits.stronghold.base.OFFLOAD", OFFLOAD)
    for figure in ("varuna_accuracy", "varuna_scaling"):
        for machine, other in (("h100", "H200"), ("h200", "H100")):
            rows = open_exhibit(figure, "smoke", tmp_path, machine=machine).rows([])
            seen = " ".join(set(rows["hardware"].dropna()))
            assert machine.upper() in seen
            assert other not in seen
    nine = open_exhibit("9", "paper", tmp_path, machine="h200").rows([])
    assert nine["hardware"].str.contains("NVIDIA H200").any()
    with pytest.raises(ValueError, match="shows no rows of machine 'v100'; those .* are h200"):
        open_exhibit("9", "paper", tmp_path, machine="v100")
    with pytest.raises(ValueError, match="Harmony, figure 8 has no parameter 'machine'"):
        open_exhibit("harmony_8", "tiny", tmp_path, machine="h100")


def test_bubbles_of_other_pipelines(tmp_path: Path) -> None:
    session = open_exhibit("varuna_bubbles", results=tmp_path, ranks="5, 6", microbatches="1, 9")
    rows = session.rows([])
    assert {*rows[rows["source"] == "simulated"]["label"]} == {"5 stages", "6 stages"}
    assert [*rows[rows["source"] == "published"]["x"]] == [9]
    assert set(session.verdict(rows)["verdict"]) == {"holds"}
    alone = open_exhibit("varuna_bubbles", results=tmp_path, ranks=6, microbatches=1)
    assert set(alone.verdict(alone.rows([]))["verdict"]) == {"no result"}


def test_a_report_tells_what_does_not_hold_at_the_top_and_under_the_figure(tmp_path: Path) -> None:
    """With the reason each time; the small print is text of the page alone."""
    session = open_exhibit("varuna_bubbles", "smoke", tmp_path)
    shown = [(session, rows := session.rows())]
    judged = verdicts(shown, pd.DataFrame())
    assert by_kind(judged)["simulated, 2 claims"] == "1 holds, 1 does not hold"
    (failed,) = judged["Varuna"].query("verdict == 'does not hold'").itertuples()
    for part in (figures(shown, {}), summary("smoke", shown, {}, [], "run here", judged)):
        assert html.escape(failed.claim) in join(part)
        assert html.escape(failed.why) in join(part)
    assert session.draw(rows).get_supxlabel()
    assert not session.draw(rows, printed=False).get_supxlabel()
