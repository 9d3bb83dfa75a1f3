"""The published settings, ``small``, ``large`` and ``scale``: models, devices and batches of the
artifact of Aceso (EuroSys'24), and each search of a plan for them.

A search that came to its end is kept in a folder under its question, the profiles and this code, so
that it is made once.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from workbench.core.sealed import read_sealed, write_sealed
from workbench.core.sources import imports_digest
from workbench.methods.aceso.alpa import layered
from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.files import open_files
from workbench.methods.aceso.grid import grid
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.plan import read_plan, subject_of
from workbench.methods.aceso.search import Effort, Found, Step
from workbench.methods.aceso.searches import Outcome, search
from workbench.methods.aceso.space import Cluster, Rated

ROOT, OURS = Path(__file__).resolve().parents[3], "workbench."
MARGIN_MB = 1000
"""Memory that recomputation leaves free for models of any depth."""
WAYS = ("megatron", "alpa", "aceso", "ours")
"""The grid, whole layers, the published search, and ours: searches by their names in tables."""
ALPA_DEPTHS = 64
"""Layers up to which Alpa planned."""


class Setting(NamedTuple):
    """A model and its devices."""

    model: str
    size: str
    gpus: int
    batch: int
    memory: float
    """MB of a device."""
    per_node: int
    layers: int | None = None

    @property
    def column(self) -> str:
        """Of the artifact's tables: the size, or the number of layers."""
        return str(self.layers or self.size)

    @property
    def ways(self) -> tuple[str, ...]:
        """Searches of it; Alpa's would take long for deeper models."""
        deep = self.layers is not None and self.layers > ALPA_DEPTHS
        return tuple(way for way in WAYS if way != "alpa" or not deep)

    def ask(self, database: str | Path) -> Ask:
        """The question to a search. Raises ValueError."""
        nodes = -(-self.gpus // self.per_node)
        cluster = Cluster(nodes=nodes, per_node=self.gpus // nodes, memory=self.memory)
        subject = subject_of(self.model, self.size, self.batch, layers=self.layers)
        margin = MARGIN_MB if self.layers else 0.0
        return Ask(subject=subject, cluster=cluster, database=database, margin=margin)


def _large(model: str, sizes: str, batch: int) -> list[Setting]:
    gpus = (1, 4, 8, 16, 32)
    return [Setting(model, size, n, batch, 28000, 8)
            for size, n in zip(sizes.split(), gpus, strict=True)]  # fmt: skip


SETS: Mapping[str, tuple[Setting, ...]] = MappingProxyType({
    "small": (
        Setting("gpt", "1_3B", 4, 512, 12000, 4), Setting("t5", "770M", 4, 512, 12000, 4),
        Setting("resnet", "1B", 4, 768, 12000, 4),
    ),
    "large": (
        *_large("gpt", "350M 1_3B 2_6B 6_7B 13B", 1024), *_large("t5", "770M 3B 6B 11B 22B", 1024),
        *_large("resnet", "500M 2B 4B 6_8B 13B", 1536),
    ),
    "scale": tuple(Setting("scale-layer", "scale-layer", 8, 1024, 28000, 8, layers=2**depth)
                   for depth in range(3, 11)),
})  # fmt: skip


class Interrupted(KeyboardInterrupt):
    """A search was interrupted; `outcome` is what it had found, which is not kept."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def searched(
    setting: Setting, way: str, database: str | Path, effort: Effort, folder: Path | None = None
) -> Outcome:
    """What a search finds, also where nothing fits; `folder` keeps it. Raises ValueError where the
    database has no profile of the model, and Interrupted."""
    ask = setting.ask(database)
    if folder is None:
        return answered(ask, way, effort)
    path = folder / f"{_digest(ask, way, effort)}.json"
    if path.is_file():
        with suppress(ValueError):  # what is damaged is found anew
            return _read(path, ask)
    outcome = answered(ask, way, effort)
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(path, _written(outcome, setting, way))
    return outcome


def answered(ask: Ask, way: str, effort: Effort) -> Outcome:
    """What a search finds over all numbers of stages. Raises Interrupted."""
    begun, space, counts = time.process_time(), ask.space(), ask.stages(None, None)
    outcome = Outcome(space=space)
    if way in ("megatron", "alpa"):
        outcome = {"megatron": grid, "alpa": layered}[way](space, counts)
    else:
        run: Callable[..., None] = {"aceso": search, "ours": search_ours}[way]
        try:
            run(outcome, counts, effort, finetunes=ask.subject.model == "resnet")
        except KeyboardInterrupt:
            raise Interrupted(outcome) from None
    outcome.cpu_seconds = time.process_time() - begun
    return outcome


def _digest(ask: Ask, way: str, effort: Effort) -> str:
    """Of all that decides what a search finds."""
    told = hashlib.sha256()
    files, prefix = open_files(ask.database), (f"{ask.subject.name}_", "prim_", "p2p_")
    for name in sorted(each for each in files.names if each.startswith(prefix)):
        told.update(f"{name}\n{files.text(name)}\n".encode())
    code = imports_digest([__name__], [ROOT, *sys.path], lambda name, _: name.startswith(OURS))
    facts = (ask.subject, ask.cluster, ask.micros, ask.most_tp, ask.margin, way, effort, code)
    told.update(repr(facts).encode())
    return told.hexdigest()[:16]


def _written(outcome: Outcome, setting: Setting, way: str) -> dict[str, Any]:
    return {
        "setting": setting._asdict(), "search": way, "cpu_seconds": outcome.cpu_seconds,
        "found": {
            str(count): {
                **vars(found), "best": found.best.plan.to_json(),
                "curve": [[*step] for step in found.curve],
                "hops": [*found.hops.items()], "targets": [*found.targets.items()],
            }
            for count, found in outcome.found.items()
        },
    }  # fmt: skip


def _read(path: Path, ask: Ask) -> Outcome:
    told, space = read_sealed(path, f"the search {path}", needed=True), ask.space()
    found = {}
    for count, each in told["found"].items():
        plan = read_plan(each["best"], f"the search {path}")
        found[int(count)] = Found(**each | {
            "best": Rated(plan, space.costs.plan(plan)), "curve": [Step(*p) for p in each["curve"]],
            "hops": Counter(dict(each["hops"])), "targets": Counter(dict(each["targets"])),
        })  # fmt: skip
    return Outcome(space=space, found=found, cpu_seconds=told["cpu_seconds"], whole=True)
