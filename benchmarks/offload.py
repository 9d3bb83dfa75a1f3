"""Ours and every peer on the same model, data, seed, precision and clipping, on one machine.

    python -m benchmarks.offload --out results/published-here/h200 --list
    python -m benchmarks.offload --out results/published-here/h200 --only '78-*' --limit-seconds 540
    python -m benchmarks.offload --out FOLDER --largest stronghold --device-cap 32GiB
    python -m benchmarks.offload --out FOLDER --size tiny

The record of a run goes to FOLDER/offload.jsonl as soon as the run ends (offload_sheet.py); what
runs is data (offload_cases.toml). Each run is a process of its own, started, watched and recorded
as `workbench run` does it. A run that fails is a row with its status and no figures. Started again,
it goes on with what is not finished.

Speed is the batch over the median of the measured steps, whole steps from the first copy to the
last: forward, backward, update, and everything waited for. Build DeepSpeed's operators before
(`python -m baselines.deepspeed_ops`), else the first of its runs does, within its time.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.offload_bench import RUN_TIMEOUT_S, Bench
from benchmarks.offload_cases import OFFLOAD as CASES
from benchmarks.offload_cases import Cases, Entry
from benchmarks.offload_sheet import Sheet
from workbench.core.bytesize import format_bytes, parse_bytes
from workbench.core.record import RunRecord
from workbench.published.here import OFFLOAD as ROWS
from workbench.published.here import Benchmark, Run
from workbench.runs.store import REPOSITORY_RESULTS, Store


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Runs of a benchmark."""

    name: str
    about: str
    cases: Cases
    form: Benchmark
    """Form of the file of its rows."""
    roof: str
    """The method whose speed the others are compared with."""
    largest: tuple[str, ...] = ()
    """Methods whose largest model can be searched."""
    more: Callable[[RunRecord, Store], dict[str, Any]] | None = None
    """Columns of a row that this benchmark alone has, or knows better, of a run that ended well."""
    summary: Callable[[Path], list[str]] | None = None
    """Lines on the file of the rows, printed at the end."""


OFFLOAD = Suite(
    name="offload",
    about=__doc__,
    cases=CASES,
    form=ROWS,
    roof="plain",
    largest=tuple(sorted(CASES.methods)),
)


def table(sheet: Sheet, shown: Iterable[Entry], roof: str = OFFLOAD.roof) -> list[str]:
    """The runs there are of the entries, a line each, with their share of plain training."""
    lines = [
        f"{'method':24s} {'case':16s} {'samples/s':>9s} {'of ' + roof[:10]:>13s} "
        f"{'pred/meas':>9s} {'peak GiB':>8s}  status"
    ]
    for run in filter(None, map(sheet.latest, shown)):
        most, speed = _roof(sheet, run, roof), run.samples_per_second
        predicted, step_s = run.predicted_step_seconds, run.step_seconds_median
        lines.append(
            f"{run.named:24s} {run.case:16s} {_number(speed, '.3f'):>9s} "
            f"{_number(speed / most if speed and most else None, '.1%'):>13s} "
            f"{_number(predicted / step_s if predicted and step_s else None, '.2f'):>9s} "
            f"{_number(run.peak_device_gib, '.2f'):>8s}  {run.status}"
        )
    return lines


