"""Processes below an agent: its forkserver, which imports this module and so torch; for each round
one that is forked from it; and the workers, forked from that.

Nobody asks who else is there: the manager has dealt ranks to hosts, and a worker is told its own.
All that it has from others is the address of the round's store (MASTER_ADDR), whose keys torch
takes as bytes. torch's agent would agree on ranks through that store, and unpickle what it finds.

Whatever kills an agent ends them, by the kernel: the forkserver is sent SIGTERM, on which it
removes the agent's files, and its end sends SIGKILL to what is below.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from workbench.core.parents import die_with_parent
from workbench.core.stage_map import StageMap
from workbench.elastic.messages import Message, Order, pack
from workbench.elastic.placement import shares
from workbench.elastic.worker import AGENT

PLACE = "WORKBENCH_AGENT_PLACE"
"""Environment variable of a forkserver alone: the folder of its agent."""
INSTALLED = ("site-packages", "dist-packages")
FAILED_S = 5.0
"""From a worker's failure on, for the agent to end the others of its host."""

if (_place := os.environ.pop(PLACE, None)) is not None:

    def _end(*_: object) -> None:
        shutil.rmtree(_place, ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGTERM, _end)
    die_with_parent(os.getppid(), signal.SIGTERM)
    import torch.distributed  # noqa: E402, F401


def run_round(job: Order, begin: Message, place: str) -> None:
    """Fork the workers, and wait for their end; when one has failed, for a while. `place` is the
    agent's folder."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent(os.getppid())
    fork = multiprocessing.get_context("fork")
    own = [
        fork.Process(target=work, args=(job, begin, place, local))
        for local in range(begin.start.count)
    ]
    for worker in own:
        worker.start()
    running, patience_s = {worker.sentinel: worker for worker in own}, None
    while running and (ended := wait(running, patience_s)):
        for worker in map(running.pop, ended):
            worker.join()
            patience_s = FAILED_S if worker.exitcode else patience_s
    os._exit(0)  # which ends those that are left


def work(job: Order, begin: Message, place: str, local_rank: int) -> None:
    """Be one worker: run the script to its end, as its process group's leader, with its output in
    files. The agent hears by its socket how it ended."""
    start, tempfile.tempdir = begin.start, place
    rank = start.first + local_rank
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the script takes part
    die_with_parent(os.getppid())
    os.setpgid(0, 0)
    os.environ.update(variables(job, begin, local_rank))
    logs = Path(job.folder) / "ssh_logs" / str(begin.round)
    logs.mkdir(parents=True, exist_ok=True)
    for descriptor, kind in ((1, "out"), (2, "err")):
        with (logs / f"{job.host}-{rank}.{kind}").open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(f"{place}/agent")
    line.send(pack(Message(kind="here", round=begin.round, rank=rank, pid=os.getpid())))
    own = os.dup(line.fileno())  # the worker's, whose threads may outlive the script
    about = {"pid": os.getpid(), "line": own, "round": begin.round, "rank": rank}
    about |= {"batch": job.batch, "cut": start.cut, "nbytes": start.nbytes}
    about |= {"resume_step": start.resume_step, "profiling": start.profiling}
    about |= {"job": job.job, "began": start.began}
    os.environ[AGENT] = json.dumps({**about, "folder": job.folder})
    places = StageMap.of(start.stages, start.replicas)
    flags = {
        "rank": rank, "local_rank": local_rank, "chunk_size": start.chunk,
        "stage_to_rank_map": places,
        "batch-size": shares(job.batch, start.replicas)[places.place(rank)[1]],
    }  # fmt: skip
    if start.resume_step is not None:
        flags["resume_step"] = start.resume_step
    if start.profiling:
        flags["profiling"] = start.profiling
    sys.argv = [job.script, *job.arguments, *(f"--{name}={value}" for name, value in flags.items())]
    installed = (n for n, path in enumerate(sys.path) if Path(path).name in INSTALLED)
    # After Python's library: a `profile.py` beside the script stands for none of its modules.
    sys.path.insert(next(installed, len(sys.path)), str(Path(job.script).parent))
    failure = ""
    try:
        os.chdir(job.code_dir)
        runpy.run_path(job.script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            failure = f"ended with status {end.code}"
    except BaseException as error:
        traceback.print_exc()
        failure = f"failed: {type(error).__name__}: {error}"[:300]
    with suppress(OSError):  # of an agent that is gone
        line.send(pack(Message(kind="ended", round=begin.round, rank=rank, failure=failure)))
    sys.stdout.flush()
    if failure:
        sys.exit(1)


def variables(job: Order, begin: Message, local_rank: int) -> dict[str, str]:
    """A worker's environment, as torchrun names its variables."""
    start = begin.start
    told = {
        "MASTER_ADDR": job.address, "MASTER_PORT": start.port,
        "RANK": start.first + local_rank, "WORLD_SIZE": start.stages * start.replicas,
        "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": start.count,
        "GROUP_RANK": start.host, "GROUP_WORLD_SIZE": start.hosts,
        "TORCHELASTIC_RUN_ID": f"round-{begin.round}", "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the manager's, of which workers are clients
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
    }  # fmt: skip
    return {name: str(value) for name, value in told.items()}
