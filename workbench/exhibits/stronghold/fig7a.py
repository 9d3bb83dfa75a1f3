"""STRONGHOLD figure 7a: throughput at the largest model each baseline can train."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from workbench.core.methods import METHODS
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.preview import Stage
from workbench.exhibits.stronghold.base import StrongholdExhibit
from workbench.exhibits.stronghold.fig6a import ROOMIEST, searches
from workbench.exhibits.stronghold.sizes import StrongholdSize
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.rows import part_of, quotient, series_of, value
from workbench.figures.style import LOOKS
from workbench.runs.sweep import Sweep

BASELINES = tuple(name for name in METHODS if name != "stronghold")


def paired(asked: Asked) -> Found:
    """STRONGHOLD over a baseline at that one's largest model."""
    method = asked.given["method"]
    pair = asked.rows[asked.rows["pair"] == method]
    here = value(relative(pair), *asked.series, pair=method)
    return Found(here, why=_other_depth(asked.rows, *asked.series, method))


class ThroughputAtLargest(StrongholdExhibit):
    """Bars in pairs, a baseline and STRONGHOLD."""

    wide, unknown_size = True, "reduced size and budgets"
    metrics = by_name(paired)

    def stages(self, at: Opened, *, force: bool = False, planned: bool = False) -> Iterator[Stage]:
        """Figure 6a's searches of the baselines, which `force` leaves as they are, then runs at
        the sizes that they found."""
        largest = {}
        for search in searches(at):
            if search.spec.method in BASELINES:
                yield search
                found = search.layers if search.complete else 0
                largest[search.spec.method] = search.layers or search.guess if planned else found
        yield at.sweep(self.specs(at.size, largest), force=force)

    def specs(
        self, size: StrongholdSize, largest: Mapping[str, int] = MappingProxyType({})
    ) -> list[RunSpec]:
        """For each baseline: itself and STRONGHOLD on its largest model (layers by method, as far
        as known), under the same budgets.

        STRONGHOLD chooses window and residency itself, as far as the budgets allow.
        """
        out = []
        for method in BASELINES:
            layers = largest.get(method)
            if layers:
                out += [_spec(size, method, layers), _spec(size, "stronghold", layers)]
        return out

    def records(self, at: Opened, stages: Iterable[Stage]) -> list[RunRecord]:
        """Records of the runs; the searches' are figure 6a's."""
        return super().records(at, (stage for stage in stages if isinstance(stage, Sweep)))

    def rows(self, records: list[RunRecord]) -> pd.DataFrame:
        """Two rows per baseline: its own throughput and STRONGHOLD's on the same model."""
        own = {r.method: r for r in records if r.method != "stronghold"}
        ours = {r.spec["model"]["layers"]: r for r in records if r.method == "stronghold"}
        out = []
        for method in BASELINES:
            if method not in own:
                continue
            layers = own[method].spec["model"]["layers"]
            for record in (own[method], ours.get(layers)):
                if record is not None:
                    out += tidy.both(record, "samples/s", x=layers, pair=method)
        return tidy.table(out)

    def absolute(self, axes: Any, rows: pd.DataFrame) -> None:
        drawing.bars(axes, rows, _names(rows), "throughput (samples/s)", column="pair")

    def ratios(self, axes: Any, rows: pd.DataFrame) -> None:
        names = {method: _name_and_depths(rows, method) for method in BASELINES}
        words = "STRONGHOLD over baseline"
        drawing.bars(axes, relative(rows), names, words, column="pair", number="{:.2f}")
        axes.axhline(1.0, color="#888888", linewidth=0.8, linestyle="--")

    def legend(self, figure: Any, rows: pd.DataFrame) -> None:
        pairs = [
            (drawing.patch(color="#bbbbbb"), "the baseline named below"),
            (drawing.patch(color=LOOKS["stronghold"].color), METHODS["stronghold"].label),
        ]
        drawing.legend(figure, rows, methods=False, more=pairs)


def _spec(size: StrongholdSize, method: str, layers: int) -> RunSpec:
    activations = ROOMIEST.get(method, "recompute")
    return size.timed(method, layers=layers, activations=activations, **size.largest.setting)


def _name_and_depths(rows: pd.DataFrame, method: str) -> str:
    """A baseline, with both depths where named hardware was measured at another."""
    label = METHODS[method].label
    here = rows[(rows["source"] == "measured") & (rows["variant"] != "") & (rows["pair"] == method)]
    if here.empty:
        return label.replace("-", "-\n", 1)
    there = rows[(rows["source"] == "published") & (rows["pair"] == method)]["layers"]
    depths = dict.fromkeys([*there.astype(int), *here["layers"].astype(int)])
    return f"{label}\n{', here '.join(map(str, depths))} layers"


def _names(rows: pd.DataFrame) -> dict[str, str]:
    """A baseline and the depth of its largest model."""
    names = {}
    for method in BASELINES:
        layers = rows[rows["pair"] == method]["layers"].dropna()
        depth = f"{int(layers.iloc[0])} layers" if len(layers) else "no model fits"
        names[method] = f"{METHODS[method].label}\n{depth}"
    return names


def relative(rows: pd.DataFrame) -> pd.DataFrame:
    """STRONGHOLD's throughput over the baseline's, one row per baseline and series."""
    out = []
    for source, variant in series_of(rows):
        for method in BASELINES:
            pair = rows[rows["pair"] == method]
            mine = part_of(pair[pair["method"] == "stronghold"], source, variant)
            if mine.empty:
                continue
            ours = value(pair, source, variant, method="stronghold")
            base = value(pair, source, variant, method=method)
            row = mine.iloc[0].to_dict()
            row |= {"value": quotient(ours, base), "unit": "ratio", "low": None, "high": None}
            out.append(row)
    return tidy.table(out)


def _other_depth(rows: pd.DataFrame, source: str, variant: str, pair: str) -> str:
    """Says that a series compares at another depth than the paper does, where it is on named
    hardware: smaller sizes have depths of their own."""
    part = rows[(rows["pair"] == pair) & rows["layers"].notna()]
    theirs = part[part["source"] == "published"]["layers"]
    ours = part_of(part, source, variant)["layers"]
    if source != "measured" or not variant or theirs.empty or ours.empty:
        return ""
    there, here = int(theirs.iloc[0]), int(ours.iloc[0])
    return "" if here == there else f"at {here} layers here, at {there} in the paper"
