"""Processes below an agent: its forkserver, which imports this module and so torch; for each round
one that is forked from it, with torch's LocalElasticAgent; and the workers, forked from that.

Whatever kills an agent ends them, by the kernel: the forkserver is sent SIGTERM, on which it
removes the agent's files, and its end sends SIGKILL to what is below.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from workbench.core.parents import die_with_parent
from workbench.core.stage_map import StageMap
from workbench.elastic.messages import Message, Order, pack
from workbench.elastic.placement import shares
from workbench.elastic.worker import AGENT

PLACE = "WORKBENCH_AGENT_PLACE"
"""Environment variable of a forkserver alone: the folder of its agent."""
INSTALLED = ("site-packages", "dist-packages")

if (_place := os.environ.pop(PLACE, None)) is not None:

    def _end(*_: object) -> None:
        shutil.rmtree(_place, ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGTERM, _end)
    die_with_parent(os.getppid(), signal.SIGTERM)
    import torch.distributed.elastic.agent.server.local_elastic_agent  # noqa: E402, F401


def run_round(job: Order, begin: Message, place: str) -> None:
    """Start the workers and wait for their end by torch's own means: a rendezvous of a fixed
    size, under the round's own name, and no restarts. `place` is the agent's folder."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    class Rendezvous(DynamicRendezvousHandler):
        use_agent_store = True  # workers are clients of the manager's store

        def num_nodes_waiting(self) -> int:
            return 0  # asking a store whose manager has died would stop the workers

        def _start_heartbeats(self) -> None:
            """The agent's own are enough, and workers are forked by a process of one thread."""

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent(os.getppid())
    start, address, tempfile.tempdir = begin.start, job.address, place
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else rank 0 opens one to everybody
    store = TCPStore(address, start.port, is_master=False, timeout=timedelta(seconds=60))
    name = f"round-{begin.round}"
    handler = Rendezvous.from_backend(
        name, store, C10dRendezvousBackend(store, name), start.hosts, start.hosts,
        local_addr=f"{start.host:06d}",  # in whose order ranks are given
    )  # fmt: skip
    spec = WorkerSpec(
        role="worker", local_world_size=start.count, rdzv_handler=handler, entrypoint=work,
        args=(job, begin, f"{place}/agent"), max_restarts=0, monitor_interval=0.1,
        master_addr=address, master_port=start.port,
    )  # fmt: skip
    LocalElasticAgent(spec, DefaultLogsSpecs(), "fork", exit_barrier_timeout=0.5).run()


def work(job: Order, begin: Message, agent: str) -> None:
    """Be one worker: run the script to its end, as its process group's leader, with its output in
    files. The agent hears by its socket how it ended."""
    start = begin.start
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the script takes part
    die_with_parent(os.getppid())
    os.setpgid(0, 0)
    rank, local_rank = int(os.environ["RANK"]), os.environ["LOCAL_RANK"]
    logs = Path(job.folder) / "ssh_logs" / str(begin.round)
    logs.mkdir(parents=True, exist_ok=True)
    for descriptor, kind in ((1, "out"), (2, "err")):
        with (logs / f"{job.host}-{rank}.{kind}").open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(agent)
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
