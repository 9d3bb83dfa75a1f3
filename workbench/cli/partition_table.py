"""Registered partitions as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.core.bytesize import format_bytes
from workbench.partition.registered import Registered


def lines_of(made: Registered) -> list[str]:
    """A line a stage, one a device, and how good the partition is."""
    found = made.analysis
    rows = [
        ("stage", "device", "nodes", "forward ms", "backward ms", "memory", "receives", "sends")
    ]
    for number, stage in enumerate(found.stages):
        rows.append(
            (
                str(number), str(stage.device), str(stage.nodes), f"{stage.forward_ms:.4g}",
                f"{stage.backward_ms:.4g}", format_bytes(stage.bytes),
                format_bytes(stage.received_bytes), format_bytes(stage.sent_bytes),
            )
        )  # fmt: skip
    devices = [("device", "stages", "work ms", "utilization", "memory")]
    each = zip(found.loads_ms, found.utilization, found.bytes, strict=True)
    for device, (load, share, held) in enumerate(each):
        own = " ".join(str(stage) for stage, at in enumerate(made.map) if at == device)
        devices.append((str(device), own, f"{load:.4g}", f"{share:.0%}", format_bytes(held)))
    return [
        *aligned(rows),
        "",
        *aligned(devices),
        "",
        f"slowest stage {found.objective_ms:.4g} ms a micro-batch of {made.samples}, at least "
        f"{found.bound_ms:.4g} ms on any {len(found.loads_ms)} devices ({found.gap:.2%} over)",
        f"expected of a full pipeline: {found.balance:.3g} of {len(found.loads_ms)} devices at "
        f"work, {found.speedup:.3g} times one device without recomputation "
        f"({found.speedup_without_messages:.3g} without messages)",
        f"costs: {made.costs}",
        f"check: {made.checked}",
        f"registered: {made.name}",
    ]


def table_of(found: Mapping[str, Registered | str]) -> list[str]:
    """A line a partition; of one that cannot be read, why. Empty where there is none."""
    rows = [("name", "task", "method", "devices", "stages", "slowest ms", "gap", "map")]
    broken = []
    for name, one in found.items():
        if isinstance(one, str):
            broken.append(one)
            continue
        rows.append(
            (
                name, one.task, one.ask.method, str(one.ask.devices), str(len(one.map)),
                f"{one.analysis.objective_ms:.4g}", f"{one.analysis.gap:.1%}",
                " ".join(map(str, one.map)),
            )
        )  # fmt: skip
    return [*(aligned(rows) if len(rows) > 1 else []), *broken]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, columns of equal width."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, wide)).rstrip() for row in rows]