def _roof(sheet: Sheet, run: Run, roof: str) -> float | None:
    """The fastest plain training of the same model and batch, with the same clipping if there is
    one, on as many GPUs."""
    same = ("layers", "hidden", "seq", "batch", "dtype", "ranks")
    found = [
        (other.clip == run.clip, other.samples_per_second)
        for other in sheet.runs
        if other.method == roof
        and other.samples_per_second
        and all(getattr(other, name) == getattr(run, name) for name in same)
    ]
    return max(found)[1] if found else None


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def make_parser(suite: Suite = OFFLOAD) -> argparse.ArgumentParser:
    """All flags."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{suite.name}",
        description=suite.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help=f"of {suite.form.file}")
    add("--size", choices=suite.cases.by_size, default="paper")
    add(
        "--only", action="append", default=[], metavar="PATTERN", help="a case, method, case/method"
    )
    add("--again", action="store_true", help="run what is finished, too")
    add(
        "--list",
        action="store_true",
        help="list the runs that would be made, and how long they may take",
    )
    add("--limit-seconds", type=float, metavar="N", help="start nothing that may end later")
    add("--timeout", type=float, default=RUN_TIMEOUT_S, metavar="N", help="seconds a run may take")
    add("--warmup", type=int, default=4, metavar="N", help="first steps, not measured")
    add("--measured", type=int, default=8, metavar="N", help="steps measured")
    if suite.largest:
        what = "search its largest model"
        add("--largest", choices=suite.largest, metavar="METHOD", help=what)
        add("--device-cap", type=parse_bytes, metavar="BYTES", help="of the search, such as 32GiB")
        add("--host-cap", type=parse_bytes, metavar="BYTES", help="of the search, such as 90GiB")
        add("--limit-layers", type=int, default=320, metavar="N", help="where the search stops")
    add(
        "--results", type=Path, default=REPOSITORY_RESULTS, metavar="DIR", help="folder of the runs"
    )
    add("--commit", metavar="HASH", help="of a copy of the code that has no history")
    return parser


def main(argv: Sequence[str] | None = None, suite: Suite = OFFLOAD) -> int:
    """Exit code: 0 done, or out of time; 2 bad input; 3 a run failed; 130 interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    words = list(sys.argv[1:] if argv is None else argv)
    options = make_parser(suite).parse_args(words)
    try:
        return _main(suite, options, words)
    except (ValueError, OSError) as error:
        print(f"{suite.name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{suite.name}: interrupted; what was running has been ended", file=sys.stderr)
        return 130


def _main(suite: Suite, options: argparse.Namespace, words: list[str]) -> int:
    limit_s = float("inf") if options.limit_seconds is None else options.limit_seconds
    bench = Bench(
        sheet=Sheet(options.out, suite.form),
        store=Store(options.results),
        echo=lambda text: print(text, flush=True),
        again=options.again,
        deadline=time.monotonic() + limit_s,
        timeout_s=options.timeout,
        command=_command(suite.name, words),
        commit=options.commit and options.commit[:12],
        more=suite.more,
    )
    if suite.largest and options.largest:
        return _search(bench, options)
    wanted = suite.cases.entries(
        options.size, warmup=options.warmup, measured=options.measured, only=options.only
    )
    if options.list:
        _list(bench, wanted)
        return 0
    left = bench.run(wanted)
    print("", *table(bench.sheet, wanted, suite.roof), sep="\n")
    if suite.summary is not None and bench.sheet.runs:
        print("", *suite.summary(bench.sheet.path), sep="\n")
    if left:
        seconds = sum(map(bench.estimate, left))
        print(f"\nno time was left for {len(left)} runs, about {seconds:.0f} s:")
        print(*(f"  {entry.name}" for entry in left), sep="\n")
    return 3 if bench.failed else 0


def _list(bench: Bench, wanted: list[Entry]) -> None:
    """Print the runs that would be made, with their budgets and the seconds they may take."""
    total = 0.0
    for entry in wanted:
        done = bench.sheet.finished(entry) and not bench.again
        seconds = bench.estimate(entry)
        total += 0 if done else seconds
        cap = entry.spec.device_memory
        print(
            f"{entry.case:16s} {entry.method:24s} {entry.spec.steps:3d} steps  "
            f"{format_bytes(cap) if cap else 'all':>8s}  "
            f"{'done before' if done else f'about {seconds:.0f} s'}"
        )
    print(f"about {total:.0f} s in all, if every batch fits in one piece")


def _search(bench: Bench, options: argparse.Namespace) -> int:
    caps = (options.device_cap, options.host_cap)
    device, host = (format_bytes(cap) if cap else "all there is" for cap in caps)
    found = bench.largest(options.largest, caps, options.limit_layers)
    told = "not known yet" if found is None else f"{found} layers"
    print(f"\n{options.largest}, device {device}, host {host}: the largest model is {told}")
    return 3 if bench.failed else 0


def _command(name: str, words: list[str]) -> list[str]:
    """How this was started, with no more of a path than its end."""
    kept = [Path(word).name if word.startswith("/") else word for word in words]
    return ["python", "-m", f"benchmarks.{name}", *kept]


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
