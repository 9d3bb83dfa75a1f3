"""ZeRO-Offload: weights on the device, gradients to the host as they come, DeepSpeedCPUAdam there.

Ren et al., USENIX ATC 2021, sections 3 (what goes where), 4.1 (schedule on one GPU) and 5.1 (CPU
Adam). See README.md for the settings and why. Imports neither torch nor DeepSpeed until a run
starts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines.zero_plan import BUCKET_ELEMENTS
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
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


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with DeepSpeed."""
    chosen = adapter(spec, folder)
    from baselines import zero

    return zero.train(spec, report, folder, chosen, work=__name__)


def training(spec: RunSpec, report: Reporter, folder: Path) -> AbstractContextManager[Any]:
    """In the process of one of several ranks: its training."""
    from baselines import zero

    return zero.training(spec, report, folder, adapter(spec, folder))
