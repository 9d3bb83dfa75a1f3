"""The results folder: one folder a run, and the record in it that makes the run done.

    RESULTS/runs/<key>/   spec.json job.json events.jsonl log.txt checkpoints/ ... record.json
    RESULTS/cache/        tokens, by digest

A run is done when, and only when, ``record.json`` was renamed into place; everything else in the
folder may be half written at any moment and nothing ever depends on it being whole. There is no
index to go stale: the table is built from the records each time, and parsed records are kept in
memory by modification time.

A record that cannot be read (torn, foreign, of a later version) counts as not done, as does one
that is not the bytes that were written, and is reported in `Store.problems`. It is never deleted:
the record that replaces it moves it aside.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.files import FileLock, flush, read_whole, replacing, write_whole
from workbench.core.model_spec import RARE
from workbench.core.paths import user_path
from workbench.core.record import (
    BETWEEN,
    HELD_OUT,
    PARTS,
    Evaluation,
    Predicted,
    RunRecord,
    steady_step_seconds,
)
from workbench.core.sealed import MOST_BYTES, sealed
from workbench.core.spec import RunSpec

if TYPE_CHECKING:
    import pandas

_HOME = Path(__file__).resolve().parents[2]
REPOSITORY_RESULTS = (_HOME if (_HOME / "pyproject.toml").is_file() else Path.cwd()) / "results"
"""Where results go unless told otherwise: of the repository, where those that are part of the
project lie; of an installed package, of the current folder."""

RECORD, CACHE = "record.json", "cache"


class StoreError(OSError):
    """The results folder cannot be used: read-only, full, or not a folder. One sentence."""

    def __str__(self) -> str:
        return self.strerror


class Store:
    """A results folder. Making one touches nothing; folders appear with the first run."""

    def __init__(self, root: str | Path = REPOSITORY_RESULTS) -> None:
        """A relative folder lies in the current one; within the checkout, in the checkout, so that
        it is the same folder on the command line and in a notebook. Raises StoreError where
        something else than a folder is there."""
        checkout, here = REPOSITORY_RESULTS.parent, Path.cwd()
        base = checkout if here.is_relative_to(checkout) else here
        self.root = (base / user_path(root)).resolve()
        if os.path.exists(self.root) and not self.root.is_dir():
            raise _unusable(self.root, NotADirectoryError(errno.ENOTDIR, "it is not a folder"))
        self.runs, self.cache = self.root / "runs", self.root / CACHE
        self.problems: dict[Path, str] = {}
        """Records that cannot be used, and why, as of the last look at them."""
        self._parsed: dict[Path, tuple[tuple[int, int, int], RunRecord | None]] = {}

    def folder(self, key: str) -> Path:
        """The run's folder. Raises ValueError for a key, out of a file perhaps, that leads out."""
        if key in ("", ".", "..") or {*key} & {*"/\\\0"}:
            raise ValueError(f"{key!r} is no key of a run")
        return self.runs / key

    def prepare(self, key: str) -> Path:
        """The run's folder, made if need be and seen to be writable; raises StoreError."""
        folder = self.folder(key)
        probe = folder / f".probe-{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(probe, "x" * 4096)
            probe.unlink()
        except OSError as error:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
            raise self.unusable(error) from error
        return folder

    def unusable(self, error: OSError) -> StoreError:
        """The sentence for a folder that the system will not write."""
        return _unusable(self.root, error)

    def find(self, key: str) -> RunRecord | None:
        """The record of that key, or None when there is none that can be used."""
        return self._read(self.folder(key))

    def records(self) -> list[RunRecord]:
        """All usable records, oldest first."""
        if not self.runs.is_dir():
            return []
        folders = [self.runs / name for name in os.listdir(self.runs)]
        found = [record for folder in folders if (record := self._read(folder)) is not None]
        return sorted(found, key=lambda record: (record.started, record.key))

    def write(self, record: RunRecord) -> None:
        """Put a record in place, whole or not at all; raises StoreError."""
        folder = self.prepare(record.key)
        write_record(folder, record)

    def put_aside(self, key: str) -> None:
        """Make a run be one that was not made: its record gets another name, its checkpoints go.
        Raises StoreError."""
        folder = self.folder(key)
        try:
            if (folder / RECORD).exists():
                set_aside(folder / RECORD, "busy")
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        except OSError as error:
            raise self.unusable(error) from error

    def lock(self, key: str) -> FileLock | None:
        """The key's lock, or None while another process holds it; raises StoreError."""
        folder = self.folder(key)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return FileLock.take(folder / "lock")
        except OSError as error:
            raise self.unusable(error) from error

    def table(self) -> pandas.DataFrame:
        """One row a record: `row` of each. Simulated and published rows may be appended to it. A
        table without rows has the columns of any run."""
        rows = [row(record) for record in self.records()]
        return table_of(rows, None if rows else _columns())

    def published_here(self) -> pandas.DataFrame:
        """Rows this project measured on named hardware: ``published-here/<device>``, ``*.csv`` and
        the rows of records in ``*.jsonl``; the folder's name is the column ``hardware``. Raises
        ValueError for a line that is no record of a benchmark."""
        import pandas

        from workbench.published.here import FOLDER, frame

        roots = [root / FOLDER for root in {self.root, REPOSITORY_RESULTS}]
        read = {".csv": partial(pandas.read_csv, comment="#"), ".jsonl": frame}
        files = sorted(f for root in roots for f in root.glob("*/*") if f.suffix in read)
        tables = [read[f.suffix](f).assign(hardware=f.parent.name) for f in files]
        return pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame()

    def _read(self, folder: Path) -> RunRecord | None:
        path = folder / RECORD
        self.problems.pop(path, None)
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if path not in self._parsed or self._parsed[path][0] != stamp:
                self._parsed[path] = (stamp, read_record(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self.problems[path] = str(error)
            return None
        return self._parsed[path][1]


def read_record(path: Path) -> RunRecord:
    """Raises ValueError when it is no record, or not the record of the folder it lies in."""
    record = RunRecord.from_json(read_whole(path, "not a run record: it", MOST_BYTES))
    if record.key != path.parent.name:
        raise ValueError(f"the record is of run {record.key}, not of {path.parent.name}")
    return record


def write_record(folder: Path, record: RunRecord) -> None:
    """Write and rename ``record.json``; one that cannot be read is moved aside, not overwritten.

    Raises StoreError, and then the folder holds the record it held before.
    """
    path = folder / RECORD
    try:
        with replacing(path) as part:
            part.write_bytes(sealed(record.to_json()))
            if path.exists() and not _readable(path):
                set_aside(path)
        flush(folder)  # a rename is only on the disk once its folder is
    except OSError as error:
        raise _unusable(folder, error) from error


def share_tokens(folder: Path) -> None:
    """Let a run have the tokens that its results keep, if any; else it tokenizes by itself."""
    if (folder.parents[1] / CACHE).is_dir():
        with suppress(OSError):  # it has a folder of its own
            (folder / CACHE).symlink_to(Path("..", "..", CACHE))


def set_aside(path: Path, why: str = "corrupt") -> None:
    """Give a file that is not used a name of its own, so that another may take its place."""
    names = (path.with_name(f"{path.name}.{why}-{n}") for n in range(1, 10**6))
    path.rename(next(name for name in names if not name.exists()))


def table_of(rows: list[dict[str, Any]], columns: list[str] | None = None) -> pandas.DataFrame:
    """Rows as a table. Strings stay Python's own also where pyarrow is installed, which refuses
    some that a record may hold."""
    import pandas

    with pandas.option_context("mode.string_storage", "python"):
        return pandas.DataFrame(rows, columns=columns)


def row(record: RunRecord) -> dict[str, Any]:
    """A record as one flat row; amounts carry their unit in the name.

    The spec's fields and options keep their names, except where the record says what came of them:
    ``window`` is the one used, ``asked_window`` the one asked for; ``microbatches`` are those used.
    ``step_seconds`` is the steady median; whole series are the lists ``losses`` and
    ``all_step_seconds``.
    """
    spec = {k: v for k, v in record.spec.items() if k not in ("model", "method", "options")}
    spec |= record.spec.get("options") or {}
    asked = {name: spec.pop(name) for name in ("window", "resident") if name in spec}
    spec["microbatches"] = record.parts
    predicted = record.predicted
    columns = {
        "key": record.key,
        "source": record.source,
        "method": record.method,
        "status": record.status,
        "message": record.message,
    }
    columns |= {
        name: value
        for name, value in {**record.spec.get("model", {}), **spec}.items()
        if name not in columns  # a field of another version's
        and (name not in RARE or value not in ("", None, False, RARE[name]))
        # with some columns more, each row takes twice the memory
    }
    return {
        **columns,
        **{f"asked_{name}": value for name, value in asked.items()},
        "window": record.window,
        "resident": record.resident,
        "parameters": record.parameters,
        "step_seconds": steady_step_seconds(record.step_seconds),
        "samples_per_second": record.samples_per_second,
        "final_loss": record.losses[-1] if record.losses else None,
        **_held_out_columns(record.evaluations),
        **{f"peak_{tier}_bytes": n for tier, n in record.peak_bytes.items()},
        **{f"moved_{way}_bytes": n for way, n in record.moved_bytes.items()},
        **{f"moved_{part}_bytes": n for part, n in record.moved_parts.items()},
        **_predicted_columns(predicted),
        "engine": record.engine,
        "notes": "; ".join(record.notes),
        "started": record.started,
        "seconds": record.seconds,
        "start_seconds": sum(record.start.values()) if record.start else None,
        "busy": record.busy,
        "commit": record.provenance.get("commit"),
        "dirty": record.provenance.get("dirty"),
        "device_class": record.provenance.get("device_class"),
        "losses": record.losses,
        "all_step_seconds": record.step_seconds,
    }


def _columns() -> list[str]:
    """Columns of a run that ended well, but for options of its method."""
    amounts: dict[str, Any] = {
        "peak_bytes": dict.fromkeys(("device", "host", "disk")),
        "moved_bytes": dict.fromkeys(("load", "store", "read", "write")),
        "moved_parts": dict.fromkeys(PARTS + BETWEEN),
    }
    spec, predicted = RunSpec(method="plain"), dict.fromkeys(Predicted.__annotations__) | amounts
    record = RunRecord(
        key="", method=spec.method, status="ok", spec=spec.to_dict(), predicted=predicted, **amounts
    )
    return list(row(record))


def _predicted_columns(predicted: dict[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, value in predicted.items():
        if name in ("peak_bytes", "moved_bytes", "moved_parts") and isinstance(value, dict):
            kind = name.partition("_")[0]
            columns |= {f"predicted_{kind}_{part}_bytes": n for part, n in value.items()}
        else:
            columns[f"predicted_{name}"] = value
    return columns


def _held_out_columns(evaluations: list[Evaluation]) -> dict[str, Any]:
    """Figures of the last evaluation; no columns of a run that had none."""
    last = evaluations[-1] if evaluations else {}
    return {f"held_out_{name}": last[name] for name in HELD_OUT if name in last}


def _readable(path: Path) -> bool:
    try:
        read_record(path)
    except (OSError, ValueError):
        return False
    return True


def _unusable(root: Path, error: OSError) -> StoreError:
    reason = error.strerror or str(error)
    return StoreError(
        error.errno,
        f"the results folder {root} cannot be written ({reason}); free it, or use another one",
    )
