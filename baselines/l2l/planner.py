"""L2L (Pudipeddi et al., arXiv 2002.05645): one layer on the device at a time.

The published algorithm, not the variant of the STRONGHOLD artifact: the loop over layers is outside
and the loop over micro-batches inside, so one transfer serves the whole batch; each micro-batch's
input of a layer is stashed; the backward pass recomputes from it; gradients go to the host as
soon as a layer's are complete, and the host updates eagerly while the device goes on. With one
weight buffer a load starts only when the layer before is done: nothing hides it, which is the
method's price.

Two deviations, both for exactness: clipping, where asked for, is by the global norm (L2L's server
clips each layer), which defers the updates to the end of the backward pass; and the stash is on the
device, L2L's first variant, unless activations are set to ``host``, its constant-memory one.
"""

from __future__ import annotations

from workbench.core.spec import RunSpec
from workbench.methods.offload.evaluate import as_plan, evaluate
from workbench.methods.offload.module_layers import in_layers
from workbench.methods.offload.placement import Placement
from workbench.profile.budgets import Budgets
from workbench.profile.cuda_graphs import replays
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DISK


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """Plan L2L's one placement: a single weight buffer and a single gradient buffer."""
    spec, profile = in_layers(spec, profile)
    budgets = Budgets.of(spec, profile, allocated=True)
    head = len(profile.units) - 1
    placement = Placement(
        method="l2l",
        resident=frozenset({0, head}),
        slots=1,
        gradient_slots=1,
        microbatches=spec.microbatches,
        stash=spec.activations == "host",
        clipped=spec.clip is not None,
        eager=frozenset(range(1, head) if spec.clip is None else ()),
        on_disk=frozenset(range(1, head) if spec.options.optimizer_tier == DISK else ()),
        host_gradient_slots=spec.options.host_workers + 1 if spec.clip is None else None,
        host_workers=spec.options.host_workers,
        replay=replays(spec, profile),
    )
    settings = {"stashed_inputs": placement.stash, "eager_updates": len(placement.eager)}
    candidate = evaluate(placement, profile, budgets, settings)
    return as_plan(candidate, budgets, method="l2l", window=1, resident=0)
