"""Python's way in does what the command line does, wherever the package lies; other packages bring
methods."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from inspect import unwrap
from pathlib import Path
from zipfile import ZipFile

import pytest

import workbench
from workbench import Engine, cli
from workbench.core import methods
from workbench.core.spec import RunSpec
from workbench.doctor import _methods
from workbench.profile.machine import this_machine
from workbench.profile.timing import BRIEF
from workbench.runs.resolve import key_of, resolve

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "layers": 2, "hidden": 16, "heads": 2, "seq": 8, "vocab": 300, "batch": 2, "steps": 2,
    "device": "cpu",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MINE = '''
from dataclasses import dataclass

from workbench.core.methods import Method
from workbench.core.options import Options as NoOptions
from workbench.core.record import Outcome
from workbench.schedule.plan import Plan

ROW = Method(
    name="mine", label="Mine", module="mine", summary="nothing, quickly", options="mine:Options"
)


@dataclass(frozen=True, kw_only=True)
class Options(NoOptions):
    knob: int = 1
    """Loss of all steps."""


def plan(spec, profile):
    return Plan(
        method=spec.method, fits=True, schedule=None, step_seconds=1.0, peak_bytes={},
        moved_bytes={}, binding="", notes=(f"knob {spec.options.knob}",),
    )


def train(spec, report, folder):
    losses = [float(spec.options.knob)] * spec.steps
    return Outcome(
        losses=losses, step_seconds=[0.1] * spec.steps, peak_bytes={}, moved_bytes={}, parameters=1
    )
'''


def install(folder: Path, name: str, points: str) -> Path:
    """A package's metadata, in a folder."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{methods.GROUP}]\n{points}\n")
    return folder


def test_a_method_of_another_package_is_named_by_metadata_and_run(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path / "site", "mine_package", "mine = mine:ROW"))
    (tmp_path / "site" / "mine.py").write_text(MINE)
    listed = {finding.name: finding for finding in _methods(this_machine("cpu"))}
    assert [*listed] == [*methods.known()]
    assert "of mine_package" in listed["mine"].detail
    assert "mine" not in sys.modules, "nobody has asked for it"
    flags = [f"--{name}={value}" for name, value in TINY.items()]
    flags += ["--results", str(tmp_path / "results"), "--json"]

    def told(*words: str) -> dict:
        assert cli.main([*words, *flags]) == 0
        return json.loads(capsys.readouterr().out)

    record = told("run", "--method=mine", "--knob", "3")
    assert (record["losses"], record["spec"]["options"]) == ([3.0, 3.0], {"knob": 3})
    assert methods.known()["mine"].label == "Mine"
    planned = told("plan", "-m", "all", "--knob", "2")["methods"]
    assert "knob 2" in {note for one in planned for note in one["notes"]}
    monkeypatch.syspath_prepend(install(tmp_path / "more", "broken", "no = mine:plan"))
    assert cli.main(["run", "-m", "no", *flags]) == 2
    assert "mine:plan of broken is no Method of the name 'no'" in capsys.readouterr().err
    del sys.modules["mine"]


