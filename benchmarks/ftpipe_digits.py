"""Accuracy of stale weights, and of each way to make up for them, on handwritten digits.

    python -m benchmarks.ftpipe_digits

A residual network in eight stages of one process: the schedule, the engine, the versions of weights
and the formulas are those of ``run -m ftpipe``. 1,347 digits are trained on and 450 are held out;
300 updates by 32 digits each, SGD .005 with momentum .9, torch's initial weights. A row has the
accuracy on held-out digits by seed, in percent. To fine-tune is to train on the digits 5 to 9 a
network that knows 0 to 4, at the same rate and at a tenth of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workbench.methods.ftpipe.mitigating import versions_of
from workbench.methods.ftpipe.options import Options
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.model.digits import read_digits
from workbench.runtime.executor.executor import Executor
from workbench.runtime.passes.stage_engine import MicroBatch, StageEngine
from workbench.runtime.passes.stage_passes import StagePasses
from workbench.runtime.updates.stage_updates import StageOptimizer, StageOptimizers
from workbench.schedule.buffers import weights

STAGES, WIDE, BATCH, STEPS, RATE, MOMENTUM = 8, 64, 32, 300, 0.005, 0.9
LAST, SYNCHRONOUS, FOUR = STAGES - 1, "synchronous", "accumulating four"
HOWS = {
    SYNCHRONOUS: Options(),
    "stale": Options(),
    "stashed": Options(weight_stashing=True),
    "predicted": Options(prediction="msnag"),
    "predicted, stashed": Options(prediction="msnag", weight_stashing=True),
    "gap-aware": Options(weight_stashing=True, gap_aware=True),
    FOUR: Options(),
}


class Digits(NamedTuple):
    """Pictures [n, 64] fp32, 0 to 16 as they are written, and labels [n] int64."""

    pictures: Tensor
    labels: Tensor

    def of(self, classes: range) -> Digits:
        """The digits of some classes."""
        own = (self.labels >= classes.start) & (self.labels < classes.stop)
        return Digits(self.pictures[own], self.labels[own])


def part(name: str) -> Digits:
    """The digits of a part."""
    pictures, labels = (torch.tensor(array) for array in read_digits(name))
    return Digits(pictures.flatten(1).float(), labels)


class Layer(nn.Module):
    """A stage: the first, a residual or the last layer. A `StageModule` (stage_passes.py)."""

    def __init__(self, number: int, rows: dict[tuple[int, int], Digits]) -> None:
        """`rows` of each micro-batch and step."""
        super().__init__()
        self.last, self._first, self._rows = number == LAST, number == 0, rows
        self.norm = nn.LayerNorm(WIDE) if 0 < number < LAST else None
        self.linear = nn.Linear(WIDE, 10 if self.last else WIDE)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm is None:
            return self.linear(x) if self.last else self.linear(x).relu()
        x = self.norm(x)
        return x + self.linear(x).relu()

    def came(self, samples: int) -> list:
        return [] if self._first else self.goes(samples)

    def goes(self, samples: int) -> list:
        return [((samples, WIDE), torch.float32, True)]

    def run(self, came: Sequence[Tensor], micro: int, step: int) -> tuple[Tensor]:
        pictures, labels = self._rows[micro, step]
        out = self(pictures if self._first else came[0])
        return (cross_entropy(out, labels) if self.last else out,)


def trained(
    how: str, seed: int, digits: Digits, start: nn.Module | None = None, rate: float = RATE
) -> nn.Module:
    """A network after all steps, from initial weights or those of another."""
    torch.manual_seed(seed)
    options, micros, rows = HOWS[how], 4 if how == FOUR else 1, {}
    net = nn.Sequential(*(Layer(number, rows) for number in range(STAGES)))
    if start is not None:
        net.load_state_dict(start.state_dict())
    order = torch.cat([torch.randperm(len(digits.labels)) for _ in range(99)])
    size = BATCH // micros
    for number, own in enumerate(order[: STEPS * BATCH].split(size)):
        rows[number % micros, number // micros] = Digits(digits.pictures[own], digits.labels[own])
    made = schedule(
        Asynchronous(
            label=how, positions=[0] * STAGES, micros=micros, samples=size, sizes=IdealSizes(),
            depths=[0 if how == SYNCHRONOUS else LAST - number for number in range(STAGES)],
            stashes=options.weight_stashing, predicts=options.prediction != "none",
            averages=options.gap_aware,
        )
    )  # fmt: skip
    updates, versions = {}, {}
    for number, layer in enumerate(net):
        own = [*layer.parameters()]
        flat = torch.zeros(sum(one.numel() for one in own))
        for one, grad in zip(own, flat.split([one.numel() for one in own]), strict=True):
            one.grad = grad.view_as(one)
        optimizer = torch.optim.SGD(own, lr=rate, momentum=MOMENTUM)
        updates[number] = StageOptimizer(optimizer, flat)
        versions[number] = versions_of(
            optimizer, [layer], options, copies=made.buffers[weights(number)].copies,
            rate=lambda _: rate,
        )  # fmt: skip
    stages = dict(enumerate(net))
    engine = StageEngine(
        stages, StagePasses(stages), torch.zeros(0), int, StageOptimizers(updates),
        versions=versions,
    )  # fmt: skip
    for step in range(STEPS):
        engine.begin(step, [MicroBatch(samples=range(size), weight=1.0)] * micros, 1 / micros)
    executor = Executor(made, engine.perform, torch.device("cpu"), record_from=STEPS)
    executor.run(0, STEPS)
    executor.close()
    return net


@torch.no_grad()
def accuracy(net: nn.Module, digits: Digits) -> float:
    """Percent of digits that a network tells right."""
    return 100 * (net(digits.pictures).argmax(1) == digits.labels).float().mean().item()


def rows(seeds: int = 5) -> Iterator[dict[str, Any]]:
    """A row a way to train: `study`, `how`, `rate`, and `accuracy`, a number a seed, in percent."""
    digits, held, new = part("train"), part("test"), range(5, 10)
    for how in HOWS:
        told = [accuracy(trained(how, seed, digits), held) for seed in range(seeds)]
        yield {"study": "from scratch", "how": how, "rate": RATE, "accuracy": told}
    starts = [trained(SYNCHRONOUS, seed, digits.of(range(5))) for seed in range(seeds)]
    for rate, how in product((RATE, RATE / 10), (SYNCHRONOUS, "stale", FOUR)):
        nets = [trained(how, seed, digits.of(new), net, rate) for seed, net in enumerate(starts)]
        told = [accuracy(net, held.of(new)) for net in nets]
        yield {"study": "fine-tuning", "how": how, "rate": rate, "accuracy": told}


def digits(seeds: int = 5) -> Iterator[str]:
    """A line a row."""
    for row in rows(seeds):
        each = row["accuracy"]
        name = f"{row['study']:13} {row['how']:19} rate {row['rate']:<7.4g}"
        spread = stdev(each) if seeds > 1 else 0.0
        yield f"{name} {fmean(each):5.1f} +- {spread:4.1f}  {' '.join(f'{e:5.1f}' for e in each)}"


if __name__ == "__main__":
    print(*digits(), sep="\n", flush=True)
