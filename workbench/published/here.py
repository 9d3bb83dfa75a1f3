"""Measurements of this project on named hardware: committed records of runs, and their rows.

A line of ``results/published-here/<device>/<benchmark>.jsonl`` is a run's record, as the store has
it: `RunRecord.bench` says which entry of the benchmark it was. A row is what figures need of it. A
line that cannot be right is refused in one sentence, since a figure drawn from a slip looks like
any other. These rows are `measured`; published values lie in tables.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from workbench.core.files import read_whole
from workbench.core.methods import RENAMED, known
from workbench.core.record import RunRecord, steady_quartiles

if TYPE_CHECKING:
    import pandas

FOLDER, LANES = "published-here", "lanes"
GIB = 1 << 30
SETTINGS = (
    "device", "method", "variant", "ranks", "layers", "hidden", "heads", "seq", "batch", "dtype",
    "clip", "device_cap_gib", "host_cap_gib",
)  # fmt: skip
"""Columns that two runs must have in common to be one run that was repeated."""
PINS = {"w": "window {}", "r": "{} resident", "p": "{} pulled", "k": "{} kept"}
WORDS = {"stash": "inputs on the host", "keep": "kept"}


class Run(SimpleNamespace):
    """A row: the columns of `columns` as attributes, None for an unknown value. Besides:

    `record`; `benchmark`, whose rules it fits; `device`, the machine's folder; `runs`, how many
    rows say the same settings, of which (in `latest`) this is the last; `sitting`, when the runs
    began (UTC) that were made on that machine without a long pause, where the benchmark tells it.
    """

    @property
    def label(self) -> str:
        """The method and its variant as a figure writes them."""
        name = self.benchmark.labels[self.method]
        return f"{name} ({in_words(self.variant)})" if self.variant else name

    @property
    def round(self) -> str:
        """In which round of measurements it was made: machines of one kind differ from day to day,
        and so does the code."""
        began = f", from {self.sitting}" if self.sitting else ""
        return f"{self.commit} of {self.date}{began}"

    @property
    def how(self) -> str:
        """How its number was obtained, in a line."""
        repeated = f", the last of {self.runs} runs" if self.runs > 1 else ""
        where = f"{self.device}/{self.benchmark.file}"
        return f"{self.hardware}, {self.date}, commit {self.commit}, {where}{repeated}"

    @property
    def pinned(self) -> bool:
        """Whether the variant fixes a choice of the planner (``w4``, ``p8 k4``)."""
        return re.search(r"(?<!\w)[wrpk]\d+(?!\w)", self.variant) is not None

    @property
    def window(self) -> int | None:
        """The window that the variant asks for (``w4``), None where the planner chose it."""
        found = re.search(r"(?<!\w)w(\d+)(?!\w)", self.variant)
        return int(found[1]) if found else None

    @property
    def shape(self) -> str:
        """Stages, replicas and micro-batch as tables write them: ``4x1 m2``."""
        return f"{self.ranks // self.replicas}x{self.replicas} m{self.micro}"


def columns(record: RunRecord) -> dict[str, Any]:
    """The row of a record. Only a run that ended well has figures.

    GiB of a device are those of the GPU that needed most; other amounts, the batch too, are of all
    ranks. `step_seconds_spread` is the distance of the quartiles over the median, `error` the
    predicted over the measured step, less 1.
    """
    spec, bench, origin = record.spec, record.bench, record.provenance
    ok = record.status == "ok"
    steps = record.step_seconds[bench["warmup"] :] if ok else []
    first, seconds, third = steady_quartiles([0.0, *steps]) if steps else (None, None, None)
    spread = (third - first) / seconds if seconds and steps[1:] else None
    peak, moved, told = (
        value if ok else {} for value in (record.peak_bytes, record.moved_bytes, record.predicted)
    )
    planned, base = told.get("moved_bytes") or {}, bench["method"].partition(" (")[0]
    replicas = replicas_of(spec["options"])
    row = {
        "case": bench["case"],
        "named": bench["method"],
        "method": RENAMED.get(base, base) if record.schema == 1 else base,
        "variant": bench["method"].partition(" (")[2].removesuffix(")").strip(),
        "ranks": spec["ranks"],
        "replicas": replicas,
        "micro": spec["batch"] // record.parts // replicas,
        **{name: spec["model"][name] for name in ("layers", "hidden", "heads", "seq")},
        **{name: spec[name] for name in ("batch", "dtype", "clip")},
        "device_cap_gib": _gib(spec["device_memory"]),
        "host_cap_gib": _gib(spec["host_memory"]),
        "parameters": record.parameters,
        "status": record.status,
        "samples_per_second": _rounded(spec["batch"] / seconds if seconds else None, 4),
        "step_seconds_median": _rounded(seconds, 6),
        "step_seconds_spread": _rounded(spread, 4),
        "predicted_step_seconds": _rounded(told.get("step_seconds"), 6),
        "peak_device_gib": _gib(peak.get("device")),
        "predicted_peak_device_gib": _gib(told.get("peak_bytes", {}).get("device")),
        "bubble": None,
        "predicted_bubble": None,
        "host_gib": _gib(peak.get("host")),
        "disk_gib": _gib(peak.get("disk")),
        "disk_step_bytes": (moved.get("read") or 0) + (moved.get("write") or 0) or None,
        **{f"{way}_gib": _gib(moved.get(way)) for way in ("load", "store")},
        **{f"planned_{way}_gib": _gib(planned.get(way)) for way in ("load", "store")},
        "start_seconds": (record.seconds or 0.0) - sum(record.step_seconds),
        "final_loss": record.losses[-1] if ok and record.losses else None,
        "commit": origin.get("commit"),
        "date": _day(record.started),
        "hardware": hardware(record),
    } | bench.get("told", {})
    pair = row["predicted_step_seconds"], row["step_seconds_median"]
    return row | {"error": _rounded(pair[0] / pair[1] - 1, 4) if all(pair) else None}


def replicas_of(options: Mapping[str, Any]) -> int:
    """Pipelines side by side, as far as options say; 1 for methods that have none."""
    given = options.get("replicas", 1)
    return 1 if given == "auto" else given


def hardware(record: RunRecord) -> str:
    """Device that the run computed on, by its own name."""
    origin = record.provenance
    if record.spec["device"] == "cuda" and origin.get("gpus"):
        return origin["gpus"][0]
    return f"{origin.get('cpu') or 'processor'}, {origin.get('cores', '?')} cores"


def _day(started: str) -> date:
    try:
        return date.fromisoformat(started[:10])
    except ValueError:
        raise ValueError(f"started is {started!r}; it must begin with a date") from None


def _gib(nbytes: int | None) -> float | None:
    return None if nbytes is None else round(nbytes / GIB, 4)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


# -- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark, by its file in each machine's folder."""

    file: str
    labels: Mapping[str, str]
    """The methods that a row may name, and their names in figures; in the order of figures."""
    settings: tuple[str, ...] = SETTINGS
    pause: timedelta | None = None
    """Time without a run after which another machine of that name may have been at work; None
    where rows tell no sittings."""
    check: Callable[[Run], None] = lambda run: None
    """Raises ValueError for a run that cannot be right."""

    def runs(self, roots: Iterable[Path]) -> list[Run]:
        """The runs in ``<root>/published-here/*/<file>`` of every root, each file once.

        Empty where there is no such file. Raises ValueError as `read` does.
        """
        found = (path for root in roots for path in sorted((root / FOLDER).glob(f"*/{self.file}")))
        return [run for path in dict.fromkeys(map(Path.resolve, found)) for run in self.read(path)]

    def read(self, path: Path) -> list[Run]:
        """The runs of a file, in order. Raises ValueError for a line that cannot be right, naming
        file and line."""
        runs = [Run(**vars(run), benchmark=self) for run in rows(path)]
        for number, run in enumerate(runs, 1):
            try:
                if run.method not in self.labels:
                    names = ", ".join(self.labels)
                    raise ValueError(f"method is {run.named!r}; known are {names}")
                self.check(run)
            except ValueError as error:
                raise ValueError(f"{place(path)}, line {number}: {error}") from None
        began, ended = "", None
        for run in sorted(runs, key=lambda run: run.record.started) if self.pause else ():
            started = datetime.fromisoformat(run.record.started)
            if ended is None or started - ended > self.pause:
                began = f"{started:%H:%M}"
            run.sitting, ended = began, started + timedelta(seconds=run.record.seconds or 0.0)
        return runs


