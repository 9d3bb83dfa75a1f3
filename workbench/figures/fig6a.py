"""STRONGHOLD figure 6a: the largest model each method can train within one server's memory.

A search (runs/search.py) varies the layers of each method's spec; what stands here is the largest
run that ended well and why the next one did not. Every method runs at its roomiest setting that is
its own: L2L stashes activations on the host (its constant-memory variant), and STRONGHOLD has the
paper's window of 4 with the optimizer states of as many first layers on the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from workbench.core.methods import METHODS
from workbench.core.model_spec import ModelSpec
from workbench.core.options import takes
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.exhibit import advantage
from workbench.figures.panels import notes_of_measured
from workbench.figures.sizes import Size
from workbench.figures.verdict import DEEPSPEED, Verdict, at_least
from workbench.schedule.plan import Plan

FIGURE, SECTION = "6a", "VI.A, page 8"
TITLE = "Largest trainable model"
CLAIM = (
    "Within the same device and host memory, STRONGHOLD trains a larger model than Megatron-LM, "
    "L2L, ZeRO-Offload and ZeRO-Infinity."
)
PROBE_STEPS = 3
ROOMIEST = {"l2l": "host", "stronghold": "host"}
"""What becomes of activations; the others recompute from inputs that stay on the device."""
BY_OWNERSHIP = (
    "the tiers of DeepSpeed are told apart by what its tensors are for, since a CPU has one memory"
)


def specs(size: Size, largest: dict[str, int]) -> list[RunSpec]:
    """The searches: one spec per method, whose layers the search varies (session.py)."""
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


def rows(records: list[RunRecord]) -> pd.DataFrame:
    """The largest run of each method that ended well, with the reason the next one did not."""
    found = [row for method in METHODS if (row := _largest(records, method))]
    return tidy.table(found)


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
    """What the planner said of a method before its search: the most `layers` that fit, `beyond`
    being its plan of one layer more."""
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


def draw(figure: Any, rows: pd.DataFrame, *, same_scale: bool) -> None:
    """Bars by method; the number at a bar names the tier that was full."""
    names = _names()
    note = "At a bar: the size and, where known, the tier that was full."
    if same_scale:
        axes = figure.subplots()
        drawing.bars(axes, in_billions(rows), names, "size (billion parameters)", bound=True)
    else:
        left, right = figure.subplots(1, 2)
        own = drawing.without(rows, "published")
        drawing.bars(left, own, names, "size (million parameters)", bound=True)
        left.set_title("this machine, reduced size and budgets")
        ratios = drawing.relative_to_method(drawing.compared(rows), "megatron-lm")
        drawing.bars(right, ratios, names, "relative to Megatron-LM", number="{:.2f}")
        right.set_title("as ratios, beside the published ones")
    drawing.legend_of_bars(figure, rows)
    drawing.small_print(figure, rows, note, *notes_of_measured(rows))


def in_billions(rows: pd.DataFrame) -> pd.DataFrame:
    """All sizes in the unit of the published ones; runs here count in millions."""
    millions = rows["unit"] == tidy.UNITS["parameters"]
    scale = millions.map({True: 1e-3, False: 1.0})
    return rows.assign(**{name: rows[name] * scale for name in ("value", "low", "high")})


def _names() -> dict[str, str]:
    return {name: method.label.replace("-", "-\n", 1) for name, method in METHODS.items()}


def verdicts(rows: pd.DataFrame, source: str, variant: str) -> list[Verdict]:
    """STRONGHOLD against each baseline, in parameters."""
    result = []
    for method in METHODS:
        if method == "stronghold":
            continue
        published = advantage(rows, "published", over=method)
        here = advantage(rows, source, variant, over=method)
        part = rows[(rows["source"] == source) & (rows["method"] == method)]
        emulated = method in DEEPSPEED and source == "measured" and "cpu" in set(part["device"])
        device_bound = emulated and "device" in set(part["bound"])
        result.append(
            at_least(
                f"STRONGHOLD trains a larger model than {METHODS[method].label}",
                published,
                here,
                1.0,
                (source, variant),
                why=BY_OWNERSHIP if emulated else "",
                cannot=f"{BY_OWNERSHIP}, and the device decided" if device_bound else "",
            )
        )
    return result
