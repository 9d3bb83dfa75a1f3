"""Plans of pipelines: stages balanced by what was measured, and recomputation where memory asks.

Every plan is proved (bytes of every position too) and simulated before it runs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from workbench.core.division import packs_of
from workbench.core.spec import RunSpec
from workbench.methods.pipeline.balance import Balance
from workbench.methods.pipeline.choosing import chosen
from workbench.methods.pipeline.definition import Pipeline, as_recorded
from workbench.methods.pipeline.orders import ORDERS, Pass, lists
from workbench.methods.pipeline.proofs import Ground
from workbench.model import units_of
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import Schedule

RECOMPUTE = {"auto": (False, True), "keep": (False,), "recompute": (True,)}
"""`activations` of a spec -> whether they are recomputed, as it is tried."""


def check(spec: RunSpec, mode: str) -> None:
    """Raise ValueError, before anything is measured, for what no plan can take."""
    if spec.activations not in RECOMPUTE:
        raise ValueError(
            f"activations is {spec.activations!r}; a pipeline keeps or recomputes them: give keep, "
            "recompute or auto"
        )
    given, units = spec.options.given_stages, units_of(spec.model)
    if spec.options.chooses(spec):
        stages = len(given)
        if stages * spec.options.copies > spec.ranks:
            raise ValueError(
                f"stages {spec.options.stages!r} on {spec.options.copies} replicas need a rank "
                f"each; there are {spec.ranks}"
            )
    else:
        stages = len(_passes(spec, mode)) * spec.options.chunks
    if stages > units:
        raise ValueError(
            f"{stages} stages need a unit each, and the model has {units}: its layers, the "
            "embedding and the head"
        )
    if given and (len(given), sum(given)) != (stages, units):
        raise ValueError(
            f"stages {spec.options.stages!r} are {len(given)} of {sum(given)} units; the ranks "
            f"have {stages} stages and the model {units} units"
        )


def plan(spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str) -> Plan:
    """The first plan that fits: with activations kept, else recomputed; or of the shape that is
    chosen. Raises DoesNotFit where none does, ValueError for profiles of another model."""
    ground = Ground.of(spec, profiles)
    if spec.options.chooses(spec):
        return chosen(ground)
    lacking: list[tuple[str, int]] = []
    tries = RECOMPUTE[spec.activations]
    if ORDERS[mode].recomputes:  # its last stage keeps them, which may be the only one
        tries = (spec.ranks > spec.options.copies,)
    for line in (line for recompute in tries for line in _lines(ground, mode, recompute)):
        schedule, peak = ground.proved(line)
        if tier := ground.budgets.lacking(peak):
            lacking.append((tier, peak[tier]))
            continue
        return ground.plan(schedule, peak)
    if not lacking:
        raise ValueError(
            f"replay is on; not all passes of {mode} can be recorded with activations "
            f"{spec.activations}: leave it at auto, or give off"
        )
    raise ground.refusal(*min(lacking, key=lambda one: one[1]))


def rehearsal(spec: RunSpec, profile: Profile) -> Schedule:
    """The 1F1B schedule of a small model, to rehearse."""
    return plan(spec, {profile.microbatch: profile}, mode="1f1b").schedule


def _passes(spec: RunSpec, mode: str) -> list[list[Pass]]:
    return lists(mode, spec.ranks // spec.options.copies, spec.microbatches, spec.options.chunks)


def _lines(ground: Ground, mode: str, recompute: bool) -> Iterator[Pipeline]:
    """The pipeline with its passes recorded, where that is possible and pays, and launched, where
    they need not be recorded."""
    activations = ORDERS[mode].again if recompute else "keep"
    for recorded in (True,) if ground.spec.replay == "on" else (True, False):
        line = _line(ground, mode, activations, recorded=recorded)
        if line.replay == recorded:
            yield line


def _line(ground: Ground, mode: str, activations: str, *, recorded: bool) -> Pipeline:
    spec = ground.spec
    line = Pipeline(
        method=mode,
        passes=_passes(spec, mode),
        stages=(),
        micro_size=max(spec.options.micro_sizes(spec)),
        samples=spec.options.samples(spec),
        replicas=spec.options.copies,
        activations=activations,
        clipped=spec.clip is not None,
    )
    units, below_s = units_of(spec.model), ground.recorded_below_s if recorded else 0.0
    line = as_recorded(line, ground.sizes, units, below_s)
    if given := spec.options.given_stages:
        return replace(line, stages=packs_of(given))
    balance = Balance(line, ground.sizes, units)
    return replace(line, stages=balance.fastest_within(ground.budgets.device))
