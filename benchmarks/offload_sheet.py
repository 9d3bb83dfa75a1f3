"""The file a benchmark writes: the record of each run, a line each, with the benchmark's own facts.

A line says where its row comes from: machine, packages and commit, spec and key, every loss, norm
and step time, bytes moved, the plan, what engine ran, and of a run that failed the end of its log.
The file is written anew, whole or not at all, as soon as a run ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.offload_cases import Entry, about_parameters
from workbench.core.files import write_whole
from workbench.core.record import RESULTS, Bench, RunRecord
from workbench.published.here import OFFLOAD, Benchmark, Run, checked

LOG_LINES = 25
ROOT = Path(__file__).resolve().parents[1]


class Sheet:
    """A benchmark's file in a folder."""

    def __init__(self, folder: Path, form: Benchmark = OFFLOAD) -> None:
        """Reads what is there. Raises ValueError for a line that cannot be right."""
        self.folder, self.form, self.path = folder, form, folder / form.file
        folder.mkdir(parents=True, exist_ok=True)
        self.runs: list[Run] = form.read(self.path) if self.path.exists() else []

    def append(self, record: RunRecord) -> Run:
        """Enter a run's record, as `describe` makes it; return its row."""
        self.replace([*(run.record for run in self.runs), record])
        return self.runs[-1]

    def replace(self, records: Iterable[RunRecord]) -> None:
        """Have these records and no others. Raises ValueError, and changes nothing, for one that
        cannot be right."""
        lines = [record.to_json(indent=None) for record in records if checked(record)]
        write_whole(self.path, "".join(lines))
        self.runs = self.form.read(self.path)

    def latest(self, entry: Entry) -> Run | None:
        """The last run of an entry, in any number of micro-batches; None where there is none."""
        found = [run for run in self.runs if (run.case, run.named) == (entry.case, entry.method)]
        return found[-1] if found else None

    def finished(self, entry: Entry) -> bool:
        """Whether running it again would tell nothing new: errors and time-outs are tried again,
        and a batch that did not fit in one piece is tried in more."""
        last = self.latest(entry)
        if last is None or last.status not in RESULTS:
            return False
        tried = last.record.spec["microbatches"]
        return last.status != "oom_device" or not [n for n in entry.splits if n > tried]


def describe(
    entry: Entry,
    record: RunRecord,
    *,
    command: Iterable[str] = (),
    commit: str | None = None,
    lanes: dict[str, dict[str, float]] | None = None,
    log: str = "",
    told: dict[str, Any] | None = None,
) -> RunRecord:
    """The record of a finished run with the benchmark's facts, and without places on this machine.

    `commit` where the checkout cannot tell; `lanes` are ``predicted`` and ``measured`` busy seconds
    a step, where the method runs on our own runtime; `told` are columns of the row that the
    benchmark knows better.
    """
    origin, facts = record.provenance, Bench(
        case=entry.case, method=entry.method, warmup=entry.warmup, told=told or {},
        lanes=lanes or {}, log=log.splitlines()[-LOG_LINES:] if record.status != "ok" else [],
    )  # fmt: skip
    # A `+` where the checkout had changes, of which there is a hash.
    commit = commit or (origin.get("commit") or "unknown")[:12] + "+" * bool(origin.get("dirty"))
    made = replace(
        record,
        parameters=record.parameters or about_parameters(entry.spec.model),
        provenance=origin | {"command": list(command), "commit": commit},
        bench=facts,
    )
    return RunRecord.from_json(without_paths(made.to_json()))


def without_paths(text: str) -> str:
    """Without the places that checkout and environment have on this machine."""
    for place, name in ((str(ROOT), "."), (sys.prefix, "ENV"), (sys.base_prefix, "PYTHON")):
        text = text.replace(place, name)
    return text
