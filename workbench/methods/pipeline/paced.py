"""A run that is paced: steps of policies whose passes and messages sleep for their seconds.

Two cores cannot time four ranks that compute, but four that sleep. All else is as between hosts:
the schedule, the executor and its turns, messages through gloo. Jitter has the simulator's draws.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from workbench.core.options import Options as NoOptions
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.orders import R
from workbench.methods.pipeline.policies import MICROS, POLICIES, RANKS, SECONDS, SEND_S, Policy
from workbench.methods.pipeline.stage_lines import stage_schedule
from workbench.methods.pipeline.stepping import ABANDON_S, NEVER
from workbench.runtime.executor.executor import Executor
from workbench.runtime.transport import loopback
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.schedule.action import COMPUTE, LATER, RECEIVES, SENDS, Action, Kind
from workbench.schedule.schedule import Schedule

FOUND = "seconds.json"
SENT_AS = dict(zip(RECEIVES, SENDS, strict=True))
"""A receive -> the kind of its sending, by which draws are named."""


@dataclass(frozen=True, kw_only=True)
class Options(NoOptions):
    """The pace; a run has `steps` seeds of each policy."""

    jitter: str = "0/0"
    """Standard deviations of passes and of messages in milliseconds, as in ``2/10``."""
    scale: float = 1.0
    """Of all seconds."""

    def draws(self, seeds: int) -> list[Jitter]:
        """Jitter of each seed. Raises ValueError for what is none."""
        passes, _, messages = self.jitter.partition("/")
        compute, network = (float(each) * self.scale / 1e3 for each in (passes, messages))
        return [Jitter(compute_s=compute, network_s=network, seed=seed) for seed in range(seeds)]


def plan(spec: RunSpec, profile: Any) -> None:
    """Raises ValueError: nothing is computed."""
    raise ValueError(f"{spec.method} has no plan: its passes sleep")


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Steps of every policy, seed by seed."""
    asked, draws = spec.options, spec.options.draws(spec.steps)
    report.phase(f"{spec.steps} steps a policy, of {', '.join(POLICIES)}")
    steps = paced(draws, asked.scale)
    return Outcome(
        losses=[], step_seconds=steps, peak_bytes={}, moved_bytes={}, parameters=None,
        engine="workbench",
    )  # fmt: skip


def paced(draws: list[Jitter], scale: float) -> list[float]:
    """Seconds of a step of each policy under each jitter, in processes of their own."""
    with TemporaryDirectory() as folder:
        job = Path(folder), draws, scale
        mp.start_processes(_rank, job, nprocs=RANKS, daemon=True, start_method="fork")
        return json.loads((Path(folder) / FOUND).read_text())


def schedule(policy: Policy) -> Schedule:
    """The schedule in which ranks go through a policy's lists. Where none takes turns, passes are
    on one lane; a recomputation that must not be early waits for its gradient there."""
    made, rule = stage_schedule(policy.method, policy.passes(RANKS, MICROS)), policy.rule
    came = {(a.rank, a.microbatch): a.name for a in made.actions if a.kind is Kind.RECV_GRAD}

    def strict(action: Action) -> Action:
        waits = [came.get((action.rank, action.microbatch))] * (action.kind is R and not rule.early)
        lane = COMPUTE if action.lane == LATER else action.lane
        return replace(action, lane=lane, after=(*action.after, *filter(None, waits)))

    return made if rule.turns else replace(made, actions=tuple(map(strict, made.actions)))


class Pace(ABC):
    """What a rank does: passes sleep, messages are sent and come late."""

    transport: GroupTransport

    @abstractmethod
    def seconds(self, action: Action) -> float:
        """Of a pass, or by which a message comes after its sending."""

    def work(self, seconds: float) -> None:
        """A pass."""
        time.sleep(seconds)

    def perform(self, action: Action, step: int) -> None:
        """Do one action."""
        if action.kind in SECONDS:
            self.work(self.seconds(action))
        elif action.kind in SENDS:
            self.transport.send(action, (torch.zeros(1),), step)
        elif action.kind in RECEIVES:
            self.transport.receive(action, step)


class Jittered(Pace):
    """The pace of a policy's step."""

    def __init__(self, jitter: Jitter, scale: float) -> None:
        self._scale, self._draws = scale, jitter.draws(RANKS, MICROS)

    def seconds(self, action: Action) -> float:
        """Of a pass, or by which a message comes after its sending; link s is behind stage s."""
        if action.kind in SECONDS:
            drawn = self._draws[action.kind][action.unit, action.microbatch]
            return max(0.0, SECONDS[action.kind] * self._scale + drawn)
        if action.kind in RECEIVES:
            drawn = self._draws[SENT_AS[action.kind]][action.unit - 1, action.microbatch]
            return SEND_S * self._scale + drawn
        return 0.0


def _rank(rank: int, folder: Path, draws: list[Jitter], scale: float) -> None:
    torch.set_num_threads(1)
    loopback.join(torch.device("cpu"), file=folder / "ranks", rank=rank, ranks=RANKS)
    run(rank, schedule(POLICIES["varuna"]), Jittered(Jitter(), 0.0))  # connects all
    found = [
        run(rank, made, Jittered(jitter, scale))
        for made in map(schedule, POLICIES.values())
        for jitter in draws
    ]
    if rank == 0:
        (folder / FOUND).write_text(json.dumps(found))
    dist.destroy_process_group()


def run(rank: int, made: Schedule, pace: Pace, steps: int = 1) -> float:
    """Run steps of a schedule on a rank at a pace; returns the seconds from the first beginning of
    the ranks to the last end."""
    world, device = dist.group.WORLD, torch.device("cpu")
    channels = product({*range(made.num_ranks)} - {rank}, (True, False), (True, False))
    pace.transport = GroupTransport(
        dict.fromkeys(channels, world), world,
        process=lambda position: position, device=device, latency=pace.seconds,
        forms=lambda action, step: [((1,), torch.float32, False)],
    )  # fmt: skip
    pace.transport.use(made)
    executor = Executor(
        made, pace.perform, device, rank=rank, announce=pace.transport.announce, record_from=NEVER,
        on_failure=lambda _: pace.transport.stop(), abandon_s=ABANDON_S,
    )  # fmt: skip
    dist.barrier()
    began = time.monotonic()
    executor.run(0, steps)
    took = torch.tensor([-began, time.monotonic()], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took.sum())
