"""Costs of shards (shards.py) kept on disk, beside those of units and links (store.py).

    RESULTS/profiles/<device class>/shards-<key>.json   of a model's operators, whatever its depth

Every shard is stored as soon as it is known: a profile that was killed goes on where it was. What a
device has no room for is None. Nothing here imports torch until something is measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from workbench.profile.files import FORMAT, measuring, now, stored, write
from workbench.profile.machine import Machine, this_machine
from workbench.profile.shards import Chain, Repeats, ShardCost, Variant
from workbench.profile.store import drifted, folder_of
from workbench.profile.table import Echo

VERSION = 2
"""Of what is measured of shards."""


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
    for variant in variants:
        for call in chain.calls():
            wanted.setdefault(chain.key(call, variant), (call, variant))
    with measuring(path, echo):
        found = None if fresh else stored(path, machine, ShardCosts, echo)
        left = [key for key in wanted if found is None or key not in found.costs]
        if left and repeats is None:
            raise ValueError(f"{len(left)} of {len(wanted)} operators are not profiled here yet")
        if not left:
            return found
        from workbench.profile.measure import probe, update_rate
        from workbench.profile.shard_timing import Timer

        if found and drifted(machine, found.probe_s, chain.dtype, echo):
            found, left = None, [*wanted]
        if found is None:
            found = ShardCosts(machine=machine, measured=now(), costs={},
                               probe_s=probe(machine.device, chain.dtype),
                               updated_per_s=update_rate(machine.device))  # fmt: skip
        echo(f"{len(wanted) - len(left)} of {len(wanted)} shards that differ are stored")
        with Timer(chain, machine.device, repeats, budget) as timer:
            for number, key in enumerate(left, 1):
                cost = timer.cost(*wanted[key])
                found = replace(found, costs={**found.costs, key: cost})
                write(path, asdict(found))
                if number % 20 == 0 or number == len(left):
                    echo(f"{number} of {len(left)} measured")
    return found
