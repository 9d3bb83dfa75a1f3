"""Varuna under jitter: how efficient each policy is where passes and messages vary, and what it
stashes for that; simulated, and in steps that are paced."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from statistics import mean
from typing import Any

import pandas as pd

from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.preview import cached
from workbench.exhibits.varuna.base import VarunaExhibit
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, REFERENCE, SIMULATED, pick
from workbench.methods.pipeline import quick
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.policies import (
    MICROS,
    POLICIES,
    RANKS,
    SECONDS,
    SEND_S,
    SETTINGS,
    Policy,
    simulated,
    stashed,
)
from workbench.published.tables import FOLDER

SEEDS = 8
ROUNDED = 0.0005
"""Rounding of the published efficiencies."""
PIPELINES = ("gpipe", "1f1b-late", "1f1b-early")
EFFICIENCY, STASH = "efficiency", "stash"
UNITS = {EFFICIENCY: "share", STASH: "inputs"}
IDEAL_S = MICROS * sum(SECONDS.values())
"""A step in which no rank waits."""


def efficiencies(asked: Asked, source: str = SIMULATED) -> pd.DataFrame:
    """By policy and jitter."""
    told = pick(asked.rows, quantity=EFFICIENCY, source=source)
    return told.pivot(index="label", columns="pair", values="value")


def calm(asked: Asked) -> float:
    """The share of policies that have the reference's efficiency where nothing varies."""
    ours, theirs = (efficiencies(asked, source)["0/0"] for source in (SIMULATED, REFERENCE))
    return float(((ours - theirs).abs() <= ROUNDED).mean())


def in_order(asked: Asked) -> float:
    """The share of pairs of policies, clearly apart, that are in the reference's order."""
    pair, clear = asked.given["pair"], asked.given["points"] / 100
    ours, theirs = (efficiencies(asked, source)[pair] for source in (SIMULATED, REFERENCE))
    apart = [(a, b) for a, b in permutations(theirs.index, 2) if theirs[a] - theirs[b] > clear]
    return sum(ours[a] > ours[b] for a, b in apart) / len(apart)


def loses_least(asked: Asked) -> float:
    """The loss of efficiency of the policy after Varuna over Varuna's."""
    ours = efficiencies(asked)
    lost = ours["0/0"] - ours[asked.given["pair"]]
    varuna, *others = (policy.label for policy in POLICIES.values())
    return lost[others].min() / lost[varuna]


def faster(asked: Asked) -> Found:
    """Varuna's efficiency over those of other pipelines, at most."""
    ours = efficiencies(asked)[asked.given["pair"]]
    labels = [POLICIES[name].label for name in PIPELINES]
    over = {label: ours[POLICIES["varuna"].label] / ours[label] for label in labels}
    told = ", ".join(f"{n:.2f} over {name}" for name, n in over.items())
    return Found(max(over.values()), why=f"jitter of our choice: {told}")


def as_paced(asked: Asked) -> Found:
    """The share of paced steps that take as long as they are simulated."""
    far = asked.of_series()["error"]
    share = None if far.isna().any() else float((far <= asked.given["near"]).mean())
    return Found(share, why=f"the worst is {far.max():.1%} off")


