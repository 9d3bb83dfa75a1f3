"""One process of torchrun's: an engine in a loop of one's own, on its GPU where there is one.

python -m torch.distributed.run --nproc-per-node 2 -m tests.methods.engine_ranks METHOD HOW FOLDER

HOW is ``trains``, or the way in which the last rank fails in its third step. Each rank leaves its
losses in a file, and the words of the error that ended it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.methods.loops import (
    CLIP,
    LR,
    ROWS,
    batches,
    in_groups,
    labels_of,
    loss_of,
    net,
    warmed,
)
from workbench import Engine
from workbench.ranks import peers

THIRD = 2
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def fails(action: object, step: int) -> None:
    if step == THIRD:
        raise OSError("no such luck")


def main(method: str, how: str, folder: Path) -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    peers.STOPPED_S = 2.0
    module, losses, said, began = net(frozen=method != "fsdp"), [], "", time.monotonic()
    config = {"lr": LR, "params": in_groups(module)}
    parts = 1 if method == "varuna" else ranks  # there all ranks are one pipeline
    part = slice(rank % parts * ROWS // parts, (rank % parts + 1) * ROWS // parts)
    with Engine(
        module, config, method=method, clip=CLIP, weight_of=labels_of, results=folder / "results"
    ) as engine:
        scheduler = warmed(engine.optimizer)
        try:
            for number, batch in enumerate(batches(padded=True)):
                if number == THIRD and rank == ranks - 1 and how in SIGNALS:
                    engine._steps.step = lambda _: os.kill(os.getpid(), SIGNALS[how])
                if number == THIRD and rank == ranks - 1 and how == "raises":
                    engine._steps._rank.executor._perturb = fails
                losses.append(engine.step({k: t[part] for k, t in batch.items()}, loss_of))
                scheduler.step()
                began = time.monotonic()
            weights = {name: value.tolist() for name, value in engine.state_dict().items()}
        except Exception as error:
            said, weights = f"{type(error).__name__}: {error}", {}
            if how == "stopped":  # torchrun waits for it
                os.kill(engine._peers._others[0].pid, signal.SIGKILL)
    told = {"losses": losses, "said": said, "weights": weights}
    told["heard_s"] = round(time.monotonic() - began, 3)
    (folder / f"{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
