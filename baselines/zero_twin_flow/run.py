"""Twin-Flow: weights and a share of the optimizer on the device, the rest on the host.

DeepSpeed's ZeRO-Offload++: ``offload_optimizer.ratio`` of the parameters are updated by
DeepSpeedCPUAdam, the first ones by torch's AdamW on the device. DeepSpeed has it in stage 3 only,
and leaves the choice of the ratio to its user; here it is the smallest that the device's budget
allows by what the run is known to need. Imports neither torch nor DeepSpeed until a run starts.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.late import by_deepspeed
from baselines.zero_plan import activation_bytes, stage_3
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.model import make_model
from workbench.profile.machine import this_machine

if TYPE_CHECKING:
    from baselines.zero import Adapter

LABEL = "Twin-Flow"
STATE_BYTES = 16
"""Bytes of a parameter on the device beside its weight: master, gradient and two moments in
fp32."""
RESERVE_SHARE, RESERVE_BYTES = 0.06, 3 << 30
"""Share of the budget, and bytes, reserved for fragments; and for gathered weights, buckets, and an
update's temporaries."""
LIVE_BLOCKS = 4
"""Blocks whose gathered weights may be on the device at once, beside the weights themselves."""


def offloaded_share(spec: RunSpec, parameters: int, budget: int) -> float:
    """Share of the model's parameters updated on the host, rounded up to a percent; at least one.
    `budget`: bytes of the device."""
    states = STATE_BYTES * parameters
    reserve = RESERVE_SHARE * budget + min(RESERVE_BYTES, states)  # less beside a small model
    needed = VALUE_BYTES[spec.dtype] * parameters + activation_bytes(spec) + reserve
    return min(1.0, max(0.01, math.ceil(100 * (1 - (budget - needed) / states)) / 100))


def settings(spec: RunSpec, block_elements: int, *, share: float) -> dict[str, Any]:
    """DeepSpeed's configuration for a model whose blocks have `block_elements` parameters, of whose
    parameters a share is updated on the host."""
    zero = stage_3(spec, block_elements, LIVE_BLOCKS * block_elements)
    zero["offload_optimizer"]["ratio"] = share
    return {"zero_optimization": zero}


def adapter(spec: RunSpec, folder: Path) -> Adapter:
    """How DeepSpeed runs this spec."""
    from baselines.zero import Adapter

    budget = spec.device_memory or this_machine(spec.device).tiers()[0]
    share = offloaded_share(spec, make_model(spec.model).parameters_count(), budget)
    told = (f"ratio {share:.2f} of the parameters is updated on the host",)
    by_share = partial(settings, share=share)
    return Adapter(label=LABEL, settings=by_share, sharded=True, own_adam=True, notes=told)


check, train, _ = by_deepspeed(adapter, "", LABEL)
