"""Chooses the costs that answer a question about a machine, and says how far they were measured.

A profile holds for one micro-batch, and only those that ran here were measured. Somebody who moves
a slider asks about all of them: the nearest measured one then serves in proportion, and the answer
says so. Nothing is measured here.
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

from workbench.profile.profile import Profile, UnitCost
from workbench.profile.store import stored_profile
from workbench.runs.planning import choose_profile
from workbench.runs.store import Store
from workbench.ui.planner import Question

MICROBATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Micro-batches whose measurements may serve, besides the one asked for."""
ALIKE = {"embedding", "block", "head"}
PROPORTIONAL = (
    "forward_s", "recompute_s", "backward_s", "flops", "input_bytes", "output_bytes", "kept_bytes",
    "forward_scratch_bytes", "recompute_scratch_bytes", "backward_scratch_bytes",
    "recorded_forward_s", "recorded_recompute_s", "recorded_backward_s",
)  # fmt: skip


def profile_of(question: Question, results: Path) -> tuple[Profile, str]:
    """The profile with the machine's own link, and a sentence on how its times were obtained.

    Raises ValueError for a rate that is not known, as published machines' are not in bf16.
    """
    spec = question.spec.with_(link_bytes_per_s=None)
    own = choose_profile(spec, Store(results), question.machine)
    if own.hardware.source == "estimated":
        for microbatch in sorted(MICROBATCHES, key=lambda m: abs(log(m / spec.microbatch))):
            near = spec.with_(batch=microbatch, microbatches=1)
            if (found := stored_profile(near, results)) is not None:
                return scaled(found, spec.microbatch), (
                    f"micro-batch {spec.microbatch} was not measured here: times and activations "
                    f"are in proportion to those of micro-batch {microbatch}; a run measures it"
                )
    return own, own.note


def scaled(profile: Profile, microbatch: int) -> Profile:
    """The profile at another micro-batch, were everything that depends on it in proportion."""
    factor = microbatch / profile.microbatch

    def unit(cost: UnitCost) -> UnitCost:
        values = {name: getattr(cost, name) * factor for name in PROPORTIONAL}
        whole = {name: round(value) for name, value in values.items() if name.endswith("_bytes")}
        return replace(cost, **{**values, **whole})

    made = {id(cost): unit(cost) for cost in profile.units}  # units of one kind are one object
    units = tuple(made[id(cost)] for cost in profile.units)
    return replace(profile, units=units, microbatch=microbatch)


def at_depth(profile: Profile, layers: int) -> Profile | None:
    """The profile of a model with as many layers as asked for; None where layers are not alike."""
    first, *blocks, head = profile.units
    if {unit.kind for unit in profile.units} != ALIKE:
        return None
    return replace(profile, units=(first, *[blocks[0]] * layers, head))
