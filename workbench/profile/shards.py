"""Costs of a model's operators, each with the shards that one device of a row has.

A device times its own shards, and notes what it would exchange with the others of its row: so one
device profiles any tp. Shards that compute alike are measured once, whichever operators have them,
and every one is stored as soon as it is known (store.py says where): a profile that was killed goes
on where it was. What a device has no room for is None.

Nothing here imports torch until something is measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from workbench.core.model_spec import ModelSpec
from workbench.model.operators import OperatorList
from workbench.model.operators.places import FUSED, Form, Handed, Place, fuses, handed, places
from workbench.profile.files import FORMAT, measuring, now, stored, write
from workbench.profile.machine import Machine, this_machine
from workbench.profile.store import drifted, folder_of
from workbench.profile.table import Echo

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


@dataclass(frozen=True, kw_only=True)
class ShardCosts:
    """Costs of one model's shards."""

    machine: Machine
    measured: str
    """When the first was."""
    probe_s: float
    """A matrix product, timed just before."""
    costs: dict[str, ShardCost | None]
    """By what is computed (`Chain.key`)."""


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
            own = every[at : at + len(FUSED)]
            count = len(FUSED) if self.fused and fuses(own, self.places[at]) else 1
            found.append(range(at, at + count))
            at += count
        return found

    def read(self, call: range) -> list[Handed]:
        """Extra tensors that a call reads."""
        return [each for each in self.extras for at in each.extra.read_by if at in call]

    def into(self, call: range) -> Form | None:
        """The tensor that a call takes; None where it is the model's input."""
        first = self.operators.operators[call.start]
        return None if first.kind == "embedding" or not call.start else self.places[call[0] - 1].form

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


def path_of(chain: Chain, results: Path, machine: Machine) -> Path:
    """Where costs of a model's shards lie."""
    text = json.dumps([FORMAT, chain.spec.to_dict(), chain.dtype, chain.fused], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return folder_of(results, machine) / f"shards-{key}.json"


def shard_costs(
    chain: Chain, variants: Iterable[Variant], results: Path, echo: Echo, *, device: str = "auto",
    repeats: Repeats | None = None, budget: int | None = None, fresh: bool = False,
) -> ShardCosts:  # fmt: skip
    """Costs of all calls of all variants on this machine. Each that is stored and holds here is
    taken; the others are measured now, unless `repeats` is None, and stored one by one. `budget`
    are bytes of the device that shards may take."""
    machine = this_machine(device)
    path = path_of(chain, results, machine)
    wanted: dict[str, tuple[range, Variant]] = {}
    for variant in variants:
        for call in chain.calls():
            wanted.setdefault(chain.key(call, variant), (call, variant))
    with measuring(path, echo):
        found = None if fresh else stored(path, machine, ShardCosts, echo)
        left = [key for key in wanted if found is None or key not in found.costs]
        if left and repeats is None:
            raise ValueError(f"{len(left)} of {len(wanted)} operators are not profiled here yet")
        if not left:
            return found
        from workbench.profile.measure import probe
        from workbench.profile.shard_timing import Timer

        if found and drifted(machine, found.probe_s, chain.dtype, echo):
            found, left = None, [*wanted]
        if found is None:
            found = ShardCosts(machine=machine, measured=now(), costs={},
                               probe_s=probe(machine.device, chain.dtype))  # fmt: skip
        echo(f"{len(wanted) - len(left)} of {len(wanted)} shards that differ are stored")
        with Timer(chain, machine.device, repeats, budget) as timer:
            for number, key in enumerate(left, 1):
                cost = timer.cost(*wanted[key])
                found = replace(found, costs={**found.costs, key: cost})
                write(path, asdict(found))
                if number % 20 == 0 or number == len(left):
                    echo(f"{number} of {len(left)} measured")
    return found


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
