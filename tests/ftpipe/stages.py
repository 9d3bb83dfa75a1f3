"""A module in stages whose weights are updated by themselves, and its reference: one process that
knows the declared versions of weights, and nothing of pipelines."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from workbench.methods.pipeline.asynchronous import Asynchronous, schedule
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.model.base import Context
from workbench.model.cut_point import CutPoint
from workbench.model.slices import Slices
from workbench.runtime.executor.executor import Executor
from workbench.runtime.passes.stage import Given, Stage
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.transport.groups import new_group
from workbench.runtime.updates.stage_updates import StageOptimizer, StageOptimizers
from workbench.runtime.updates.stage_weights import StageWeights
from workbench.schedule.action import Kind
from workbench.schedule.schedule import Schedule

ROWS, WIDE = 3, 8
OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Net(nn.Module):
    """Layers that are cut between each two."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(layers))
        self.cuts = nn.ModuleList(CutPoint() for _ in range(layers - 1))

    def made(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x if number == 0 else self.cuts[number - 1](x)).tanh()
        return x

    def forward(self, x, y):
        return (self.made(x) - y).square().mean()


class Layers(Net):
    """They, whose loss is of a function outside."""

    def forward(self, x):
        return self.made(x)


def batch(rows: int, step: int = 0, micro: int = 0) -> dict[str, torch.Tensor]:
    """A micro-batch of a step."""
    made = torch.Generator().manual_seed(100 * step + micro)
    return {n: torch.randn(rows, WIDE, generator=made, dtype=torch.float64) for n in "xy"}


def pipeline(positions: Sequence[int], micros: int, *, stashes: bool = False) -> Schedule:
    """The schedule of a stage a layer."""
    return schedule(
        Asynchronous(
            label="async-1f1b",
            positions=positions,
            depths=[*reversed(range(len(positions)))],
            micros=micros,
            samples=ROWS,
            sizes=IdealSizes(),
            stashes=stashes,
        )  # fmt: skip
    )


def trained(rank: int, positions: list[int], micros: int, steps: int, optimizer: str) -> dict:
    """The weights of a process's stages and its losses after so many steps."""
    torch.set_default_dtype(torch.float64)
    plan = pipeline(positions, micros)
    slices = Slices(Net(len(positions)), batch)
    cut = slices.stages(len(positions))
    mine = [number for number, at in enumerate(positions) if at == rank]
    stages = {
        number: Stage(slices, cut[number], device=torch.device("cpu"), dtype=torch.float64)
        for number in mine
    }
    weights = {n: StageWeights([stages[n]], slices.learning(cut[n])) for n in mine}
    updates = {
        n: StageOptimizer(OPTIMIZERS[optimizer](own.named.values()), own.gradients)
        for n, own in weights.items()
    }
    engine = StageEngine(
        stages, StagePasses(stages), weights[mine[0]].gradients, int, StageOptimizers(updates)
    )
    group = new_group(backend="gloo")
    channels = {
        (peer, forward, front): group
        for peer in {*positions} - {rank}
        for forward in (True, False)
        for front in (True, False)
    }
    device = torch.device("cpu")
    engine.transport = GroupTransport(
        channels, group, process=int, forms=engine.forms, latency=None, device=device
    )
    engine.transport.use(plan)
    executor = Executor(
        plan, engine.perform, device, rank=rank, announce=engine.transport.announce,
        on_failure=lambda _: engine.transport.stop(), abandon_s=2.0,
    )  # fmt: skip
    losses = []
    for first, end in ((0, steps // 2), (steps // 2, steps)):  # with a drain midway
        for step in range(first, end):
            ctx = Context(seed=0, step=step, unit=0, samples=tuple(range(ROWS)))
            given = [Given(batch(ROWS, step, micro), ctx) for micro in range(micros)]
            for stage in stages.values():
                stage.begin(step, given)
            micro_batches = [MicroBatch(samples=ctx.samples, weight=1.0)] * micros
            engine.begin(step, micro_batches, 1 / micros)
        executor.run(first, end - first)
        for step in range(first, end):
            for stage in stages.values():
                stage.end(step)
            losses.append(engine.end(step).mean_loss()[0] / micros)
    executor.close()
    named = {name: p.tolist() for own in weights.values() for name, p in own.named.items()}
    engine.close()
    return {"losses": losses, "weights": named}


class Delayed:
    """The reference."""

    def __init__(self, schedule: Schedule, optimizer: str) -> None:
        net = Net(schedule.num_units).double()
        self._schedule, self._now = schedule, list(net.layers)
        self._kept = [{0: copy.deepcopy(layer)} for layer in self._now]
        self._optimizers = [OPTIMIZERS[optimizer](layer.parameters()) for layer in self._now]
        self._stale = {
            (a.kind, a.unit, a.microbatch): a.stale
            for a in schedule.actions
            if a.kind in (Kind.FORWARD, Kind.BACKWARD)
        }

    def step(self, step: int, since: int) -> float:
        """One step; of a segment that began with a step, the first ones find no stale weights."""
        micros, total = self._schedule.num_microbatches, 0.0
        for micro in range(micros):
            given, crossing = batch(ROWS, step, micro), []
            x = given["x"]
            for stage in range(len(self._now)):
                crossing.append(x)
                layer = self._version(Kind.FORWARD, stage, micro, step, since)
                x = layer(x).tanh().detach()
            gradient = None
            for stage in reversed(range(len(self._now))):
                layer = self._version(Kind.BACKWARD, stage, micro, step, since)
                x = crossing[stage].clone().requires_grad_()
                out = layer(x).tanh()
                if gradient is None:
                    loss = (out - given["y"]).square().mean()
                    total += loss.item() / micros
                    (loss / micros).backward()
                else:
                    out.backward(gradient)
                gradient = x.grad
                for own, used in zip(
                    self._now[stage].parameters(), layer.parameters(), strict=True
                ):
                    own.grad = used.grad.clone() if own.grad is None else own.grad + used.grad
                    used.grad = None
        for stage, optimizer in enumerate(self._optimizers):
            optimizer.step()
            optimizer.zero_grad()
            self._kept[stage][step + 1] = copy.deepcopy(self._now[stage])
        return total

    def _version(self, kind: Kind, stage: int, micro: int, step: int, since: int) -> nn.Module:
        """The weights that a pass reads: copies, whose gradients are nobody's."""
        stale = self._stale[kind, stage, micro]
        return self._kept[stage][max(since, step - stale)]

    def weights(self) -> dict[str, torch.Tensor]:
        """By their names in the module."""
        return {
            f"layers.{number}.{name}": parameter.detach()
            for number, layer in enumerate(self._now)
            for name, parameter in layer.named_parameters()
        }
