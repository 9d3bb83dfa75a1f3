from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from workbench import cli
from workbench.core.sealed import read_sealed, write_sealed
from workbench.core.spec import RunSpec
from workbench.profile import ceilings as measuring
from workbench.profile import measure, store, wires
from workbench.profile.machine import Machine, this_machine
from workbench.profile.profile import Hardware, Wires
from workbench.profile.table import Ceilings, Figure
from workbench.schedule.action import DISK_IN, HOST

RATES = (
    "load_bytes_per_s", "store_bytes_per_s", "message_bytes_per_s", "reduce_bytes_per_s",
)  # fmt: skip


@pytest.fixture
def measured(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Ceilings without the wait; the list holds the folders that were measured in."""
    calls: list[Path] = []

    def instead(device: str, *, folder: Path, **_) -> Ceilings:
        calls.append(folder)
        return Ceilings(
            machine=this_machine(device),
            hardware=hardware,
            figures=(Figure(name="link", value=1e9, unit="B/s"),),
            measured="2026-01-01T00:00:00+00:00",
            seconds=1.0,
            others=0.0,
        )

    monkeypatch.setattr(measuring, "measure_ceilings", instead)
    monkeypatch.setattr(measure, "unit_costs", partial(measure.unit_costs, seconds=0.0))
    return calls


def test_the_machine_is_measured_once(tmp_path: Path, measured: list[Path]) -> None:
    first = store.ceilings(tmp_path, "cpu")
    assert store.ceilings(tmp_path, "cpu") == first
    assert store.hardware(RunSpec(method="plain", device="cpu"), tmp_path) == first.hardware
    assert len(measured) == 1
    store.ceilings(tmp_path, "cpu", fresh=True)
    assert len(measured) == 2


def test_the_disk_is_measured_beside_others_where_a_run_may_use_it(
    tmp_path: Path, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def completed(found: Ceilings, **_) -> Ceilings:
        asked.append("its disk")
        slowdowns = {**found.hardware.slowdowns, f"{HOST}|{DISK_IN}": 1.5}
        return replace(found, hardware=replace(found.hardware, slowdowns=slowdowns))

    def instead(device: str, *, disk: bool, **_) -> Ceilings:
        asked.append(disk)
        pairs = {"compute|host": 1.2} | ({f"{HOST}|{DISK_IN}": 1.5} if disk else {})
        return Ceilings(
            machine=this_machine(device), hardware=replace(hardware, slowdowns=pairs), figures=(),
            measured="2026-01-01T00:00:00+00:00", seconds=1.0, others=0.0,
        )  # fmt: skip

    monkeypatch.setattr(measuring, "measure_ceilings", instead)
    monkeypatch.setattr(measuring, "with_disk", completed)
    without = RunSpec(method="stronghold", device="cpu")
    given, told = without.with_(disk_memory=2**30), without.with_(optimizer_tier="disk")
    some, none = (without.with_(disk_layers=layers) for layers in (2, 0))
    assert [spec.may_use_disk for spec in (given, told, some, none)] == [True, True, True, False]
    for spec, measured in [
        (without, [False]),
        (none, [False]),
        (given, [False, "its disk"]),
        (told, [False, "its disk"]),
        (without, [False, "its disk"]),
    ]:
        assert store.hardware(spec, tmp_path).knows_disk == bool(measured[-1])
        assert asked == measured
    store.hardware(told, tmp_path / "another")
    assert asked == [False, "its disk", True], "all at once where nothing is stored"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"processor": "Another 9000"}, "processor is Another 9000"),
        ({"cores": 4096}, "cores is 4096"),
        ({"torch": "1.0"}, "torch is 1.0"),
        ({"gpu": "NVIDIA Another"}, "gpu is NVIDIA Another"),
        ({"memory_bytes": 2**20}, "memory is 1 MiB"),
    ],
)
def test_figures_of_another_machine_are_not_used_silently(
    tmp_path: Path, measured: list[Path], change: dict, why: str
) -> None:
    found = store.ceilings(tmp_path, "cpu")
    path = store.folder_of(tmp_path, found.machine) / "hardware.json"
    data = read_sealed(path, "it")
    data["machine"] |= change
    write_sealed(path, data)
    heard: list[str] = []
    assert store.ceilings(tmp_path, "cpu", heard.append, measure=False) is None
    assert len(heard) == 1
    assert why in heard[0]
    assert store.ceilings(tmp_path, "cpu").machine == found.machine
    assert len(measured) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}', '{"format": 1, "machine": 3}'])
def test_a_damaged_file_is_measured_anew(tmp_path: Path, measured: list[Path], text: str) -> None:
    found = store.ceilings(tmp_path, "cpu")
    (store.folder_of(tmp_path, found.machine) / "hardware.json").write_text(text)
    heard: list[str] = []
    assert store.ceilings(tmp_path, "cpu", heard.append) == found
    assert "cannot be read" in heard[0]


def test_a_sweep_over_depth_measures_the_layers_once(
    tmp_path: Path, measured: list[Path], spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.stored_profile(spec, tmp_path) is None
    profile = store.profile_for(spec, tmp_path)
    assert [unit.kind for unit in profile.units] == ["embedding", "block", "block", "head"]
    assert profile.microbatch == 2
    assert store.stored_profile(spec, tmp_path) == profile
    first_probe = stored_costs(tmp_path)["probe_s"]

    monkeypatch.setattr(measure, "probe", lambda device, dtype: first_probe)
    monkeypatch.setattr(measure, "unit_costs", None)  # calling it would fail
    deeper = spec.with_(model=replace(spec.model, layers=40))
    assert len(store.profile_for(deeper, tmp_path).units) == 42
    with_disk = store.stored_profile(spec.with_(disk_memory=2**30), tmp_path)
    assert with_disk == profile, "also where the disk's pairs are not known"
    assert store.stored_profile(spec.with_(microbatches=1), tmp_path) is None
    wider = spec.with_(model=replace(spec.model, hidden=64))
    assert store.stored_profile(wider, tmp_path) is None
    assert store.stored_profile(spec.with_(dtype="bf16"), tmp_path) is None


@pytest.mark.parametrize(
    ("passed", "speed", "others", "measurements"),
    [
        ("minutes", 0.8, 0.0, 0),
        *[("minutes ahead", 0.8, 0.0, 1), ("never", 0.8, 0.0, 1)],
        *[("hours", 1.05, 0.0, 0), ("hours", 0.8, 0.0, 1), ("hours", 0.8, 0.5, 0)],
        *[("hours", 1.3, 0.0, 1), ("hours", 1.3, 0.5, 1)],
    ],
)
def test_layers_are_measured_anew_before_a_run_when_the_machine_has_changed(
    tmp_path: Path,
    measured: list[Path],
    spec: RunSpec,
    monkeypatch: pytest.MonkeyPatch,
    passed: str,
    speed: float,
    others: float,
    measurements: int,
) -> None:
    store.profile_for(spec, tmp_path)
    (path,) = tmp_path.glob("profiles/*/units-*.json")
    data, now = stored_costs(tmp_path), datetime.now(UTC)
    minutes = {"minutes": 2, "minutes ahead": -2, "hours": 120}.get(passed)
    then = "" if minutes is None else (now - timedelta(minutes=minutes)).isoformat()
    write_sealed(path, data | {"measured": then})
    monkeypatch.setattr(measure, "probe", lambda device, dtype: data["probe_s"] / speed)
    monkeypatch.setattr(store, "shares", lambda readings, gpus: {"cores": others})
    heard: list[str] = []
    store.profile_for(spec, tmp_path, heard.append)
    assert len([line for line in heard if line.startswith("measuring the layers")]) == measurements


def stored_costs(results: Path) -> dict:
    (path,) = results.glob("profiles/*/units-*.json")
    return read_sealed(path, "it")


def test_links_are_measured_for_each_setting_of_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = [3e9, 1e9]

    def instead(ranks: int, device: str) -> Wires:
        return Wires(ranks=ranks, message_latency_s=1e-5, **dict.fromkeys(RATES, rates.pop()))

    monkeypatch.setattr(wires, "measure", instead)
    spec = RunSpec(method="harmony-pp", ranks=2, device="cpu")
    nvlink = store.wires_for(spec, tmp_path)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert store.wires_for(spec, tmp_path) == nvlink
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    sockets = store.wires_for(spec, tmp_path)
    assert sockets != nvlink
    assert store.wires_for(spec, tmp_path, measure=False) == sockets
    monkeypatch.delenv("NCCL_P2P_DISABLE")
    assert store.wires_for(spec, tmp_path, measure=False) == nvlink


def test_an_emulated_link_is_in_the_profile(
    tmp_path: Path, measured: list[Path], spec: RunSpec
) -> None:
    store.profile_for(spec, tmp_path)
    slow = store.stored_profile(spec.with_(link_bytes_per_s=1e6), tmp_path)
    assert slow.hardware.h2d_bytes_per_s == slow.hardware.d2h_bytes_per_s == 1e6


def test_a_stored_profile_answers_without_torch(
    tmp_path: Path, measured: list[Path], spec: RunSpec, root: Path
) -> None:
    store.profile_for(spec, tmp_path)
    code = (
        "import json, sys; from pathlib import Path\n"
        "from workbench.profile.store import stored_profile\n"
        "from workbench.core.spec import RunSpec\n"
        f"spec = RunSpec.from_dict(json.loads({json.dumps(json.dumps(spec.to_dict()))}))\n"
        f"assert stored_profile(spec, Path({str(tmp_path)!r})) is not None\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)


def _without_head(data: dict) -> None:
    del data["costs"]["head"]


def _larger_blocks(data: dict) -> None:
    data["costs"]["block"]["parameters"] += 1


def _wider(data: dict) -> None:
    data["costs"]["block"]["input_bytes"] *= 2


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_without_head, "has no costs of head, which the model has"),
        (_larger_blocks, "is of another model: unit 1 (block) has 12,705 parameters there and "),
        (_wider, "is of another model, dtype or micro-batch: 8,192 bytes enter unit 1"),
    ],
)
def test_what_is_of_another_model_is_one_sentence_with_its_file(
    tmp_path: Path,
    measured: list[Path],
    spec: RunSpec,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[dict], None],
    why: str,
) -> None:
    """Of a run before its steps, and of a question."""
    store.profile_for(spec, tmp_path)
    data = stored_costs(tmp_path)
    monkeypatch.setattr(measure, "probe", lambda device, dtype: data["probe_s"])
    spoil(data)
    (path,) = tmp_path.glob("profiles/*/units-*.json")
    write_sealed(path, data)
    for asked in (store.stored_profile, store.profile_for):
        with pytest.raises(ValueError, match=re.escape(f"{path.name} {why}")):
            asked(spec, tmp_path)
    asked = tmp_path / "spec.json"
    for method in ("harmony-pp", "stronghold", "torch-gpipe"):
        asked.write_text(json.dumps(spec.with_(method=method, batch=2, microbatches=1).to_dict()))
        assert cli.main(["plan", "--spec", str(asked), "--results", str(tmp_path)]) == 2
        err = capsys.readouterr().err
        assert why in err
        assert err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path, measured: list[Path]) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot be written"):
        store.ceilings(tmp_path, "cpu")


def test_a_file_in_the_way_is_named(tmp_path: Path, measured: list[Path]) -> None:
    (tmp_path / "profiles").write_text("in the way")
    with pytest.raises(ValueError, match="cannot be written"):
        store.ceilings(tmp_path, "cpu")


def test_machines_of_one_class_have_one_folder() -> None:
    here = this_machine("cpu")
    assert here.difference(Machine(**asdict(here))) is None
    device, host = here.tiers()
    assert 0 < device <= host
    assert device + host <= here.memory_bytes
