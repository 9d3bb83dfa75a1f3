"""What the pass of a layer costs where ranks share a processor, from a short training.

Without GPUs every lane of every rank has a thread on the cores that compute. Lanes take turns
(server.py), and beyond that passes are slower than in the profile of a layer, which is timed alone:
taking turns costs time, and every turn finds the caches full of other data. With two ranks on two
cores a pass took about half a millisecond and a tenth of its time longer. So two small models, one
of which is wider, are trained for some seconds, once per machine and number of ranks. Their steps
give both numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import NamedTuple

from workbench.core.model_spec import ModelSpec
from workbench.core.reporter import Untold
from workbench.core.spec import RunSpec
from workbench.methods.harmony import planner
from workbench.methods.harmony.packs import PP
from workbench.methods.rank_training import TIMELINE_STEPS, RankTraining
from workbench.profile.profile import Profile, Wires
from workbench.profile.several import of_size
from workbench.profile.store import profile_for, rehearsed
from workbench.profile.table import Echo
from workbench.profile.timing import brief
from workbench.schedule.plan import Plan

STEPS, UNSTEADY = 40, 8
"""Of the training, and those that begin it. The last ones are noted action by action, which takes
time."""
SAMPLES = 2
"""Of a micro-batch."""
WIDTHS = 64, 192
TRIED_S, TRIED = 5e-4, 0.2
"""An overhead and a slowdown, to see how much of them a step is."""


def with_overhead(profiles: dict[int, Profile], results: Path, tell: Echo) -> dict[int, Profile]:
    """The profiles, with what passes of all ranks take beside each other: measured now where this
    machine's processor plays the devices and it never was. Raises what made a rank fail."""
    hardware = profiles[min(profiles)].hardware
    wires = hardware.wires
    if hardware.device == "cuda" or wires is None or wires.pass_overhead_s is not None or brief():
        return profiles

    specs = [_small(wires.ranks, width) for width in WIDTHS]
    known = [profile_for(of_size(spec, SAMPLES), results, tell) for spec in specs]

    def measure() -> dict[str, float]:
        tell(f"rehearsing: {STEPS} steps of {len(WIDTHS)} small models on {wires.ranks} ranks")
        trained = zip(specs, known, strict=True)
        return solved([rehearse(spec, profile, wires) for spec, profile in trained])

    found = rehearsed(wires, results, hardware.device, tell, measure)
    return {size: _on(found, profile) for size, profile in profiles.items()}


class Rehearsal(NamedTuple):
    """A training's step in seconds, and its plan's."""

    measured: float
    planned: float
    with_overhead: float
    """A planned step with an overhead of `TRIED_S` a pass."""
    slower: float
    """A planned step whose passes take `TRIED` more of their own time."""


def rehearse(spec: RunSpec, profile: Profile, wires: Wires) -> Rehearsal:
    """Train on so many ranks, and plan the same packs."""

    def planned(**changes: float) -> Plan:
        there = _on(replace(wires, **changes), profile)
        return planner.plan(spec, {SAMPLES: there}, mode=PP)

    plan = planned(pass_overhead_s=0.0)
    with (
        TemporaryDirectory(prefix="rehearsal-") as folder,
        closing(RankTraining(spec, plan.schedule, Path(folder), device="cpu")) as crew,
    ):
        crew.run(Untold())
        steps = crew.history.step_seconds[UNSTEADY:-TIMELINE_STEPS]
        seconds, *_ = quantiles(steps, n=4)  # others at work made up to a half of them longer
    return Rehearsal(
        measured=seconds,
        planned=plan.step_seconds,
        with_overhead=planned(pass_overhead_s=TRIED_S).step_seconds,
        slower=planned(pass_overhead_s=0.0, pass_slowdown=1 + TRIED).step_seconds,
    )


def solved(trials: Sequence[Rehearsal]) -> dict[str, float]:
    """The overhead and the slowdown of passes with which two plans take what was measured; where
    one of them were less than nothing, the other alone, on the mean."""
    late = [each.measured - each.planned for each in trials]
    (a, b), (c, d) = (
        ((each.with_overhead - each.planned) / TRIED_S, (each.slower - each.planned) / TRIED)
        for each in trials
    )
    overhead = (late[0] * d - late[1] * b) / (a * d - b * c)
    more = (late[1] * a - late[0] * c) / (a * d - b * c)
    if more < 0:
        overhead, more = (late[0] / a + late[1] / c) / 2, 0.0
    elif overhead < 0:
        overhead, more = 0.0, (late[0] / b + late[1] / d) / 2
    return {"pass_overhead_s": max(0.0, overhead), "pass_slowdown": 1 + max(0.0, more)}


def _small(ranks: int, hidden: int) -> RunSpec:
    """Four packs of two units for every two ranks, so that each has some of both directions."""
    packs = 2 * ranks
    return RunSpec.of(
        method="harmony-pp",
        model=ModelSpec(
            layers=2 * packs - 2, hidden=hidden, heads=4, seq=64, vocab=256, dropout=0.0, tied=False
        ),
        text=__file__,
        batch=4 * SAMPLES,
        steps=STEPS,
        device="cpu",
        ranks=ranks,
        forward_size=SAMPLES,
        backward_size=SAMPLES,
        forward_packs=" ".join(["2"] * (packs - 1)),
        backward_packs=" ".join(["2"] * packs),
    )


def _on(wires: Wires, profile: Profile) -> Profile:
    return replace(profile, hardware=replace(profile.hardware, wires=wires))
