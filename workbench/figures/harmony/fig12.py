"""Harmony figure 12: what each method moves over the host's link in a step."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbench.figures.exhibit import quotient
from workbench.figures.harmony import looks, volumes
from workbench.figures.harmony.judge import within
from workbench.figures.harmony.sizes import (
    DP,
    DP_SWAP,
    HARMONY,
    ONE,
    PP,
    PP_SWAP,
    SWAPPED,
    HarmonySize,
)
from workbench.figures.harmony.table import (
    FORMULA,
    HERE,
    MEASURED,
    OURS,
    REFERENCE,
    SERVER,
    SIMULATED,
    estimated,
    join,
    label_of,
    measured,
    missing,
    one,
    pick,
    predicted,
    table,
)
from workbench.figures.style import lighter
from workbench.figures.verdict import Verdict, at_least
from workbench.published import harmony_plans
from workbench.published.harmony import GIB
from workbench.runs.record import RunRecord
from workbench.runs.spec import RunSpec
from workbench.runs.store import Store

FIGURE, SECTION = "harmony_12", "VLDB'22, figure 12: GPT2-XL on 4 GPUs"
TITLE = "Swap volume of a step"
CLAIM = (
    "Harmony-PP moves about twice the weights in and once the gradients out whatever the number of "
    "devices; Harmony-DP brings the weights to every device."
)
PLANS = ("10",)
"""Of the kept plans, by their figure."""
MODEL, GPUS = "gpt2_xl", 4
PARTS = {
    "weights_in": ("weights in", "#0072B2"),
    "gradients_out": ("gradients out", "#D55E00"),
    "activations_in": ("activations in", "#56B4E9"),
    "activations_out": ("activations out", "#E69F00"),
    "p2p": ("device to device, not over the host's link", "#999999"),
}
"""Label and colour."""
LINK = tuple(name for name in PARTS if name != "p2p")
OWN = ("load", "store")
"""What the runtime counts."""
EQUAL = 0.01
FORMULA_LINE = {"color": "#888888", "lw": 0.8, "ls": (0, (4, 2))}


def specs(size: HarmonySize, largest: dict[str, int]) -> list[RunSpec]:
    """Both modes on every number of devices, the same without packs and baselines on the most."""
    runs = [size.spec(method, size.moved, ranks) for method, ranks in size.on_several()]
    most = size.ranks_here()[-1]
    runs += [size.spec(name, size.moved, min(most, size.most_replicas)) for name in SWAPPED]
    return runs + [size.spec(name, size.moved, most) for name in size.known_peers()]


def rows(records: list[RunRecord], store: Store, size: HarmonySize) -> pd.DataFrame:
    """Bytes a step, counted by the runtime; planned; and by the formula where packs are pinned."""
    out = []
    for record in records:
        model, x = size.moved.name, record.spec["ranks"]
        spec = RunSpec.from_dict(record.spec)
        told = volumes.formula(spec) if record.method in HARMONY else None
        for way in OWN:
            row = measured(record, way, model, x=x)
            out += [row, *predicted(record, way, model, x=x)]
            if told is not None and record.status == "ok":
                out.append(row | _by_formula(getattr(told, way)))
        if record.parameters:
            weights = record.parameters * volumes.VALUE_BYTES[spec.dtype]
            out.append(row | _by_formula(weights) | {"quantity": "weights"})
    return table(out)


def _by_formula(nbytes: int) -> dict[str, Any]:
    how = "from the packs alone"
    return {"source": FORMULA, "value": nbytes, "low": None, "high": None, "how": how}


def known(size: HarmonySize, plans: pd.DataFrame) -> pd.DataFrame:
    """Bytes of the authors' stored schedules, and of our plans on the same profile."""
    told = estimated("12", *PARTS)
    plans = pick(plans, figure=PLANS, model=MODEL, planner=harmony_plans.OURS)
    own = [
        {
            "model": MODEL,
            "method": row.method,
            "label": label_of(row.method),
            "ranks": row.ranks,
            "minibatch": row.minibatch,
            "setting": row.setting,
            "quantity": part,
            "value": getattr(row, part) / GIB,
            "unit": "GiB",
            "source": SIMULATED,
            "variant": OURS,
            "hardware": SERVER,
            "how": f"counted in the schedule of our plan, planned {row.planned}",
            "status": "ok",
        }
        for row in plans.itertuples()
        for part in PARTS
    ]
    return join(told, table(own, size="paper"))


def absent(size: HarmonySize, why: str) -> pd.DataFrame:
    """What did not run."""
    return table([missing(name, size.moved.name, way, why) for name in HARMONY for way in OWN])


