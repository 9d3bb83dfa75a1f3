"""ZeRO-Infinity: weights, gradients and optimizer states on the host (or states on the disk).

Rajbhandari et al., SC 2021, sections 5.1.1 (what goes where), 6.2 (overlap) and 6.3 (offload
engine). See README.md for the settings and why. Imports neither torch nor DeepSpeed until a run
starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.late import by_deepspeed
from baselines.zero_plan import stage_3
from workbench.core.spec import VALUE_BYTES, RunSpec

if TYPE_CHECKING:
    from baselines.zero import Adapter

LABEL = "ZeRO-Infinity"
LIVE_ELEMENTS = 1_000_000_000
"""Fetched parameters that may stay on the device, as in the published runs."""
LIVE_SHARE = 4
"""Divisor of the device budget: live parameters take at most one part in four."""
STATES = 4
"""Master weights, gradients and two moments: what the disk tier stages of a tile."""


def settings(spec: RunSpec, block_elements: int, scratch: Path | None = None) -> dict[str, Any]:
    """DeepSpeed's configuration for a model whose blocks have `block_elements` parameters.

    With `scratch` the optimizer states go to the disk, into that folder.
    """
    zero = stage_3(spec, block_elements, live_elements(spec, block_elements))
    zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if scratch is None:
        return {"zero_optimization": zero}
    zero["offload_optimizer"] |= {
        "device": "nvme",
        "nvme_path": str(scratch),
        "pipeline_read": True,
        "pipeline_write": True,
        # The tile being updated, the one being read and the one being written.
        "buffer_count": 3 * STATES,
    }
    aio = {
        "block_size": 1 << 20,
        "queue_depth": 32,
        "intra_op_parallelism": 1,
        "single_submit": False,
        "overlap_events": True,
    }
    return {"zero_optimization": zero, "aio": aio}


def live_elements(spec: RunSpec, block_elements: int) -> int:
    """Bound on fetched parameters: the published one, or less where the device budget is small."""
    if spec.device_memory is None:
        return LIVE_ELEMENTS
    affordable = spec.device_memory // (LIVE_SHARE * VALUE_BYTES[spec.dtype])
    return min(LIVE_ELEMENTS, max(block_elements, affordable))


def adapter(spec: RunSpec, folder: Path) -> Adapter:
    """How DeepSpeed runs this spec."""
    from baselines.zero import Adapter

    scratch = folder / "zero-infinity-scratch" if spec.options.optimizer_tier == "disk" else None
    return Adapter(
        label=LABEL,
        settings=lambda spec, elements: settings(spec, elements, scratch),
        sharded=True,
        scratch=scratch,
    )


check, train, training = by_deepspeed(adapter, __name__, LABEL)
"""The states on the disk, if any, are gone when a training returns or raises."""
