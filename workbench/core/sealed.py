"""JSON that the product keeps, under a checksum over itself: no flipped bit is taken for what was
measured.

The last field of an object, or of a line of a log, is the SHA-256 of all bytes before it. What an
older version wrote has none and is read as it stands, but where it is `needed`.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from workbench.core.files import read_whole, write_whole
from workbench.core.jsonfile import parse_json

FIELD, MARK = "sha256", b'"sha256": "'
TAIL = re.compile(rb'"[0-9a-f]{64}"}\n\Z')  # tells a checksum whose name is damaged
MOST_BYTES = 1 << 30
"""Most bytes of a file: events of three steps of a large schedule are a tenth of it."""


def sealed(text: str) -> bytes:
    """The JSON of an object, with its checksum."""
    return _closed(text.encode().rstrip()[:-1].rstrip())


def parse_sealed(data: bytes, where: str, *, needed: bool = False, any_text: bool = True) -> Any:
    """The value, without its checksum. Raises ValueError where that is another one, where it is
    `needed` and lacking, and as `parse_json` does."""
    value = parse_json(data, where, any_text=any_text)
    has = isinstance(value, dict) and (FIELD in value or TAIL.search(data))
    if has and data != _closed(data.rpartition(MARK)[0].removesuffix(b", ")):
        raise ValueError(
            f"{where} is damaged: its {FIELD} is not that of the bytes before it; if you changed "
            "it yourself, remove that field"
        )
    if has:
        del value[FIELD]
    elif needed:
        raise ValueError(f"{where} is damaged, or of an older version: it has no {FIELD}")
    return value


def read_sealed(path: Path, where: str, *, needed: bool = False) -> Any:
    """The value of a file. Raises as `read_whole` and `parse_sealed` do."""
    return parse_sealed(read_whole(path, where, MOST_BYTES), where, needed=needed)


def write_sealed(path: Path, value: dict[str, Any], indent: int | None = 1) -> None:
    """Put an object in its place, whole or not at all. Raises OSError."""
    write_whole(path, sealed(json.dumps(value, indent=indent)))


def _closed(body: bytes) -> bytes:
    """`body` is an object without its closing brace."""
    comma = b"" if body == b"{" else b", "
    return body + comma + MARK + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
