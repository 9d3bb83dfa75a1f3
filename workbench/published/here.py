"""What this project measured on named hardware: the rows of a benchmark's file, read and checked.

``results/published-here/<device>/offload.csv`` has one row a run, appended by the harness that made
it. A row that cannot be right is refused in one sentence, since a figure drawn from a slip of a
hand looks like any other. These rows are `measured`; published values lie in tables.py.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from workbench.runs.record import STATUSES

FILE = "offload.csv"
COLUMNS = (
    "method", "layers", "hidden", "heads", "seq", "batch", "dtype", "clip", "device_cap_gib",
    "host_cap_gib", "parameters", "status", "samples_per_second", "step_seconds_median",
    "step_seconds_spread", "predicted_step_seconds", "peak_device_gib",
    "predicted_peak_device_gib", "host_gib", "disk_gib", "final_loss", "commit", "measured_on",
)  # fmt: skip
LABELS = {
    "plain": "plain, all on the GPU",
    "megatron-core": "Megatron-LM",
    "l2l": "L2L",
    "fsdp-offload": "FSDP2, CPU offload",
    "zero-offload": "ZeRO-Offload",
    "zero-infinity": "ZeRO-Infinity",
    "zero-infinity-disk": "ZeRO-Infinity, disk",
    "stronghold": "STRONGHOLD",
    "stronghold-disk": "STRONGHOLD, disk",
}
"""The methods a row may name, and what figures call them; in the order in which they are drawn."""
DTYPES = ("fp32", "bf16", "fp16")
NO_CLIP = ("", "none", "off", "0", "0.0")
AGREE = 0.05
"""Samples per second and the median step may differ by this much, which is more than rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadRun:
    """One run: a row of the file in types. None stands for an empty field."""

    method: str
    """A key of `LABELS`."""
    variant: str
    """What stands in parentheses after the method: ``w4``, ``keep``; empty for the method's own
    choice."""
    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int
    dtype: str
    clip: float | None
    """The global norm to which gradients are clipped; None without clipping."""
    device_cap_gib: float | None
    host_cap_gib: float | None
    parameters: int | None
    status: str
    """As in run records; anything but ``ok`` has no speed."""
    samples_per_second: float | None
    step_seconds_median: float | None
    step_seconds_spread: float | None
    """Distance of the quartiles of the steady steps, as a share of the median."""
    predicted_step_seconds: float | None
    peak_device_gib: float | None
    predicted_peak_device_gib: float | None
    host_gib: float | None
    disk_gib: float | None
    final_loss: float | None
    commit: str
    date: date
    hardware: str
    """The device as `measured_on` names it."""
    device: str
    """The folder of the file: one per machine."""
    line: int
    """In the file, the header being 1."""
    runs: int = 1
    """How many rows of the file say the same settings; this is the last of them."""

    @property
    def label(self) -> str:
        """The method and its variant as a figure writes them."""
        return f"{LABELS[self.method]} ({self.variant})" if self.variant else LABELS[self.method]

    @property
    def pinned(self) -> bool:
        """Whether the variant fixes what the planner would choose (``w4``, ``p8 k4``)."""
        return re.search(r"(?<!\w)[wrpk]\d+(?!\w)", self.variant) is not None

    @property
    def window(self) -> int | None:
        """The window that the variant asks for (``w4``), None where the planner chose it."""
        found = re.search(r"(?<!\w)w(\d+)(?!\w)", self.variant)
        return int(found[1]) if found else None


def offload_runs(roots: Iterable[Path]) -> list[OffloadRun]:
    """The runs in ``<root>/published-here/*/offload.csv`` of every root, the last of equal ones.

    Empty where there is no such file. Raises ValueError as `read_offload` does.
    """
    files = {file.resolve(): None for root in roots for file in _files(root)}
    return latest(run for file in files for run in read_offload(file))


def _files(root: Path) -> list[Path]:
    return sorted((root / "published-here").glob(f"*/{FILE}"))


def latest(runs: Iterable[OffloadRun]) -> list[OffloadRun]:
    """Of runs with the same settings on the same device the last one, which counts them all.

    A run that was repeated was repeated for a reason; the best of them is not picked.
    """
    kept: dict[tuple[Any, ...], OffloadRun] = {}
    times: Counter[tuple[Any, ...]] = Counter()
    for run in runs:
        settings = tuple(getattr(run, name) for name in ("device", "variant", *COLUMNS[:10]))
        times[settings] += 1
        kept[settings] = run
    return [replace(run, runs=times[settings]) for settings, run in kept.items()]


