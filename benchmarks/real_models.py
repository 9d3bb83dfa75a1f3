"""Real models from folders of weights on one GPU, beside torch's loop and what others offer.

    python -m benchmarks.real_models --list
    python -m benchmarks.real_models --only torch-1b 'ours-1b/run-8g-*' --limit-seconds 560
    python -m benchmarks.real_models --smoke --work FOLDER

Rows are data (real_models.toml). Each is trained in a process of its own, and entered into
OUT/real-models.json as soon as that ends; a row that fails says why, and the next one is trained.
Weights are random: folders are made below WORK when a row wants them, and stay there, as do
profiles and what was compiled. Speed is that of the later half of the steps. Of the host's memory
is told what this machine had in use at most, less what it had before.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from benchmarks import real_cases
from benchmarks.real_cases import Row
from benchmarks.real_runs import CLIP, LOG, Folders, last_lines, process, run
from workbench.core.files import write_whole
from workbench.profile.machine import this_machine
from workbench.runs.provenance import gather

FILE = "real-models.json"
STATES, GIB = 16, 1 << 30
"""Bytes of a weight in fp32, its gradient and two moments; a GiB."""
PHASE = re.compile(r"^workbench: (.*) \.\.\. .*?([0-9.]+) s$", re.MULTILINE)
"""Line of an engine on what it has done before its first step."""
WORDS = 40
"""Letters of a part of a start that are printed."""
MOST = 3
"""Times that a row may take as long as it is said to."""
Found = dict[str, Any]
COLUMNS = (
    ("samples/s", "samples_per_s", ".2f"), ("tokens/s", "tokens_per_s", ".0f"),
    ("TFLOP/s", "tflops", ".0f"), ("step s", "step_s", ".3f"), ("planned", "planned_s", ".3f"),
    ("GiB", "peak_gib", ".2f"), ("host GiB", "host_gib", ".1f"),
    ("first step", "first_step_s", ".0f"), ("m", "microbatches", "d"),
)  # fmt: skip


def measured(row: Row, limit_s: float) -> Found:
    """A row's figures; ``failed`` says why there are none."""
    if row.how == "needs":
        return {"host_gib": STATES * parameters(row) / GIB, "how": "computed"}
    if row.how == "run":
        return run(row, limit_s)
    started = replace(row, began=time.time()).to_json()
    ended = process([sys.executable, "-m", "benchmarks.real_loops", started], limit_s)
    told = {"all_s": ended.seconds, "host_gib": ended.host_gib, "microbatches": row.microbatches}
    if ended.code:
        return told | {"failed": last_lines(ended.told), "log": ended.told[-LOG:]}
    start = {part: float(seconds) for part, seconds in PHASE.findall(ended.told)}
    return told | json.loads(ended.out.strip().splitlines()[-1]) | {"start": start}


def parameters(row: Row) -> int:
    """Elements of the model's weights, tied ones counted once."""
    from workbench.model import make_model
    from workbench.model.hf_config import spec_from_config

    spec = spec_from_config(f"{row.folder}.json", seq=row.seq)
    return make_model(replace(spec, pretrained="")).parameters_count()


def entered(row: Row, found: Found, waited_s: float, origin: Found) -> Found:
    """A row of the file: what was asked, found, and where."""
    count = parameters(row)
    if speed := found.get("samples_per_s"):
        found["tokens_per_s"] = tokens = speed * row.seq
        found["tflops"] = 6 * count * tokens / row.ranks / 1e12
    asked = {
        name: value for name, value in asdict(row).items()
        if name in ("case", "name", "how", "model", "method", "batch", "seq", "gib", "host", "text",
                    "ranks")
    }  # fmt: skip
    told = {"parameters": count, "clip": float(CLIP), "folder_s": waited_s, "smoke": row.smoke}
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return asked | told | found | {"provenance": origin | {"at": at}}


