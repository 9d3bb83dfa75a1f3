"""Passes of one device's shards, timed and weighed without the other devices of its row.

A pass is as a stage runs it (passes/shard_stage.py): weights are of its dtype, as are gradients,
which are added to those that are there. Each operator is timed alone; stages of one process compile
runs of them as one, whose cost is measured of all operators together. Inputs are random, of the
dtypes that they have in training, which one run through all operators tells.
"""

from __future__ import annotations

import gc
import time
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from workbench.core.division import even_share
from workbench.core.garbage import keep_what_is_there
from workbench.model import make_model
from workbench.model.base import Context
from workbench.model.families import blank_rows
from workbench.model.operators.places import Form
from workbench.model.sharded import MODULES
from workbench.model.sharded.base import Rows, Sharded
from workbench.model.sharded.transformer import Attention
from workbench.profile.bench import marked, timed, torch_device
from workbench.profile.shards import Chain, Exchange, JoinedCost, Repeats, ShardCost, Variant
from workbench.profile.timing import Timing, summarize
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.shard_ends import crossings
from workbench.runtime.passes.shard_stage import TARGETS, Key, MicroRows, ShardStage
from workbench.runtime.passes.template import compiles
from workbench.runtime.transport.stage_groups import StageGroups

WEIGHT_STD = 0.02
BURST = 5
"""Rounds of passes that a GPU is waited for together."""


class Lone:
    """The columns (`sharded.base.Columns`) of a device whose peers are not there: it computes its
    part, and notes what it would exchange."""

    number = 0

    def __init__(self, count: int) -> None:
        self.count = count
        self.noted: list[Exchange] = []

    def _note(self, kind: str, tensor: Tensor, *, backward: bool) -> Tensor:
        if self.count > 1:
            self.noted.append(Exchange(kind=kind, bytes=tensor.nbytes, backward=backward))
        return tensor

    def summed(self, terms: Tensor) -> Tensor:
        """Its term."""
        return self._note("all_reduce", terms, backward=False)

    def read(self, whole: Tensor) -> Tensor:
        """The replica; its gradient would be a sum."""
        return self._note("all_reduce", whole, backward=True)

    def largest(self, values: Tensor) -> Tensor:
        """Its own values."""
        return self._note("all_reduce", values.detach(), backward=False)

    def total(self, values: Tensor) -> Tensor:
        """Its term; the gradient would be a sum, too."""
        return self.read(self.summed(values))

    def share(self, whole: Tensor, dim: int) -> Tensor:
        """Its share of a replica."""
        first, end = even_share(whole.shape[dim], self.number, self.count)
        return self._note("all_gather", whole.narrow(dim, first, end - first), backward=True)

    def gathered(self, part: Tensor, dim: int, size: int) -> Tensor:
        """A replica in which the others' shares are empty."""
        if self.count == 1:
            return part
        return _Wider.apply(self._note("all_gather", part, backward=False), dim, size)


class _Wider(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, size: int) -> Tensor:
        ctx.cut = dim, part.shape[dim]
        shape = (*part.shape[:dim], size, *part.shape[dim + 1 :])
        made = part.new_zeros(shape)
        made.narrow(dim, 0, part.shape[dim]).copy_(part)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):
        dim, size = ctx.cut
        return gradient.narrow(dim, 0, size).contiguous(), None, None


class Alone(NamedTuple):
    """What a plan says of an operator (`shard_ends.Setting`)."""

    tp: int
    dp: int
    algo: int
    recompute: bool


