"""Facts on where the numbers of an exhibit come from."""

from __future__ import annotations

from typing import Any

from workbench.core.bytesize import format_bytes
from workbench.core.record import RunRecord
from workbench.runs.provenance import gather


def origin(records: list[RunRecord], *, simulated: bool) -> dict[str, str]:
    """Machine, code, packages and dates behind records; of this moment where there are none."""
    sources = [record.provenance for record in records] or [gather()]
    untold = dict.fromkeys(("cpu", "cores", "system", "python"), "unknown")
    first = untold | {"gpus": [], "host_memory_bytes": 0} | sources[0]
    packages = {" ".join(pair) for source in sources for pair in source.get("packages", {}).items()}
    commits = {_commit(source) for source in sources}
    started = sorted(record.started[:16].replace("T", " ") for record in records)
    facts = {
        "processor": f"{first['cpu']}, {first['cores']} cores",
        "memory": format_bytes(first["host_memory_bytes"]),
        "GPU": ", ".join(first["gpus"]) or "none",
        "system": f"{first['system']}, Python {first['python']}",
        "packages": ", ".join(sorted(packages)),
        "commit": ", ".join(sorted(commits)),
        "runs": f"{len(records)} records, {started[0]} to {started[-1]} UTC" if started else "none",
    }
    if simulated:
        facts["numbers"] = (
            "published values and simulations; nothing was measured for this size here"
        )
    return facts


def _commit(provenance: dict[str, Any]) -> str:
    commit = (provenance.get("commit") or "no commit")[:12]
    return f"{commit} with changes" if provenance.get("dirty") else commit
