"""Table of methods: how a name on the command line becomes code, and options.

It is data that the methods own (methods/table.toml): modules and classes are named as text, and
imported when used. Each module offers
``plan(spec, profile) -> Plan`` and ``train(spec, report, folder) -> Outcome``, and, where planning
takes a while, ``fits(spec, profile) -> bool``, and ``plan_roughly(spec, profile)``, whose plans are
soon there to be compared. One that chooses its own micro-batches also offers
``plan_sizes(spec, profiles) -> Plan``, from profiles by their samples, and where that takes a while
``plan_soon``, which is asked how many layers fit, or ``fits``, which takes the profile of the
smallest. One whose system had results in a form of its own offers ``results_of(record)``: name and
contents of a JSON file, which is written beside the record. One whose checkpoints are a library's
own offers ``weights_of(saved, model) -> Weights``, where they can be exported.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from workbench.core.garbage import uncollected
from workbench.core.model_spec import ModelSpec
from workbench.core.sources import imports_digest

_ROOT = Path(__file__).resolve().parents[2]
HOUSES = ("workbench", "baselines")


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A row of the table."""

    name: str
    """On the command line and in records."""
    label: str
    """In figures, as the papers write it."""
    module: str
    """Its module; after a colon, the object there."""
    summary: str
    options: str = "workbench.core.options:Options"
    """Module and class of the options that are its own (options.py)."""
    parallel: bool = False
    """Whether it runs on several ranks."""
    modules: bool = False
    """Whether it trains ordinary modules, cut into layers, beside decoders."""
    families: str = ""
    """Of one that does not: families of modules that it trains all the same, apart by spaces."""
    needs: str = ""
    """Package that it cannot do without, beside torch."""
    portable: bool = False
    """Whether its checkpoints are this project's own, which all such methods continue."""
    driven: str = ""
    """Maker of steps that a user's own loop asks for (training/loop.py), of a method that has one;
    of one that is `parallel` in the processes of torchrun."""
    asynchronous: bool = False
    """Whether its gradients may be of weights that lack updates; others train as one device does,
    to rounding."""
    sharded: bool = False
    """Whether such steps may also be taken in processes of torchrun, each with rows of its own
    and a part of all weights."""


PLANNED = "workbench.training.loop:planned"
"""Maker for all that plan for one device of this runtime."""


def _rows(group: str) -> dict[str, Method]:
    return {name: Method(name=name, **row) for name, row in _TABLE[group].items()}


_TABLE = tomllib.loads((Path(__file__).parents[1] / "methods/table.toml").read_text())
METHODS, PEERS = _rows("compared"), _rows("peers")
"""The paper's comparison, in the order in which ``-m all`` runs it, and methods that it does not
compare with: run by name, and by the benchmarks. Exhibits show the former and no others."""
PARALLEL, UNLISTED = _rows("parallel"), _rows("unlisted")
"""Methods that run on several devices; and runs of exhibits, which nobody chooses among methods:
found by name, and in no list."""
RENAMED = {"gpipe": "torch-gpipe", "1f1b": "torch-1f1b"}
"""Names that records, sweep files and rows had for torch's pipelines before there were our own."""
GROUP = "workbench.methods"
"""Group of entry points by which other packages bring methods."""
LOADED: dict[EntryPoint, Method] = {}
"""Rows of those that were asked for."""


def known() -> dict[str, Method]:
    """Every method that can be named, those of other packages last."""
    ours = METHODS | PEERS | PARALLEL | pipelines()
    return ours | {name: row for name, row in installed().items() if name not in ours}


def installed() -> dict[str, Method]:
    """Methods of other packages, which have an entry point of their name in the group
    ``workbench.methods`` whose object is a `Method`. Names come from metadata, and nothing of
    theirs is imported: until `lookup` was asked for one, its row says no more than that."""
    return {
        name: LOADED.get(point)
        or Method(name=name, label=name, module=point.value, summary=f"of {point.dist.name}")
        for name, point in _points(tuple(sys.path)).items()
    }


@cache
def _points(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Entry points of the packages on a path, by their names."""
    return {point.name: point for point in entry_points(group=GROUP)}


def lookup(name: Any) -> Method | None:
    """The method of that name, loaded where it is another package's. Raises ValueError for one that
    cannot be."""
    row = (known() | UNLISTED).get(name) if isinstance(name, str) else None
    point = _points(tuple(sys.path)).get(name) if row is not None else None
    if point is None or point in LOADED or row.module != point.value:
        return row
    try:
        found = point.load()
    except Exception as error:  # whatever its code raises
        words = f"{type(error).__name__}: {error}".split("\n")[0]
        raise ValueError(f"the method {name!r} of {point.dist.name} fails: {words}") from error
    if not isinstance(found, Method) or found.name != name:
        raise ValueError(f"{point.value} of {point.dist.name} is no Method of the name {name!r}")
    LOADED[point] = found
    return found


def pipelines() -> dict[str, Method]:
    """The pipelines of our own, a row for each order, and other rows that the table has made."""
    return {name: row for path in _TABLE["made"] for name, row in imported(path)().items()}


def compared(ranks: int, model: ModelSpec) -> list[str]:
    """Methods that a question about any of them asks: on one device all that are made for one; of
    several, or of a module, all that can train so."""
    if ranks == 1 and not model.decomposed:
        return [*METHODS, *PEERS, *installed()]
    return [
        name
        for name, each in zip(known(), map(find, known()), strict=True)
        if (each.parallel or ranks == 1) and (each.modules or not model.decomposed)
    ]


def find(name: str) -> Method:
    """The method of that name; raises ValueError naming the known ones."""
    found = lookup(name)
    if found is None:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(known())}")
    return found


def driven(name: str, processes: int) -> Method:
    """The method of that name, for steps of a user's own loop in so many processes. Raises
    ValueError, naming those that can, for one that cannot."""
    row = find(name)
    if row.driven and (processes == 1 or row.parallel or row.sharded):
        return row
    able = [each for each in known().values() if each.driven]
    alone = ", ".join(each.name for each in able if not each.parallel)
    several = ", ".join(each.name for each in able if each.parallel)
    raise ValueError(
        f"{name} takes no steps of one's own loop in {processes} process{'es' * (processes > 1)}; "
        f"{alone} do in one, and {several} in those of torchrun"
    )


def check_model(method: Method, model: ModelSpec) -> None:
    """Raise ValueError for a model that the method does not train."""
    if model.decomposed and not method.modules and model.family not in method.families.split():
        able = ", ".join(each.name for each in known().values() if each.modules)
        raise ValueError(
            f"{method.name} trains decoders only, and the model is a {model.family}; that is "
            f"trained by {able}"
        )


def load(name: str) -> Any:
    """The module that implements the method, or the object in one."""
    return imported(find(name).module)


def imported(path: str) -> Any:
    """Import what a path names: a module, or after a colon the object in it."""
    module, _, attribute = path.partition(":")
    with uncollected():
        found = import_module(module)
    return getattr(found, attribute) if attribute else found


def code_version(name: str) -> str:
    """Hash of the sources that the method's module and options import, however far from them, so
    that changed code is a new key, and code of other methods is none.

    Changed also while this process runs: an open notebook must not show what the old code did.
    """
    method = find(name)
    roots = tuple(path.partition(":")[0] for path in (method.module, method.options))
    houses = {*HOUSES, *(root.partition(".")[0] for root in roots)}

    def ours(other: str, file: Path) -> bool:
        return other.partition(".")[0] in houses and other != __name__  # it names all methods

    return imports_digest(roots, (_ROOT, *sys.path), ours)[:12]