def draw(figure: Any, rows: pd.DataFrame) -> None:
    """Parts of the volume by minibatch, and all of it over the number of devices."""
    looks.prepare(figure, 1.25)
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    there = pick(rows, model=MODEL, ranks=GPUS, quantity=tuple(PARTS))
    there = there[there["source"] != MEASURED]
    _stacks(left, there)
    looks.title(left, "GPT2-XL, 4 GPUs: by minibatch")
    _over_ranks(right, rows)
    looks.title(right, "over the host's link, by devices")
    _legends(figure, left, right, rows)
    looks.small_print(
        figure,
        looks.ESTIMATES,
        "Right, formula: three times the weights (Harmony-PP) and 2 N + 1 times (Harmony-DP), "
        "without activations; hollow and half-filled marks at 4 GPUs are those of the left at a "
        "minibatch of 64. Swap: data parallel and pipeline without packs, on as much memory. "
        "Measured: bytes counted by the runtime, activations included; what was "
        "simulated before the run lies under it.",
    )


def _stacks(axes: Any, rows: pd.DataFrame) -> None:
    batches = sorted(set(rows["minibatch"]))
    kinds = [(m, s, v) for m in (DP, PP) for s, v in ((REFERENCE, ""), (SIMULATED, OURS))]
    width = 0.86 / len(kinds)
    top = 0.0
    for place, batch in enumerate(batches):
        for i, (method, source, variant) in enumerate(kinds):
            part = pick(rows, minibatch=batch, method=method, source=source, variant=variant)
            if part["value"].isna().all():
                continue
            x, base = place + (i - (len(kinds) - 1) / 2) * width, 0.0
            for name, (_, color) in PARTS.items():
                value = one(part, quantity=name) or 0.0
                look = looks.bar_look(color, source, variant)
                if source == REFERENCE:
                    look["facecolor"] = lighter(color)
                axes.bar(x, value, width * 0.84, bottom=base, **look)
                base += value
            top = max(top, base)
            words = label_of(method).removeprefix("Harmony-")
            axes.annotate(
                words, (x, base), xytext=(0, 2), textcoords="offset points", ha="center",
                fontsize=looks.NOTE_PT,
            )  # fmt: skip
    axes.set_xticks(range(len(batches)), [f"minibatch {int(batch)}" for batch in batches])
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, max(top, 1.0) * 1.12)
    axes.set_ylabel("GiB per step, all GPUs")


def _over_ranks(axes: Any, rows: pd.DataFrame) -> None:
    shown = per_weights(rows)
    most = max([GPUS, *shown["x"].dropna()])
    ticks = [n for n in (1, 2, 3, 4, 8) if n <= most]
    for method in HARMONY:
        values = [volumes.bound(method, n) for n in ticks]
        axes.plot(ticks, values, zorder=0.5, **FORMULA_LINE)
    if shown.empty:
        looks.empty(axes, "no bytes are known")
        return
    looks.lines(axes, shown, "devices", "host bytes / bytes of weights", ticks=ticks)


def per_weights(rows: pd.DataFrame) -> pd.DataFrame:
    """Bytes in and out together, in sizes of the model's weights, over the number of devices."""
    out = []
    for source, variant in ((REFERENCE, ""), (SIMULATED, OURS)):
        for method in HARMONY:
            part = pick(rows, model=MODEL, ranks=GPUS, minibatch=64, method=method)
            part = pick(part, source=source, variant=variant, quantity=LINK)
            part = part.dropna(subset=["value"])
            if len(part):
                row = part.iloc[0].to_dict()
                weights = WEIGHTS_GIB[MODEL]
                out.append(row | {"x": GPUS, "value": part["value"].sum() / weights})
    for key in dict.fromkeys(pick(rows, source=MEASURED, quantity=OWN)["key"]):
        part = pick(rows, key=key)
        for source, variant in ((MEASURED, ""), (SIMULATED, HERE)):
            own = pick(part, source=source, variant=variant, quantity=OWN).dropna(subset=["value"])
            weights = one(part, quantity="weights")
            if len(own) == len(OWN) and weights:
                row = own.iloc[0].to_dict()
                out.append(row | {"value": own["value"].sum() / weights})
    return table(out).assign(quantity="host_traffic", unit="sizes of the weights")


WEIGHTS_GIB = {MODEL: 6.102 + 0.188}
"""Weights and buffers of the published model, which the authors swap together."""