class UnderJitter(VarunaExhibit):
    """Efficiencies beside those of an independent simulator, paced steps, and stashed inputs."""

    metrics = by_name(calm, in_order, loses_least, faster, as_paced)

    def specs(self, size: Any) -> list[RunSpec]:
        """Smoke: a step of each policy, shorter; else one of each seed and setting."""
        small = size.name in ("tiny", "smoke")
        model = ModelSpec(layers=1, hidden=4, heads=1, seq=4, vocab=4)
        about = {"method": "varuna-paced", "model": model, "batch": MICROS, "microbatches": MICROS}
        steps = size.given.get("steps", 1 if small else SEEDS)
        about |= {"device": "cpu", "ranks": RANKS, "steps": steps}
        return [
            RunSpec.of(**about, jitter=setting, scale=0.4 if small else 1.0)
            for setting in [*SETTINGS][-1 if small else 0 :]
        ]

    def preview(self, at: Opened) -> pd.DataFrame:
        """Steps take as long as they are simulated, and no more is known."""
        if at.simulated:
            return super().preview(at)
        told = [
            (f"paced steps, jitter {p.spec.options.jitter} ms", p.record and cached(p.record))
            for p in next(self.stages(at)).points
        ]
        return pd.DataFrame([{"run": run, "state": state or "to run"} for run, state in told])

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        told = [(RunSpec.from_dict(one.spec), one) for one in records]
        told = told or [(spec, None) for spec in self.specs(at.size)]
        paced = (row for one in told for row in _paced(*one, self.unmeasured(at)))
        rows = [*_reference(), *_simulated(), *paced]
        return self.tabled(at, rows, "quantity", "error")

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """A panel for each jitter, and one of what the policies stash."""
        drawing.prepare(figure, 2)
        panels = figure.subplots(2, 2).ravel()
        names = {policy.label: policy.label.replace(", ", ",\n") for policy in POLICIES.values()}
        told = pick(rows, quantity=EFFICIENCY)
        for axes, setting in zip(panels, SETTINGS, strict=False):
            part = pick(told, pair=setting)
            drawing.bars(axes, part, names, "efficiency", column="label", number="{:.3f}")
            drawing.title(axes, f"jitter of passes/messages: {setting} ms")
        most = pick(rows, quantity=STASH, pair=[*SETTINGS][-1])
        drawing.bars(panels[-1], most, names, "stashed inputs", column="label")
        drawing.title(panels[-1], f"most inputs on a rank, {[*SETTINGS][-1]} ms")
        drawing.legend(figure, told, methods=False)
        lacking = [why for why in dict.fromkeys(told["status"]) if why != "ok"]
        facts = {"ranks": RANKS, "micros": MICROS, "seeds": SEEDS}
        facts["lacking"] = " ".join(f"Not measured: {why}." for why in lacking)
        drawing.small_print(figure, self.printed(**facts))


def _reference() -> Iterator[dict[str, Any]]:
    how = "independent simulator, 8 seeds"
    for row in pd.read_csv(FOLDER / "varuna_jitter.csv").itertuples():
        about = _about(POLICIES[row.policy], f"{row.pass_sd_ms}/{row.message_sd_ms}", EFFICIENCY)
        yield about | {"value": row.efficiency, "source": REFERENCE, "how": how}


def _simulated() -> Iterator[dict[str, Any]]:
    """Mean, least and most over the seeds, of each policy under each jitter."""
    seconds = [SECONDS] * RANKS
    links = quick.Links(seconds=[SEND_S] * (RANKS - 1))
    for setting, (passes_s, messages_s) in SETTINGS.items():
        sizes = {"compute_s": passes_s, "network_s": messages_s}
        draws = [Jitter(**sizes, seed=seed).draws(RANKS, MICROS) for seed in range(SEEDS)]
        for policy in POLICIES.values():
            listed = policy.passes(RANKS, MICROS)
            ran = [quick.timeline(listed, seconds, links, policy.rule, drawn) for drawn in draws]
            found = {
                EFFICIENCY: [IDEAL_S / max(timed.end_s for timed in step) for step in ran],
                STASH: [stashed(step) for step in ran],
            }
            for quantity, values in found.items():
                told = {"source": SIMULATED, "how": f"{SEEDS} seeds"}
                yield _about(policy, setting, quantity) | _spread(values) | told


def _paced(spec: RunSpec, record: RunRecord | None, why: str) -> Iterator[dict[str, Any]]:
    """Of each policy of a run, or why there is none; and by how much its worst step is off."""
    scale, draws = spec.options.scale, spec.options.draws(spec.steps)
    told = {"source": MEASURED, "how": f"{spec.steps} seeds, paced by sleeping", "status": why}
    if record is not None:
        told |= {"status": record.status, "busy": record.busy}
    ran = iter(record.step_seconds if record is not None else ())
    for policy in POLICIES.values():
        steps = [*zip(draws, ran, strict=False)]
        off = [abs(s / simulated(policy, each, scale) - 1) for each, s in steps]
        told["error"] = max(off, default=None)
        values = _spread([scale * IDEAL_S / seconds for _, seconds in steps])
        yield _about(policy, spec.options.jitter, EFFICIENCY) | values | told


def _about(policy: Policy, setting: str, quantity: str) -> dict[str, Any]:
    """Columns of a policy's value under a jitter."""
    return {
        "method": policy.method, "label": policy.label, "pair": setting, "quantity": quantity,
        "unit": UNITS[quantity], "status": "ok",
    }  # fmt: skip


def _spread(values: list[float]) -> dict[str, float | None]:
    ends = (min(values), max(values)) if len({*values}) > 1 else (None, None)
    return {"value": mean(values) if values else None, "low": ends[0], "high": ends[1]}
