"""Collectives (collectives.py) kept on disk, beside the machine's other measurements (store.py).

    RESULTS/profiles/<device class>/collectives-<dtype>.json   a file for each setting of NCCL's

Each setting is stored as soon as it is known: a profile that was killed goes on where it was.
Nothing here imports torch until something is measured.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from workbench.profile.collectives import Collective, Collectives, settings, sizes
from workbench.profile.files import measuring, now, stored, write
from workbench.profile.machine import Machine, this_machine
from workbench.profile.shards import Repeats
from workbench.profile.store import drifted, folder_of, nccl_key
from workbench.profile.table import Echo


def path_of(results: Path, machine: Machine, dtype: str) -> Path:
    """Where collectives of such numbers lie."""
    return folder_of(results, machine) / f"collectives-{dtype}{nccl_key()}.json"


def known_collectives(
    results: Path, dtype: str, echo: Echo, *, device: str = "auto"
) -> Collectives | None:
    """Collectives that are stored and hold on this machine; nothing is measured."""
    machine = this_machine(device)
    return stored(path_of(results, machine, dtype), machine, Collectives, echo)


def collectives(
    devices: int, most_mb: int, results: Path, dtype: str, echo: Echo, *, device: str,
    repeats: Repeats, fresh: bool = False,
) -> Collectives:  # fmt: skip
    """All settings of so many devices, up to so many MB of a group. Each that is stored and holds
    here is taken; the others are measured now. Raises RuntimeError where that fails."""
    machine = this_machine(device)
    path = path_of(results, machine, dtype)
    wanted = {each: sizes(each, most_mb) for each in settings(devices)}
    with measuring(path, echo):
        found = None if fresh else stored(path, machine, Collectives, echo)
        there = {e.setting: e.bytes[-1] for e in found.found} if found else {}
        left = {s: own for s, own in wanted.items() if there.get(s, 0) < own[-1]}
        if not left:
            return found
        from workbench.profile.collective_timing import measure
        from workbench.profile.measure import probe

        if found and drifted(machine, found.probe_s, dtype, echo):
            found, left = None, wanted
        if found is None:
            found = Collectives(machine=machine, measured=now(),
                                probe_s=probe(machine.device, dtype))  # fmt: skip
        echo(f"{len(wanted) - len(left)} of {len(wanted)} collectives are stored")

        def keep(one: Collective) -> None:
            nonlocal found
            others = [each for each in found.found if each.setting != one.setting]
            found = replace(found, found=(*others, one))
            write(path, asdict(found))

        measure(devices, machine.device, dtype, left, repeats, keep)
    return found