@pytest.mark.usefixtures("forked")
def test_python_runs_plans_sweeps_and_reads_what_the_command_line_does(tmp_path) -> None:
    results = tmp_path / "results"
    record = workbench.run(method="plain", device_memory="1GiB", results=results, **TINY)
    assert (record.status, len(record.losses)) == ("ok", 2)
    again = workbench.run(RunSpec.from_dict(record.spec), results=results)
    assert again.key == record.key == key_of(resolve(RunSpec.from_dict(record.spec)))
    once = {name: value for name, value in TINY.items() if name != "steps"}
    swept = workbench.sweep(
        base={"method": "plain", "device_memory": "1GiB", **once}, grid={"steps": [2, 3]},
        name="mine", results=results,
    )  # fmt: skip
    assert [len(one.losses) for one in swept] == [2, 3]
    assert swept[0].key == record.key, "what has a record is not run again"
    assert (results / "sweeps" / "mine").is_dir()
    table = workbench.records(results)
    assert sorted(table["steps"]) == [2, 3]
    none = workbench.records(tmp_path / "absent")
    assert none.empty
    assert not set(table.columns) - set(none.columns), "a table without rows is asked the same"
    assert list(none[none["step_seconds"] < 1]["predicted_peak_device_bytes"]) == []
    assert workbench.plan(method="stronghold", layers=20, results=results).plan.fits
    assert workbench.plan(layers=4, results=results).spec.method in methods.METHODS
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    spec = workbench.plan(method="l2l", hf_config=tmp_path, seq=16, results=results).spec
    assert (spec.model.layers, spec.model.hidden, spec.model.seq) == (3, 16, 16)
    for wrong, words in (
        ({"method": "l2l", "hf_config": tmp_path, "layers": 2}, "layers cannot be given beside hf"),
        ({"method": "l2l", "hf_config": 3}, "hf_config is 3; it must be a folder of Hugging Face"),
        ({"method": "plain", "colour": 1}, "unknown field 'colour'"),
        ({"method": "none"}, "unknown method 'none'"),
        ({"method": "plain", "layers": "many"}, "layers is 'many'"),
    ):
        with pytest.raises(ValueError, match=words):
            workbench.run(**wrong, results=results)
    for ask, wrong, words in (
        (workbench.run, {"spec": {"method": "plain"}}, "spec is {'method': 'plain'}; it must be a"),
        (workbench.plan, {"spec": "plain"}, "spec is 'plain'; it must be a RunSpec"),
        (workbench.run, {"method": "plain", "timeout": "1 h"}, "timeout is '1 h'; it must be sec"),
        (workbench.sweep, {"file": 3}, "file is 3; it must be a sweep file's path"),
        (workbench.records, {"results": 3}, "results is 3; it must be the path"),
    ):
        with pytest.raises(ValueError, match=words) as raised:
            ask(**wrong)
        told = [str(raised.value)]
        assert raised.value._render_traceback_() == told, "a notebook shows frames"
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file"):
        workbench.records(tmp_path / "file")


def test_a_wheel_works_from_any_folder(tmp_path) -> None:
    """Built, unpacked, and used with nothing of the repository to be found."""
    source, site, here = (tmp_path / name for name in ("source", "site", "here"))
    for name in ("workbench", "baselines"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    here.mkdir()
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(site)
    data = {"*.csv", "*.json", "*.cpp", "*.js", "*.css", "README.md"}
    for path in (path for kind in data for path in (ROOT / "workbench").rglob(kind)):
        assert (site / path.relative_to(ROOT)).is_file(), f"{path} is not packed"

    def ask(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "workbench.cli", *words],
            cwd=here, env=os.environ | {"PYTHONPATH": str(site), BRIEF: "1"},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    told = json.loads(ask("doctor", "--device", "cpu", "--quick", "--json"))
    assert [one["name"] for one in told["methods"]] == [*methods.known()]
    assert [*here.glob("results/profiles/*/hardware.json")]
    assert json.loads(ask("plan", "-m", "stronghold", "-l", "20", "--json"))["fits"]
    assert "results" not in {path.name for path in site.iterdir()}
    with pytest.raises(subprocess.CalledProcessError) as ended:
        ask("figure", "here_offload")
    assert "made in a checkout" in ended.value.stderr


def test_the_example_trains_alike_under_every_method(
    tmp_path, measured, monkeypatch, capsys
) -> None:
    shutil.copytree(measured, tmp_path / "profiles")
    example = runpy.run_path(str(ROOT / "examples" / "engine.py"))
    monkeypatch.setitem(unwrap(Engine.__init__).__kwdefaults__, "results", tmp_path)
    losses = []
    for method in ("plain", "stronghold"):
        example["main"](method, "1GiB")
        lines = capsys.readouterr().out.splitlines()
        losses.append([float(line.rpartition(" ")[2]) for line in lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(losses[0]) == 20
