from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workbench.profile import ceilings as profiled
from workbench.profile.ceilings import measure_ceilings, with_disk
from workbench.profile.interference import crowd
from workbench.profile.loads import Copy, host_adam_load
from workbench.profile.table import Ceilings, Table, format_figure
from workbench.runtime.executor import timings
from workbench.runtime.executor.executor import Executor
from workbench.runtime.executor.threads import Threads, cpu_threads
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST

LANES = (COMPUTE, H2D, D2H, HOST, DISK_IN, DISK_OUT)


class Tidying(Executor):
    """Takes a second where a run begins and after its first step, as on a GPU with much in memory,
    where garbage is collected then; each other look at the clock takes a microsecond."""

    tidied_s, looks = 0.0, itertools.count()

    @classmethod
    def clock(cls) -> float:
        return cls.tidied_s + 1e-6 * next(cls.looks)

    def _start_lanes(self, steps: range) -> None:
        Tidying.tidied_s += 1
        super()._start_lanes(steps)

    def _end_step(self, stream: torch.cuda.Stream | None, step: int) -> None:
        super()._end_step(stream, step)
        Tidying.tidied_s += step == 0


def overhead(device: str) -> float:
    """Seconds of an action that does nothing."""
    return profiled._overhead(torch.device(device), Table(echo=lambda _: None, seconds=0.2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ceilings")


@pytest.fixture(scope="module")
def heard() -> list[str]:
    return []


@pytest.fixture(scope="module")
def ceilings(folder: Path, heard: list[str]) -> Ceilings:
    return measure_ceilings("cpu", folder=folder, echo=heard.append, seconds=0.01)


def test_every_rate_is_measured(ceilings: Ceilings, answered) -> None:
    hardware = ceilings.hardware
    for name in hardware.__dataclass_fields__:
        if name.endswith(("_per_s", "_s", "_bytes")):
            assert getattr(hardware, name) > 0, name
    assert hardware.source == "measured"
    assert hardware.cores >= hardware.adam_threads >= 1
    answered.enter("executor: an action that does nothing", 3e-4, hardware.action_overhead_s)


def test_the_interference_table_has_every_pair_both_ways(ceilings: Ceilings) -> None:
    slowdowns = ceilings.hardware.slowdowns
    pairs = {f"{a}|{b}" for a in LANES for b in LANES if a != b} | {"host|host"}
    assert set(slowdowns) == pairs
    assert all(factor >= 1 for factor in slowdowns.values())


def test_without_a_disk_it_has_no_pair_with_the_disk(folder: Path) -> None:
    hardware = measure_ceilings("cpu", folder=folder, seconds=0.001, disk=False).hardware
    lanes = [lane for lane in LANES if "disk" not in lane]
    pairs = {f"{a}|{b}" for a in lanes for b in lanes if a != b} | {"host|host"}
    assert set(hardware.slowdowns) == pairs
    assert not hardware.knows_disk
    assert hardware.disk_write_bytes_per_s > 0, "a rate of its own it has"


def test_a_machine_without_its_disks_pairs_is_completed_by_these_alone(folder: Path) -> None:
    how = {"folder": folder, "seconds": 0.001}
    before, heard = measure_ceilings("cpu", disk=False, **how), []
    after = with_disk(before, echo=heard.append, **how)
    pairs = {f"{a}|{b}" for a in LANES for b in LANES if a != b} | {"host|host"}
    assert set(after.hardware.slowdowns) == pairs
    assert after.hardware.knows_disk
    assert min(after.hardware.slowdowns.values()) >= 1
    assert before.hardware.slowdowns.items() <= after.hardware.slowdowns.items()
    rest = replace(after.hardware, slowdowns=before.hardware.slowdowns)
    assert (rest, after.figures[: len(before.figures)]) == (before.hardware, before.figures)
    assert len(heard) == len(after.figures) - len(before.figures) == 2 * 7
    assert all("beside" in line and "disk" in line for line in heard)


def test_what_meets_at_the_hosts_memory_is_measured_all_at_once() -> None:
    table, cpu = Table(echo=lambda _: None, seconds=0.01), torch.device("cpu")
    with (
        host_adam_load(cpu, 1) as adam,
        Copy(cpu, to_device=True) as up,
        Copy(cpu, to_device=False) as down,
    ):
        slowdowns = crowd({HOST: adam, H2D: up, D2H: down}, table)
    assert set(slowdowns) == {"host|d2h+h2d", "h2d|d2h+host", "d2h|h2d+host"}
    assert all(factor >= 1 for factor in slowdowns.values())
    assert table.value("host memory, all at once") > 0


def test_what_is_tidied_in_a_run_is_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiled, "Executor", Tidying)
    monkeypatch.setattr(timings, "time", SimpleNamespace(perf_counter=Tidying.clock))
    assert overhead("cpu") == pytest.approx(2e-6, rel=0.01), "it looks before and after"


@pytest.mark.gpu
def test_an_action_costs_something_where_much_is_in_memory(answered) -> None:
    alone = overhead("cuda")
    much = [[number] for number in range(3_000_000)]
    answered.enter("executor: an action on a GPU", 1e-4, alone)
    answered.enter("executor: the same with much in memory, by that", 2 * alone, overhead("cuda"))
    assert len(much) == 3_000_000


def test_every_figure_is_heard_and_has_a_spread(ceilings: Ceilings, heard: list[str]) -> None:
    assert len(heard) == len(ceilings.figures)
    assert any(figure.spread > 0 for figure in ceilings.figures)
    assert all(figure.value > 0 for figure in ceilings.figures)
    assert 0 <= ceilings.others <= ceilings.machine.cores


def test_nothing_is_left_in_the_folder(ceilings: Ceilings, folder: Path) -> None:
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_hold_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot hold a scratch file"):
        measure_ceilings("cpu", folder=tmp_path / "file", seconds=0.01)


@pytest.mark.parametrize(
    ("device", "cores", "threads"),
    [
        ("cpu", 1, (1, 1)),
        ("cpu", 2, (1, 1)),
        ("cpu", 5, (2, 3)),
        ("cuda", 16, (1, 12)),
        ("cuda", 2, (1, 2)),
    ],
)
def test_a_machine_without_a_gpu_is_halved(
    device: str, cores: int, threads: tuple[int, int]
) -> None:
    assert cpu_threads(device, cores) == Threads(*threads)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(7.67e14, "FLOP/s", "767 TFLOP/s"), (2.3e9, "params/s", "2.3 Gparams/s"), (0.0, "s", "0 ns")],
)
def test_figures_are_written_for_people(value: float, unit: str, text: str) -> None:
    assert format_figure(value, unit) == text