def read_offload(path: Path) -> list[OffloadRun]:
    """All rows of a file, in order. Lines that begin with ``#`` are comments.

    Raises ValueError for a file without the columns `COLUMNS` and for a row that cannot be right,
    naming file, line, column and value.
    """
    lines = path.read_text().splitlines()
    told = [(n, text) for n, text in enumerate(lines, 1) if text.strip() and text[0] != "#"]
    if not told:
        raise ValueError(f"{_name(path)} is empty; its first line names the columns")
    header, *rows = [(n, next(csv.reader([text]))) for n, text in told]
    names = [name.strip() for name in header[1]]
    if sorted(names) != sorted(COLUMNS):
        odd = sorted(set(names) ^ set(COLUMNS)) or sorted(n for n in names if names.count(n) > 1)
        raise ValueError(
            f"{_name(path)}, line {header[0]}: the columns are not those of the benchmark; "
            f"missing, unknown or twice there: {', '.join(odd)}"
        )
    return [_row(path, line, names, values) for line, values in rows]


def _row(path: Path, line: int, names: list[str], values: list[str]) -> OffloadRun:
    if len(values) != len(names):
        raise ValueError(
            f"{_name(path)}, line {line}: {len(values)} fields, and the header has {len(names)}"
        )
    texts = {name: text.strip() for name, text in zip(names, values, strict=True)}
    read: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            read[name] = _READERS[name](text)
        except ValueError as error:
            raise ValueError(f"{_name(path)}, line {line}: {name} is {text!r}; {error}") from None
    method, variant = read.pop("method")
    day, hardware = read.pop("measured_on")
    run = OffloadRun(
        **read, method=method, variant=variant, date=day, hardware=hardware,
        device=path.parent.name, line=line,
    )  # fmt: skip
    wrong = _contradiction(run, texts)
    if wrong:
        raise ValueError(f"{_name(path)}, line {line}: {wrong}")
    return run


def _contradiction(run: OffloadRun, texts: dict[str, str]) -> str:
    """What the fields of a row say against each other; empty where they agree."""
    if run.status != "ok":
        return ""
    for name in ("samples_per_second", "step_seconds_median", "parameters"):
        if getattr(run, name) is None:
            return f"{name} is {texts[name]!r}, and a run that ended ok has one"
    samples = run.samples_per_second * run.step_seconds_median
    if not abs(samples / run.batch - 1) <= AGREE:
        return (
            f"samples_per_second is {texts['samples_per_second']!r}, which makes {samples:.4g} "
            f"samples in a step of {run.step_seconds_median} s, and the batch is {run.batch}"
        )
    return ""


def _name(path: Path) -> str:
    """The file as people find it: device folder and name."""
    return f"{path.parent.name}/{path.name}"


def _method(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"([a-z0-9-]+)(?: \(([^()]+)\))?", text)
    if not found or found[1] not in LABELS:
        raise ValueError(f"known are {', '.join(LABELS)}, a variant in parentheses after it")
    return found[1], (found[2] or "").strip()


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+(\.0)?", text) or float(text) < 1:
        raise ValueError("it must be a whole number of at least 1")
    return int(float(text))


def _count_or_none(text: str) -> int | None:
    return _count(text) if text else None


def _amount(text: str) -> float | None:
    value = _number(text)
    if value is not None and value < 0:
        raise ValueError("it must be empty or a number that is not negative")
    return value


def _positive(text: str) -> float | None:
    value = _number(text)
    if value is not None and value <= 0:
        raise ValueError("it must be empty or a number above 0")
    return value


def _number(text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("it must be empty or a number")
    return value


def _loss(text: str) -> float | None:
    """A loss may be no number: that is how a run that diverged looks."""
    try:
        return _number(text)
    except ValueError:
        if text.lower() in ("nan", "inf", "-inf"):
            return float(text)
        raise


def _clip(text: str) -> float | None:
    return None if text.lower() in NO_CLIP else _positive(text)


def _one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"it must be one of {', '.join(known)}")
        return text

    return read


def _commit(text: str) -> str:
    if not text:
        raise ValueError("it must say which code ran")
    return text


def _measured_on(text: str) -> tuple[date, str]:
    day, _, hardware = text.partition(" ")
    try:
        found = date.fromisoformat(day)
    except ValueError:
        found = None
    if found is None or not hardware.strip():
        raise ValueError("it must be a date and a device, such as 2026-11-21 NVIDIA H200")
    return found, hardware.strip()


_READERS: dict[str, Callable[[str], Any]] = {
    "method": _method,
    **dict.fromkeys(("layers", "hidden", "heads", "seq", "batch"), _count),
    "parameters": _count_or_none,
    "dtype": _one_of(DTYPES),
    "clip": _clip,
    **dict.fromkeys(("device_cap_gib", "host_cap_gib"), _positive),
    "status": _one_of(STATUSES),
    **dict.fromkeys(("samples_per_second", "step_seconds_median"), _positive),
    **dict.fromkeys(("predicted_step_seconds", "predicted_peak_device_gib"), _positive),
    **dict.fromkeys(("step_seconds_spread", "peak_device_gib", "host_gib", "disk_gib"), _amount),
    "final_loss": _loss,
    "commit": _commit,
    "measured_on": _measured_on,
}
