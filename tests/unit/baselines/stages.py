"""A stage of two that saves and restores while something goes wrong at one of them, and tells how
that ended: ``python -m tests.unit.baselines.stages RANK FOLDER``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from baselines import states
from baselines.adamw import ClippedAdamW
from tests.methods.plain import spec_for
from workbench.model import make_model
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.manifest import Manifest, Saved

SAVES = ((0, 0), (0, 1), (0, None), (1, None), (2, 1))
"""Steps, and the rank whose disk is full."""


def save(step: int, holder: states.StageHolder, folder: Path) -> None:
    """Save after so many steps, and tell what is there."""
    done = {"next_step": step, "updates_done": step, "skipped": [], "continues": {}}
    numbers = dict.fromkeys(("losses", "step_seconds", "grad_norms"), [1.0] * step)
    try:
        checkpoint.save(folder, holder, Manifest(**done, **numbers), None, [])
        print(*sorted(path.name for path in folder.glob("step-*")))
    except OSError as error:
        print("refused:", error)


def full_once(real: Callable[..., None]) -> Callable[..., None]:
    """A function that fails as on a full disk the first time, and writes a unit later."""

    def full(*_: object) -> None:
        states.write_unit = real
        raise OSError(28, "No space left on device")

    return full


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    spec = spec_for(method="gpipe")
    model = make_model(spec.model)
    own = range(3) if rank == 0 else range(3, model.num_units)
    masters = {unit: {n: torch.rand(s) for n, s in model.shapes(unit).items()} for unit in own}
    flat = [master for unit in masters.values() for master in unit.values()]
    holder = states.StageHolder(model, masters, ClippedAdamW([{"params": flat}], spec))
    real = states.write_unit
    for step, broken in SAVES:
        states.write_unit = full_once(real) if rank == broken else real
        holder.save(lambda step=step: save(step, holder, folder))
    before = [master.clone() for master in flat]
    for master in flat:
        master.zero_()
    saved = Saved.read(folder / "step-00000002")
    holder.restore(saved)
    print(all((a == b).all() for a, b in zip(flat, before, strict=True)))
    dist.barrier()
    if rank == 1:
        (saved.path / "unit-00004.safetensors").write_bytes(b"garbled")
    dist.barrier()
    try:
        holder.restore(saved)
    except OSError as error:
        print("damaged:", error)
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # as ranks do: a process group whose peer is gone may abort in its destructor
