"""ZeRO-Offload: weights on the device, gradients to the host as they come, DeepSpeedCPUAdam there.

Ren et al., USENIX ATC 2021, sections 3 (what goes where), 4.1 (schedule on one GPU) and 5.1 (CPU
Adam). See README.md for the settings and why. Imports neither torch nor DeepSpeed until a run
starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.late import by_deepspeed
from baselines.zero_plan import BUCKET_ELEMENTS
from workbench.core.spec import RunSpec

if TYPE_CHECKING:
    from baselines.zero import Adapter

LABEL = "ZeRO-Offload"


def settings(spec: RunSpec, block_elements: int) -> dict[str, Any]:
    """DeepSpeed's configuration for a model whose blocks have `block_elements` parameters."""
    bucket = min(BUCKET_ELEMENTS, block_elements)
    bucket += bucket % 2  # NCCL's alignment
    return {
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
        }
    }


def adapter(spec: RunSpec, folder: Path) -> Adapter:
    """How DeepSpeed runs this spec."""
    from baselines.zero import Adapter

    return Adapter(label=LABEL, settings=settings)


check, train, training = by_deepspeed(adapter, __name__, LABEL)
