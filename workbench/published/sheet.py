"""Sheets of measured runs: a row is read field by field, and a wrong one refused in one sentence.

What the files of all benchmarks share. Each is a `Sheet`: its columns, how to read those that are
its own, and a `Run` with those as fields.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from workbench.core.files import read_whole
from workbench.core.record import STATUSES

DTYPES = ("fp32", "bf16", "fp16")
NO_CLIP = ("", "none", "off", "0", "0.0")
AGREE = 0.05
"""Samples per second and the median step may differ by this much, which is more than rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Columns of every benchmark: a row of its file in types. None stands for an empty field."""

    LABELS: ClassVar[Mapping[str, str]]
    """The methods a row may name, and what figures call them."""

    method: str
    """A key of `LABELS`."""
    variant: str
    """Text in parentheses after the method; empty for the method's own choice."""
    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int
    """Samples of a step, of all ranks."""
    dtype: str
    clip: float | None
    """The global norm to which gradients are clipped; None without clipping."""
    device_cap_gib: float | None
    """GiB of each GPU; None for all of its memory."""
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
    """GiB of the GPU that needed most."""
    predicted_peak_device_gib: float | None
    host_gib: float | None
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
    """How many rows of the file say the same settings; of `latest`, this is the last of them."""
    sitting: str = ""
    """When the runs began (UTC) that were made on that machine without a long pause; empty where
    the file's provenance does not say."""

    @property
    def label(self) -> str:
        """The method and its variant as a figure writes them."""
        name = self.LABELS[self.method]
        return f"{name} ({in_words(self.variant)})" if self.variant else name


AnyRun = TypeVar("AnyRun", bound=Run)
PINS = {"w": "window {}", "r": "{} resident", "p": "{} pulled", "k": "{} kept"}
WORDS = {"stash": "inputs on the host", "keep": "kept"}


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


def files(roots: Iterable[Path], name: str) -> list[Path]:
    """``<root>/published-here/*/<name>`` of every root, each once."""
    found = (file for root in roots for file in sorted((root / "published-here").glob(f"*/{name}")))
    return list(dict.fromkeys(file.resolve() for file in found))


def days(dates: Iterable[date]) -> str:
    """``2026-11-20 to 2026-11-22``, or the one day of all; of at least one date."""
    ordered = sorted(dates)
    return " to ".join(dict.fromkeys(map(str, (ordered[0], ordered[-1]))))


def contradiction(run: Run, texts: dict[str, str]) -> str:
    """Contradiction among speed, step and batch of a row; empty where they agree."""
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


@dataclass(frozen=True, kw_only=True)
class Sheet(Generic[AnyRun]):
    """The file of a benchmark."""

    file: str
    """Its name: ``results/published-here/<device>/<file>``."""
    columns: tuple[str, ...]
    settings: tuple[str, ...]
    """Columns that two runs must have in common to be one run that was repeated."""
    kind: type[AnyRun]
    readers: dict[str, Callable[[str], Any]]
    """Text to value, by those columns that not all sheets have."""
    wrong: Callable[[AnyRun, dict[str, str]], str] = contradiction
    """What a run and its texts say against each other; empty where they agree."""
    told: Callable[[Path, list[AnyRun]], list[AnyRun]] = lambda path, runs: runs
    """The runs of a file with what is known of them beside their rows."""

    def runs(self, roots: Iterable[Path]) -> list[AnyRun]:
        """The runs in ``<root>/published-here/*/<file>`` of every root.

        Empty where there is no such file. Raises ValueError as `read` does.
        """
        return [run for path in files(roots, self.file) for run in self.read(path)]

    def latest(self, runs: Iterable[AnyRun]) -> list[AnyRun]:
        """The last one of the runs with equal settings on one device, which counts them all.

        A run that was repeated was repeated for a reason; the best of them is not picked.
        """
        kept: dict[tuple[Any, ...], AnyRun] = {}
        times: Counter[tuple[Any, ...]] = Counter()
        for run in runs:
            same = tuple(getattr(run, name) for name in ("device", "variant", *self.settings))
            times[same] += 1
            kept[same] = run
        return [replace(run, runs=times[same]) for same, run in kept.items()]

    def read(self, path: Path) -> list[AnyRun]:
        """All rows of a file, in order. Lines that begin with ``#`` are comments.

        Raises ValueError for a file without the columns and for a row that cannot be right, naming
        file, line, column and value.
        """
        lines = read_whole(path, _name(path)).decode().splitlines()
        full = [(n, text) for n, text in enumerate(lines, 1) if text.strip() and text[0] != "#"]
        if not full:
            raise ValueError(f"{_name(path)} is empty; its first line names the columns")
        header, *rows = [(n, next(csv.reader([text]))) for n, text in full]
        names = [name.strip() for name in header[1]]
        if sorted(names) != sorted(self.columns):
            odd = sorted({*names} ^ {*self.columns}) or sorted(
                n for n in names if names.count(n) > 1
            )
            raise ValueError(
                f"{_name(path)}, line {header[0]}: the columns are not those of the benchmark; "
                f"missing, unknown or twice there: {', '.join(odd)}"
            )
        return self.told(path, [self._run(path, line, names, row) for line, row in rows])

    def _run(self, path: Path, line: int, names: list[str], values: list[str]) -> AnyRun:
        where = f"{_name(path)}, line {line}"
        readers = READERS | {"method": method_of(self.kind.LABELS)} | self.readers
        texts, fields = cells(where, names, values, readers)
        (method, variant), (day, hardware) = fields.pop("method"), fields.pop("measured_on")
        fields |= {"method": method, "variant": variant, "date": day, "hardware": hardware}
        run = self.kind(**fields, device=path.parent.name, line=line)
        if said := self.wrong(run, texts):
            raise ValueError(f"{where}: {said}")
        return run


