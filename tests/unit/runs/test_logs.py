"""The published logs, in every shape people keep them in, and our own in the same format."""

import csv
import html
import math
from pathlib import Path

import pytest

import workbench
from tests.unit.ui.made_up_records import put, record
from workbench.runs import legacy
from workbench.runs.logs import ParsedLog, clean, parse_log, read_log
from workbench.runs.overrides import make_spec
from workbench.runs.store import Store

REFERENCE = Path(__file__).resolve().parents[4] / "shared" / "reference" / "stronghold"
needs_samples = pytest.mark.skipif(
    not REFERENCE.exists(), reason="the published logs are not part of the repository"
)
METHODS = {"STRONGHOLD": "stronghold", "L2L": "l2l", "ZeRO-Offload": "zero-offload"}

LINE = (
    " iteration {i:8d}/      50 | elapsed time per iteration (ms): {ms:.1f} | learning rate: "
    "4.687E-07 | global batch size:     4 |{loss} loss scale: 1.0 | grad norm: {norm} | number of "
    "skipped iterations:   0 | number of nan iterations:   0 |\n"
    "NumWorkers: 1; SamplesPerStep: 4; IterationTime: 2.7;  SamplesPerSecond: 1.5\n"
)
NAME = "log_stronghold_l-16_hs-2048_bs-4_ws-15_2022-07-02.1656742529.txt"


def log_of(*losses: float | None, ms: float = 2700.0, tail: str = "") -> str:
    return (
        "".join(
            LINE.format(
                i=10 * (i + 1),
                ms=ms,
                norm="inf" if loss is None else "1.5",
                loss="" if loss is None else f" lm loss: {loss:.6E} |",
            )
            for i, loss in enumerate(losses)
        )
        + tail
    )


END = "[exiting program at iteration 50] datetime: 2022-07-02 04:12:28 \n"


@needs_samples
@pytest.mark.parametrize("sample", sorted((REFERENCE / "sample_logs").glob("*.txt")))
def test_samples_agree_with_the_reference_table(sample: Path) -> None:
    log = read_log(sample)
    with (REFERENCE / "runs.csv").open() as file:
        (row,) = (
            r
            for r in csv.DictReader(file)
            if METHODS.get(r["method"]) == log.method
            and int(r["layers"]) == log.model.layers
            and (r["window"] or None) == (str(log.window) if log.window else None)
        )

    iterations = [10, 20, 30, 40, 50]
    printed = [(row[f"ms_{i}"], row[f"loss_{i}"]) for i in iterations if row[f"ms_{i}"]]
    assert [p.elapsed_ms for p in log.points] == [float(ms) for ms, _ in printed]
    assert [p.loss for p in log.points] == pytest.approx([float(v) for _, v in printed], rel=1e-6)
    assert log.median_ms == float(row["median_ms"])
    assert log.samples_per_second == pytest.approx(float(row["mean_samples_per_s"]), abs=6e-5)
    assert log.parameters == int(row["parameters"])
    assert (log.model.hidden, log.batch, log.model.seq, log.model.heads) == (2048, 4, 1024, 16)
    assert log.peak_mib == pytest.approx(float(row["mem_max_alloc_mib"]), abs=0.06)
    assert log.status == {"ok": "ok", "killed": "oom_host"}[row["status"]]


@needs_samples
def test_a_sample_that_was_killed() -> None:
    samples = {p.name.split("_")[0]: read_log(p) for p in (REFERENCE / "sample_logs").iterdir()}
    killed = samples["l2l"]
    assert "after iteration 10" in killed.message
    assert len(killed.points) == 1


def test_a_loss_left_out_was_not_a_number() -> None:
    log = parse_log(log_of(11.3, 11.2, 11.1, None, None, tail=END), NAME)

    assert [p.loss for p in log.points[:3]] == [11.3, 11.2, 11.1]
    assert math.isnan(log.points[3].loss)
    assert log.status == "diverged"
    assert log.notes == ("no loss is printed at iteration 40, 50: it was not a number",)


@pytest.mark.parametrize("form", ["hs", "h"])
@pytest.mark.parametrize("prefix", ["log_", ""])
@pytest.mark.parametrize("suffix", ["_2022-07-02.1656742529.txt", ".txt"])
def test_file_names(form: str, prefix: str, suffix: str) -> None:
    name = f"{prefix}zero-infinity_l-48_{form}-1024_bs-8_ws-4{suffix}"
    log = parse_log(log_of(9.0, tail=END), name)

    assert (log.method, log.model.layers, log.model.hidden, log.batch) == (
        "zero-infinity",
        48,
        1024,
        8,
    )
    assert log.window is None  # in the name, but the method has none
    assert log.date == ("2022-07-02" if "2022" in suffix else "")


@pytest.mark.parametrize(
    ("tail", "status", "message"),
    [
        (END, "ok", ""),
        ("rank: 0 | time: 2022 | exiting the program at iteration 50", "ok", ""),
        ("x.sh: line 56: 31047 Killed    python pretrain.py\n", "oom_host", "killed by the system"),
        ("Killed\n", "oom_host", "after iteration 20"),
        ("RuntimeError: CUDA out of memory. Tried to allocate", "oom_device", "after iteration 20"),
        ("Traceback\nKeyError: 'x'\n", "error", "KeyError: 'x' after iteration 20"),
        ("", "error", "the log stops after iteration 20"),
        ("saved: the Killed vocabulary word\n", "error", "the log stops"),
    ],
)
def test_how_it_ended(tail: str, status: str, message: str) -> None:
    log = parse_log(log_of(9.0, 8.0, tail=tail), NAME)

    assert log.status == status
    assert message in log.message