class Rows:
    """The file of all rows."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / FILE
        self.every: list[Found] = []
        self.take(self.path)

    def take(self, path: Path) -> None:
        """Take up the rows of a file, each in the place of an earlier one."""
        if path.is_file():
            for row in json.loads(path.read_text())["rows"]:
                self.enter(row)

    def enter(self, row: Found) -> None:
        self.every = [each for each in self.every if label(each) != label(row)] + [row]
        text = json.dumps({"source": "measured", "rows": self.every}, indent=1)
        write_whole(self.path, text + "\n")


def label(row: Found) -> str:
    return f"{row['case']}/{row['name']}"


# -- what is printed -------------------------------------------------------------------------------


def table(rows: Iterable[Found]) -> Iterator[str]:
    """A line a row, and what else there is to say of some."""
    rows = [*rows]
    width = max((len(label(row)) for row in rows), default=0)
    heads = [max(len(name), 8) for name, _, _ in COLUMNS]
    names = (f"{name:>{n}}" for (name, _, _), n in zip(COLUMNS, heads, strict=True))
    yield f"{'':{width}} {' '.join(names)}"
    for row in rows:
        if "failed" in row:
            yield f"{label(row):{width}} failed: {row['failed'][-300:]}"
            continue
        cells = (
            f"{'' if row.get(key) is None else format(row[key], form):>{n}}"
            for (_, key, form), n in zip(COLUMNS, heads, strict=True)
        )
        yield f"{label(row):{width}} {' '.join(cells)}"
    for row in rows:
        yield from (f"{label(row)}: {line}" for line in _more(row))
    yield from spread(rows)


def _more(row: Found) -> Iterator[str]:
    if planned := row.get("planned_gib"):
        tiers = (
            f"{tier} {gib:.2f} GiB, planned {planned[tier]:.2f}"
            for tier, gib in row["tiers_gib"].items()
            if tier in planned
        )
        yield f"peaks: {'; '.join(tiers)}"
    if row.get("binding"):
        yield f"bound by {row['binding']}; {row.get('settings')}"
    for source, lanes in (row.get("lanes") or {}).items():
        step = row["step_s"] if source == "measured" else row["planned_s"]
        shares = (f"{lane} {s:.3f} s ({s / step:.0%})" for lane, s in lanes.items() if s and step)
        yield f"lanes {source}: {', '.join(shares)}"
    if start := row.get("start"):
        parts = (f"{part[:WORDS]} {s:.0f}" for part, s in start.items() if s >= 1)
        yield f"start: {', '.join(parts)}"
    if "of_disk" in row:
        yield (
            f"wrote {row['written_bytes'] / 1e9:.2f} GB in {row['written_s']:.1f} s, "
            f"{row['written_gb_per_s']:.2f} GB/s; disk {row['disk_gb_per_s']:.2f} GB/s: "
            f"{row['of_disk']:.0%}"
        )
    yield from row.get("notes", ())


def spread(rows: Iterable[Found]) -> Iterator[str]:
    """By how much losses of long runs differ from those of the first one, and from those in fp32 as
    far as these go."""
    found = [row for row in rows if row["case"] == "spread-1b" and row.get("losses")]
    rounded = [row for row in found if "fp32" not in row["name"]]
    beside = [(row, rounded[0]) for row in rounded[1:]]
    beside += [(row, exact) for exact in found if exact not in rounded for row in rounded]
    for row, first in beside:
        pairs = [*zip(row["losses"], first["losses"], strict=False)]
        apart = [abs(a - b) for a, b in pairs]
        yield (
            f"{label(row)} beside {first['name']}: losses of {len(pairs)} steps differ by "
            f"{max(apart):.4f} at most, {sum(apart) / len(apart):.5f} in the mean, last "
            f"{pairs[-1][0]:.4f} and {pairs[-1][1]:.4f}"
        )


# -- the command -----------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_models", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--only", nargs="+", default=[], metavar="PATTERN", help="cases, or case/name")
    add("--list", action="store_true", help="list the rows, and how long they may take")
    add("--smoke", action="store_true", help="tiny models, on any machine")
    add("--limit-seconds", type=float, default=1e6, metavar="N", help="end all after this time")
    add("--out", type=Path, default=Path("results/bench"), metavar="FOLDER", help=f"of {FILE}")
    add("--work", type=Path, default=Path("results/bench/work"), metavar="FOLDER",
        help="of weights and profiles")  # fmt: skip
    add("--ahead", nargs="+", default=[], metavar="MODEL", choices=real_cases.DATA["models"],
        help="begin at once to make weights of models that later rows want")  # fmt: skip
    add("--take", type=Path, nargs="+", default=[], metavar="FILE", help="take up others' rows")
    add("--commit", metavar="HASH", help="of a copy of the code that has no history")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, or out of time; 2 bad input; 3 a row failed."""
    signal.signal(signal.SIGTERM, _interrupt)
    options = make_parser().parse_args(words)
    try:
        wanted = real_cases.rows(options.only, smoke=options.smoke)
    except ValueError as error:
        print(f"real_models: {error}", file=sys.stderr)
        return 2
    if options.list:
        print(*(f"{row.label:36} about {row.about_s:.0f} s" for row in wanted), sep="\n")
        return 0
    sheet = Rows(options.out)
    for path in options.take:
        sheet.take(path)
    if options.take:
        print(*table(sheet.every), sep="\n")
        return 0
    done: list[Found] = []
    with closing(Folders(options.work.resolve())) as made:
        for model in options.ahead:
            made.begin(model, real_cases.config_of(model, smoke=options.smoke))
        try:
            for row in _all(wanted, sheet, made, options):
                done.append(row)
        except KeyboardInterrupt:
            print("real_models: interrupted; what was running has been ended", file=sys.stderr)
            return 130
        finally:
            print("", *table(done), sep="\n", flush=True)
    return 3 if any("failed" in row for row in done) else 0


def _all(
    wanted: list[Row], sheet: Rows, made: Folders, options: argparse.Namespace
) -> Iterator[Found]:
    until = time.monotonic() + options.limit_seconds
    told = gather()
    origin = {
        "machine": asdict(this_machine()), "commit": options.commit or told["commit"],
        "packages": told["packages"],
    }  # fmt: skip
    for number, row in enumerate(wanted):
        row, left = replace(row, folder=str(made.path(row.model))), until - time.monotonic()
        if left < row.about_s:
            print(f"{row.label}: no time is left ({left:.0f} of {row.about_s:.0f} s)", flush=True)
            continue
        print(f"{row.label}: about {row.about_s:.0f} s", flush=True)
        made.make_room({each.model for each in wanted[number:]})
        waited = 0.0
        try:
            waited = made.wait(row.model, row.config, left)
            found = measured(row, min(until - time.monotonic(), MOST * row.about_s))
        except (ValueError, OSError) as error:
            found = {"failed": str(error)}
        entry = entered(row, found, waited, origin)
        sheet.enter(entry)
        print(*table([entry]), sep="\n", flush=True)
        yield entry


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
