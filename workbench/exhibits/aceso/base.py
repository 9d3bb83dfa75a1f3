"""Base of Aceso's exhibits: published values, plans that were found on the published profiles of
its large settings and are kept, and searches on its small ones, which are made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd

from workbench.core import host
from workbench.exhibits import dials
from workbench.exhibits.base import Exhibit
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, PUBLISHED, SIMULATED, pick
from workbench.figures.style import GREY, LOOKS, bar_look
from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.files import read_table
from workbench.methods.aceso.plan import Plan, read_plan, subject_of
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.searches import Outcome
from workbench.methods.aceso.settings import answered
from workbench.methods.aceso.space import Cluster, Rated
from workbench.published import aceso

MEGATRON, ALPA, ACESO, OURS = "megatron-lm", "alpa", "aceso", "aceso-ours"
KINDS = {"megatron": MEGATRON, "alpa": ALPA, "faithful": ACESO, "ours": OURS, "aceso": ACESO}
"""Search, or published system -> whose colour it has."""
NAMES = {MEGATRON: "Megatron-LM", ALPA: "Alpa", ACESO: "Aceso", OURS: "our search"}
MODELS = {"gpt": "GPT", "t5": "T5", "resnet": "Wide-ResNet"}
SMALL = {"gpt": ("1_3B", 512), "t5": ("770M", 512), "resnet": ("1B", 768)}
"""Model -> size and batch of the small settings."""
LARGE, LITTLE = "large", "small"
"""The published settings."""
GPUS, LIMIT_MB = 4, 12000
"""Of the small settings."""
LARGE_MB = 28000
GOLDEN = {"gpt": 4, "t5": 4, "resnet": 2}
"""Model -> stages of the published plan of the small settings."""
FOUND = "published search, cost model and profiles"
NO_PROFILES = "published alone:\nthe artifact's large profiles, {}_*, are not there"


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The dials of a size."""

    name: str
    device: str = "cpu"
    models: tuple[str, ...]
    """Models of the small settings that are searched."""
    hops: tuple[int, ...]
    orders: int
    """Random orders of primitives."""
    plans: int
    """Plans that a search rates at most, where searches are compared."""


class AcesoExhibit(Exhibit):
    """An exhibit in which no plan trains."""

    runs, dials = False, staticmethod(partial(dials.named, "aceso", Size))
    labels: ClassVar[Mapping[str, Callable[[Any], str]]] = MappingProxyType(
        {"method": NAMES.__getitem__, "size": lambda size: size.replace("_", ".")}
    )

    def published(self) -> pd.DataFrame:
        """Values of the artifact: figure, model, size, layers, gpus, series, quantity, value, unit,
        source, note."""
        return published(self.figure.removeprefix("aceso_"))


def published(figure: str) -> pd.DataFrame:
    """Values of a figure, or of the small settings."""
    every = aceso.values()
    return every[every["figure"].str.rstrip("ab") == figure]


def told(row: Any, **more: Any) -> dict[str, Any]:
    """Columns of a published value; of a system that had none, why."""
    method = KINDS.get(row.series, ACESO)
    return {
        "method": method, "label": row.series if row.series not in KINDS else NAMES[method],
        "pair": f"{row.model} {row.size}", "x": row.gpus, "value": row.value, "unit": row.unit,
        "quantity": row.quantity, "source": PUBLISHED, "how": row.source,
        "status": "failed" if pd.isna(row.value) else "ok", **more,
    }  # fmt: skip


def kept(row: Any, source: str, **more: Any) -> dict[str, Any]:
    """Columns of a search whose outcome is kept (`published.aceso.searches`)."""
    method = KINDS[row.search]
    plan = f"{row.stages} stages, micro-batches of {row.micro}, {row.explored} plans rated"
    return {
        "method": method, "label": NAMES[method], "pair": f"{row.model} {row.size}", "x": row.gpus,
        "source": source, "status": "ok", "note": plan, "how": FOUND,
        "hardware": row.hardware if source == MEASURED else "", **more,
    }  # fmt: skip


@cache
def ask_small(model: str) -> Ask:
    """The question of a small setting."""
    size, batch = SMALL[model]
    cluster = Cluster(nodes=1, per_node=GPUS, memory=LIMIT_MB)
    subject = subject_of(model, size, batch)
    return Ask(subject=subject, cluster=cluster, database=aceso.DATABASE)


@cache
def search_small(kind: str, model: str) -> Outcome:
    """What a search finds in a small setting. Made once a process."""
    return answered(ask_small(model), {"faithful": "aceso"}.get(kind, kind), Effort())


@cache
def golden(model: str) -> Rated:
    """The published plan of a small setting, rated here."""
    size, _ = SMALL[model]
    name = f"small_{model}_{size}_{GPUS}gpu_{GOLDEN[model]}stages.json"
    plan: Plan = read_plan(read_table(aceso.PLANS)[name], name)
    return Rated(plan, ask_small(model).costs().plan(plan))


def core() -> str:
    """The processor here, of whose cores a search takes one."""
    return f"one core of {host.cpu_model()}"


def keys(*methods: str) -> list[tuple[Any, str]]:
    """Handles and names of methods by their colours."""
    return [(drawing.patch(color=LOOKS[m].color), NAMES[m]) for m in methods]


def sources(rows: pd.DataFrame) -> list[tuple[Any, str]]:
    """Handles and names of the sources that rows have."""
    there = set(rows["source"])
    return [
        (drawing.patch(**bar_look(GREY, of)), of)
        for of in (PUBLISHED, SIMULATED, MEASURED)
        if of in there
    ]


def size_words(pair: str, gpus: float) -> str:
    """A model's size, and its devices, below a group of bars."""
    size = pair.partition(" ")[2].replace("_", ".")
    return f"{size}\n{gpus:g} GPU{'s' if gpus > 1 else ''}"


def bars(axes: Any, rows: pd.DataFrame, words: str, **more: Any) -> None:
    """A group of bars a size, with the number of its devices."""
    groups = {row.pair: size_words(row.pair, row.x) for row in rows.itertuples()}
    drawing.bars(axes, rows, groups, words, column="pair", **more)


def panels(
    figure: Any, rows: pd.DataFrame, *titles: str, by: str = "model", wide: float = 1.5
) -> Iterator[tuple[Any, pd.DataFrame, str]]:
    """Axes, rows and setting of GPT above, and of Wide-ResNet and the small settings below; models
    are told apart `by` a column."""
    drawing.prepare(figure, 2)
    grid = figure.add_gridspec(2, 2, width_ratios=(wide, 1))
    places = grid[0, :], grid[1, 0], grid[1, 1]
    parts = {"setting": LARGE, by: "gpt"}, {"setting": LARGE, by: "resnet"}, {"setting": LITTLE}
    for place, where, title in zip(places, parts, titles, strict=True):
        axes = figure.add_subplot(place)
        yield axes, pick(rows, **where), where["setting"]
        drawing.title(axes, title)


def never_slower(asked: Any) -> float:
    """The least throughput of our search's plan over the published search's, of all sizes."""
    ours, theirs = (
        pick(asked.of_series(), method=method).set_index("pair")["value"]
        for method in (OURS, ACESO)
    )
    return float((ours / theirs).min())


def same(asked: Any) -> float:
    """The least ratio, either way, of what the cost model says here and what was published of the
    same plans."""
    part = asked.part
    ours, theirs = (
        pick(part, source=source).set_index(["pair", "label"])["value"]
        for source in (SIMULATED, PUBLISHED)
    )
    ratio = (ours / theirs).dropna()
    return float(min(ratio.min(), 1 / ratio.max()))
