"""Cases of engines in a loop of several processes, which begin otherwise than they should."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import termios
import threading
import time
from array import array

import psutil
import torch
import torch.distributed as dist

from workbench.core.parents import is_stopped
from workbench.runtime.transport import cut, meeting

LARGE, MOMENT_S, MOST = 1 << 24, 1.0, 1000
"""Elements of a message that no connection holds; for a receive to begin in another thread; looks
at connections, should it not have begun."""


def disagreeing(stages: int, replicas: int, method: str, results: str) -> dict:
    """Words of the errors of engines of which the last rank is given something else, at last a
    learning rate in the second step, which is taken then; and the steps of that engine."""
    from tests.methods import loops as user
    from workbench import Engine

    def other(logits: torch.Tensor, batch: dict) -> torch.Tensor:
        return 2 * user.loss_of(logits, batch)

    last, said, batch = dist.get_rank() > 0, [], next(user.batches())
    steps = 0
    for what in ("weight_decay", "clip", "loss_fn", "frozen", "lr"):
        odd = what if last else ""
        module = user.net(frozen=method != "fsdp")
        module.blocks[2].inner.weight.requires_grad_(odd != "frozen")
        config = {"lr": user.LR, "weight_decay": 0.2 if odd == "weight_decay" else 0.1}
        given = {"clip": None if odd == "clip" else 0.5, "results": results, "device": "cpu"}
        loss_fn = other if odd == "loss_fn" else user.loss_of
        with Engine(module, config, method=method, **given) as engine:
            try:
                for rate in (user.LR, user.LR / 2 if odd == "lr" else user.LR):
                    engine.optimizer.param_groups[0]["lr"] = rate
                    engine.step(batch, loss_fn)
            except ValueError as error:
                said.append(str(error))
            if what == "lr":
                engine.optimizer.param_groups[0]["lr"] = user.LR
                engine.step(batch, loss_fn)
                steps = engine.steps
    return {"said": said, "steps": steps}


def deaf(stages: int, replicas: int, method: str, results: str, waits: str) -> dict:
    """Words of the error that ends the first rank's step, or none where this ends its process. It
    sends more than a connection holds to the last one, which is stopped until the first has ended:
    gloo forgets such a message when it is cut, in torch's own wait and in ours, and in that of a
    stage, where nothing else that waits is told."""
    said = _send_to_a_stopped_rank(method, results, waits)
    gc.collect()  # nor does the end of the group wait
    return {"said": said}


def _send_to_a_stopped_rank(method: str, results: str, waits: str) -> str:
    from tests.methods import loops as user
    from workbench import Engine
    from workbench.ranks import peers

    peers.STOPPED_S = peers.NOTICE_S = peers.DEAF_S = 0.5
    dist.all_gather_object(pids := [0, 0], os.getpid())
    big, batch = torch.ones(LARGE), next(user.batches())
    module, how = user.net(frozen=method != "fsdp"), {"results": results, "device": "cpu"}
    engine = Engine(module, {"lr": user.LR}, method, **how)
    engine.step(batch, user.loss_of)

    def shared() -> dist.Work:
        return dist.broadcast(big, 0, engine._peers.group, async_op=True)

    def stops(_: object) -> None:
        wakes = f"tail --pid {pids[0]} -f /dev/null; kill -CONT {pids[1]}"
        with subprocess.Popen(["sh", "-c", wakes]):
            came = shared() if waits == "ours" else dist.irecv(big, 0, engine._peers.group)
            time.sleep(MOMENT_S)
            os.kill(pids[1], signal.SIGSTOP)
        del came

    def sends(_: object) -> None:
        while not is_stopped(pids[1]):
            time.sleep(0.01)
        engine._peers.stops.insert(0, _until_full)
        if waits == "torch's":
            dist.send(big, 1, engine._peers.group)
        elif waits == "ours":
            cut.wait(shared(), engine._peers.group)
        else:
            meeting.wait([dist.isend(big, 1, engine._peers.group)])

    said = ""
    if dist.get_rank() or waits != "a stage's":
        engine._steps.step = stops if dist.get_rank() else sends
    else:
        transport = engine._steps._model._stepping._engine.transport
        transport.send = lambda action, *_: sends(action)
        transport.receive = lambda *_: threading.Event().wait()
    try:
        engine.step(batch, user.loss_of)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    engine.close()
    return said


def _until_full() -> None:
    """Until a connection of this process has bytes that it cannot send."""
    left, looks = array("i", [0]), 0
    while not left[0] and looks < MOST:
        looks += 1
        for one in psutil.Process().net_connections("tcp"):
            if one.raddr and not left[0]:
                fcntl.ioctl(one.fd, termios.TIOCOUTQ, left)
