"""Kick the tires: a small model, whole and through a window. Its losses must agree.

A minute of training that shows that methods run here and are exact, before hours are spent.
"""

from __future__ import annotations

from pathlib import Path

TIRES = {
    "name": "kick-the-tires",
    "base": {
        "layers": 6, "hidden": 128, "heads": 4, "seq": 64, "vocab": 256, "batch": 4, "steps": 20,
        "device": "cpu",
    },
    "runs": [{"method": "plain"}, {"method": "stronghold", "window": 2, "resident": 1}],
}  # fmt: skip
"""A sweep file."""
AGREE = 1e-6
"""Relative difference of losses in fp32."""


def compare(results: str) -> str:
    """Compare both runs, in a sentence; called in the helper process (helper_process.py)."""
    from workbench.runs.campaign import Campaign
    from workbench.runs.resolve import key_of
    from workbench.runs.store import Store

    store = Store(Path(results))
    found = [store.find(key_of(spec)) for spec in Campaign(store, TIRES["name"]).file.specs]
    records = {record.method: record for record in found if record is not None}
    if any(record.status != "ok" for record in records.values()) or len(records) < 2:
        told = "; ".join(f"{r.method}: {r.status}: {r.message}" for r in records.values())
        return f"it did not end well: {told or 'no record was left'}"
    whole, window = records["plain"].losses, records["stronghold"].losses
    apart = max(abs(a - b) / abs(a) for a, b in zip(whole, window, strict=True))
    words = "agree" if apart <= AGREE else "do NOT agree"
    return (
        f"{len(whole)} steps whole and through a window of 2 layers: the losses {words} "
        f"(largest relative difference {apart:.1e}; from {whole[0]:.3f} to {whole[-1]:.3f})"
    )
