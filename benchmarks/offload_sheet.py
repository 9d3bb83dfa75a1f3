"""The files a benchmark writes: a row a run in a CSV such as offload.csv, all of it in a JSON.

The CSV has what figures and readers need. Beside it the JSON has, in the same order, where each
row comes from: machine, packages and commit, spec and key, every loss, norm and step time, bytes
moved, the plan, what engine ran, and of a run that failed the end of its log. A run is appended to
both as soon as it ends, the JSON first: if the process is killed in between, the next one adds the
row that the CSV lacks.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from io import StringIO
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.offload_cases import GIB, Entry, about_parameters
from workbench.core.files import write_whole
from workbench.core.record import RESULTS, RunRecord, strict
from workbench.core.spec import RunSpec
from workbench.published.here import COLUMNS
from workbench.schedule.plan import Plan

OF_THE_RUN = ("key", "command", "started", "code_version", "dirty", "diff", "commit")
"""Of a record's provenance; the rest is the machine's."""
LOG_LINES = 25
ROOT = Path(__file__).resolve().parents[1]
ABOUT = (
    "Each run is one row of the CSV beside this, in order; `machine` is a place in `machines`. "
    "Times are seconds of whole steps, the first `warmup` of which are not in the median; "
    "step_seconds_spread is the distance of the quartiles over the median."
)


class Sheet:
    """Both files in a folder."""

    def __init__(
        self, folder: Path, name: str = "offload", columns: tuple[str, ...] = COLUMNS
    ) -> None:
        """Reads what is there. Raises ValueError where the two files do not belong together."""
        self.folder, self.columns = folder, columns
        self.csv, self.json = folder / f"{name}.csv", folder / f"{name}.json"
        self.machines: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        folder.mkdir(parents=True, exist_ok=True)
        if self.json.exists():
            data = json.loads(self.json.read_text())
            self.machines, self.runs = data["machines"], data["runs"]
        self._check_csv()

    def append(self, run: dict[str, Any], machine: dict[str, Any]) -> None:
        """Enter a run, as `describe` makes it, and the machine it ran on."""
        self.runs.append({**run, "machine": self.place_of(machine)})
        self._write_json()
        self._append_csv([run["row"]])

    def place_of(self, machine: dict[str, Any]) -> int:
        """Of a machine in `machines`, where it is entered if it is new."""
        if machine not in self.machines:
            self.machines.append(machine)
        return self.machines.index(machine)

    def replace(self, runs: list[dict[str, Any]]) -> None:
        """Have these runs and no others; their machines have places here."""
        self.runs = runs
        self._write_json()
        write_whole(self.csv, self._text([run["row"] for run in runs], header=True))

    def latest(self, entry: Entry) -> dict[str, Any] | None:
        """The last run of an entry, in any number of micro-batches; None where there is none."""
        found = [r for r in self.runs if (r["case"], r["method"]) == (entry.case, entry.method)]
        return found[-1] if found else None

    def finished(self, entry: Entry) -> bool:
        """Whether running it again would tell nothing new: errors and time-outs are tried again,
        and a batch that did not fit in one piece is tried in more."""
        last = self.latest(entry)
        if last is None or last["status"] not in RESULTS:
            return False
        tried = last["spec"]["microbatches"]
        return last["status"] != "oom_device" or not [n for n in entry.splits if n > tried]

    def _write_json(self) -> None:
        """Whole or not at all; a run a line, so that a difference shows what was added."""
        head = {"about": ABOUT, "machines": self.machines}
        text = json.dumps(head, indent=1)[:-2] + ',\n "runs": [\n'
        text += ",\n".join(json.dumps(strict(run), allow_nan=False) for run in self.runs)
        write_whole(self.json, text + "\n ]\n}\n")

    def _append_csv(self, rows: list[dict[str, Any]]) -> None:
        text = self._text(rows, header=not self.csv.exists())
        with self.csv.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _text(self, rows: list[dict[str, Any]], *, header: bool) -> str:
        text = StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _check_csv(self) -> None:
        count = 0
        if self.csv.exists():
            with self.csv.open() as file:
                reader = csv.DictReader(line for line in file if not line.startswith("#"))
                if tuple(reader.fieldnames or ()) != self.columns:
                    raise ValueError(f"{self.csv} has other columns than this benchmark writes")
                count = sum(1 for _ in reader)
        if count > len(self.runs):
            raise ValueError(
                f"{self.csv} has {count} rows and {self.json.name} {len(self.runs)} runs; they "
                "belong together: restore the one that is older, or use another folder"
            )
        if count < len(self.runs):
            self._append_csv([run["row"] for run in self.runs[count:]])


def describe(
    entry: Entry,
    record: RunRecord,
    *,
    command: str = "",
    commit: str | None = None,
    plan: Plan | None = None,
    lanes: dict[str, dict[str, float]] | None = None,
    log: str = "",
    columns: tuple[str, ...] = COLUMNS,
    more: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A finished run for the sheet, and the machine it ran on.

    `commit` where the checkout cannot tell; `plan` and `lanes` (``predicted`` and ``measured`` busy
    seconds a step) where the method runs on our own runtime; `more` are further fields of the row,
    which take the place of others.
    """
    origin = record.provenance
    commit = commit or _commit(origin)
    steps = record.step_seconds[entry.warmup :] if record.status == "ok" else []
    seconds = median(steps) if steps else None
    total = record.seconds
    run = {
        "case": entry.case,
        "method": entry.method,
        "status": record.status,
        "message": record.message,
        "engine": record.engine,
        "key": record.key,
        "started": record.started,
        "seconds": record.seconds,
        "start_seconds": None if total is None else total - sum(record.step_seconds),
        "parameters": record.parameters or about_parameters(entry.spec.model),
        "warmup": entry.warmup,
        "step_seconds": record.step_seconds,
        "losses": record.losses,
        "grad_norms": record.grad_norms,
        "skipped_steps": record.skipped_steps,
        "peak_bytes": record.peak_bytes,
        "moved_bytes": record.moved_bytes,
        "window": record.window,
        "resident": record.resident,
        "predicted": record.predicted,
        "plan": {} if plan is None else {"settings": plan.settings, "notes": list(plan.notes)},
        "lanes": lanes or {},
        "notes": record.notes,
        "spec": record.spec,
        "command": command,
        **{name: origin.get(name) for name in ("code_version", "dirty", "diff")},
        "commit": commit,
        "log": log.splitlines()[-LOG_LINES:] if record.status != "ok" else [],
    }
    row = _row(entry, record, seconds, steps, commit) | (more or {})
    if row["step_seconds_median"] and row["predicted_step_seconds"]:
        row["error"] = _round(row["predicted_step_seconds"] / row["step_seconds_median"] - 1, 4)
    run["row"] = {name: row[name] for name in columns}
    run = json.loads(without_paths(json.dumps(strict(run))))
    return run, {name: value for name, value in origin.items() if name not in OF_THE_RUN}


