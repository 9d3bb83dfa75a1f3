"""Step times of small trainings drawn by a seed, predicted and measured, on processes that share a
processor.

    python -m benchmarks.predictions --out results/published-here/cpu [--count 20] [--seed 1]

Each setting is a run as `workbench run` makes it, planned from this machine's own profile. Its
record is a line of FOLDER/predictions.jsonl; printed are both times, and how many of the measured
ones lie in the range that the plan printed. Run it on an idle machine; what ran before is taken
from the results folder.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.offload_cases import Entry
from benchmarks.offload_sheet import describe
from workbench.core.files import write_whole
from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.published.here import columns
from workbench.runs import provenance
from workbench.runs.planning import measure
from workbench.runs.runner import run
from workbench.runs.store import REPOSITORY_RESULTS, Store

METHODS = ("harmony-pp", "harmony-dp", "pp-swap", "dp-swap")
IMAGES = {"vgg": ((5, 7, 9), (4, 8, 16)), "resnet": ((4, 6, 8), (8, 16, 24))}
"""Family -> layers, hidden."""
STEPS, UNSTEADY = 20, 6
"""Steps of a run, and how many of them warm it up."""


def settings(count: int, seed: int, ranks: int) -> Iterator[RunSpec]:
    """Different specs drawn by a seed: each method in turn, three decoders to an image model."""
    draw, drawn = random.Random(seed), set()
    while (place := len(drawn)) < count:
        method = METHODS[place % len(METHODS)]
        if place // len(METHODS) % 4 == 3:
            family = draw.choice(sorted(IMAGES))
            layers, hidden = (draw.choice(choices) for choices in IMAGES[family])
            shape: dict[str, Any] = {"layers": layers, "hidden": hidden, "heads": 1, "seq": 32}
            shape |= {"vocab": 10, "family": family}
        else:
            shape = {
                "layers": draw.choice((4, 6, 8, 12)), "hidden": draw.choice((96, 128, 192, 256)),
                "heads": 4, "seq": draw.choice((32, 64, 128)), "vocab": 256,
            }  # fmt: skip
        model = ModelSpec(**shape, dropout=0.0, tied=False)
        spec = RunSpec(
            method=method, model=model, batch=draw.choice((4, 8, 16)), steps=STEPS, device="cpu",
            ranks=ranks,
        )  # fmt: skip
        if spec not in drawn:
            drawn.add(spec)
            yield spec


def measured(spec: RunSpec, store: Store) -> RunRecord:
    """The record of a setting's run. Raises RuntimeError for one that failed."""
    record = run(spec, store)
    if record.status != "ok":
        raise RuntimeError(f"{spec.method}: {record.status}, {record.message}")
    return describe(Entry(case="drawn", method=spec.method, spec=spec, warmup=UNSTEADY), record)


def compared(record: RunRecord) -> dict[str, Any]:
    """The row of a record with `ratio`, predicted over measured, and whether the measured step lies
    in the range that the plan printed."""
    row, spread = columns(record), record.predicted["spread"]
    ratio = row["predicted_step_seconds"] / row["step_seconds_median"]
    inside = ratio * (1 - spread) <= 1 <= ratio * (1 + spread)
    return row | {"ratio": ratio, "inside": inside, "family": record.spec["model"]["family"]}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 3 where a run failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--count", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    parser.add_argument("--results", type=Path, default=REPOSITORY_RESULTS, metavar="DIR")
    options = parser.parse_args(argv)
    store, records = Store(options.results), []
    specs = [*settings(options.count, options.seed, options.ranks)]
    measure(specs[:1], store, print)  # which rehearses; a run as short as these would not
    for spec in specs:
        try:
            records.append(measured(spec, store))
        except RuntimeError as error:
            print(f"predictions: {error}", file=sys.stderr)
            return 3
        said = compared(records[-1]) | {"load": os.getloadavg()[0]}
        print("{method:11s} {family:7s} {layers:2d} x {hidden:3d}, sequence {seq:3d}, batch "
              "{batch:2d}: predicted {predicted_step_seconds:.4f} s, measured "
              "{step_seconds_median:.4f}, {ratio:.2f} of it (load {load:.1f})".format(**said),
              flush=True)  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    lines = (record.to_json(indent=None) for record in records)
    write_whole(options.out / "predictions.jsonl", "".join(lines))
    rows = [compared(record) for record in records]
    off = [abs(each["ratio"] - 1) for each in rows]
    inside = sum(each["inside"] for each in rows)
    print(f"{len(rows)} settings, {provenance.gather()['cpu']}: {fmean(off):.1%} off on the mean, "
          f"{max(off):.1%} at most; {inside} inside the range of their plan")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
