"""Plain training on this runtime: everything on the device, nothing moves. Every method is equal to
it; Megatron-LM does the same on one device."""

from __future__ import annotations

from workbench.core.spec import RunSpec
from workbench.methods.offload.evaluate import as_plan, evaluate
from workbench.methods.offload.module_layers import with_sums
from workbench.methods.offload.placement import Placement
from workbench.profile.budgets import Budgets
from workbench.profile.cuda_graphs import replays
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan
from workbench.training.on_device import trained_by


def check(spec: RunSpec) -> None:
    """Raise ValueError for activations on the host."""
    if spec.activations == "host":
        raise ValueError(
            f"{spec.method} keeps everything on the device; activations cannot be 'host', use "
            "'recompute' or 'keep'"
        )


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The only placement there is. Micro-batches run one after the other through the whole model.
    Raises ValueError as `check`."""
    check(spec)
    profile = with_sums(spec, profile)
    budgets = Budgets.of(spec, profile, allocated=True)
    placement = Placement(
        method="resident",
        resident=frozenset(range(len(profile.units))),
        slots=0,
        microbatches=spec.microbatches,
        kept=frozenset(range(len(profile.units)) if spec.activations == "keep" else ()),
        clipped=spec.clip is not None,
        held_gradients=True,
        microbatch_major=True,
        replay=replays(spec, profile),
    )
    settings = {"kept_layers": spec.model.layers if placement.kept else 0}
    candidate = evaluate(placement, profile, budgets, settings)
    return as_plan(candidate, budgets, method=spec.method, whole=True)


train = trained_by(plan, engine="workbench (plain resident training)")
