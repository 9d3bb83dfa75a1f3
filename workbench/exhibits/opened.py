"""The choices with which somebody opened an exhibit, and how parameters are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.spec import RunSpec
from workbench.runs.axis import parse_axis
from workbench.runs.executor import LocalExecutor
from workbench.runs.search import Search
from workbench.runs.store import REPOSITORY_RESULTS, Store
from workbench.runs.sweep import Sweep


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The choices with which somebody opened an exhibit."""

    size: Any
    """Dials of a size (`sizes.py` of the system), with a `name` and a `device`."""
    store: Store
    simulated: bool
    """Whether nothing runs: the published sizes need a GPU, and are simulated without one."""
    text: str
    machine: str
    """Folder in ``published-here`` whose rows are shown; empty for the exhibit's choice."""
    what: str
    """The exhibit and its size, in words, for those who wait until its runs free a device."""
    methods: tuple[str, ...] = ()
    """Those that run, where somebody chose."""
    overlay: bool = False
    """Whether published absolute values lie over those that were measured on another machine."""
    told: tuple[str, ...] = ()
    """Changes of the size in words, for titles and file names."""

    def sweep(self, specs: list[RunSpec], *, force: bool = False) -> Sweep:
        """These runs; one that failed for no reason of its own is tried again."""
        executor = LocalExecutor(self.store, what=self.what)
        specs = [spec for spec in specs if not self.methods or spec.method in self.methods]
        return Sweep(specs, self.store, force=force, retry_failed=True, executor=executor)

    def search(self, spec: RunSpec, *, limit: int, force: bool = False) -> Search:
        """The largest model of a spec, of at most `limit` layers."""
        executor = LocalExecutor(self.store, what=self.what)
        return Search(spec, self.store, limit=limit, force=force, executor=executor)

    def roots(self) -> tuple[Path, ...]:
        """The folders with measurements on named hardware, a store's own after the repository's."""
        return (REPOSITORY_RESULTS, self.store.root)


def read(name: str, value: Any, *, several: bool) -> Any:
    """A parameter as a sweep's form takes it (`parse_axis`): one value, or several as a tuple.
    Raises ValueError, one sentence, for anything else."""
    if name == "overlay":
        return bool(value)
    written = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    values = tuple(parse_axis("method" if name == "methods" else name, written))
    if len(values) > 1 and not several:
        raise ValueError(f"{name} is {written!r}; it must be one value")
    return values if several else values[0]