def cells(
    where: str,
    names: Sequence[str],
    values: Sequence[str],
    readers: Mapping[str, Callable[[str], Any]],
) -> tuple[dict[str, str], dict[str, Any]]:
    """A row as texts, and in types. Raises ValueError naming the column and the value."""
    if len(values) != len(names):
        raise ValueError(f"{where}: {len(values)} fields, and the header has {len(names)}")
    texts = {name: text.strip() for name, text in zip(names, values, strict=True)}
    found: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            found[name] = readers[name](text)
        except ValueError as error:
            raise ValueError(f"{where}: {name} is {text!r}; {error}") from None
    return texts, found


def _name(path: Path) -> str:
    """The file as people find it: device folder and name."""
    return f"{path.parent.name}/{path.name}"


# -- fields: each reader raises ValueError saying what would be right ------------------------------


def method_of(labels: Iterable[str]) -> Callable[[str], tuple[str, str]]:
    """A reader of ``method (variant)`` for the methods of a sheet."""
    known = tuple(labels)

    def reader(text: str) -> tuple[str, str]:
        found = re.fullmatch(r"([a-z0-9-]+)(?: \(([^()]+)\))?", text)
        if not found or found[1] not in known:
            raise ValueError(f"known are {', '.join(known)}, a variant in parentheses after it")
        return found[1], (found[2] or "").strip()

    return reader


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not re.fullmatch(r"[0-9]+(\.0)?", text) or float(text) < 1:
        raise ValueError("it must be a whole number of at least 1")
    return int(float(text))


def amount(text: str) -> float:
    """A number that is not negative."""
    if (value := number(text)) < 0:
        raise ValueError("it must be a number that is not negative")
    return value


def positive(text: str) -> float:
    """A number above 0."""
    if (value := number(text)) <= 0:
        raise ValueError("it must be a number above 0")
    return value


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("it must be a number")
    return value


def or_none(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of fields that may be empty."""

    def read(text: str) -> Any:
        try:
            return reader(text) if text else None
        except ValueError as error:
            raise ValueError(str(error).replace("must be", "must be empty or", 1)) from None

    return read


def _loss(text: str) -> float:
    """A loss may be no number: that is how a run that diverged looks."""
    return float(text) if text.lower() in ("nan", "inf", "-inf") else number(text)


def _clip(text: str) -> float | None:
    return None if text.lower() in NO_CLIP else positive(text)


def _one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    def reader(text: str) -> str:
        if text not in known:
            raise ValueError(f"it must be one of {', '.join(known)}")
        return text

    return reader


def some(text: str) -> str:
    """Any text but none."""
    if not text:
        raise ValueError("it must not be empty")
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


READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("layers", "hidden", "heads", "seq", "batch"), count),
    "parameters": or_none(count),
    "dtype": _one_of(DTYPES),
    "clip": _clip,
    **dict.fromkeys(("device_cap_gib", "host_cap_gib"), or_none(positive)),
    "status": _one_of(STATUSES),
    **dict.fromkeys(("samples_per_second", "step_seconds_median"), or_none(positive)),
    **dict.fromkeys(("predicted_step_seconds", "predicted_peak_device_gib"), or_none(positive)),
    **dict.fromkeys(("step_seconds_spread", "peak_device_gib", "host_gib"), or_none(amount)),
    "final_loss": or_none(_loss),
    "commit": some,
    "measured_on": _measured_on,
}
"""Readers of the columns that all sheets have; `method` is read by `method_of`."""
