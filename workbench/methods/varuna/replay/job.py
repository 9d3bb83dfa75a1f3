"""A run that is a whole job: hosts of one slot come and go as a trace says, and the launcher's
manager follows its machine list. Ten steps after the last change the job ends; then its script
trains as long undisturbed, on one worker.

    FOLDER/job/    hosts   machine list          losses   a line of JSON for each step (script.py)
                   run/    of the manager        alone    likewise, of the undisturbed run
                   edits   changes of the list   last     step after which training ends

``python -m workbench.methods.varuna.replay.job FOLDER`` is the manager's process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from workbench.core.files import write_whole
from workbench.core.options import Options as NoOptions
from workbench.core.paths import import_path
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.sealed import parse_sealed, read_sealed, sealed
from workbench.core.spec import RunSpec
from workbench.elastic.manager import HostsJob, serve
from workbench.elastic.messages import Order
from workbench.elastic.placement import Shape, read_list, shares
from workbench.elastic.rounds import Terms
from workbench.runtime.checkpoint.manifest import newest_of_job

JOB, HOSTS, EDITS, LOSSES, ALONE, LAST = "job", "hosts", "edits", "losses", "alone", "last"
PRELOAD = ("workbench.methods.varuna.pipeline", "torch._dynamo")
"""Modules that workers are forked with."""
SCRIPT = "workbench.methods.varuna.replay.script"
TAIL, PATIENCE_S = 10, 120.0
"""Steps after the last change was followed; seconds after which the job ends although it was
not."""
LOOK_S, SAY_S = 0.05, 4.0


@dataclass(frozen=True, kw_only=True)
class Options(NoOptions):
    """The trace."""

    trace: str = "0:1"
    """Seconds after the first step, and how many hosts there are from then on: ``0:4 10.5:2``."""

    tries_parts: ClassVar[bool] = False

    def changes(self) -> list[tuple[float, int]]:
        """Seconds and hosts. Raises ValueError for what is no trace."""
        parts = (word.partition(":") for word in self.trace.split())
        return [(float(at), int(hosts)) for at, _, hosts in parts]

    def check(self, spec: RunSpec) -> None:
        """Raise ValueError for a trace that cannot be replayed with so many ranks."""
        found = self.changes()
        if not found or not all(1 <= hosts <= spec.ranks for _, hosts in found):
            raise ValueError(f"trace is {self.trace!r}; it must have 1 to {spec.ranks} hosts each")


def plan(spec: RunSpec, profile: Any) -> None:
    """Raises ValueError: shapes follow from hosts, and nobody foresees those."""
    raise ValueError(f"{spec.method} has no plan: its shapes follow from the hosts that there are")


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Replay the trace, then train undisturbed."""
    job, lines, said = folder / JOB, [], 0.0
    shutil.rmtree(job, ignore_errors=True)
    job.mkdir()
    (job / LOSSES).touch()
    changes = spec.options.changes()
    _edit(job, changes[0][1], report)
    with _child(__name__, folder) as manager:
        for line in _replayed(changes, job, report, manager):
            lines.append(line)
            if line["at"] >= said + SAY_S:
                said = line["at"]
                report.phase("step {step}: {stages} x {replicas}, loss {loss:.4f}".format(**line))
    if manager.returncode or not lines:
        raise RuntimeError("the job failed; log.txt and job/run/ssh_logs say why")
    report.phase("its script, undisturbed on one worker")
    with _child(SCRIPT, folder) as alone:
        alone.wait()
    if alone.returncode:
        raise RuntimeError("its script failed, undisturbed on one worker; log.txt says why")
    return Outcome(
        losses=[line["loss"] for line in lines], step_seconds=[line["seconds"] for line in lines],
        peak_bytes={}, moved_bytes={}, parameters=None, engine="workbench",
    )  # fmt: skip


def _replayed(
    changes: list[tuple[float, int]], job: Path, report: Reporter, manager: subprocess.Popen
) -> Iterator[dict[str, Any]]:
    """Change the list as time goes on, and yield steps."""
    (due, hosts), *pending = changes
    began, rest, line, running = 0.0, "", None, True
    with (job / LOSSES).open() as file:
        while running:
            running = manager.poll() is None
            *whole, rest = (rest + file.read()).split("\n")
            for line in (parse_sealed(f"{each}\n".encode(), LOSSES) for each in whole):
                began = began or line["at"]
                yield line
            now = time.time() - began
            if line is not None and pending and now >= pending[0][0]:
                due, hosts = pending.pop(0)
                _edit(job, hosts, report)
            elif line is not None and not pending and not (job / LAST).exists():
                followed = line["stages"] * line["replicas"] == hosts
                if followed or now > due + PATIENCE_S:
                    write_whole(job / LAST, str(line["step"] + TAIL))
            time.sleep(LOOK_S)


def _edit(job: Path, hosts: int, report: Reporter) -> None:
    write_whole(job / HOSTS, "\n".join(f"127.0.0.{2 + host}" for host in range(hosts)))
    with (job / EDITS).open("a") as file:
        file.write(sealed(json.dumps({"at": time.time(), "hosts": hosts})).decode())
    report.phase(f"{hosts} hosts are on the list")


@contextmanager
def _child(module: str, folder: Path) -> Iterator[subprocess.Popen]:
    """A process that ends with the block, as politely as it can."""
    command = [sys.executable, "-m", module, str(folder)]
    child = subprocess.Popen(command, env={**os.environ, **import_path()})
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def shape(slots: int, per_host: int, *, spec: RunSpec) -> Shape:
    """All slots, in the fewest stages over one that divide them: 4 are 2 x 2, 3 are 3 x 1."""
    stages = next((n for n in range(2, spec.model.layers + 2) if slots % n == 0), 1)
    shares(spec.batch, slots // stages)
    chunk = spec.batch // spec.microbatches
    return Shape(stages=stages, replicas=slots // stages, chunk=chunk)


def main(folder: Path) -> int:
    """Serve the job of a run's folder to its end; returns the exit code."""
    spec = RunSpec.from_dict(read_sealed(folder / "spec.json", "spec.json"))
    job, script = folder / JOB, Path(__file__).with_name("script.py")
    order = Order(
        address="127.0.0.1", port=0, token="", host="", folder=str(job / "run"),
        code_dir=str(job), script=str(script), arguments=(str(folder),), variables={},
        batch=spec.batch, preload=PRELOAD,
    )  # fmt: skip
    terms = Terms(
        hosts=read_list((job / HOSTS).read_text(), 1), per_host=1, batch=spec.batch,
        choose=partial(shape, spec=spec), morph="always",
    )  # fmt: skip
    what = HostsJob(
        machine_list=job / HOSTS, terms=terms, connect=(), order=order, newest=newest_of_job
    )
    return int(serve(what, resume=False) != "done")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
