"""Source files that importing a module would run, found by reading: nothing is imported.

    >>> closure("json", [Path("/usr/lib/python3.12")], lambda name, file: True)  # doctest: +SKIP
    {'json': PosixPath('/usr/lib/python3.12/json/__init__.py'), 'json.decoder': ...}

Modules are looked for in folders, in the order of Python's own finder: a package with
``__init__.py``, a single module, and where neither is anywhere, folders of that name. No other
finder is asked, since asking one imports the packages above a module. Imports count wherever they
stand, in functions too, but for those that only type checkers follow. So do texts that name a
module, or a file beside the source: processes are started and C++ is compiled by such names.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from typing import NamedTuple

ENDINGS = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)
TEXT = re.compile(rb"""["']([\w-]*(?:\.[\w-]+)+)["']""")
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a statement that hold statements."""


class Found(NamedTuple):
    file: Path | None
    """None for folders without ``__init__.py``."""
    inside: tuple[Path, ...]
    """Folders in which a package's modules are."""


class Modules:
    """Modules in some folders. What was seen once is not looked at again: make a new one to look
    again."""

    def __init__(self, folders: Iterable[str | Path]) -> None:
        self._folders = tuple(Path(folder or ".") for folder in folders)
        self._found: dict[str, Found | None] = {}
        self._listings: dict[Path, frozenset[str] | None] = {}

    def find(self, name: str) -> Found | None:
        """The module of that dotted name; None where there is none."""
        if name not in self._found:
            parent, _, last = name.rpartition(".")
            above = self.find(parent) if parent else Found(None, self._folders)
            self._found[name] = self._look(last, above.inside) if above and last else None
        return self._found[name]

    def _look(self, name: str, folders: tuple[Path, ...]) -> Found | None:
        portions = []
        for folder in folders:
            beside = self.listing(folder)
            inner = self.listing(folder / name) if beside and name in beside else None
            for ending in ENDINGS if inner else ():
                if f"__init__{ending}" in inner:
                    return Found(folder / name / f"__init__{ending}", (folder / name,))
            for ending in ENDINGS if beside else ():
                if f"{name}{ending}" in beside:
                    return Found(folder / f"{name}{ending}", ())
            if inner is not None:
                portions.append(folder / name)
        return Found(None, tuple(portions)) if portions else None

    def listing(self, folder: Path) -> frozenset[str] | None:
        """Names in a folder; None where it is none that can be read."""
        if folder not in self._listings:
            try:
                self._listings[folder] = frozenset(os.listdir(folder))
            except (OSError, ValueError):
                self._listings[folder] = None
        return self._listings[folder]


def closure(
    name: str, folders: Iterable[str | Path], follow: Callable[[str, Path], bool]
) -> dict[str, Path]:
    """Module name -> file of all that importing `name` may run, as far as `follow` says of a module
    and its file; files that sources name are ``module/file``."""
    modules, found, waiting, seen = Modules(folders), {}, [name], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += filter(None, [name.rpartition(".")[0]])
        there = modules.find(name)
        if there is None or there.file is None or not follow(name, there.file):
            continue
        found[name] = file = there.file
        inside = name if there.inside else name.rpartition(".")[0]
        read = _read(*_stamp(file)) if file.suffix in SOURCE_SUFFIXES else Read((), ())
        for level, module, names in read.imports:
            base = inside.split(".")[: len(inside.split(".")) - level + 1] if level else []
            waiting += _named(".".join(filter(None, [*base, module])), names)
        beside = modules.listing(file.parent) or ()
        for text in read.texts:
            data = file.with_suffix(text) if text.startswith(".") else file.with_name(text)
            if data.name in beside and data.suffix not in ENDINGS:
                found[f"{name}/{data.name}"] = data
            elif not text.startswith("."):
                waiting.append(text)
    return found


def digest_of(files: Mapping[str, Path]) -> str:
    """SHA-256 of named files, wherever they lie. Raises OSError."""
    told = "".join(f"{name} {file_digest(file)}\n" for name, file in sorted(files.items()))
    return hashlib.sha256(told.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, which are read again only after it changed. Raises OSError."""
    return _file_digest(*_stamp(path))


class Read(NamedTuple):
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    """Dots before the module, the module, and what is imported from it."""
    texts: tuple[str, ...]


def _stamp(path: Path) -> tuple[str, int, int]:
    facts = os.stat(path)
    return str(path.absolute()), facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=8192)
def _file_digest(path: str, mtime_ns: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=8192)
def _read(path: str, mtime_ns: int, size: int) -> Read:
    source = Path(path).read_bytes()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # importing it says so
        return Read((), ())
    imports = []
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            imports += [(0, each.name, ()) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.level, node.module or "", tuple(each.name for each in node.names)))
    texts = {match[1].decode(errors="replace") for match in TEXT.finditer(source)}
    return Read(tuple(imports), tuple(sorted(texts)))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        yield node
        test = getattr(node, "test", None)
        checked = "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))
        for block in ("orelse",) if checked else BLOCKS:
            waiting += getattr(node, block, ())


def _named(module: str, names: tuple[str, ...]) -> list[str]:
    """The module, and whatever of the names may be modules in it."""
    return [module, *(f"{module}.{name}" for name in names)]
