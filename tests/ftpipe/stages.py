"""A module in stages whose weights are updated by themselves, and its reference: one process that
knows the declared versions of weights, and nothing of pipelines."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import TensorDataset

from workbench.core.model_spec import ModelSpec
from workbench.methods.ftpipe.mitigating import versions_of
from workbench.methods.ftpipe.mitigation import gap_penalty, predict_adam, predict_sgd
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous, Loan
from workbench.methods.pipeline.asynchronous_stages import AsynchronousStages, Begun
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.model.base import Context
from workbench.model.cut_point import CutPoint
from workbench.model.slices import Slices
from workbench.runtime.passes.stage import Given, Stage
from workbench.runtime.passes.stage_engine import MicroBatch
from workbench.runtime.transport.groups import new_group
from workbench.runtime.updates.sgd_tf import SgdTf
from workbench.runtime.updates.stage_loans import StageLoans
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import Schedule

ROWS, WIDE = 3, 8
OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd-decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "sgd-tf": lambda p: SgdTf(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam-decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def rate(optimizer: str, step: int) -> float:
    """Rates of some steps, of which one is 0."""
    return (0.05 if optimizer.startswith("sgd") else 0.01) * (1, 0.5, 0, 2)[step % 4]


class Net(nn.Module):
    """Layers that are cut between each two; `tied`, the last one has the first one's weight, which
    may be `frozen`, `called`, it is the first one, and `normed`, the second one is followed by
    BatchNorm."""

    def __init__(
        self, layers: int, *, tied: bool = False, called: bool = False, normed: bool = False,
        frozen: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(layers))
        if tied:
            self.layers[-1].weight = self.layers[0].weight.requires_grad_(not frozen)
        if called:
            self.layers[-1] = self.layers[0]
        if normed:
            self.layers[1] = nn.Sequential(self.layers[1], nn.BatchNorm1d(WIDE))
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


@dataclass(frozen=True, kw_only=True)
class How:
    """The weights that passes read, as the method's options name them."""

    weight_stashing: bool = False
    prediction: str = "none"
    gap_aware: bool = False
    recompute: bool = True


def line_of(positions: Sequence[int], micros: int, how: How, *, tied: bool = False) -> Asynchronous:
    """The pipeline of a stage a layer."""
    return Asynchronous(
        label="async-1f1b",
        positions=positions,
        depths=[*reversed(range(len(positions)))],
        micros=micros,
        samples=ROWS,
        sizes=IdealSizes(),
        stashes=how.weight_stashing,
        predicts=how.prediction != "none",
        nesterov=how.prediction == "nag",
        averages=how.gap_aware,
        recompute=how.recompute,
        loans=[Loan(0, len(positions) - 1, 8)] if tied else [],
    )


def pipeline(positions: Sequence[int], micros: int, how: How, **kw: bool) -> Schedule:
    """Its schedule."""
    return schedule(line_of(positions, micros, how, **kw))


