"""Losses and schedules of every method, to the last digit: what a change of the house keeps.

    python -m benchmarks.digests > before.json
    ...
    python -m benchmarks.digests > after.json && diff before.json after.json

Losses are those of small runs on this machine's processor, whose settings leave the planner nothing
to choose. Schedules are those that planners choose for a machine known by name, as digests of their
JSON. A method that cannot run here has its reason instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench import api
from workbench.core.methods import known
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.runs.planning import answer
from workbench.runs.store import Store
from workbench.schedule.schedule import Schedule

MODEL = ModelSpec(layers=5, hidden=32, heads=4, seq=16, vocab=256, dropout=0.1, tied=True)
RUN = {
    "batch": 4, "steps": 6, "device": "cpu", "lr": 0.01, "clip": 0.5, "activations": "recompute",
}  # fmt: skip
PACKS = {"forward_packs": "2 2", "backward_packs": "2 2 3", "forward_size": 2, "backward_size": 1}
SIZES = {"forward_size": 2, "backward_size": 2}
WINDOW = {"window": 2, "resident": 0, "pulled": 0, "clipping": "wait"}
TORCHS = ("gpipe", "1f1b", "interleaved", "zero-bubble")
FIXED: dict[str, dict[str, Any]] = {
    "stronghold": WINDOW,
    **dict.fromkeys(("data-parallel", "deepspeed-pipe"), {"ranks": 2}),
    **{f"torch-{name}": {"ranks": 2, "microbatches": 2} for name in TORCHS},
    "harmony-pp": {"ranks": 2, **PACKS, "clipping": "wait"},
    "harmony-dp": {"ranks": 2, **PACKS, "clipping": "wait"},
    "pp-swap": {"ranks": 2, **SIZES},
    "dp-swap": {"ranks": 2, **SIZES},
    "varuna": {"ranks": 2, "microbatches": 2, "stages": "4 3"},
    "interleaved": {"ranks": 2, "microbatches": 2, "stages": "2 2 2 1"},
    **dict.fromkeys(("gpipe", "1f1b", "zb-h1"), {"ranks": 2, "microbatches": 2, "stages": "4 3"}),
}
"""Method -> settings that leave nothing to choose; others choose nothing that changes a loss."""
MORE = {
    "stronghold": [
        {"window": 2, "resident": 1, "pulled": 1, "optimizer_tier": "auto", "disk_layers": 1,
         "activations": "auto", "kept": 2, "clipping": "speculate", "microbatches": 2},
        {**WINDOW, "dtype": "bf16"},
    ],
    "1f1b": [{"ranks": 4, "replicas": 2, "microbatches": 2, "stages": "4 3", "dtype": "bf16"}],
    "harmony-pp": [{"ranks": 2, **PACKS, "clipping": "speculate", "dtype": "bf16"}],
}  # fmt: skip
MACHINE = "h200-141gb"
LARGE = ModelSpec(layers=12, hidden=1024, heads=16, seq=512, vocab=32000, dropout=0.0, tied=True)
PLANNED = {"batch": 8, "steps": 3, "device": "cuda", "dtype": "bf16", "clip": 1.0}


def runs() -> Iterator[tuple[str, dict[str, Any]]]:
    """(method, settings) of each run."""
    for name in known():
        yield name, FIXED.get(name, {})
        for more in MORE.get(name, ()):
            yield name, more


def plans() -> Iterator[tuple[str, dict[str, Any]]]:
    """(method, settings) of each plan: with much memory and with little."""
    for name, row in known().items():
        ranks = {"ranks": 2} if row.parallel and name.partition("-")[0] != "zero" else {}
        divided = name not in ("harmony-pp", "harmony-dp", "pp-swap", "dp-swap")
        for memory in (None, 3 << 30):
            yield name, {**ranks, "microbatches": 4 if divided else 1, "device_memory": memory}


def losses(name: str, settings: dict[str, Any], results: Path, text: Path) -> Any:
    spec = RunSpec.of(**{"method": name, "model": MODEL, "text": str(text), **RUN, **settings})
    record = api.run(spec, results=results)
    if record.status != "ok":
        return record.message
    return [[float(value).hex() for value in record.losses], list(map(str, record.grad_norms))]


def schedule(name: str, settings: dict[str, Any], results: Path, text: Path) -> str:
    spec = RunSpec.of(**{"method": name, "model": LARGE, "text": str(text), **PLANNED, **settings})
    found = answer(spec, Store(results), machine=MACHINE).plan
    if found.schedule is None:
        return found.binding
    return written(found.schedule)


def written(schedule: Schedule) -> str:
    """Digest of the actions, in their order, and of the memory of a schedule."""
    lines = [
        f"{a.name} {a.lane} {a.samples} {a.nbytes} {a.after} {a.takes} {a.uses} {a.frees}"
        for a in schedule.actions
    ]
    lines += [
        f"{name} {b.tier} {b.nbytes} {b.rank} {b.slot} {b.offset} {b.permanent}"
        for name, b in sorted(schedule.buffers.items())
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.digests", description=__doc__)
    parser.add_argument("--only", default="", help="methods whose names begin so")
    only, found = parser.parse_args().only, {"losses": {}, "schedules": {}}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        text.write_text("".join(chr(32 + n * n % 89) for n in range(20000)))
        for kind, cases, of in (("losses", runs, losses), ("schedules", plans, schedule)):
            for name, settings in cases():
                if not name.startswith(only):
                    continue
                key = f"{name} {json.dumps(settings)}"
                print(key, file=sys.stderr, flush=True)
                try:
                    found[kind][key] = of(name, settings, Path(folder) / "results", text)
                except ValueError as refused:
                    found[kind][key] = f"refused: {refused}"
    print(json.dumps(found, indent=1).replace(folder, ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