@pytest.mark.parametrize(
    "mangle",
    [
        lambda text: f"<html><body><pre>{html.escape(text)}</pre></body></html>",
        lambda text: "<p>" + text.replace("\n", "<br/>\n").replace("loss", "<b>loss</b>") + "</p>",
        lambda text: text.replace("iteration", "\x1b[31miteration\x1b[0m").replace("\n", "\r\n"),
        lambda text: "\x00\ufffd\x08progress 10%\rprogress 20%\r" + text.replace("|", "|\x07"),
        lambda text: "\ufeff" + text.replace(" iteration  ", "WARNING: noise iteration  "),
        lambda text: text + " iteration       60/      50 | elapsed time per iter",
    ],
)
def test_what_tools_do_to_logs(mangle, tmp_path: Path) -> None:
    plain = log_of(11.3, 10.9, 9.5, 9.0, 8.5, tail=END)
    file = tmp_path / NAME
    file.write_text(mangle(plain))

    assert read_log(file) == parse_log(plain, NAME)


def test_the_command_says_what_a_name_does_not() -> None:
    command = (
        "python pretrain.py --num-layers 24 --hidden-size 512 --num-attention-heads 8 "
        "--seq-length 256 --micro-batch-size 2 --global-batch-size 6\n"
        "  enable_l2l ...................................... True\n"
    )
    log = parse_log(command + log_of(9.0), "notes.txt")

    assert (log.method, log.model.layers, log.model.heads, log.model.seq, log.batch) == (
        "l2l",
        24,
        8,
        256,
        6,
    )


@pytest.mark.parametrize("text", ["", "hello\n", "\x00" * 100, log_of(9.0)])
def test_what_is_no_log(text: str) -> None:
    with pytest.raises(ValueError, match=r"notes.txt is no log of a known form: it has no layers"):
        parse_log(text, "notes.txt")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_log(tmp_path / "missing.txt")


def test_plain_text_is_left_alone() -> None:
    text = "a <int> b | 1 < 2 and 3 > 2 | x\n"

    assert clean(text) == text


def write_own(steps: int, losses: list[float], **changes: object) -> tuple[str, ParsedLog]:
    spec = make_spec(
        {"method": "zero-offload", "layers": 2, "hidden": 64, "heads": 4, "seq": 32, "vocab": 256}
        | {"steps": steps, **changes}
    )
    writer = legacy.LineWriter(spec)
    lines = ["workbench run", "DeepSpeed info: version=0.19.8", *writer.header()]
    for step, loss in enumerate(losses):
        lines += writer.step(step, loss, 0.25)
    text = "\n".join([*lines, writer.footer()])
    return text, parse_log(text, "log.txt")


def test_our_own_log_reads_back() -> None:
    text, log = write_own(3, [5.0, 4.5, math.nan], batch=8)

    assert (log.method, log.model.layers, log.model.heads, log.batch) == ("zero-offload", 2, 4, 8)
    assert log.parameters == 2 * (12 * 64**2 + 13 * 64) + (256 + 32) * 64 + 2 * 64
    assert [p.elapsed_ms for p in log.points] == [250.0] * 3
    assert [p.loss for p in log.points][:2] == [5.0, 4.5]
    assert "lm loss: NAN" in text  # not left out
    assert math.isnan(log.points[2].loss)
    assert log.notes == ()
    assert log.points[0].samples_per_second == 32
    assert log.status == "diverged"


def test_of_many_steps_every_tenth_is_printed_with_its_mean() -> None:
    _, log = write_own(105, [float(step) for step in range(105)])

    assert [p.iteration for p in log.points] == [*range(10, 101, 10), 105]
    assert log.points[0].loss == 4.5
    assert log.points[-1].loss == 102.0


def test_a_log_appended_to_after_a_restart_counts_each_iteration_once() -> None:
    text = log_of(3.0, 2.5, 2.0) + log_of(2.9, 2.4).replace("on       10", "on       20")
    log = parse_log(text.replace("skipped iterations:   0", "skipped iterations: inf"), NAME)
    assert [(p.iteration, p.loss) for p in log.points] == [(10, 3.0), (20, 2.4), (30, 2.0)]
    assert any("2 iterations stand twice" in note for note in log.notes)


def test_a_log_is_a_row_beside_records(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(log_of(9.5, 8.25, ms=500.0, tail=END))
    killed = NAME.replace("l-16", "l-32")
    (tmp_path / killed).write_text("RuntimeError: CUDA out of memory\n")
    put(Store(tmp_path), record(1))
    table = workbench.records(tmp_path, logs=[tmp_path / NAME, tmp_path / killed])
    assert [*table.source] == ["measured", "log", "log"]
    assert [*table.status] == ["ok", "ok", "oom_device"]
    assert {"key", "source", *table.columns} == {*workbench.records(tmp_path).columns}
    told = table.iloc[1]
    assert (told.key, told.method, told.layers, told.window) == (NAME, "stronghold", 16, 15)
    assert (told.step_seconds, told.samples_per_second, told.losses) == (0.5, 1.5, [9.5, 8.25])
    assert table.iloc[2].losses == []
    (tmp_path / "words.txt").write_text("hello")
    with pytest.raises(ValueError, match="words.txt is no log of a known form"):
        workbench.records(tmp_path, logs=tmp_path / "words.txt")
    with pytest.raises(ValueError, match="cannot be read"):
        workbench.records(tmp_path, logs=str(tmp_path / "none.txt"))
