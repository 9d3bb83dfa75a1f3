"""DeepSpeed in a process of ours: its operators, its rank among others, its checkpoint files.

It runs without a launcher: in the group of ranks that have met, or in one that needs no port.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baselines import deepspeed_ops
from workbench.core.reporter import Reporter
from workbench.model.base import LayeredModel
from workbench.runtime.checkpoint.checkpoint import KINDS, write_weights
from workbench.runtime.checkpoint.manifest import Saved
from workbench.runtime.checkpoint.together import Together
from workbench.runtime.transport.loopback import join


def make_operators(
    report: Reporter, device: torch.device, label: str, *, disk: bool = False, offload: bool = True
) -> None:
    """Build those native operators that are missing, before the clock starts, and say so. Raises
    ValueError where one cannot be built; `label` names who wants it."""
    wanted = deepspeed_ops.required(disk=disk, offload=offload, device=device.type)
    if absent := deepspeed_ops.missing(wanted, device.type):
        report.phase(f"building DeepSpeed operators: {', '.join(absent)}")
        failed = deepspeed_ops.build(absent, echo=report.phase, device=device.type)
        if failed:
            why = deepspeed_ops.why_not(failed[0]) or "see build.log beside it"
            raise ValueError(f"{label} needs DeepSpeed's operator {failed[0]}: {why}")
    deepspeed_ops.activate(device.type)


def be_a_rank(device: torch.device) -> None:
    """Join the ranks that have met; else a process group of this process alone."""
    if not dist.is_initialized():
        join(device)
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world)
    import deepspeed
    from deepspeed.utils.logging import logger

    logger.setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    # Before its first configuration, which would take this rank to be alone.
    deepspeed.init_distributed(dist.get_backend())


class _Files:
    """DeepSpeed's own, beside our manifest. A `Holder`."""

    def __init__(
        self, engine: Any, model: LayeredModel, weights: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """`weights`: called by all ranks, fp32 ones by their names in the whole model, of those
        that this rank is to write."""
        self._engine, self._model, self._weights = engine, model, weights

    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """As `Holder.write`."""
        if len(kinds) < len(KINDS):
            write_weights(folder, self._model, self._weights())
            return
        self._engine.save_checkpoint(str(folder.parent), tag=folder.name, save_latest=False)

    def restore(self, saved: Saved) -> None:
        """As `Holder.restore`."""
        saved.check(saved.manifest.files)
        self._engine.load_checkpoint(str(saved.path.parent), tag=saved.path.name)


class FilesOfRanks(Together, _Files):
    """DeepSpeed's own, of which every rank has some."""
