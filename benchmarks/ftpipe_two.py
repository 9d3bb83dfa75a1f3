"""T5-3B on two GPUs under a cap: mixed stages beside contiguous ones, GPipe, and torch's GPipe.

    python -m benchmarks.ftpipe --only two-gpus --size smoke --out FOLDER

The cap is the smallest, in steps of half a GiB, within which mixed stages fit as planned from this
machine's profile. Runs are those of ``workbench run``; both GPipes have no cap, and recompute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.ftpipe_gpu import SIZES
from benchmarks.rows import Row, measured_lines, pairs_file
from workbench import api
from workbench.core import host
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.planner import plan, with_stages
from workbench.profile.profile import Profile
from workbench.profile.store import profile_for

PART, GPUS, MICROS, STEPS = "two-gpus", 2, 5, 8
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Size:
    """The model, and the micro-batches of an update."""

    model: ModelSpec
    samples: int
    """Samples of a micro-batch."""
    by: int
    """Bytes between two caps."""
    dtype: str


ALL_SIZES = {
    "full": Size(model=SIZES["full"].t5, samples=16, by=GIB // 2, dtype="bf16"),
    "smoke": Size(model=SIZES["smoke"].t5, samples=2, by=1 << 18, dtype="fp32"),
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The setting of all runs."""

    size: Size
    work: Path
    device: str

    def spec(self, method: str, **values: Any) -> RunSpec:
        """A run on both devices."""
        batch = self.size.samples * MICROS
        return RunSpec.of(
            method=method, model=self.size.model, batch=batch, microbatches=MICROS, ranks=GPUS,
            steps=STEPS, dtype=self.size.dtype, device=self.device, text=pairs_file(self.work),
            **values,
        )  # fmt: skip

    def row(self, label: str, spec: RunSpec) -> Row:
        """Train; speed and peak beside the plan's."""
        record = api.run(spec, results=self.work, force=True)
        told = {"what": label, "source": "measured", "cap_bytes": spec.device_memory}
        for name in ("cut", "map", "stage_order", "stages"):
            told |= {name: value} if (value := getattr(spec.options, name, None)) else {}
        if record.status != "ok":
            return told | {"failed": record.message}
        step_s = median(record.step_seconds[STEPS // 2 :])
        return told | {
            "step_s": step_s, "samples_per_s": spec.batch / step_s, "losses": record.losses,
            "peak_bytes": record.peak_bytes["device"],
            "planned_bytes": record.predicted.get("peak_bytes", {}).get("device"),
            "planned_s": record.predicted.get("step_seconds"),
            "binding": record.predicted.get("binding"), "seconds": record.step_seconds,
        }  # fmt: skip


def smallest(bench: Bench, spec: RunSpec, profile: Profile) -> RunSpec:
    """The spec under the smallest cap, with mixed stages that fit. Raises ValueError where none are
    found within all memory."""
    found: dict[int, RunSpec] = {}

    def fits(steps: int) -> bool:
        with suppress(ValueError):
            one = with_stages(spec.with_(device_memory=steps * bench.size.by), profile)
            if plan(one, profile).fits:
                found[steps] = one
        return steps in found

    caps = range(1, profile.hardware.device_bytes // bench.size.by)
    at = bisect_left(caps, True, key=fits)
    if at == len(caps):
        raise ValueError(f"no mixed stages fit {len(caps) * bench.size.by / GIB:.1f} GiB")
    return found[caps[at]]


def compared(bench: Bench) -> Iterator[Row]:
    """Rows of all four, and the ratios."""
    asked = bench.spec("ftpipe", partitioner="mpipe", stage_order="async-1f1b")
    profile = profile_for(asked, bench.work)
    mixed = smallest(bench, asked, profile)
    cut = with_stages(mixed.with_(partitioner="pipedream", cut="", map=""), profile)
    free = with_stages(asked.with_(partitioner="pipedream", device_memory=None), profile)
    specs = {
        "mixed": mixed,
        "contiguous": cut,
        "our GPipe": cut.with_(stage_order="gpipe-lifo", device_memory=None),
        "torch's GPipe": bench.spec("torch-gpipe", stages=free.options.cut),
    }
    rows = {}
    for label, spec in specs.items():
        yield (row := bench.row(label, spec))
        rows[label] = row
    own, plans = rows["mixed"], [plan(each, profile).step_seconds for each in (mixed, cut)]
    ratios = {"solver's over contiguous": plans[1] / plans[0]}
    for label, row in rows.items():
        if "step_s" in row and "step_s" in own and row is not own:
            ratios[f"over {label}"] = row["step_s"] / own["step_s"]
    yield {"what": "speed of mixed", "source": "from the rows above", **ratios}


def lines(size: str, out: Path) -> Iterable[str]:
    """The part's lines, measured now unless its file is there."""
    device = host.resolve_device("auto")

    def measure(work: Path) -> Iterator[Row]:
        return compared(Bench(size=ALL_SIZES[size], work=work, device=device))

    return measured_lines(PART, size, out, device, measure)
