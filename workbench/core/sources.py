"""Source files that importing a module would run, found by reading: nothing is imported.

Modules are looked for as Python's own finder does: a package with ``__init__.py``, a single module,
and where neither is anywhere, folders of that name. No other finder is asked, since asking one
imports the packages above a module. Imports count wherever they stand, in functions too, but for
those that only type checkers follow. So do texts that name a module, or a file beside the source:
processes are started and C++ is compiled by such names.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

from workbench.core.files import MOST_BYTES
from workbench.core.model_spec import GPT_FAMILY, ModelSpec
from workbench.core.paths import user_path

ENDINGS = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)
TEXT = re.compile(rb"""["']([\w-]*(?:\.[\w-]+)+)["']""")
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # of a statement


class Found(NamedTuple):
    """A module that was found."""

    file: Path | None
    """None for folders without ``__init__.py``."""
    inside: tuple[Path, ...]
    """Folders in which a package's modules are."""


class Modules:
    """Modules in some folders; what was seen once is not looked at again."""

    def __init__(self, folders: Iterable[str | Path]) -> None:
        self._found: dict[str, Found | None] = {"": Found(None, tuple(map(Path, folders)))}
        self._listings: dict[Path, frozenset[str] | None] = {}

    def find(self, name: str) -> Found | None:
        """The module of that dotted name; None where there is none."""
        if name not in self._found:
            parent, _, last = name.rpartition(".")
            above = self.find(parent)
            self._found[name] = self._look(last, above.inside) if above and last else None
        return self._found[name]

    def _look(self, name: str, folders: tuple[Path, ...]) -> Found | None:
        portions = []
        for folder in folders:
            beside = self.listing(folder) or frozenset()
            inner = self.listing(folder / name) if name in beside else None
            for ending in ENDINGS:
                if f"__init__{ending}" in (inner or ()):
                    return Found(folder / name / f"__init__{ending}", (folder / name,))
            for ending in ENDINGS:
                if f"{name}{ending}" in beside:
                    return Found(folder / f"{name}{ending}", ())
            portions += [] if inner is None else [folder / name]
        return Found(None, tuple(portions)) if portions else None

    def listing(self, folder: Path) -> frozenset[str] | None:
        """Names in a folder; None where it is none that can be read."""
        if folder not in self._listings:
            try:
                self._listings[folder] = frozenset(os.listdir(folder))
            except (OSError, ValueError):
                self._listings[folder] = None
        return self._listings[folder]


def imports_digest(
    names: Iterable[str], folders: Iterable[str | Path], follow: Callable[[str, Path], bool]
) -> str:
    """SHA-256 of the files that importing `names` may run, wherever they are, as `follow` says
    of a module and its file. Raises OSError."""
    modules, seen, waiting = Modules(folders), {""}, [*names]
    found: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        there = modules.find(name)
        if name in seen or there is None:
            continue
        seen.add(name)
        parent = name.rpartition(".")[0]
        waiting.append(parent)
        if there.file is None or not follow(name, there.file):
            continue
        found[name] = file = there.file
        package = (name if there.inside else parent).split(".")
        imports, texts = _read(*_stamp(file)) if file.suffix in SOURCE_SUFFIXES else ((), ())
        for level, module, names in imports:
            base = package[: len(package) - level + 1] if level else []
            module = ".".join(filter(None, [*base, module]))
            waiting += [module, *(f"{module}.{each}" for each in names)]
        for text in texts:
            data = file.with_suffix(text) if text.startswith(".") else file.with_name(text)
            if data.name in (modules.listing(file.parent) or ()) and data.suffix not in ENDINGS:
                found[f"{name}/{data.name}"] = data
            waiting.append(text)
    told = "".join(f"{name} {file_digest(file)}\n" for name, file in sorted(found.items()))
    return hashlib.sha256(told.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, which are read again only after it changed. Raises OSError."""
    return _file_digest(*_stamp(path))


def config_file(model: ModelSpec) -> Path | None:
    """The Hugging Face configuration that the model's family names, where there is one."""
    if model.family == GPT_FAMILY or model.decomposed:
        return None
    try:
        path = user_path(model.family)
        path = path / "config.json" if path.is_dir() else path
        fits = path.is_file() and path.stat().st_size <= MOST_BYTES
        return path.parent.resolve() / path.name if fits else None
    except (OSError, ValueError):  # the run that reads it says so
        return None


def by_content(model: ModelSpec) -> dict[str, str]:
    """Fields that name a configuration by its content, wherever the file lies; none of another
    model."""
    file = config_file(model)
    digest = model.config_digest or (file_digest(file) if file else "")
    return {"family": "a configuration", "config_digest": digest} if file else {}


def _stamp(path: Path) -> tuple[str, int, int]:
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(f"{path} is no file")  # a pipe would keep its reader waiting
    return str(path.absolute()), facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=8192)
def _file_digest(path: str, mtime_ns: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=8192)
def _read(path: str, mtime_ns: int, size: int) -> tuple[list[Any], set[str]]:
    """Imports (dots before the module, the module, names in it), and texts that may be names."""
    source, imports = Path(path).read_bytes(), []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # importing it says so
        return [], set()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            imports += [(0, each.name, []) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.level, node.module or "", [each.name for each in node.names]))
    return imports, {match[1].decode() for match in TEXT.finditer(source)}


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        yield node
        test = getattr(node, "test", None)
        checked = "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))
        for block in ("orelse",) if checked else BLOCKS:
            waiting += getattr(node, block, ())
