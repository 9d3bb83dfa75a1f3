"""Reads and writes files of a results folder for the runs table, and nothing outside it.

Exports go to ``RESULTS/reports/board/``, whole or not at all. Names come from people and keys from
files that anybody may have written, so both are checked before they become a path, and a link that
leads out of the folder is not followed.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.record import RunRecord
from workbench.runs.columns import NOT_SHOWN, is_result, number, plain
from workbench.runs.log_tail import last_lines
from workbench.runs.store import Store
from workbench.runs.sweep import check_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_key(key: str) -> str:
    """The key, seen to name a folder in the store and nothing else; raises ValueError."""
    bad = not isinstance(key, str) or not 0 < len(key) <= 128 or key.startswith(".")
    if bad or not all(c.isprintable() and c not in "/\\" for c in key):
        raise ValueError(f"{plain(key, 60)!r} is no key of a run")
    return key


def record_of(store: Store, key: str) -> RunRecord:
    """The record of a key; raises ValueError where there is none."""
    record = store.find(check_key(key))
    if record is None:
        raise ValueError(f"there is no record {plain(key, 60)}, or none that can be read")
    return record


def inside(store: Store, path: Path) -> Path:
    """The path with its links followed; raises ValueError where it lies outside the store."""
    found = path.resolve()
    if not found.is_relative_to(store.root):
        raise ValueError(f"{shown(path)} leads out of the results folder")
    return found


def shown(path: Path) -> str:
    """The last parts of a path, which tell people which file of theirs it is."""
    return plain("/".join(path.parts[-3:]), 120)


def export(store: Store, name: str, write: Callable[[Path], object]) -> list[Path]:
    """Let `write` make files whose names begin with the given stem, then put them in place of older
    ones. Returns their paths. Raises ValueError for a bad name, and StoreError."""
    check_name(name, "an export")
    target = inside(store, store.root / "reports/board")
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=target) as made:
            write(Path(made) / name)
            for path in Path(made).iterdir():
                if (target / path.name).is_dir():
                    shutil.rmtree(target / path.name)
            return [path.replace(target / path.name) for path in sorted(Path(made).iterdir())]
    except OSError as error:
        raise store.unusable(error) from error


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """A table as CSV. A text that a spreadsheet would take for a formula begins with an
    apostrophe."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(
            [_csv_cell(value) for value in values]
            for values in (columns, *([row.get(name) for name in columns] for row in rows))
        )


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    words = plain(value, 2000)
    return f"'{words}" if words[:1] in ("=", "+", "-", "@") else words


def export_rows(store: Store, rows: list[dict[str, Any]], form: str, name: str) -> list[Path]:
    """Rows as ``csv`` or ``jsonl``, all columns, or runs for ``tensorboard``; returns the paths.

    Raises ValueError for a bad name, and where tensorboard is not installed; StoreError.
    """
    columns = [c for c in dict.fromkeys(c for row in rows for c in row) if c not in NOT_SHOWN]

    def write(stem: Path) -> None:
        path = stem.with_name(f"{stem.name}.{form}")
        if form == "tensorboard":
            _write_tensorboard(store, rows, path)
        elif form == "csv":
            write_csv(path, columns, rows)
        else:
            lines = ({c: row[c] for c in columns if c in row} for row in rows)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    return export(store, name, write)


def _write_tensorboard(store: Store, rows: list[dict[str, Any]], folder: Path) -> None:
    """A log a run: its loss step by step, its settings and results as one line of hparams."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("tensorboard is not here; `pip install tensorboard` brings it") from None
    for row in rows:
        record = store.find(check_key(row["key"]))
        with SummaryWriter(str(folder / row["key"])) as writer:
            for step, loss in enumerate(record.losses if record else (), start=1):
                writer.add_scalar("loss", float(loss), step)
            told = {k: v for k, v in row.items() if isinstance(v, bool | int | float | str)}
            results = {k: v for k, v in told.items() if is_result(k) and number(v) is not None}
            asked = {k: v for k, v in told.items() if not is_result(k)}
            writer.add_hparams(asked, results, run_name=".")


def save_figure(store: Store, figure: Figure, rows: list[dict[str, Any]], name: str) -> list[Path]:
    """A figure as PDF and PNG, and a table as CSV; returns their paths. Raises as `export`."""
    from workbench.figures.style import save

    def write(stem: Path) -> None:
        # A suffix put behind the name: `with_suffix` would replace what follows a dot in it.
        save(figure, stem.with_name(f"{stem.name}.pdf"))
        write_csv(stem.with_name(f"{stem.name}.csv"), list(rows[0]) if rows else ["key"], rows)

    return export(store, name, write)


def log_lines(store: Store, key: str) -> list[str]:
    """The last lines of a run's log as plain text, without tracebacks; [] where there is none.

    Raises ValueError for a bad key, or a log that lies elsewhere.
    """
    path = inside(store, store.folder(check_key(key)) / "log.txt")
    return last_lines(path) if path.is_file() else []  # a pipe would keep its reader waiting
