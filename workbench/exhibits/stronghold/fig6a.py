"""STRONGHOLD figure 6a: the largest model each method can train within one server's memory.

A search (runs/search.py) varies the layers of each method's spec; what stands here is the largest
run that ended well and why the next one did not. Every method runs at its roomiest setting that is
its own: L2L stashes activations on the host (its constant-memory variant), and STRONGHOLD has the
paper's window of 4 with the optimizer states of as many first layers on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from workbench.core.methods import METHODS
from workbench.core.model_spec import ModelSpec
from workbench.core.options import takes
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.preview import Stage
from workbench.exhibits.stronghold.base import StrongholdExhibit, advantage
from workbench.exhibits.stronghold.sizes import StrongholdSize
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.rows import pick
from workbench.figures.verdict import DEEPSPEED
from workbench.runs.search import Search
from workbench.schedule.plan import Plan

PROBE_STEPS = 3
ROOMIEST = {"l2l": "host", "stronghold": "host"}
"""Method -> where its activations go in the search; the others recompute from inputs that stay on
the device."""


def size_told(asked: Asked) -> Found:
    """STRONGHOLD's size over that of a method, of which a processor may know no device."""
    (source, _), method = asked.series, asked.given["method"]
    part = pick(asked.rows, source=source, method=method)
    emulated = method in DEEPSPEED and source == "measured" and "cpu" in set(part["device"])
    device_bound = emulated and "device" in set(part["bound"])
    return Found(
        advantage(asked),
        why=asked.given["owned"] if emulated else "",
        cannot=f"{asked.given['owned']}, and the device decided" if device_bound else "",
    )


class LargestModel(StrongholdExhibit):
    """Bars by method; the number at a bar names the tier that was full."""

    quantity, unknown_size, together = "parameters", "reduced size and budgets", True
    metrics = by_name(size_told)

    def specs(self, size: StrongholdSize) -> list[RunSpec]:
        """One spec per method, whose layers a search varies."""
        return [
            size.spec(
                method,
                steps=PROBE_STEPS,
                window=size.small_window if takes(method, "window") else "auto",
                activations=ROOMIEST.get(method, "recompute"),
                **size.largest.setting,
            )
            for method in METHODS
        ]

    def stages(self, at: Opened, *, force: bool = False, planned: bool = False) -> Iterator[Stage]:
        yield from searches(at, force=force)

    def rows(self, records: list[RunRecord]) -> pd.DataFrame:
        """The largest run of each method that ended well, with the reason the next one did not."""
        return tidy.table([row for method in METHODS if (row := _largest(records, method))])

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        """The planner's answers, too, beside those of the searches."""
        rows = super().table(at, records)
        if not records:
            return rows
        said = [
            planned(each.spec.method, each.guess, each.spec.model, each.beyond)
            for each in searches(at)
        ]
        return tidy.join(rows, tidy.table(said, figure=self.figure, size=at.size.name))

    def absolute(self, axes: Any, rows: pd.DataFrame) -> None:
        """In billions beside sizes that are told so, published ones and those on named hardware."""
        small = (rows["unit"] == tidy.UNITS["parameters"]).all()
        words = f"size ({'million' if small else 'billion'} parameters)"
        shown = rows if small else in_billions(rows)
        drawing.bars(axes, shown, drawing.names_of(METHODS), words, bound=True)


def searches(at: Opened, *, force: bool = False) -> list[Search]:
    """The largest-model searches of all methods at a size."""
    limit = at.size.largest.limit
    return [at.search(spec, limit=limit, force=force) for spec in LargestModel().specs(at.size)]


def _largest(records: list[RunRecord], method: str) -> dict[str, Any] | None:
    own = [r for r in records if r.method == method]
    done = [r for r in own if r.status == "ok"]
    failed = [r for r in own if r.status != "ok"]
    if not done:
        return tidy.measured(min(failed, key=_layers), "parameters") if failed else None
    best = max(done, key=_layers)
    row = tidy.measured(best, "parameters")
    beyond = [r for r in failed if _layers(r) > _layers(best)]
    if beyond:
        next_one = min(beyond, key=_layers)
        if next_one.status.startswith("oom_"):
            row["bound"] = next_one.status.removeprefix("oom_")
        row["note"] = f"at {_layers(next_one)} layers: {next_one.message}"
    return row


def planned(method: str, layers: int, model: ModelSpec, beyond: Plan) -> dict[str, Any]:
    """Facts from a method's plan before its search: the most `layers` that fit, `beyond` being its
    plan of one layer more."""
    parameters = replace(model, layers=layers).parameters if layers else 0
    return {
        "method": method,
        "label": METHODS[method].label,
        "layers": layers,
        "value": parameters / 1e6,
        "unit": tidy.UNITS["parameters"],
        "parameters": parameters,
        "source": "simulated",
        "variant": tidy.HERE,
        "how": "the largest model whose schedule is proved to fit the budgets",
        "status": "ok",
        "bound": beyond.lacking or "",
        "note": f"at {layers + 1} layers {beyond.binding}",
    }


def _layers(record: RunRecord) -> int:
    return record.spec["model"]["layers"]


def in_billions(rows: pd.DataFrame) -> pd.DataFrame:
    """All sizes in the unit of the published ones; runs here count in millions."""
    millions = rows["unit"] == tidy.UNITS["parameters"]
    scale = millions.map({True: 1e-3, False: 1.0})
    return rows.assign(**{name: rows[name] * scale for name in ("value", "low", "high")})
