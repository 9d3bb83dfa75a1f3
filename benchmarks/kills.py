"""Kills parts of a job of the launcher at random, and compares its steps with torch's own loop.

    python -m benchmarks.kills --out FOLDER --kills 28 --seed 0

The job's script is this file, too. As scripts of the original do, it begins its loop at the step
that ``--resume_step`` tells, so a checkpoint of any other step would train batches twice, or never.
SIGKILL hits a worker, an agent, the manager, or the manager and a worker; half of the times as soon
as a checkpoint is in its place, of which nobody may have told yet. A manager that was killed is
started again with ``--resume``. Asked is whether each round begins at the step of its flag and of
the manager's line, whether each step is there, and how far losses are from those of torch's loop.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch import nn

from benchmarks.jobs import LIMIT_S, Job
from workbench.core.files import write_whole
from workbench.elastic.worker import AGENT
from workbench.methods.varuna import CutPoint, Varuna

BATCH, EVERY, AHEAD = 4, 4, 30
"""Samples of a step; steps from save to save, and those that are done after the last kill."""
STEP_S, BOUND = 0.05, 2e-7
"""Seconds that each step takes at least; the largest difference of a loss."""
TARGETS = ("worker", "worker", "agent", "manager", "manager", "manager and worker")


class Net(nn.Module):
    """Two layers in double precision, so that no order of sums counts."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        self.first, self.second, self.cut = nn.Linear(8, 16), nn.Linear(16, 8), CutPoint()

    def forward(self, x, y):
        return nn.functional.mse_loss(self.second(self.cut(torch.tanh(self.first(x)))), y)


def batch(step: int, rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Rows of a step: x and y [rows, 8]."""
    made = torch.Generator().manual_seed(step)
    return {name: torch.randn(BATCH, 8, generator=made)[rows] for name in "xy"}


def torchs(steps: int) -> list[float]:
    """Losses of torch's own loop."""
    net, losses = Net(), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        loss = net(**batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def script() -> None:
    """One worker of the job."""
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--local_rank", "--chunk_size", "--batch-size", "--resume_step"):
        parser.add_argument(name, type=int)
    parser.add_argument("--stage_to_rank_map")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = Varuna(
        Net(), given.stage_to_rank_map, lambda size: batch(0, slice(size)), BATCH,
        given.chunk_size, local_rank=given.local_rank, device="cpu",
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.set_optimizer(optimizer)
    told, saved = given.resume_step, given.out / "checkpoints"
    if told is not None:
        model.load_checkpoint(saved)
    step, about = told or 0, json.loads(os.environ[AGENT])
    while step < int((given.out / "until").read_text()):
        loss, _ = model.step(batch(step, slice(model.share.start, model.share.stop)))
        optimizer.step()
        line = {"round": about["round"], "told": told, "batch": step, "steps": model.steps}
        with (given.out / f"steps-{given.rank}").open("a") as file:
            file.write(json.dumps(line | {"loss": loss}) + "\n")
        step += 1
        if step % EVERY == 0:
            model.checkpoint(saved)
        time.sleep(STEP_S)
    model.close()


class Watched(Job):
    """A job of two hosts of this machine, a worker each, that goes on until it is told a step."""

    def __init__(self, out: Path) -> None:
        words = ["--nstages", "1", "--chunk_size", "2", __file__, "--out", str(out)]
        super().__init__(out, "127.0.0.1:1\n127.0.0.2:1\n", BATCH, words)
        (out / "until").write_text(str(10**9))

    def lines(self) -> list[dict]:
        """Steps that the first rank has done, in turn."""
        path = self.folder / "steps-0"
        return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []

    def parts(self, kind: str) -> list[psutil.Process]:
        """Agents, or workers."""
        if kind == "agent":
            return psutil.Process(self.manager.pid).children()
        return [*self.workers().values()]


def disturb(job: Watched, choose: random.Random) -> str:
    """Kill something of a job that has done some steps of a round; returns what."""
    target, before = choose.choice(TARGETS), len(job.lines())
    more = choose.randint(0, 6)
    job.wait(lambda: len(job.lines()) > before + more)
    if choose.random() < 0.5:
        saved = {*job.folder.glob("checkpoints/step-*")}
        job.wait(lambda: {*job.folder.glob("checkpoints/step-*")} - saved, 0.001)
    else:
        time.sleep(choose.uniform(0, 2 * STEP_S))
    hit = [parts for kind in ("agent", "worker") if kind in target and (parts := job.parts(kind))]
    if "manager" in target:
        job.manager.kill()
    for parts in hit:
        with suppress(psutil.NoSuchProcess):
            choose.choice(parts).kill()
    if "manager" in target:
        job.manager.wait()
        time.sleep(choose.choice((0.0, 1.0, 5.0)))
        job.start("--resume")
    return target


def judge(job: Watched) -> list[str]:
    """Say how the job went; returns what is wrong with it."""
    lines, wrong = job.lines(), []
    log = (job.folder / "manager.log").read_text()
    begun = {int(n): int(s) for n, s in re.findall(r"round (\d+): resumed .* at step (\d+)", log)}
    first = {line["round"]: line for line in reversed(lines)}
    wrong += [f"{line} is another step" for line in lines if line["steps"] != line["batch"] + 1]
    for number, line in first.items():
        if not line["batch"] == (line["told"] or 0) == begun[number]:
            wrong.append(f"{line} begins a round that began at {begun[number]}")
    last = {line["batch"]: line["loss"] for line in lines}
    wanted = torchs(max(last) + 1)
    if lacking := {*range(len(wanted))} - last.keys():
        wrong.append(f"steps {sorted(lacking)} are missing")
    far = max(abs(line["loss"] / wanted[line["batch"]] - 1) for line in lines)
    if far > BOUND:
        wrong.append(f"a loss is {far:.1e} off")
    print(f"{len(first)} rounds with steps, {len(last)} steps, {len(lines) - len(last)} done again")
    print(f"largest difference of a loss from torch's own loop: {far:.1e}")
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 where a number of the job does not fit another one."""
    parser = argparse.ArgumentParser(prog="benchmarks.kills", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--kills", type=int, default=28)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the job, too
    job, choose = Watched(given.out.resolve()), random.Random(given.seed)
    job.start()
    try:
        hit = Counter(disturb(job, choose) for _ in range(given.kills))
        write_whole(job.folder / "until", str(job.lines()[-1]["steps"] + AHEAD))
        status = job.manager.wait(LIMIT_S)
    finally:
        job.close()
    wrong = judge(job) + ([f"the job ended with {status}"] if status else [])
    print(", ".join(f"{count} x {what}" for what, count in hit.items()), f"killed; status {status}")
    print(*wrong or ["flag, log, checkpoint and steps agree in each round"], sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(script() if AGENT in os.environ else main())