def trained(
    rank: int, positions: list[int], micros: int, steps: int, optimizer: str, how: dict
) -> dict:
    """The weights of a process's stages and its losses after so many steps."""
    torch.set_default_dtype(torch.float64)
    slices, device, losses = Slices(Net(len(positions)), batch), torch.device("cpu"), []
    cut = slices.stages(len(positions))
    stages = {
        number: Stage(slices, cut[number], device=device, dtype=torch.float64)
        for number, at in enumerate(positions)
        if at == rank
    }

    def read(step: int) -> Begun:
        ctx = Context(seed=0, step=step, unit=0, samples=tuple(range(ROWS)))
        rows = [Given(batch(ROWS, step, micro), ctx) for micro in range(micros)]
        parts = [MicroBatch(samples=ctx.samples, weight=1.0)] * micros
        return Begun(rows=rows, micros=parts, scale=1 / micros, rate=rate(optimizer, step))

    def updated(stage: int, step: int, done: bool) -> None:
        if stage + 1 == len(positions):
            losses.append(made.engine.mean_loss(step)[0] / micros)

    made = AsynchronousStages(
        line_of(positions, micros, How(**how)), stages,
        {number: slices.learning(cut[number]) for number in stages}, StageLoans({}, {}),
        optimizer=lambda _, named: OPTIMIZERS[optimizer](named.values()),
        versions=lambda n, own, **kw: versions_of(own, stages[n].modules, How(**how), **kw),
        read=read, updated=updated, clip=None, shares_clip=False, device=device, backend="gloo",
        everybody=new_group(backend="gloo"),
    )  # fmt: skip
    for first, end in ((0, steps // 2), (steps // 2, steps)):  # with a drain midway
        made.run(first, end - first)
        made.drain()
    named = {label: p.tolist() for n in stages for label, p in made.owned(n).items()}
    made.close()
    return {"losses": losses, "weights": named}


class Delayed:
    """The reference: layers by hand, on the weights that the schedule declares."""

    def __init__(self, schedule: Schedule, optimizer: str, how: How, *, tied: bool = False) -> None:
        """`tied`: the last layer reads the first one's weight, as old as the schedule says."""
        self._optimizer, self._how, self._micros = optimizer, how, schedule.num_microbatches
        layers = Net(schedule.num_units).double().layers
        self._now = [[layer.weight, layer.bias] for layer in layers]
        self._tied, owned = tied, [*self._now]
        if tied:
            owned[-1] = owned[-1][1:]
            last = schedule.num_units - 1
            self._late = max(a.stale for a in schedule.actions if brings(a, last))
        self._optimizers = [OPTIMIZERS[optimizer](own) for own in owned]
        self._stale = {
            (a.unit, a.microbatch): a.stale for a in schedule.actions if a.kind is Kind.FORWARD
        }
        self._kept: list[list[Version]] = [[] for _ in layers]
        """Weights of each stage before each step."""
        self._running = [[RunningMean() for _ in own] for own in self._now]

    @torch.no_grad()
    def step(self, step: int, since: int) -> float:
        """One step; of a segment that began with a step, the first ones find no stale weights."""
        for own, optimizer, kept in zip(self._now, self._optimizers, self._kept, strict=True):
            states = [copy.deepcopy(optimizer.state.get(theta, {})) for theta in own]
            kept.append(Version([theta.clone() for theta in own], states, []))
        for own in self._now:
            for theta in own:
                theta.grad = torch.zeros_like(theta)
        loss = sum(self._micro_batch(micro, step, since) for micro in range(self._micros))
        for stage, optimizer in enumerate(self._optimizers):
            optimizer.param_groups[0]["lr"] = rate(self._optimizer, step)
            if self._how.gap_aware:
                self._close_gaps(stage, self._read(stage, 0, step, since), step)
            optimizer.step()
            if self._how.gap_aware and isinstance(optimizer, torch.optim.Adam):
                for theta, running in zip(self._now[stage], self._running[stage], strict=True):
                    running.add(adam_step(optimizer, theta), 0.999)
        return loss / self._micros

    def _micro_batch(self, micro: int, step: int, since: int) -> float:
        given, crossing = batch(ROWS, step, micro), []
        x = given["x"]
        for stage in range(len(self._now)):
            crossing.append(x)
            weight, bias = self._read(stage, micro, step, since)
            x = (x @ weight.T + bias).tanh()
        loss = (x - given["y"]).square().mean().item()
        above = 2 * (x - given["y"]) / x.numel() / self._micros
        for stage in reversed(range(len(self._now))):
            newest, read = self._kept[stage][step].weights, self._read(stage, micro, step, since)
            if stage + 1 == len(self._now) or self._how.weight_stashing:
                newest = made = read
            else:  # kept activations are of the forward pass, weights of now
                made = newest if self._how.recompute else read
            out = (crossing[stage] @ made[0].T + made[1]).tanh()
            back = above * (1 - out**2)
            above = back @ newest[0]
            owner = 0 if self._tied and stage + 1 == len(self._now) else stage
            self._now[owner][0].grad += back.T @ crossing[stage]
            self._now[stage][1].grad += back.sum(0)
            added = [theta.grad.clone() for theta in self._now[stage]]
            self._kept[stage][step].added.append(added)
        return loss

    def held_out(self, versions: Sequence[int]) -> float:
        """The loss of another batch by weights of so many steps of each stage."""
        given = batch(ROWS, 99)
        x = given["x"]
        for kept, version in zip(self._kept, versions, strict=True):
            weight, bias = kept[version].weights
            x = (x @ weight.T + bias).tanh()
        return (x - given["y"]).square().mean().item()

    def _read(self, stage: int, micro: int, step: int, since: int) -> list[torch.Tensor]:
        """The weights that a forward pass reads."""
        if self._tied and stage + 1 == len(self._now):
            lender = self._kept[0][max(since, step - self._late)]
            return [lender.weights[0], self._kept[stage][step].weights[1]]
        stale, kind = self._stale[stage, micro], self._how.prediction
        version = max(since, step - stale)
        kept, ahead = self._kept[stage][version], step - version
        if kind == "nag":
            ahead = max(ahead, 1)
        if kind == "none" or not ahead:
            return kept.weights
        first = next(m for m in range(self._micros) if self._stale[stage, m] == stale)
        behind = len(self._now) - 1 - stage
        done = max(0, (step - since) * self._micros + first - behind)  # backward passes by then
        added = done % self._micros
        gradients = kept.added[added - 1] if kind == "aggmsnag" and added else [None, None]
        if kind == "aggmsnag" and not added:
            gradients = [torch.zeros_like(theta) for theta in kept.weights]
        (group,) = self._optimizers[stage].param_groups
        common = {
            "lr": [rate(self._optimizer, version + n) for n in range(ahead)],
            "steps": ahead, "weight_decay": group["weight_decay"],
        }  # fmt: skip
        found = []
        for theta, state, known in zip(kept.weights, kept.states, gradients, strict=True):
            zero = torch.zeros_like(theta)
            if "momentum" in group:
                velocity = state.get("momentum_buffer", state.get("velocity", zero))
                common["scaled"] = self._optimizer == "sgd-tf"
                found.append(predict_sgd(theta, velocity, momentum=0.9, gradient=known, **common))
                continue
            found.append(
                predict_adam(
                    theta, state.get("exp_avg", zero), state.get("exp_avg_sq", zero),
                    betas=group["betas"], eps=group["eps"], done=version, gradient=known,
                    decoupled=self._optimizer == "adamw", **common,
                )
            )  # fmt: skip
        return found

    def _close_gaps(self, stage: int, used: list[torch.Tensor], step: int) -> None:
        """Make gradients of weights that have moved smaller."""
        optimizer = self._optimizers[stage]
        (group,) = optimizer.param_groups
        for theta, old, running in zip(self._now[stage], used, self._running[stage], strict=True):
            if "momentum" in group:
                state = optimizer.state.get(theta, {})
                if not state:
                    continue
                running.add(state.get("momentum_buffer", state.get("velocity")), 0.999)
                largest = max(rate(self._optimizer, n) for n in range(step + 1))
                usual = {"lr_max": 1.0 if "velocity" in state else largest}
            else:
                usual = {"lr_max": 1.0, "eps": group["eps"]}
            if not running.count:
                continue
            penalty = gap_penalty(theta - old, running.mean, count=running.count, **usual)
            theta.grad /= penalty
            decay = group["weight_decay"] * (1 - penalty) / penalty
            if self._optimizer == "adamw":
                theta *= 1 - group["lr"] * decay
            else:
                theta.grad += decay * theta

    def weights(self) -> dict[str, torch.Tensor]:
        """By their names in the module."""
        return {
            f"layers.{number}.{local}": theta.detach()
            for number, own in enumerate(self._now)
            for local, theta in zip(("weight", "bias"), own, strict=True)
            if not self._tied or (number + 1, local) != (len(self._now), "weight")
        }


def brings(action: Action, borrower: int) -> bool:
    """Whether an action declares the version of borrowed weights."""
    lent = action.microbatch is None and action.kind in (Kind.SEND, Kind.RECV)
    return lent or (action.kind is Kind.UPDATE and action.unit == borrower)


class Version(NamedTuple):
    """A stage's weights and states before a step."""

    weights: list[torch.Tensor]
    states: list[dict]
    added: list[list[torch.Tensor]]
    """Its gradients after each micro-batch of the step."""


@dataclass
class RunningMean:
    """A decaying mean of squares."""

    mean: torch.Tensor | float = 0.0
    count: int = 0

    def add(self, step: torch.Tensor, decay: float) -> None:
        self.mean, self.count = decay * self.mean + (1 - decay) * step**2, self.count + 1


def adam_step(optimizer: torch.optim.Adam, theta: torch.Tensor) -> torch.Tensor:
    """The last step, without decay of weights."""
    state, (group,) = optimizer.state[theta], optimizer.param_groups
    done = int(state["step"])
    mean = state["exp_avg"] / (1 - 0.9**done)
    spread = (state["exp_avg_sq"] / (1 - 0.999**done)).sqrt() + group["eps"]
    return group["lr"] * mean / spread


def make(spec: ModelSpec) -> tuple[nn.Module, TensorDataset]:
    """The layers as a user's module."""
    return Layers(spec.layers), TensorDataset(*(each.float() for each in batch(8).values()))
