"""Steps of pipelines whose passes and messages are paced, beside the simulator's with equal draws.

    python -m benchmarks.paced --seeds 3 --scale 1.0

P = 4, D = 1, N = 16; passes of 50, 50 and 100 ms, messages of 20 ms; three settings of jitter. Best
on an idle machine: two cores cannot time four ranks that compute, but four that sleep. Draws of
jitter are those that the simulator has for the same passes.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn

from workbench.core.stage_map import StageMap
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.orders import B, F, R, lists
from workbench.methods.pipeline.quick import STRICT, Links, Rule, step_seconds
from workbench.methods.varuna import CutPoint, Varuna
from workbench.schedule.action import Action, Kind

STAGES, MICROS, WARMUP = 4, 16, 1
PASS_S = {F: 0.05, R: 0.05, B: 0.1}
LINK_S = 0.02
SETTINGS = ((0.0, 0.0), (0.002, 0.01), (0.005, 0.04))
"""Standard deviations of passes and messages, in seconds."""
ORDERS = {"varuna": Rule(turns=True, early=True), "1f1b": STRICT, "gpipe": STRICT}
"""Order -> how ranks go through its list; all but Varuna's keep their activations."""
SENT_AS = {Kind.RECV: Kind.SEND, Kind.RECV_GRAD: Kind.SEND_GRAD}
"""A receive -> the kind of its sending, by which draws are named."""


@dataclass(kw_only=True)
class Pace:
    """Seconds of a stage's passes and messages; `perturb` and `latency` of a pipeline."""

    seconds: Mapping[Kind, float]
    """Kind of pass -> seconds."""
    link_s: float
    """Seconds of a message between two stages."""
    jitter: Jitter
    stages: int
    micros: int
    _began: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._draws = self.jitter.draws(self.stages, self.micros)

    def perturb(self, action: Action, step: int) -> None:
        """Called before a pass and after it, where it sleeps for what is left of its seconds."""
        if action.kind not in self.seconds:
            return
        began = self._began.pop(action.name, None)
        if began is None:
            self._began[action.name] = time.monotonic()
            return
        drawn = self._draws[action.kind][action.unit, action.microbatch]
        left = began + max(0.0, self.seconds[action.kind] + drawn) - time.monotonic()
        time.sleep(max(0.0, left))

    def latency(self, action: Action) -> float:
        """Seconds by which a message comes after its sending; link s is behind stage s."""
        link = action.unit - 1
        return self.link_s + self._draws[SENT_AS[action.kind]][link, action.microbatch]


class Net(nn.Module):
    """As little as can be cut into four."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(STAGES))
        self.cuts = nn.ModuleList(CutPoint() for _ in range(STAGES - 1))

    def forward(self, x):
        for part, cut in zip(self.parts, [None, *self.cuts], strict=True):
            x = part(x if cut is None else cut(x))
        return x.square().mean()


def batch(rows: int) -> dict[str, torch.Tensor]:
    """Arguments of so many samples."""
    return {"x": torch.ones(rows, 4)}


def measured(order: str, pace: dict[str, Any], steps: int) -> list[float]:
    """Seconds of steps, in processes of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        job = (order, pace, steps, port, folder)
        mp.start_processes(_rank, job, nprocs=STAGES, start_method="fork")
        return [float(line) for line in (Path(folder) / "0").read_text().split()]


def _rank(rank: int, order: str, pace: dict[str, Any], steps: int, port: int, folder: str) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(STAGES), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    torch.set_num_threads(1)
    own = Pace(stages=STAGES, micros=MICROS, **pace)
    model = Varuna(
        Net(), str(StageMap.of(STAGES, 1)), batch, MICROS, 1, device="cpu", order=order,
        perturb=own.perturb, latency=own.latency,
    )  # fmt: skip
    seconds = []
    for _ in range(WARMUP + steps):
        model.step(batch(MICROS))
        seconds.append(model.step_seconds)
    (Path(folder) / str(rank)).write_text(" ".join(map(str, seconds[WARMUP:])))
    model.close()


def simulated(order: str, jitter: Jitter, scale: float) -> float:
    """The step of the same passes and messages."""
    passes = [{kind: value * scale for kind, value in PASS_S.items()}] * STAGES
    links = Links(seconds=[LINK_S * scale] * (STAGES - 1))
    draws = jitter.draws(STAGES, MICROS)
    return step_seconds(lists(order, STAGES, MICROS), passes, links, ORDERS[order], draws)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line a run; exit code 0."""
    parser = argparse.ArgumentParser(prog="benchmarks.paced", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of all seconds")
    parser.add_argument("--order", choices=[*ORDERS], action="append")
    given = parser.parse_args(argv)
    print("order    jitter ms  seed  measured s  simulated s  error")
    errors = []
    for order in given.order or ORDERS:
        for compute, network in SETTINGS:
            for seed in range(given.seeds):
                jitter = Jitter(
                    compute_s=compute * given.scale, network_s=network * given.scale, seed=seed
                )
                seconds = {kind: value * given.scale for kind, value in PASS_S.items()}
                pace = {"seconds": seconds, "link_s": LINK_S * given.scale, "jitter": jitter}
                (took,) = measured(order, pace, 1)
                wanted = simulated(order, jitter, given.scale)
                errors.append(took / wanted - 1)
                print(
                    f"{order:8} {compute * 1e3:3.0f}/{network * 1e3:<5.0f} {seed:5} {took:11.3f} "
                    f"{wanted:12.3f} {errors[-1]:+7.1%}",
                    flush=True,
                )
    print(f"mean {fmean(map(abs, errors)):.1%}, worst {max(map(abs, errors)):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
