"""The samples of a run, divided among its ranks."""

from __future__ import annotations

import torch.distributed as dist

from baselines.common import MicroBatch
from baselines.stages import share_of


def share(batch: MicroBatch) -> MicroBatch:
    """This rank's rows of a micro-batch: contiguous, and at most one more than another's."""
    rows = share_of(len(batch.samples), dist.get_rank(), dist.get_world_size())
    part, tokens = slice(rows.start, rows.stop), batch.tokens
    mine = tuple(each[part] for each in tokens) if isinstance(tokens, tuple) else tokens[part]
    return MicroBatch(mine, batch.targets[part], batch.samples[part])
