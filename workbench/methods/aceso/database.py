"""A profile database: times and sizes of operators, of collectives and of messages.

Its files are those of Aceso's artifact (EuroSys'24): ``MODEL_SIZE_mbsB_tpT_algoA.csv`` has a row
for each operator, of B samples a device, T devices that share it and one of its two partitions;
``prim_MODEL_SIZE_COLLECTIVE_Ngpus.csv`` a row for each size, of what a device brings;
``p2p_intra_node.csv`` and ``p2p_inter_node.csv`` a line of sizes and a line of bandwidths. Groups
that are not of neighbours are not in the artifact's: ``..._Ngpus_strideK.csv``; nor is what AdamW
updates in a second: ``updates.csv``. Sizes are in MB of 2^20 bytes.

Numbers have three decimals. They are kept as whole numbers of nanoseconds, and of thousandths of
an MB, so that sums are exact in any order, and equal plans have equal costs. Out of memory is 1e7
in the files, and a state here: such a variant of an operator is in no plan.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

import numpy as np

from workbench.methods.aceso.files import Files, open_files
from workbench.model.operators import OperatorList

COLUMNS = (
    "forward-compute", "backward-compute", "input_size", "output_size", "weights", "activations",
    "fwd_reserved", "bwd_reserved",
)  # fmt: skip
FORWARD, BACKWARD, INPUT, OUTPUT, WEIGHTS, ACTIVATIONS, FWD_RESERVED, BWD_RESERVED = range(8)
OUT_OF_MEMORY = 1e7
"""Of the published files, in all columns that were measured."""
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
UNIT = 1000
"""Nanoseconds of a microsecond, and parts of an MB."""
UPDATES, UPDATES_HEAD, BILLION = "updates.csv", "parameters(1e9/s)", 1e9
COLLECTIVE_HEAD = ["data_size(MB)", "time(ms)"]

Variant = tuple[int, int, int]
"""Samples a device, tp and partition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Database:
    """Profiles of one model on one kind of machine."""

    place: str
    rows: dict[Variant, np.ndarray]
    """[columns, operators that differ], whole numbers; out of memory is below 0."""
    collectives: dict[tuple[str, int], dict[int, float]]
    """Milliseconds by MB, of a collective of so many devices."""
    strided: dict[tuple[str, int, int], dict[int, float]] = field(default_factory=dict)
    """As `collectives`, of devices so far apart from each other."""
    intra: tuple[float, ...]
    """GB/s between devices of a node, of messages of 1, 2, 4... MB."""
    inter: tuple[float, ...]
    """GB/s between nodes."""
    updated: float = 0.0
    """Parameters that AdamW updates in a second; 0 where that was not measured."""
    samples: tuple[int, ...] = field(init=False)
    """Numbers of samples a device that are profiled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", tuple(sorted({mbs for mbs, _, _ in self.rows})))


def read_database(path: str | Path | Files, model: str, operators: OperatorList) -> Database:
    """The profiles of ``gpt_1_3B``, say. Raises ValueError, one sentence with the file and what is
    wrong with it."""
    files = path if isinstance(path, Files) else open_files(path)
    pattern = re.compile(rf"{re.escape(model)}_mbs(\d+)_tp(\d+)_algo(\d+)\.csv")
    found = {}
    for name in sorted(files.names):
        if match := pattern.fullmatch(name):
            found[tuple(map(int, match.groups()))] = name
    if not found:
        others = {m[1] for n in files.names if (m := re.fullmatch(r"(\w+?)_mbs\d+_tp.*", n))}
        told = ", ".join(sorted(others)) or "no profile at all"
        raise ValueError(f"{files.place} has no profile of {model}; it has {told}")
    if all(tp != 1 for _, tp, _ in found):
        least = min(tp for _, tp, _ in found)
        raise ValueError(f"{files.place} has profiles of {model} for tp {least} and more; those "
                         "for tp 1 must be there, too")  # fmt: skip
    wanted = operators.row_names
    rows = {key: _operator_rows(files, name, wanted) for key, name in found.items()}
    collectives, strided = {}, {}
    kinds = "|".join(COLLECTIVES)
    pattern = re.compile(rf"prim_{re.escape(model)}_({kinds})_(\d+)gpus(?:_stride(\d+))?\.csv")
    for name in sorted(files.names):
        if (match := pattern.fullmatch(name)) and match[3]:
            strided[match[1], int(match[2]), int(match[3])] = _collective(files, name)
        elif match:
            collectives[match[1], int(match[2])] = _collective(files, name)
    if "p2p_intra_node.csv" not in files.names:
        raise ValueError(f"{files.place} has no p2p_intra_node.csv; it must hold bandwidths")
    intra = _bandwidths(files, "p2p_intra_node.csv")
    across = "p2p_inter_node.csv"
    inter = _bandwidths(files, across) if across in files.names else intra
    updated = 0.0
    if UPDATES in files.names:
        rate = [*_lines(files, UPDATES), [], []][1]
        updated = BILLION * _number(files, UPDATES, "a rate", "".join(rate))
    return Database(place=files.place, rows=rows, collectives=collectives, strided=strided,
                    intra=intra, inter=inter, updated=updated)  # fmt: skip


def _lines(files: Files, name: str) -> Iterator[list[str]]:
    try:
        yield from (line for line in csv.reader(files.text(name).splitlines()) if line)
    except csv.Error as error:
        raise ValueError(f"{name} of {files.place} is no CSV file: {error}") from None


def _operator_rows(files: Files, name: str, wanted: tuple[str, ...]) -> np.ndarray:
    head, *lines = [*_lines(files, name)] or [[]]
    if head != ["op_name", *COLUMNS]:
        odd = sorted({*head} ^ {"op_name", *COLUMNS}) or head
        raise ValueError(f"{name} of {files.place} has other columns than a profile: {odd[0]!r}; "
                         f"they must be op_name, {', '.join(COLUMNS)}")  # fmt: skip
    names = [line[0] for line in lines]
    if len(names) != len(wanted):
        raise ValueError(f"{name} of {files.place} has {len(names)} operators; "
                         f"they must be {len(wanted)}")  # fmt: skip
    for place, (got, want) in enumerate(zip(names, wanted, strict=True), 1):
        if got != want:
            raise ValueError(f"{name} of {files.place}, operator {place} is {got!r}; "
                             f"it must be {want!r}")  # fmt: skip
    table = np.empty((len(COLUMNS), len(wanted)), dtype=np.int64)
    for place, line in enumerate(lines):
        if len(line) != len(COLUMNS) + 1:
            raise ValueError(f"{name} of {files.place} is cut off: {line[0]} has {len(line) - 1} "
                             f"numbers; they must be {len(COLUMNS)}")  # fmt: skip
        numbers = [_number(files, name, f"{line[0]}, {column}", text)
                   for column, text in zip(COLUMNS, line[1:], strict=True)]  # fmt: skip
        out = OUT_OF_MEMORY in numbers
        table[:, place] = -1 if out else [round(each * UNIT) for each in numbers]
    return table


def _number(files: Files, name: str, where: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (isfinite(number) and 0 <= number <= 1e9):
        raise ValueError(f"{name} of {files.place}, {where} is {text.strip()!r}; it must be a "
                         "number of 0 or more")  # fmt: skip
    return number


def _collective(files: Files, name: str) -> dict[int, float]:
    head, *lines = [*_lines(files, name)] or [[]]
    if head != COLLECTIVE_HEAD:
        raise ValueError(f"{name} of {files.place} has the columns {', '.join(head)[:60]!r}; "
                         f"they must be {', '.join(COLLECTIVE_HEAD)}")  # fmt: skip
    found = {}
    for line in lines:
        if len(line) != 2:
            raise ValueError(f"{name} of {files.place} has a row of {len(line)} numbers; "
                             "they must be 2")  # fmt: skip
        size, time = (_number(files, name, "a row", text) for text in line)
        found[int(size)] = time
    return found


def _bandwidths(files: Files, name: str) -> tuple[float, ...]:
    sizes, speeds = [*_lines(files, name), [], []][:2]
    if not sizes or len(sizes) != len(speeds):
        raise ValueError(f"{name} of {files.place} has {len(sizes)} sizes and {len(speeds)} "
                         "bandwidths; it must have as many")  # fmt: skip
    found = tuple(_number(files, name, "a bandwidth", text) for text in speeds)
    if 0 in found:
        raise ValueError(f"{name} of {files.place}, a bandwidth is 0; it must be over 0")
    return found
