"""What the pass of a layer costs where ranks share a processor, from a short training.

Without GPUs every lane of every rank has a thread on the cores that compute. What those threads
take, and what it costs to take turns, is in no profile of a layer, which is timed alone: with two
ranks on two cores, passes of 0.2 to 3 ms took half a millisecond longer than that, whatever the
model. So a small model is trained for a second, once per machine and number of ranks, and what its
steps take beyond their plan is what passes cost beside their own time.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from workbench.methods.harmony import planner
from workbench.methods.harmony.crew import TIMELINE_STEPS, Crew
from workbench.methods.harmony.packs import PP
from workbench.methods.plan import Plan
from workbench.model.spec import ModelSpec
from workbench.profile.profile import Profile, Wires
from workbench.profile.several import of_size
from workbench.profile.store import profile_for, rehearsed
from workbench.profile.table import Echo
from workbench.profile.timing import brief
from workbench.runs.report import Untold
from workbench.runs.spec import RunSpec

STEPS, UNSTEADY = 24, 4
"""Of the training, and those that begin it. The last ones are noted action by action, which takes
time."""
SAMPLES = 2
"""Of a micro-batch."""
TRIED_S = 5e-4
"""An overhead, to see how much of it a step is."""


def with_overhead(profiles: dict[int, Profile], results: Path, tell: Echo) -> dict[int, Profile]:
    """The profiles, with what passes of all ranks take beside each other: measured now where this
    machine's processor plays the devices and it never was. Raises what made a rank fail."""
    hardware = profiles[min(profiles)].hardware
    wires = hardware.wires
    if hardware.device == "cuda" or wires is None or wires.pass_overhead_s is not None or brief():
        return profiles
    spec = _small(wires.ranks)
    profile = profile_for(of_size(spec, SAMPLES), results, tell)

    def measure() -> float:
        tell(f"rehearsing: {STEPS} steps of a small model on {wires.ranks} ranks")
        return overhead_s(spec, profile, wires)

    found = rehearsed(wires, results, hardware.device, tell, measure)
    return {size: _on(found, profile) for size, profile in profiles.items()}


def overhead_s(spec: RunSpec, profile: Profile, wires: Wires) -> float:
    """Seconds that one pass takes beside its own time, from a training on so many ranks."""
    planned, longer = (_planned(spec, profile, wires, seconds) for seconds in (0.0, TRIED_S))
    with (
        TemporaryDirectory(prefix="rehearsal-") as folder,
        closing(Crew(spec, planned.schedule, Path(folder), device="cpu")) as crew,
    ):
        crew.run(Untold())
        seconds = median(crew.history.step_seconds[UNSTEADY:-TIMELINE_STEPS])
    a_step_grows = (longer.step_seconds - planned.step_seconds) / TRIED_S
    return max(0.0, (seconds - planned.step_seconds) / a_step_grows)


def _small(ranks: int) -> RunSpec:
    """Four packs of two units for every two ranks, so that each has some of both directions."""
    packs = 2 * ranks
    return RunSpec(
        method="harmony-pp",
        model=ModelSpec(
            layers=2 * packs - 2, hidden=64, heads=4, seq=64, vocab=256, dropout=0.0, tied=False
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


def _planned(spec: RunSpec, profile: Profile, wires: Wires, seconds: float) -> Plan:
    there = _on(replace(wires, pass_overhead_s=seconds), profile)
    return planner.plan(spec, {SAMPLES: there}, mode=PP)


def _on(wires: Wires, profile: Profile) -> Profile:
    return replace(profile, hardware=replace(profile.hardware, wires=wires))
