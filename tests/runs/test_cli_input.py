"""Bad input on the command line: exit code 2, one sentence, no traceback, nothing written."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs.helpers import HERE, ROOT, start_driver, workbench
from workbench import cli
from workbench.cli.spec import FIELDS
from workbench.core.options import catalogue

SMALL = ("-l", "4", "--hidden", "64", "--heads", "4", "--seq", "32", "--vocab", "256")


@pytest.fixture
def complaint(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., str]:
    """The one sentence that the command line answers some words with, in an empty folder."""
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))

    def complain(*words: str | Path) -> str:
        try:
            ended = cli.main([*map(str, words)])
        except SystemExit as end:
            ended = end.code
        said = capfd.readouterr()
        assert (ended, said.out) == (2, ""), said.err
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("workbench: ")
        return said.err

    return complain


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "-m", "nonesuch"], "unknown method 'nonesuch'; known: megatron-lm, l2l"),
        (["run"], "which method?"),
        (["run", "-m", "stronghold", *SMALL, "-w", "1"], "a window of 1 layers is out of range"),
        (["run", "-m", "stronghold", *SMALL, "-w", "5"], "it must be 2 to 4, or auto"),
        (["run", "-m", "l2l", *SMALL, "-b", "4", "--microbatches", "3"], "does not divide into 3"),
        (["run", "-m", "l2l", *SMALL, "-b", "four"], "batch is 'four'; it must be a whole number"),
        (["run", "-m", "l2l", "-l", "0"], "layers is 0; it must be at least 1"),
        (["run", "-m", "l2l", "--heads", "7"], "7 heads do not divide"),
        (["run", "-m", "l2l", "--lr", "nan"], "lr is 'nan'; it must be a number"),
        (["run", "-m", "l2l", "--device", "cuda"], "device is cuda, but"),
        (["run", "-m", "l2l", "--device-memory", "32G"], "'32G' is not an amount of memory"),
        (["run", "-m", "l2l", "--timeout", "-1"], "the time limit is -1.0 seconds"),
        (["run", "-m", "l2l", "--cut"], "--cut: expected one argument; did you mean --cut-rows?"),
        (["run", "-m", "l2l", "--cut", "1"], "of ftpipe, not of l2l; did you mean --cut-rows?"),
        (["run", "-m", "l2l", "--lay", "4"], "unrecognized arguments: --lay"),
        (["plan", "--lagest"], "--lagest, did you mean --largest?; see workbench plan --help"),
        (["sweep", "--retry", "a.json"], "see workbench sweep --help"),
        (["plan", "--machine", "A100"], "may be a100-40gb or a100-80gb: say which"),
        (["plan", "--text", "missing.txt"], "there is no text at 'missing.txt'"),
        (["plan", "-m", "plain", "--largest", "--set", "family=bert"], "bert has layers of its"),
        (["plan", "--tokenizer", "bpe:9"], "bpe:9 has no room for merges"),
        (["run", "-m", "1f1b", "--ranks", "2", "--stages", "9 8"], "stages '9 8' are 2 of 17"),
        (["run", "-m", "interleaved", "--ranks", "2", "-b", "1"], "microbatches is 1; with inter"),
        (["run", "-m", "dp-swap", "--ranks", "2", "-b", "1"], "a batch of 1 samples leaves"),
        (["run", "-m", "harmony-pp", "--forward-packs", "9"], "is given without --backward-packs"),
        (["run", "-m", "l2l", "--set", "layer=4"], "unknown field 'layer'"),
        (["run", "-m", "l2l", "--set", "dtype"], "'dtype' is not a setting"),
        (["run", "-m", "l2l", "--lr", "1", "--set", "lr=2"], "as lr=1.0 and as --set lr=2.0"),
        (["run", "-m", "l2l", "--set", "lr=1", "--set", "lr=2"], "lr=1.0 and as --set lr=2.0"),
        (["run", "--spec", "missing.json"], "the spec missing.json cannot be read"),
        (["sweep", "missing.json"], "the sweep missing.json cannot be read"),
        (["jump"], "invalid choice: 'jump'"),
        ([], "the following arguments are required: VERB"),
    ],
)
def test_bad_flags(words: list[str], sentence: str, tmp_path: Path, complaint) -> None:
    if words and words[0] in ("run", "sweep"):
        words = [*words, "--results", str(tmp_path / "results")]

    assert sentence in complaint(*words)
    assert not (tmp_path / "results").exists()


def test_a_folder_to_start_from_without_checkpoints_is_named(tmp_path: Path, complaint) -> None:
    said = complaint("run", "-m", "plain", "--start-from", tmp_path, "--results", tmp_path / "new")
    assert f"--start-from is '{tmp_path}'; there is no whole checkpoint of at most 10" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    {
        "harmony-pp --forward-packs '2 2' --backward-packs '2 2 4' --forward-size 4 "
        "--backward-size 4": "--backward-packs '2 2 4' hold 8 units, the model has 6: 4 layers",
        "harmony-pp --packing faithful --forward-size 2": "they are 2, auto, auto, auto, and must",
        "harmony-pp --activations keep": "leave it at 'recompute'",
        "stronghold --disk-layers 2 --optimizer-tier host": "--disk-layers is 2 and --optimizer",
        "zb-h1 --ranks 2 --compile on": "halves backward passes",
        "plain --microbatches 8192 --set batch=8192": "32768 forward passes a step",
    }.items(),
)
def test_sentences_that_count(words: str, sentence: str, tmp_path: Path, complaint) -> None:
    assert sentence in complaint("plan", "-m", *shlex.split(words), *SMALL, "--results", tmp_path)


@pytest.mark.parametrize("name", [*FIELDS, *catalogue()])
def test_a_refusal_names_what_was_typed(name: str, tmp_path: Path, complaint) -> None:
    """A flag as the flag, a key of --set or of a file as the key."""
    flag, file = f"--{name.replace('_', '-')}", tmp_path / "spec.json"
    method = catalogue()[name].methods[0] if name in catalogue() else "plain"
    asked = ["plan", "-m", method, "--results", tmp_path / "results"]
    by_flag, by_key = (complaint(*asked, *w) for w in ((flag, "?!"), ("--set", f"{name}=?!")))
    assert by_flag.replace(flag, name) == by_key
    assert (flag in by_flag) == (name not in ("text", "tokenizer", "weights"))
    assert flag not in by_key
    file.write_text(json.dumps({"method": method, name: "?!"}))
    assert flag not in complaint("plan", "--spec", file)


def test_a_refusal_names_flags_that_were_not_typed(tmp_path: Path, complaint) -> None:
    asked = ["run", "-m", "harmony-pp", "--ranks", "2", "--microbatches", "2", "--results"]
    said = complaint(*asked, tmp_path)
    assert "divide the batch by --forward-size and --backward-size" in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"method": "l2l", "batch": "4"}', "batch is '4'; it must be a whole number"),
        ('{"method": "l2l", "layer": 4}', "unknown field 'layer'"),
        ('{"method": "l2l", "model": {"lr": 4}}', "unknown field 'lr' in a model"),
        ('{"method": 3}', "unknown method 3"),
        ('{"method": "l2l", "clip": -1}', "clip is -1.0; it must be positive, or none"),
    ],
)
def test_malformed_specs(text: str, sentence: str, tmp_path: Path, complaint) -> None:
    file = tmp_path / "spec.json"
    file.write_text(text)

    assert sentence in complaint("run", "--spec", file, "--results", tmp_path / "results")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        ({"base": {"method": "l2l"}, "grids": {}}, "unknown field 'grids'"),
        ({"base": {"method": "l2l"}, "grid": {"window": []}}, "the axis window is []"),
        ({"base": {"method": "l2l"}, "grid": {"breadth": [2]}}, "unknown field 'breadth'"),
        ({"base": {"method": "stronghold"}, "grid": {"window": [2, 99]}}, "a window of 99 layers"),
        ({"base": {"method": "nonesuch"}}, "unknown method 'nonesuch'"),
        ({"base": {"method": "l2l"}, "timeout": 0}, "timeout is 0"),
    ],
)
def test_malformed_sweeps(sweep: dict, sentence: str, tmp_path: Path, complaint) -> None:
    """The last bad point of a grid stops the sweep before its first good one."""
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({**sweep, "results": "results"}))

    assert sentence in complaint("sweep", file)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("results", ["/proc/results", "file/results"])
def test_a_results_folder_that_cannot_be_written(results: str, tmp_path: Path) -> None:
    """Found by writing, so that it holds for root, network folders and read-only mounts alike."""
    (tmp_path / "file").write_text("not a folder")

    driver = start_driver(
        "run", "-m", "fake", "--text", "steps", "--results", tmp_path / results, "-l", "4"
    )
    _, said = driver.communicate(timeout=60)

    *_, last = said.decode().splitlines()
    assert driver.returncode == 2
    assert last.startswith("workbench: the results folder ")
    assert "cannot be written" in last
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    ("text", "code"), [("steps", 0), ("value_error", 2), ("does_not_fit", 2), ("bug", 3)]
)
def test_exit_codes_and_json(text: str, code: int, tmp_path: Path) -> None:
    command = [sys.executable, HERE / "driver.py", "run", "-m", "fake", "-l", "4", "--text", text]
    done = subprocess.run(
        [*command, "--json", "--results", tmp_path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    record = json.loads(done.stdout)
    assert done.returncode == code
    assert (record["status"] == "ok") == (code == 0)
    assert "Traceback" not in done.stderr
    expected = (
        "status method losses step_seconds samples_per_second peak_bytes moved_bytes parameters"
    )
    assert set(expected.split()) <= record.keys()


def test_help_is_quick_and_imports_neither_torch_nor_pandas_nor_numpy() -> None:
    """Nor do the processes of a sweep and of `workbench run`, before they know what is asked."""
    code = "import sys, workbench.sweep_process, workbench.cli.run; "
    code += "workbench.cli.make_parser(); print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0
    assert not {"torch", "pandas", "numpy"} & {*told.stdout.split()}
    done = workbench("run", "--help")
    assert done.returncode == 0
    assert "--device-memory" in done.stdout


def test_a_dry_run_tells_points_apart_and_what_does_not_fit(tmp_path: Path, capsys) -> None:
    base = {"method": "plain", "layers": 4, "hidden": 64, "heads": 4, "seq": 32, "vocab": 256}
    grid = {"device_memory": ["1KiB", "1GiB"], "activations": ["keep", "recompute"]}
    (tmp_path / "s.json").write_text(json.dumps({"base": base, "grid": grid, "results": "r"}))
    assert cli.main(["sweep", str(tmp_path / "s.json"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["activations keep" in line for line in lines] == [True, False, True, False]
    assert [line.endswith("; does not fit") for line in lines] == [True, True, False, False]
    assert not (tmp_path / "r" / "runs").exists()