def _commit(origin: dict[str, Any]) -> str:
    """The commit that ran, ``+`` where the checkout had changes; JSON has a hash of those."""
    return (origin.get("commit") or "unknown")[:12] + "+" * bool(origin.get("dirty"))


def without_paths(text: str) -> str:
    """Without the places that checkout and environment have on this machine."""
    for place, name in ((str(ROOT), "."), (sys.prefix, "ENV"), (sys.base_prefix, "PYTHON")):
        text = text.replace(place, name)
    return text


def _row(
    entry: Entry, record: RunRecord, seconds: float | None, steps: list[float], commit: str
) -> dict[str, Any]:
    """The run's row of any CSV; None becomes an empty field. Only a run that ended well has
    figures."""
    spec, model, ok = entry.spec, entry.spec.model, record.status == "ok"
    peak = record.peak_bytes if ok else {}
    predicted = record.predicted if ok else {}
    moved = {"": record.moved_bytes if ok else {}, "planned_": predicted.get("moved_bytes", {})}
    spread, replicas = None, replicas_of(spec)
    if seconds and len(steps) > 1:
        first, _, third = quantiles(steps, n=4, method="inclusive")
        spread = (third - first) / seconds
    return {
        "method": entry.method,
        "ranks": spec.ranks,
        "replicas": replicas,
        "micro": spec.microbatch // replicas,
        **{name: getattr(model, name) for name in ("layers", "hidden", "heads", "seq")},
        **{name: getattr(spec, name) for name in ("batch", "dtype", "clip")},
        "device_cap_gib": _gib(spec.device_memory),
        "host_cap_gib": _gib(spec.host_memory),
        "parameters": record.parameters or about_parameters(model),
        "status": record.status,
        "samples_per_second": _round(spec.batch / seconds if seconds else None, 4),
        "step_seconds_median": _round(seconds, 6),
        "step_seconds_spread": _round(spread, 4),
        "predicted_step_seconds": _round(predicted.get("step_seconds"), 6),
        **dict.fromkeys(("error", "bubble", "predicted_bubble")),
        "peak_device_gib": _gib(peak.get("device")),
        "predicted_peak_device_gib": _gib(predicted.get("peak_bytes", {}).get("device")),
        "host_gib": _gib(peak.get("host")),
        "disk_gib": _gib(peak.get("disk")),
        **{
            f"{whose}{way}_gib": _gib((nbytes or {}).get(way))
            for whose, nbytes in moved.items()
            for way in ("load", "store")
        },
        "final_loss": record.losses[-1] if ok and record.losses else None,
        "commit": commit,
        "measured_on": f"{record.started[:10]} {hardware(record)}",
    }


def replicas_of(spec: RunSpec) -> int:
    """Pipelines side by side, as far as the spec says; 1 for methods that have none."""
    given = getattr(spec.options, "replicas", 1)
    return 1 if given == "auto" else given


def hardware(record: RunRecord) -> str:
    """Device that the run computed on, by its own name."""
    origin = record.provenance
    if record.spec["device"] == "cuda" and origin.get("gpus"):
        return origin["gpus"][0]
    return f"{origin.get('cpu') or 'processor'}, {origin.get('cores', '?')} cores"


def _gib(nbytes: int | None) -> float | None:
    return None if nbytes is None else round(nbytes / GIB, 4)


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
