"""Folders come to the disk while they are written, and one that the disk refuses is not kept."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from workbench.core import busy_disk
from workbench.model.weights.folder import write_folder
from workbench.model.weights.outgoing import Weights
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.manifest import Manifest

END = 60
"""Seconds after which a test has hung."""


def export(folder: Path, meanwhile: Callable[[], object]) -> None:
    def read(names: list[str]) -> dict[str, torch.Tensor]:
        if names == ["c"]:  # the first unit is written, or is about to be
            meanwhile()
        return {name: torch.ones(4) for name in names}

    groups = [["a"], ["b"], ["c"]]
    shapes = dict.fromkeys("abc", (4,))
    weights = Weights(shapes=shapes, parameters=12, groups=groups, read=read)
    write_folder(folder / "out", weights, None, torch.bfloat16)


def save(folder: Path, meanwhile: Callable[[], object]) -> None:
    def write(folder: Path) -> None:
        checkpoint.write_unit(folder, 0, [("weight/a", torch.ones(4))])
        meanwhile()

    none = {"losses": [], "step_seconds": [], "grad_norms": [], "skipped": [], "continues": {}}
    manifest = Manifest(next_step=0, updates_done=0, **none)
    checkpoint.save(folder, SimpleNamespace(write=write), manifest, None, [])


@pytest.mark.parametrize("make", [export, save])
@pytest.mark.parametrize("refused", [False, True])
def test_files_come_to_the_disk_while_others_are_read(make, refused, tmp_path, monkeypatch) -> None:
    flushed = Event()

    def flush(path: Path) -> None:
        flushed.set()
        if refused:
            raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(busy_disk, "flush", flush)
    waits: list[bool] = []
    refusal = pytest.raises(OSError, match="Input/output error") if refused else nullcontext()
    with refusal:
        make(tmp_path, lambda: waits.append(flushed.wait(END)))
    assert waits == [True]
    assert len([*tmp_path.iterdir()]) == (0 if refused else 1)


def test_units_that_share_a_staging_are_read_ahead(tmp_path, monkeypatch) -> None:
    """While a unit is written, the next one of the disk takes its place in memory."""
    staging, read, real = torch.zeros(3, 4), [Event() for _ in range(3)], checkpoint.save_file
    states = SimpleNamespace(master=lambda: staging[0], exp_avg=staging[1], exp_avg_sq=staging[2])

    def read_states(unit: int) -> None:
        staging.fill_(unit)
        read[unit].set()

    def save_file(tensors: dict[str, torch.Tensor], path: Path) -> None:
        following = int(path.stem[-1]) + 1
        assert all(event.wait(END) for event in read[: following + 1])
        real(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    memory = SimpleNamespace(
        on_disk=lambda unit: True, states=lambda unit: states, read_states=read_states
    )
    model = SimpleNamespace(state_name=lambda unit, local: f"{unit}.{local}")
    flats = [SimpleNamespace(views=lambda slab: [("own", slab)])] * 3
    checkpoint.MemoryHolder(model, memory, flats).write(tmp_path)
    for unit in range(3):
        found = load_file(tmp_path / checkpoint.file_of(unit))
        assert {kind: set(t.tolist()) for kind, t in found.items()} == {
            f"{kind}/{unit}.own": {unit} for kind in checkpoint.KINDS
        }
