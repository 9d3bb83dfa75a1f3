"""What the ranks of a run divide among them, and do together: the samples, a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from baselines.common import MicroBatch, Progress, new_checkpoint
from baselines.stages import share_of


def share(batch: MicroBatch) -> MicroBatch:
    """This rank's rows of a micro-batch: contiguous, and at most one more than another's."""
    rows = share_of(len(batch.samples), dist.get_rank(), dist.get_world_size())
    part, tokens = slice(rows.start, rows.stop), batch.tokens
    mine = tuple(each[part] for each in tokens) if isinstance(tokens, tuple) else tokens[part]
    return MicroBatch(mine, batch.targets[part], batch.samples[part])


@contextmanager
def checkpoint(folder: Path, progress: Progress) -> Iterator[Path]:
    """A new checkpoint of the run in `folder`, for every rank to write into; it is whole, and gets
    its manifest, when all have."""
    first = dist.get_rank() == 0
    place = [str(new_checkpoint(folder, progress.next_step)) if first else None]
    dist.broadcast_object_list(place, src=0)
    yield Path(place[0])
    dist.barrier()
    if first:
        progress.save(Path(place[0]))