def _legends(figure: Any, left: Any, right: Any, rows: pd.DataFrame) -> None:
    """Sources above, parts and methods where they are drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    small = {"fontsize": looks.NOTE_PT, "labelspacing": 0.25, "handlelength": 1.4, "borderpad": 0.1}
    parts = [Patch(color=color, label=words) for words, color in PARTS.values()]
    left.legend(handles=parts[::-1], loc="upper left", **small)
    marks = [
        Line2D([], [], color=look.color, marker=look.marker, ms=4.5, lw=0.9, label=label_of(method))
        for method, look in looks.LOOKS.items()
        if method in set(per_weights(rows)["method"])
    ]
    marks.append(Line2D([], [], label="2 N + 1, and 3: formula", **FORMULA_LINE))
    right.legend(handles=marks, loc="upper left", **small)
    looks.legend(figure, rows[rows["source"] != FORMULA], methods=False)


def verdicts(rows: pd.DataFrame) -> list[Verdict]:
    """Fewer bytes than DP, as many on any number of devices, at most three times the weights, and
    those of the formula and of the plan."""
    told = {
        method: sum(
            pick(rows, model=MODEL, ranks=GPUS, minibatch=64, method=method, source=REFERENCE,
                 quantity=LINK)["value"]
        )
        for method in HARMONY
    }  # fmt: skip
    ours = {
        method: sum(
            pick(rows, model=MODEL, ranks=GPUS, minibatch=64, method=method, variant=OURS,
                 quantity=LINK)["value"]
        )
        for method in HARMONY
    }  # fmt: skip
    found = [
        at_least(
            "GPT2-XL on 4 GPUs, minibatch 64: Harmony-PP moves fewer bytes over the host's link "
            "than Harmony-DP (DP over PP)",
            quotient(told[DP], told[PP]),
            quotient(ours[DP], ours[PP]),
            1.0,
            (SIMULATED, OURS),
        )
    ]
    own = {
        (method, ranks): _total(rows, method=method, ranks=ranks)
        for method in HARMONY + SWAPPED
        for ranks in sorted(set(pick(rows, source=MEASURED)["ranks"].dropna()))
    }
    several = sorted(ranks for (method, ranks), total in own.items() if method == PP and total)
    most = several[-1] if several else None
    both = max((ranks for ranks in several if own.get((DP, ranks))), default=None)
    series = (MEASURED, "")
    found.append(
        at_least(
            "Harmony-PP moves fewer bytes than Harmony-DP on the most devices that both ran on (DP "
            "over PP)",
            quotient(told[DP], told[PP]),
            quotient(own.get((DP, both)), own.get((PP, both))),
            1.0,
            series,
        )
    )
    found.append(
        at_least(
            "Harmony-PP moves no more bytes on the most devices that ran than one device does (one "
            "over most, within 1 %)",
            None,
            quotient(own.get((ONE, 1)), own.get((PP, most))),
            1 - EQUAL,
            series,
        )
    )
    for method, swapped in ((PP, PP_SWAP), (DP, DP_SWAP)):
        ranks = max(
            (ranks for name, ranks in own if name == swapped and own[name, ranks]), default=0
        )
        found.append(
            at_least(
                f"{label_of(method)} moves fewer bytes than {label_of(swapped)}, on as many "
                "devices of as much memory (the latter over the former)",
                None,
                quotient(own.get((swapped, ranks)), own.get((method, ranks))),
                1.0,
                series,
            )
        )
    pinned = pick(rows, source=FORMULA, quantity=OWN)
    weights = one(pick(rows, method=PP, quantity="weights"))
    activations = _activations(rows)
    if weights and activations is not None and most is not None:
        found.append(
            at_least(
                "Harmony-PP's weights and gradients are at most three times the weights (the bound "
                "over what was counted, activations taken off by the formula)",
                None,
                3 * weights / (own[PP, most] - activations),
                1.0,
                series,
            )
        )
    for words, source, variant in (
        ("the formula of its packs", FORMULA, ""), ("its plan", SIMULATED, HERE),
    ):  # fmt: skip
        if source != FORMULA or len(pinned):
            worst = _worst(rows, source, variant)
            found.append(
                within(
                    f"what every run counted is what {words} says, within 1 % (the worst one)",
                    worst,
                    1.0 if worst else None,
                    EQUAL,
                    series,
                )  # fmt: skip
            )
    return found


def _total(rows: pd.DataFrame, **where: Any) -> float | None:
    part = pick(rows, source=MEASURED, quantity=OWN, **where).dropna(subset=["value"])
    return float(part["value"].sum()) if len(part) == len(OWN) else None


def _activations(rows: pd.DataFrame) -> float | None:
    """Of a step of Harmony-PP, both ways, by the formula: what leaves beyond the gradients."""
    part = pick(rows, method=PP)
    store, weights = (
        one(pick(part, source=FORMULA, quantity=name)) for name in ("store", "weights")
    )
    return None if store is None or weights is None else 2 * (store - weights)


def _worst(rows: pd.DataFrame, source: str, variant: str) -> float | None:
    """The largest factor between counted bytes and expected ones, of any run and way."""
    factors = []
    for row in pick(rows, source=MEASURED, method=HARMONY + SWAPPED, quantity=OWN).itertuples():
        expected = one(
            pick(rows, key=row.key, quantity=row.quantity), source=source, variant=variant
        )
        if expected and row.value == row.value:
            factors.append(max(row.value, expected) / min(row.value, expected))
    return max(factors, default=None)
