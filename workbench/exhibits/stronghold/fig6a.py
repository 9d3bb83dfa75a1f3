"""STRONGHOLD figure 6a: the largest model each method can train within one server's memory.

A search (runs/search.py) varies the layers of each method's spec; what stands here is the largest
run that ended well and why the next one did not. Every method runs at its roomiest setting that is
its own: L2L stashes activations on the host (its constant-memory variant), and STRONGHOLD has the
paper's window of 4 with the optimizer states of as many first layers on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from workbench.core.methods import METHODS
from workbench.core.model_spec import ModelSpec
from workbench.core.options import takes
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.base import Exhibit, Opened, Stage
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.stronghold.base import StrongholdExhibit, advantage, notes_of_measured
from workbench.exhibits.stronghold.sizes import Size
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
BY_OWNERSHIP = (
    "the tiers of DeepSpeed are told apart by what its tensors are for, since a CPU has one memory"
)


def size_told(asked: Asked) -> Found:
    """STRONGHOLD's size over that of a method, of which a processor may know no device."""
    (source, _), method = asked.series, asked.given["method"]
    part = pick(asked.rows, source=source, method=method)
    emulated = method in DEEPSPEED and source == "measured" and "cpu" in set(part["device"])
    device_bound = emulated and "device" in set(part["bound"])
    return Found(
        advantage(asked),
        why=BY_OWNERSHIP if emulated else "",
        cannot=f"{BY_OWNERSHIP}, and the device decided" if device_bound else "",
    )


class LargestModel(StrongholdExhibit):
    """Bars by method; the number at a bar names the tier that was full."""

    quantity, unknown_size = "parameters", "reduced size and budgets"
    metrics = by_name(size_told)

    def specs(self, size: Size) -> list[RunSpec]:
        """One spec per method, whose layers a search varies."""
        return [
            size.spec(
                method,
                hidden=size.search_hidden,
                steps=PROBE_STEPS,
                device_memory=size.search_device_memory,
                host_memory=size.search_host_memory,
                window=size.small_window if takes(method, "window") else "auto",
                activations=ROOMIEST.get(method, "recompute"),
            )
            for method in METHODS
        ]

    def stages(self, at: Opened, *, force: bool = False, planned: bool = False) -> Iterator[Stage]:
        yield from searches(at, force=force)

    def records(self, at: Opened, stages: Iterable[Stage]) -> list[RunRecord]:
        return Exhibit.records(self, at, stages)

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
        words = "size (million parameters)"
        drawing.bars(axes, rows, drawing.names_of(METHODS), words, bound=True)

    def draw(
        self, figure: Any, rows: pd.DataFrame, *, same_scale: bool = True, overlay: bool = False
    ) -> None:
        """Sizes of all machines share the axes at the paper's budgets."""
        if same_scale:
            names, words = drawing.names_of(METHODS), "size (billion parameters)"
            drawing.bars(figure.subplots(), in_billions(rows), names, words, bound=True)
        else:
            self._panels(figure, rows, same_scale=False)
        self.legend(figure, rows)
        note = "At a bar: the size and, where known, the memory that was full."
        drawing.small_print(figure, note, *drawing.daggers(rows), *notes_of_measured(rows))


def searches(at: Opened, *, force: bool = False) -> list[Search]:
    """The largest-model searches of all methods at a size."""
    limit = at.size.search_limit
    return [at.search(spec, limit=limit, force=force) for spec in EXHIBIT.specs(at.size)]


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


EXHIBIT = LargestModel()
