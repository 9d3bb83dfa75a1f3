"""Files of a profile database: of a folder, or of one compressed table that holds many.

A table is a gzipped CSV with the columns ``file`` and ``line``: each row is a line of a file, as
it is. So a database of many small files is one file of a repository.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from workbench.core.files import read_whole
from workbench.core.paths import user_path

HEAD = "file,line"
MOST = 1 << 26
"""Bytes of a table, unpacked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """Text files by name."""

    place: str
    """Folder or table that they are in, for people."""
    names: frozenset[str]
    text: Callable[[str], str]
    """Reads a file by its name. Raises ValueError."""


def open_files(path: str | Path) -> Files:
    """Files of a folder or of a table. Raises ValueError for what is neither."""
    path = user_path(path)
    if not path.is_dir():
        if path.is_file() and path.suffix == ".gz":
            held = read_table(path)
            return Files(place=str(path), names=frozenset(held), text=held.__getitem__)
        raise ValueError(f"there is no profile database {path}; it must be a folder of CSV files")
    names = frozenset(each.name for each in path.iterdir() if each.suffix == ".csv")

    def text(name: str) -> str:
        try:
            return read_whole(path / name, f"the profile {path / name}").decode()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ValueError(f"the profile {path / name} cannot be read: {why}") from None

    return Files(place=str(path), names=names, text=text)


def read_table(path: Path) -> Mapping[str, str]:
    """Texts of a table's files by name, their lines joined. Raises ValueError."""
    try:
        with gzip.open(BytesIO(read_whole(path, f"the table {path}"))) as unpacked:
            text = unpacked.read(MOST).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"the table {path} cannot be read: {error}") from None
    head, *lines = text.splitlines() or [""]
    if head != HEAD:
        raise ValueError(f"the table {path} begins with {head[:40]!r}; it must be {HEAD}")
    found: dict[str, list[str]] = {}
    for line in lines:
        name, _, rest = line.partition(",")
        found.setdefault(name, []).append(rest)
    return {name: "\n".join(each) for name, each in found.items()}
