"""Real text with no download: finding it, reading it, and refusing what is not text.

The default corpus is the sources of the running Python's standard library: on every machine that
runs this at all, a few MiB of text with long-range structure. It differs between Python versions,
so every corpus has a digest, which goes into a run's record: losses compare only where digests are
equal.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from workbench.core import host
from workbench.core.files import read_whole
from workbench.core.paths import user_path
from workbench.core.sources import file_digest
from workbench.core.spec import ROW_FILES

STDLIB, DIGITS = "stdlib", "digits"
BUNDLED = (STDLIB, DIGITS)
"""Sources that are no path: this Python's library, and the pictures of digits.py."""
BOM = b"\xef\xbb\xbf"
"""The byte order mark in UTF-8: no text, but editors of some systems write it."""
STDLIB_BYTES = 8 << 20
"""Enough for thousands of samples, little enough to tokenize in seconds."""
STDLIB_WITHOUT = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "__pycache__",
                  "site-packages", "dist-packages"}  # fmt: skip
FOLDER_FILES = ("wiki.train.tokens", "wiki.train.raw", "wiki.*.tokens", "wiki.*.raw", "*.txt")
"""Patterns of files in a folder; the first one that matches decides (WikiText: its training
part)."""

ROWS = re.compile(r"\.(jsonl?|ndjson|parquet|arrow|feather|orc|avro|csv|tsv|xlsx?)", re.IGNORECASE)
"""Endings of files that hold rows of a table."""
FIRST_LINE = re.compile(rb"(?:%s)?\s*([{[][^\n]*)" % BOM)
"""Of a text that may be rows of JSON."""
MAGIC = (b"PAR1", b"ARROW1")
"""First bytes of Parquet and of Arrow."""
TEXTS = (".txt", ".tsv", ".tokens", ".raw", ".jsonl", ".json")
LARGE = (".png", ".jpg", ".jpeg", ".bin", ".safetensors")
"""Endings of files in a folder that runs read: texts and pairs; pictures and weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A text, whole."""

    name: str
    data: bytes
    """UTF-8 without NUL bytes and without the mark that some editors begin a file with."""
    digest: str
    """SHA-256 of `data`, in hexadecimal."""


def read_corpus(source: str | Path = STDLIB) -> Corpus:
    """Read ``stdlib``, a text file, or a folder with WikiText's files or other ``*.txt``.

    Raises ValueError, one sentence, for a source that is missing, unreadable, empty or not text,
    and for rows of a table, whose braces and quotes nobody means to train on.
    """
    if source == STDLIB:
        name, data = f"standard library of Python {platform.python_version()}", _read_stdlib()
    elif source == DIGITS:
        raise ValueError(f"{DIGITS!r} are pictures, and the model reads a text")
    else:
        path = user_path(source)
        name, data = path.name, b"".join(_read_text(file) for file in _files(path))
    return Corpus(name=name, data=data, digest=sha256(data).hexdigest())


def source_digest(source: str | Path) -> str:
    """Hash of what a run may read there: a text, and a folder's texts, by their bytes, pictures and
    weights, in folders below too, by name, size and time. Empty where there is nothing to read."""
    if source == STDLIB:
        return f"{STDLIB} of Python {platform.python_version()}"
    if source == DIGITS:
        return DIGITS
    path, told = Path(source), []
    try:
        if not path.is_dir():
            return file_digest(path) if _fits(path) else ""
        for file in (*path.glob("*"), *path.glob("*/*")):
            if file.parent == path and file.suffix in TEXTS and _fits(file):
                told.append(f"{file.name} {file_digest(file)}")
            elif file.suffix.lower() in LARGE:
                facts = file.stat()
                told.append(f"{file.relative_to(path)} {facts.st_size} {facts.st_mtime_ns}")
    except OSError:  # the run that reads it says so
        return ""
    return sha256("\n".join(sorted(told)).encode(errors="replace")).hexdigest()


def _fits(path: Path) -> bool:
    """Whether it is a file that memory holds; what reads another one refuses it."""
    return path.is_file() and path.stat().st_size <= most_bytes()


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the lines that are not empty; a byte order mark is left out.

    Only a line feed ends a line: sentences may hold the other characters that Python splits at.
    """
    try:
        data = read_whole(path, str(path), most_bytes()).removeprefix(BOM)
    except FileNotFoundError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            text = line.decode().rstrip("\r")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path.name} line {number} is not UTF-8: its byte {error.start} is "
                f"0x{line[error.start]:02x}"
            ) from None
        if text:
            yield number, text


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(
            f"there is no text at {str(path)!r}; name a text file, a WikiText folder, or {STDLIB!r}"
        )
    for pattern in FOLDER_FILES:
        found = sorted(file for file in path.glob(pattern) if file.is_file())
        if found:
            return found
    raise ValueError(
        f"the folder {str(path)!r} holds no text: it has none of {', '.join(FOLDER_FILES)}"
    )


def _read_text(path: Path) -> bytes:
    try:
        data = read_whole(path, f"the text {str(path)!r}", most_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"the text {str(path)!r} cannot be read: {error.strerror}") from None
    _refuse_rows(path, data)
    if not data.removeprefix(BOM).strip():
        raise ValueError(f"the text {str(path)!r} is empty ({len(data)} bytes)")
    if (nul := data.find(b"\0")) >= 0:
        raise ValueError(f"{str(path)!r} is not text: byte {nul} is NUL")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}"
        ) from None
    return data.removeprefix(BOM)


def _refuse_rows(path: Path, data: bytes) -> None:
    """Raise ValueError for a file of rows, by its name or its content."""
    kind = path.suffix[1:] if ROWS.fullmatch(path.suffix) else ""
    for magic in MAGIC:
        kind = kind or magic.decode() * data.startswith(magic)
    if not kind and (line := FIRST_LINE.match(data)):
        with suppress(ValueError, RecursionError):
            row = json.loads(line[1])
            told = isinstance(row, dict) or any(isinstance(x, str | list | dict) for x in row)
            kind = "JSON" * told  # [1] may be a footnote
    if kind:
        raise ValueError(
            f"the text {str(path)!r} holds rows ({kind}), and the model would learn what stands "
            "around their texts; decoders of Hugging Face train on rows, of files that end with "
            f"{', '.join(ROW_FILES)}: write the texts alone to a plain file"
        )


def most_bytes() -> int:
    """Bytes of a text that this process has memory for, beside its copies."""
    limits = {host.host_memory_bytes(), resource.getrlimit(resource.RLIMIT_AS)[0]}
    return min(limits - {resource.RLIM_INFINITY}) // 4


def _read_stdlib() -> bytes:
    """Sources in the order of their paths, up to the first that would pass the bound."""
    root = Path(sysconfig.get_path("stdlib"))
    files: dict[str, Path] = {}
    for folder, inside, names in os.walk(root):
        # Not looked into: what is installed beside it may be a hundred times as much.
        inside[:] = [name for name in inside if name not in STDLIB_WITHOUT]
        found = (Path(folder, name) for name in names if name.endswith(".py"))
        files.update({path.relative_to(root).as_posix(): path for path in found})
    sources: list[bytes] = []
    size = 0
    for name in sorted(files):
        data = files[name].read_bytes()
        if size + len(data) > STDLIB_BYTES:
            break
        if b"\0" not in data and _is_utf8(data):
            sources.append(data)
            size += len(data)
    if not size:
        raise ValueError(f"this Python has no library sources under {root}; name a text file")
    return b"".join(sources)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
