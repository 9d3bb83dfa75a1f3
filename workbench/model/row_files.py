"""Rows of a table on disk: lines of JSON, Parquet, or Arrow.

Lines of JSON are read by the house's own reader, which says the line that is none. Parquet and
Arrow need the package pyarrow, an extra; both files of Arrow (with a footer, or a stream, as the
library datasets writes it) are read from where they lie. There a row has all fields of all rows,
at every depth, such as the arguments of a function of which another row tells: those that are empty
are taken as not there, but for a message's content.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from workbench.core.jsonfile import parse_json
from workbench.core.spec import ROW_FILES
from workbench.model.corpus import numbered_lines

LINES = (".jsonl", ".ndjson")
AT_ONCE = 1024
"""Rows of a table that are turned into Python's objects at once."""

Row = dict[str, Any]


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each row, and where it stands in words. Raises ValueError, one sentence, for a file that is
    missing, empty or none of its kind, for a line that is no JSON object, and for a table where
    pyarrow is not installed."""
    if not path.is_file():
        raise ValueError(f"there are no rows at {str(path)!r}; name a file of rows")
    if not path.name.lower().endswith(ROW_FILES):
        raise ValueError(f"rows lie in files {', '.join(ROW_FILES)}; {str(path)!r} is none")
    rows = _lines(path) if path.suffix.lower() in LINES else _table(path)
    if (first := next(rows, None)) is None:
        raise ValueError(f"the file {str(path)!r} has no rows")
    return chain([first], rows)


def _lines(path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in numbered_lines(path):
        where = f"{path.name} line {number}"
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise ValueError(f"{where} is {line[:40]!r}; a row is a JSON object")
        yield where, row


def _table(path: Path) -> Iterator[tuple[str, Row]]:
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError:
        raise ValueError(
            f"{path} needs the package pyarrow, which is not installed; pip install pyarrow"
        ) from None
    try:
        if path.suffix.lower() == ".parquet":
            batches = parquet.ParquetFile(path, memory_map=True).iter_batches(AT_ONCE)
        else:
            source = pyarrow.memory_map(str(path))
            try:
                file = ipc.open_file(source)
                batches = (file.get_batch(n) for n in range(file.num_record_batches))
            except pyarrow.ArrowInvalid:
                source.seek(0)
                batches = iter(ipc.open_stream(source))
        number = 0
        for batch in batches:
            for first in range(0, len(batch), AT_ONCE):
                for row in batch.slice(first, AT_ONCE).to_pylist():
                    number += 1
                    yield f"{path.name} row {number}", _filled(row)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{path} is no table that pyarrow reads: {reason}") from None


def _filled(value: Any) -> Any:
    """A value of a table without the fields that are empty."""
    if isinstance(value, list):
        return [_filled(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {name for name, each in value.items() if each is not None}
    if "role" in value:
        kept.add("content")
    return {name: _filled(each) for name, each in value.items() if name in kept}
