"""Registered partitions as tables for people."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.core.aligned import aligned
from workbench.core.bytesize import format_bytes
from workbench.partition.registered import Registered


def lines_of(made: Registered) -> list[str]:
    """A line a stage, one a device, and how good the partition is."""
    found, devices = made.analysis, len(made.analysis.loads_ms)
    stages = [("stage", "device", "nodes", "forward ms", "backward ms", "memory", "gets", "sends")]
    for number, one in enumerate(found.stages):
        counts = (str(number), str(one.device), str(one.nodes))
        times = (f"{one.forward_ms:.4g}", f"{one.backward_ms:.4g}")
        sizes = (one.bytes, one.received_bytes, one.sent_bytes)
        stages.append((*counts, *times, *map(format_bytes, sizes)))
    rows = [("device", "stages", "work ms", "busy", "memory")]
    each = zip(found.loads_ms, found.utilization, found.bytes, strict=True)
    for device, (load, share, held) in enumerate(each):
        own = " ".join(str(stage) for stage, at in enumerate(made.map) if at == device)
        rows.append((str(device), own, f"{load:.4g}", f"{share:.0%}", format_bytes(held)))
    return [
        *aligned(stages),
        *aligned(rows),
        f"slowest stage {found.objective_ms:.4g} ms a micro-batch of {made.samples}, at least "
        f"{found.bound_ms:.4g} ms on any {devices} devices ({found.gap:.2%} over)",
        f"expected of a full pipeline: {found.balance:.3g} of {devices} devices at work, "
        f"{found.speedup:.3g} times one device without recomputation "
        f"({found.speedup_without_messages:.3g} without messages)",
        f"costs: {made.costs}",
        f"check: {made.checked}",
        f"registered: {made.name}",
    ]


def table_of(found: Mapping[str, Registered | str]) -> list[str]:
    """A line a partition; of one that cannot be read, why. Empty where there is none."""
    rows = [("name", "task", "method", "devices", "stages", "slowest ms", "gap", "map")]
    for name, one in found.items():
        if isinstance(one, Registered):
            counts, good = (str(one.ask.devices), str(len(one.map))), one.analysis
            how = (f"{good.objective_ms:.4g}", f"{good.gap:.1%}", " ".join(map(str, one.map)))
            rows.append((name, one.task, one.ask.method, *counts, *how))
    broken = [one for one in found.values() if isinstance(one, str)]
    return [*(aligned(rows) if rows[1:] else []), *broken]
