"""Costs of a model's operators, each with the shards that one device of a row has, as data.

A device times its own shards, and notes what it would exchange with the others of its row: so one
device profiles any tp. Shards that compute alike have one key, whichever operators have them. Here
is what is measured; shard_timing.py measures, and shard_store.py keeps it. Imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.core.model_spec import ModelSpec
from workbench.model.operators import OperatorList
from workbench.model.operators.place import Form, Place
from workbench.model.operators.places import Handed, fused, handed, places

DIVIDED = frozenset({"embedding", "head", "conv", "downsample-add"})
"""Kinds whose weights tp divides, though their tensors are whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """What the devices of a row exchange in a pass."""

    kind: Literal["all_reduce", "all_gather"]
    bytes: int
    """Of one device's tensor."""
    backward: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardCost:
    """Passes of one shard over a micro-batch, without exchanges. Seconds are medians; a spread is
    half the distance of the quartiles, relative to the median."""

    forward_s: float
    forward_spread: float
    backward_s: float
    """Gradients of inputs and of parameters, which are added to those that are there."""
    backward_spread: float
    launch_s: float
    """Host seconds of both passes: of a GPU, until their kernels are enqueued."""
    inner_bytes: int
    """Kept for the backward pass beside inputs and outputs."""
    made_bytes: int
    """Of outputs that are memory of their own."""
    keeps: tuple[bool, ...]
    """Whether the backward pass reads the output, the input, and each extra tensor."""
    forward_scratch_bytes: int
    """Beyond what is there after the forward pass."""
    backward_scratch_bytes: int
    """Beyond what was there before the backward pass."""
    parameters: int
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedCost:
    """All operators between the model's first and last one, in a stage of one process: runs of them
    are compiled as one."""

    forward_s: float
    backward_s: float
    kept_bytes: int
    """For the backward pass; inputs and outputs apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeats:
    """How often a pass is timed, as in the profiler of Aceso (EuroSys'24 artifact)."""

    warmup: int = 20
    times: tuple[int, ...] = (50,)
    """The second number is for passes of `long_s` and more."""
    long_s: float | None = None
    warmup_counts_s: float | None = None
    """Passes that warm up count where they take so long."""

    def __post_init__(self) -> None:
        if self.warmup < 1 or not 1 <= len(self.times) <= 2 or min(self.times) < 1:
            raise ValueError(
                f"passes warm up {self.warmup} times and repeat {[*self.times]}; it must be 1 or "
                "more, and one or two numbers of 1 or more"
            )


@dataclass(frozen=True, kw_only=True)
class Variant:
    """How operators are divided."""

    samples: int
    """Of a device."""
    tp: int
    algo: int


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Operators in a row, each of a profile's rows once."""

    operators: OperatorList
    """Of one layer of each kind."""
    spec: ModelSpec
    dtype: str
    fused: bool = True
    """Whether attention is one call, as it trains; its first operator has the cost of all."""
    places: list[Place] = field(init=False)
    extras: list[Handed] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", places(self.operators, self.spec))
        object.__setattr__(self, "extras", handed(self.operators, self.places))

    def calls(self) -> list[range]:
        """Operators of each call, in order."""
        found, at, every = [], 0, self.operators.operators
        while at < len(every):
            count = fused(every[at:], self.places[at]) if self.fused else 1
            found.append(range(at, at + count))
            at += count
        return found

    def read(self, call: range) -> list[Handed]:
        """Extra tensors that a call reads."""
        return [each for each in self.extras for at in each.extra.read_by if at in call]

    def into(self, call: range) -> Form | None:
        """The tensor that a call takes; None where it is the model's input."""
        first = self.operators.operators[call.start]
        return (
            None if first.kind == "embedding" or not call.start else self.places[call[0] - 1].form
        )

    def sharded(self, at: int, side: int, algo: int) -> bool:
        """Whether an operator's input (side 0) or output (1) comes in shards."""
        return self.operators.operators[at].layouts[algo][side].shard is not None

    def key(self, call: range, variant: Variant) -> str:
        """What a call computes: alike for shards that cost the same."""
        first, last = (self.operators.operators[at] for at in (call.start, call.stop - 1))
        place, algo = self.places[call.start], variant.algo
        splits = [self.sharded(call.start, 0, algo), self.sharded(call.stop - 1, 1, algo)]
        divided = variant.tp > 1 and (any(splits) or first.kind in DIVIDED)
        told: dict[str, Any] = {
            "kinds": [self.operators.operators[at].kind for at in call],
            "samples": variant.samples,
            "into": [*getattr(self.into(call), "tail", ())],
            "read": [[*each.form.tail] for each in self.read(call)],
            "out": [*self.places[call.stop - 1].form.tail],
            "heads": place.heads and [*place.heads], "window": place.window and [*place.window],
            "rectified": place.rectified, "drops": bool(place.site) or place.draw is not None,
        }  # fmt: skip
        if divided:
            told |= {"tp": variant.tp, "sharded": splits}
            if first.kind in DIVIDED and first.tunable and last.kind != "embedding":
                told["algo"] = algo
        return json.dumps(told)


def kept_bytes(chain: Chain, costs: dict[range, ShardCost]) -> dict[range, int]:
    """Bytes that each call leaves for backward passes: its own, and its output where it or a reader
    keeps that."""
    calls, found = chain.calls(), {}
    for number, call in enumerate(calls):
        cost = costs[call]
        behind = costs[calls[number + 1]] if number + 1 < len(calls) else None
        keeps = cost.keeps[0] or (behind is not None and behind.keeps[1])
        for reader in calls[number + 1 :]:
            for place, each in enumerate(chain.read(reader)):
                if each.extra.made_by in call and each.what != "input":
                    keeps = keeps or costs[reader].keeps[2 + place]
        found[call] = cost.inner_bytes + (cost.made_bytes if keeps else 0)
    return found
