"""Time of a layer's pass where ranks share a processor, from a short training.

Without GPUs every lane of every rank has a thread on the cores that compute. Lanes take turns
(server.py), and beyond that passes are slower than in the profile of a layer, which is timed alone:
taking turns costs time, and every turn finds the caches full of other data. With two ranks on two
cores a pass took about half a millisecond and a tenth of its time longer. So two small models, one
of which is wider, are trained for some seconds, once per machine and number of ranks. Their steps
give both numbers. A run that is short beside that is planned without them, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from workbench.core.model_spec import ModelSpec
from workbench.core.options import takes
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.profile.profile import Profile, Wires
from workbench.profile.server import ServerCosts, server_of
from workbench.profile.several import of_size
from workbench.profile.store import profile_for, rehearsed
from workbench.profile.table import Echo
from workbench.profile.timing import brief
from workbench.profile.unit_costs import profiled_sizes
from workbench.schedule.schedule import Schedule
from workbench.schedule.simulate import simulate

STEPS, UNSTEADY, NOTED = 40, 8, 3
"""Steps of a training, those that begin it, and those that end it: noted action by action, which
takes time."""
SIMULATED = 3
SAMPLES = 2
"""Samples of a micro-batch."""
WIDTHS = 64, 192
REHEARSAL_S, SHARE, JUDGED = 40.0, 0.1, "reports"
"""Seconds of a rehearsal, about; the share of a run that it may be; the folder among the results of
exhibits, which judge plans: where it is, every run is rehearsed."""
TRIED_S, TRIED = 5e-4, 0.2
"""An overhead and a slowdown, to see how much of them a step is."""

Scheduler = Callable[[RunSpec, Profile], Schedule]
"""Schedules the small model of a spec, which has four units a rank."""
Trainer = Callable[[RunSpec, Schedule], Sequence[float]]
"""Trains under a schedule; returns the seconds of each step."""


def with_overhead(
    profiles: dict[int, Profile],
    run: RunSpec,
    results: Path,
    tell: Echo,
    *,
    scheduled: Scheduler,
    trained: Trainer,
    always: bool = False,
) -> dict[int, Profile]:
    """The profiles, with what passes of all ranks take beside each other: measured now, under
    schedules of the run's method, where this machine's processor plays the devices and it never
    was, and the run is long enough or it is `always` wanted. Raises what made a rank fail."""
    alone = profiles[min(profiles)]
    hardware, wires = alone.hardware, alone.hardware.wires
    if hardware.device == "cuda" or wires is None or wires.pass_overhead_s is not None or brief():
        return profiles
    passes = sum(unit.forward_s + unit.recompute_s + unit.backward_s for unit in alone.units)
    took = run.steps * run.batch / alone.microbatch * passes  # one after the other
    if took * SHARE < REHEARSAL_S and not (always or (results / JUDGED).is_dir()):
        tell(
            f"not rehearsed, which takes some {REHEARSAL_S:.0f} s: this run takes about {took:.0f},"
            " its steps up to twice as long as planned (`workbench plan --measure` rehearses)"
        )
        return profiles

    specs = [_small(run.method, wires.ranks, width) for width in WIDTHS]
    known = [profile_for(of_size(spec, SAMPLES), results, tell) for spec in specs]

    def measure() -> dict[str, float]:
        tell(f"rehearsing: {STEPS} steps of {len(WIDTHS)} small models on {wires.ranks} ranks")
        pairs = zip(specs, known, strict=True)
        return solved(
            [
                rehearse(spec, profile, wires, scheduled=scheduled, trained=trained)
                for spec, profile in pairs
            ]
        )

    found = rehearsed(wires, results, hardware.device, tell, measure)
    return {size: _on(found, profile) for size, profile in profiles.items()}


class Rehearsal(NamedTuple):
    """Seconds of a step of one training, measured and planned."""

    measured: float
    planned: float
    with_overhead: float
    """Planned with an overhead of `TRIED_S` a pass."""
    slower: float
    """Planned with passes that take `TRIED` more of their own time."""


def rehearse(
    spec: RunSpec, profile: Profile, wires: Wires, *, scheduled: Scheduler, trained: Trainer
) -> Rehearsal:
    """Train on so many ranks, and simulate the same schedule."""
    plain = _on(replace(wires, pass_overhead_s=0.0), profile)
    schedule = scheduled(spec, plain)
    sizes = profiled_sizes(make_model(spec.model), spec, {SAMPLES: plain})

    def planned(**changes: float) -> float:
        server = server_of(_on(replace(wires, **changes), profile), spec)
        costs = ServerCosts(sizes, server, shared_updates=False)
        return simulate(schedule, costs, steps=SIMULATED).step_seconds

    steps = trained(spec, schedule)[UNSTEADY:-NOTED]
    seconds, *_ = quantiles(steps, n=4)  # others at work made up to a half of them longer
    return Rehearsal(
        measured=seconds,
        planned=planned(pass_overhead_s=0.0),
        with_overhead=planned(pass_overhead_s=TRIED_S),
        slower=planned(pass_overhead_s=0.0, pass_slowdown=1 + TRIED),
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


def _small(method: str, ranks: int, hidden: int) -> RunSpec:
    """A model of four units a rank, trained in four micro-batches a step."""
    divided = {"microbatches": 4}
    if takes(method, "forward_size"):
        divided = {"forward_size": SAMPLES, "backward_size": SAMPLES}
    return RunSpec.of(
        method=method,
        model=ModelSpec(
            layers=4 * ranks - 2, hidden=hidden, heads=4, seq=64, vocab=256, dropout=0.0, tied=False
        ),
        text=__file__,
        batch=4 * SAMPLES,
        steps=STEPS,
        device="cpu",
        ranks=ranks,
        **divided,
    )


def _on(wires: Wires, profile: Profile) -> Profile:
    return replace(profile, hardware=replace(profile.hardware, wires=wires))
