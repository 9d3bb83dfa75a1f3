"""Costs of shards (shards.py) kept on disk, beside those of units and links (store.py).

    RESULTS/profiles/<device class>/shards-<key>.json   of a model's operators, whatever its depth

Shards are stored within a second or two of being known: a profile that was killed goes on where it
was. What a device has no room for is None. Nothing here imports torch until something is measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

from workbench.profile.files import FORMAT, measuring, now, stored, write
from workbench.profile.machine import Machine, this_machine
from workbench.profile.shards import Chain, JoinedCost, Repeats, ShardCost, Variant
from workbench.profile.store import drifted, folder_of
from workbench.profile.table import Echo

VERSION = 2
"""Of what is measured of shards."""
SOON_S = 1.0
"""From one writing to the next."""


@dataclass(frozen=True, kw_only=True)
class ShardCosts:
    """Costs of one model's shards."""

    machine: Machine
    measured: str
    """When the first was."""
    probe_s: float
    """A matrix product, timed just before."""
    costs: dict[str, ShardCost | None]
    """By what is computed (`Chain.key`)."""
    updated_per_s: float
    """Parameters that AdamW updates in a second."""
    joined: dict[str, JoinedCost | None] = field(default_factory=dict)
    """Of runs in stages of one process, by samples; None where nothing is compiled."""


def path_of(chain: Chain, results: Path, machine: Machine, budget: int | None) -> Path:
    """Where costs of a model's shards lie, of which each may take so many bytes."""
    own = [FORMAT, VERSION, chain.spec.to_dict(), chain.dtype, chain.fused, budget]
    text = json.dumps(own, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return folder_of(results, machine) / f"shards-{key}.json"


def shard_costs(
    chain: Chain, variants: Iterable[Variant], results: Path, echo: Echo, *, device: str = "auto",
    repeats: Repeats | None = None, budget: int | None = None, fresh: bool = False,
) -> ShardCosts:  # fmt: skip
    """Costs of all calls of all variants on this machine. Each that is stored and holds here is
    taken; the others are measured now, unless `repeats` is None, and stored one by one. `budget`
    are bytes of the device that shards may take."""
    machine = this_machine(device)
    path = path_of(chain, results, machine, budget)
    wanted: dict[str, tuple[range, Variant]] = {}
    variants = [*variants]
    whole = sorted({variant.samples for variant in variants if variant.tp == 1})
    for variant in variants:
        for call in chain.calls():
            wanted.setdefault(chain.key(call, variant), (call, variant))
    with measuring(path, echo):
        found = None if fresh else stored(path, machine, ShardCosts, echo)
        left = [key for key in wanted if found is None or key not in found.costs]
        if left and repeats is None:
            raise ValueError(f"{len(left)} of {len(wanted)} operators are not profiled here yet")
        bare = [m for m in whole if found is None or str(m) not in found.joined]
        if not left and (repeats is None or not bare):
            return found
        from workbench.profile.measure import probe, update_rate
        from workbench.profile.shard_timing import Timer

        if found and drifted(machine, found.probe_s, chain.dtype, echo):
            found, left, bare = None, [*wanted], whole
        if found is None:
            found = ShardCosts(machine=machine, measured=now(), costs={},
                               probe_s=probe(machine.device, chain.dtype),
                               updated_per_s=update_rate(machine.device))  # fmt: skip
        echo(f"{len(wanted) - len(left)} of {len(wanted)} shards that differ are stored")
        with Timer(chain, machine.device, repeats, budget) as timer:
            written = monotonic()
            try:
                for number, key in enumerate(left, 1):
                    found.costs[key] = timer.cost(*wanted[key])
                    if monotonic() - written > SOON_S:
                        write(path, asdict(found))
                        written = monotonic()
                    if number % 20 == 0 or number == len(left):
                        echo(f"{number} of {len(left)} measured")
                for samples in bare:
                    found.joined[str(samples)] = timer.joined(samples)
            finally:
                write(path, asdict(found))
    return found