def rows(path: Path) -> list[Run]:
    """The rows of any benchmark's file, in order. Raises ValueError as `Benchmark.read` does."""
    stat = path.stat()
    return [Run(**vars(run)) for run in _rows(path, (stat.st_mtime_ns, stat.st_size))]


@lru_cache(maxsize=256)
def _rows(path: Path, stamp: tuple[int, int]) -> list[Run]:
    """`stamp` tells the file from others that had its name."""
    folder, runs = path.parent, []
    device = (folder.parent if folder.name == LANES else folder).name
    for number, line in enumerate(read_whole(path, place(path)).splitlines(), 1):
        try:
            record = RunRecord.from_json(line)
            runs.append(Run(**checked(record), record=record, device=device, runs=1, sitting=""))
        except ValueError as error:
            raise ValueError(f"{place(path)}, line {number}: {error}") from None
    return runs


def checked(record: RunRecord) -> dict[str, Any]:
    """The row of a record. Raises ValueError for one that cannot be right."""
    if record.bench is None:
        raise ValueError("it has no field 'bench', which says whose run it is")
    row = columns(record)
    if not row["commit"]:
        raise ValueError(f"commit is {row['commit']!r}; it must not be empty")
    for name in ("samples_per_second", "step_seconds_median", "parameters"):
        if record.status == "ok" and not (row[name] or 0) > 0:
            raise ValueError(f"{name} is {row[name]!r}, and a run that ended ok has one")
    return row