class Timer:
    """Makes shards of a chain's operators one by one, and measures them."""

    def __init__(
        self, chain: Chain, device: str, repeats: Repeats, budget: int | None = None
    ) -> None:
        self._chain, self._repeats = chain, repeats
        self._device, self._dtype = torch_device(device), DTYPES[chain.dtype]
        self._model = make_model(chain.spec)
        self._meter = device_meter(self._device, budget)
        self._taken: dict[range, tuple[torch.dtype | None, ...]] = {}
        """Dtypes of a call's input and of the extra tensors that it reads."""

    def __enter__(self) -> Self:
        keep_what_is_there()  # else each collection below takes most of the time of a shard
        return self

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()
        self._meter.close()

    def cost(self, call: range, variant: Variant) -> ShardCost | None:
        """The cost of one device's shard of a call; None where there is no room for it."""
        try:
            if not self._taken:
                self._taken = self._dtypes()
            with self._meter:
                return self._cost(call, variant)
        except OutOfMemory:
            return None
        finally:
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def joined(self, samples: int) -> JoinedCost | None:
        """The cost of what stages compile as one; None where they do not, or there is no room."""
        if self._chain.spec.dropout or not compiles("auto", self._device.type, self._dtype):
            return None
        try:
            with self._meter:
                return self._joined(samples)
        except OutOfMemory:
            return None
        finally:
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()

    # -- what a call computes with ------------------------------------------------------------

    def _module(self, call: range, variant: Variant) -> Sharded:
        chain, algo = self._chain, variant.algo
        operator, place = chain.operators.operators[call.start], chain.places[call.start]
        build = Attention if len(call) > 1 else MODULES[operator.kind]
        module = build(
            chain.spec, place, Lone(variant.tp), Lone(1), algo=algo,
            sharded=chain.sharded(call.start, 0, algo),
        )  # fmt: skip
        tied = self._model.tied()

        def whole(name: str) -> Tensor:
            own = place.unit, f"{place.path}.{name}" if place.path else name
            unit, local = tied.get(own, own)
            shape = self._model.skeleton(unit).get_parameter(local).shape
            return torch.randn(shape, device=self._device, dtype=self._dtype) * WEIGHT_STD

        module.take(whole, self._device)
        for weight in module.parameters():
            weight.grad = torch.zeros_like(weight)
        return module

    def _rows(self, samples: int) -> Rows:
        spec, device = self._chain.spec, self._device
        *inputs, targets = blank_rows(spec, samples)
        made = [self._filled(each).to(device) for each in inputs]
        made = [each.to(self._dtype) if each.is_floating_point() else each for each in made]
        ctx = Context(seed=0, step=0, unit=0, samples=tuple(range(samples)))
        labels = self._filled(targets).to(device)
        every = not self._model.counts_differ
        return Rows(tuple(made), labels, ctx, targets.numel(), every, samples, False)

    def _filled(self, blank: Tensor) -> Tensor:
        if blank.dtype is torch.bool:
            return torch.ones_like(blank)
        if blank.is_floating_point():
            return torch.randn_like(blank)
        return torch.randint(self._chain.spec.vocab, blank.shape)

    def _tensor(self, form: Form, variant: Variant, dtype: torch.dtype, *, sharded: bool) -> Tensor:
        shape = [*form.shape(variant.samples)]
        if sharded:
            first, end = even_share(shape[form.shard], 0, variant.tp)
            shape[form.shard] = end - first
        return torch.randn(shape, device=self._device, dtype=dtype).requires_grad_()

    def _dtypes(self) -> dict[range, tuple[torch.dtype | None, ...]]:
        """Of each call, from one that runs behind the other over the fewest samples."""
        chain, variant = self._chain, Variant(samples=1, tp=1, algo=0)
        rows, found, x = self._rows(1), {}, None
        held: dict[str, Tensor] = {}
        with torch.no_grad():
            for call in chain.calls():
                module, came = self._module(call, variant), chain.into(call)
                taken = x if came else rows.inputs[0]
                read = [held[each.extra.name] for each in chain.read(call)]
                found[call] = (taken.dtype, *(each.dtype for each in read))
                made = module(taken, rows, *read)
                x, second = made if isinstance(made, tuple) else (made, None)
                for each in chain.extras:
                    if each.extra.made_by in call:
                        there = {"input": taken, "second": second, "output": x}
                        held[each.extra.name] = there[each.what]
        return found

    def _joined(self, samples: int) -> JoinedCost:
        chain, model, last = self._chain, self._model, len(self._chain.operators) - 1
        one = Alone(1, 1, 0, False)
        came, goes = (crossings(chain.operators, chain.places, at, one, one) for at in (1, last))
        stage = ShardStage(
            chain.operators, chain.places, model, chain.spec, first=1, settings=[one] * (last - 1),
            came=came, goes=goes, groups=StageGroups([{1}], [1], 0, lambda ranks: None),
            device=self._device, dtype=self._dtype, fuses=chain.fused, compiled=True,
        )  # fmt: skip

        def initial(key: Key) -> Tensor:
            shape = model.skeleton(key[0]).get_parameter(key[1]).shape
            return torch.randn(shape, device=self._device) * WEIGHT_STD

        stage.draw(initial, self._dtype)
        for _, weight in stage.parameters():
            weight.grad = torch.zeros_like(weight)
        rows, variant = self._rows(samples), Variant(samples=samples, tp=1, algo=0)
        named = {str(n): each for n, each in enumerate(rows.inputs)} | {TARGETS: rows.targets}
        stage.begin(0, [MicroRows(named, rows.ctx, None)])
        leaves = tuple(self._tensor(e.form, variant, self._dtype, sharded=False) for e in came)

        def forward() -> tuple[Tensor, ...]:
            return stage.run(leaves, 0, 0)

        def backward(made: tuple[Tensor, ...], above: list[Tensor]) -> None:
            torch.autograd.backward(made, above)
            for leaf in leaves:
                leaf.grad = None

        above = [torch.randn_like(each) for each in forward()]
        (ahead, back), _ = self._timed(forward, backward, above)
        there = marked(self._meter, forward)
        kept = there.after - there.before - sum(each.nbytes for each in above)
        return JoinedCost(forward_s=ahead.seconds, backward_s=back.seconds, kept_bytes=max(0, kept))

    # -- measuring ----------------------------------------------------------------------------

    def _cost(self, call: range, variant: Variant) -> ShardCost:
        chain, algo, meter = self._chain, variant.algo, self._meter
        module, rows, came = self._module(call, variant), self._rows(variant.samples), None
        into, own, *others = chain.into(call), *self._taken[call]
        if into is not None:
            sharded = chain.sharded(call.start, 0, algo)
            came = self._tensor(into, variant, own, sharded=sharded)
        x = rows.inputs[0] if came is None else came
        read = [
            self._tensor(each.form, variant, dtype, sharded=chain.sharded(
                next(at for at in each.extra.read_by if at in call), 0, algo))
            for each, dtype in zip(chain.read(call), others, strict=True)
        ]  # fmt: skip
        leaves = [each for each in (came, *read) if each is not None]

        def forward() -> tuple[Tensor, ...]:
            made = module(x, rows, *read)
            return made if isinstance(made, tuple) else (made,)

        def backward(made: tuple[Tensor, ...], above: list[Tensor]) -> None:
            ends = [each for each in made if each.requires_grad]
            torch.autograd.backward(ends, [g for g, m in zip(above, made, strict=True)
                                           if m.requires_grad])  # fmt: skip
            for leaf in leaves:
                leaf.grad = None

        saved: set[int] = set()
        with saved_tensors_hooks(lambda t: (saved.add(_memory(t)), t)[1], lambda t: t):
            made = forward()
        ends = {_memory(each) for each in made}
        given = [x, *read]
        keeps = (bool(ends & saved), *(_memory(each) in saved for each in given))
        above = [torch.randn_like(each) for each in made]
        noted = tuple(module.columns.noted)
        backward(made, above)
        del made
        timings, launch_s = self._timed(forward, backward, above)
        there = marked(meter, forward)
        weighed = {_memory(t): t.untyped_storage().nbytes() for t in there.made}
        made_bytes = sum(n for where, n in weighed.items() if where not in map(_memory, given))
        held = [there.made]
        there_bytes = there.after - there.before
        scratch = there.peak - there.after
        del there
        back = marked(meter, lambda: backward(held.pop(), above))
        return ShardCost(
            forward_s=timings[0].seconds, forward_spread=timings[0].spread,
            backward_s=timings[1].seconds, backward_spread=timings[1].spread, launch_s=launch_s,
            inner_bytes=max(0, there_bytes - made_bytes), made_bytes=made_bytes, keeps=keeps,
            forward_scratch_bytes=scratch, backward_scratch_bytes=max(0, back.peak - back.before),
            parameters=sum(each.numel() for each in module.parameters()), exchanges=noted,
        )  # fmt: skip

    def _timed(
        self, forward: Any, backward: Any, above: list[Tensor]
    ) -> tuple[list[Timing], float]:
        """Both passes, again and again, one behind the other; and the host's seconds of them."""
        repeats, device, graphs = self._repeats, self._device, []
        actions = [lambda: graphs.append(forward()), lambda: backward(graphs.pop(), above)]
        warm = timed(actions, device, least=repeats.warmup, most=repeats.warmup)
        forward_s = summarize(warm[0]).seconds
        began = time.perf_counter()
        for action in actions:
            action()
        launch_s = time.perf_counter() - began
        long = repeats.long_s is not None and forward_s >= repeats.long_s
        count = repeats.times[-1 if long else 0]
        counts = repeats.warmup_counts_s is not None and forward_s >= repeats.warmup_counts_s
        if counts and repeats.warmup >= count:
            return [summarize(each) for each in warm], launch_s
        left = count - repeats.warmup if counts else count
        taken = timed(actions, device, least=left, most=left, burst=min(BURST, left), ahead=True)
        return [summarize(each) for each in taken], launch_s


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