def frame(path: Path) -> pandas.DataFrame:
    """The rows of a file as a table, without the records."""
    import pandas

    return pandas.DataFrame([vars(run) for run in rows(path)]).drop(columns=["record", "device"])


def place(path: Path) -> str:
    """A file as people find it: device folder and name."""
    return "/".join(path.parts[-3:] if path.parent.name == LANES else path.parts[-2:])


def latest(runs: Iterable[Run]) -> list[Run]:
    """The last one of the runs with equal settings on one device, which counts them all.

    A run that was repeated was repeated for a reason; the best of them is not picked.
    """
    kept: dict[tuple[Any, ...], Run] = {}
    times: Counter[tuple[Any, ...]] = Counter()
    for run in runs:
        same = tuple(getattr(run, name) for name in run.benchmark.settings)
        times[same] += 1
        kept[same] = run
    return [Run(**vars(run) | {"runs": times[same]}) for same, run in kept.items()]


def in_words(variant: str) -> str:
    """A variant's codes, layers that a setting pins, in words.

    >>> in_words("w4 r0 stash")
    'window 4, 0 resident, inputs on the host'
    """
    told = [WORDS.get(code, code) for code in variant.replace(",", "").split()]
    pins = [re.fullmatch(r"([wrpk])(\d+)", code) for code in told]
    return ", ".join(
        PINS[pin[1]].format(pin[2]) if pin else code for pin, code in zip(pins, told, strict=True)
    )


def days(dates: Iterable[date]) -> str:
    """``2026-11-20 to 2026-11-22``, or the one day of all; of at least one date."""
    ordered = sorted(dates)
    return " to ".join(dict.fromkeys(map(str, (ordered[0], ordered[-1]))))


# -- benchmarks -----------------------------------------------------------------------------------


def _divides(run: Run) -> None:
    if run.ranks % run.replicas or run.batch % (run.replicas * run.micro or 1):
        raise ValueError(
            f"{run.replicas} replicas in micro-batches of {run.micro} divide no batch of "
            f"{run.batch} on {run.ranks} ranks"
        )


OFFLOAD = Benchmark(
    file="offload.jsonl",
    labels={
        "plain": "plain torch",
        "megatron-core": "Megatron-LM",
        "l2l": "L2L",
        "fsdp-offload": "FSDP2",
        "zero-offload": "ZeRO-Offload",
        "zero-infinity": "ZeRO-Infinity",
        "zero-infinity-disk": "ZeRO-Infinity, disk",
        "stronghold": "STRONGHOLD",
        "stronghold-disk": "STRONGHOLD, disk",
    },
    pause=timedelta(minutes=15),
)
"""One GPU."""
SERVERS = Benchmark(
    file="servers.jsonl",
    labels={
        name: known()[name].label
        for name in (
            "plain", "data-parallel", "gpipe", "1f1b", "interleaved", "zb-h1", "varuna",
            "torch-gpipe", "torch-1f1b", "torch-interleaved", "torch-zero-bubble", "zero-offload",
            "zero-infinity", "dp-swap", "pp-swap", "harmony-dp", "harmony-pp",
        )
    },
)  # fmt: skip
"""Several GPUs."""
ORDERS = ("gpipe", "1f1b", "interleaved", "zb-h1", "varuna")
"""Our own."""
PEERS = ("torch-gpipe", "torch-1f1b", "torch-interleaved", "torch-zero-bubble", "deepspeed-pipe")
PIPELINES = Benchmark(
    file="pipelines.jsonl",
    labels={
        name: (SERVERS.labels | {"varuna": "Varuna", "deepspeed-pipe": "DeepSpeed 1F1B"})[name]
        for name in (*ORDERS, *PEERS)
    },
    settings=(*SETTINGS, "replicas", "micro"),
    check=_divides,
)
"""Pipelines in every shape: P stages times D replicas are the ranks."""
BENCHMARKS = {each.file.partition(".")[0]: each for each in (OFFLOAD, SERVERS, PIPELINES)}
"""By their names."""
