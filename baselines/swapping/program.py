"""One step with swapping, micro-batch by micro-batch (the baselines of Harmony, VLDB'22).

Each rank runs plain data parallelism, or a stage of a plain 1F1B pipeline, as if its device were
large enough, and what has no room is swapped (places.py). Every micro-batch passes all layers of
its rank before the next one does, so what comes and goes does so once a micro-batch:

* **Weights** come for its forward pass, and again for its backward pass.
* **Gradients** are sums over the micro-batches: where a layer has no place of its own, the sum so
  far goes to the host after each backward pass and comes back before the next.
* **Inputs** of layers go to the host after the forward pass and come back for the backward pass,
  which repeats the layer's forward pass.

The rest is as kind to the baseline as it can be: one copy of the weights for the machine, transfers
on lanes of their own and ahead of compute, updates by the host's optimizer in the order in which
layers are needed next.
"""

from __future__ import annotations

from baselines.swapping.division import Division
from baselines.swapping.sheet import RankSheet, Sheet
from workbench.profile.unit_costs import Sizes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, NET_IN, NET_OUT, Kind
from workbench.schedule.build.division import Samples
from workbench.schedule.build.inbox import FETCHES, RETURNS, lay_inbox
from workbench.schedule.schedule import Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD


def build(
    division: Division,
    sizes: Sizes,
    *,
    clipped: bool = True,
    replay: bool = False,
    budgets: dict[str, int] | None = None,
) -> Schedule:
    """The schedule of one step. With `replay`, passes of blocks are recordings."""
    sheet = Sheet(division, sizes, replay=replay)
    sheet.lay_host()
    for rank in range(division.ranks):
        RankProgram(sheet, rank).write()
    sheet.update(clipped)
    return Schedule(
        name=f"{division.mode}-swap",
        num_units=division.num_units,
        num_microbatches=1 + max(action.microbatch or 0 for action in sheet.actions),
        num_ranks=division.ranks,
        actions=tuple(sheet.actions),
        buffers=sheet.buffers,
        budgets=budgets or {},
        settings={
            "mode": division.mode,
            "size": division.size,
            "stages": " ".join(str(len(stage)) for stage in division.stages),
            "own": " ".join(map(str, division.own)),
            "shared": division.shared,
        },
    )


class RankProgram(RankSheet):
    """The passes of one rank in a step."""

    def write(self) -> None:
        """Everything but the updates."""
        first, end = self.division.share(self.rank)
        self.lay("tokens", self.sizes.token_bytes(end - first), permanent=True)
        if self.sizes.library_bytes:
            self.lay("libraries", self.sizes.library_bytes, permanent=True)
        self._lay_replays()
        for number, each in enumerate(self.passes):
            span = self.micros[each.micro]
            if each.forward:
                self._forward_pass(number, each.micro, span)
            else:
                self._backward_pass(number, each.micro, span)
        lay_inbox(self.sheet, self.received, self.queues[NET_IN])

    # -- a forward pass ---------------------------------------------------------------------------

    def _forward_pass(self, number: int, micro: int, span: Samples) -> None:
        for unit in self.division.units_of(self.rank, self.passes[number]):
            there = self._load(number, unit)
            made = self._input(unit, micro, span)
            me, out = self.act(F, unit, micro), name.activation(unit + 1, micro)
            after, last = [*made, there], unit + 1 == self.stage.stop
            if last:
                out = name.output(unit, micro)
                after += self._sent(NET_OUT, self.act(Kind.SEND, unit + 1, micro))
            elif unit + 1 < self.division.head:
                after += self._behind(D2H, self.act(Kind.STASH, unit + 1, micro))
            source = self.label(name.activation(unit, micro))
            weights = [self._weights(number, unit)]
            ends = self.visits.weights((number, unit)).last == (number, unit)
            scratch = self._cost(unit, span).forward_scratch_bytes
            self.add(
                F, unit, COMPUTE, micro, after=after, samples=span,
                takes=[
                    *self._scratch(me, unit, scratch),
                    self.lay(out, self._input_bytes(unit + 1, span)),
                ],
                uses=[*([source] if unit else []), *([] if ends else weights)],
                frees=weights if ends else [],
            )  # fmt: skip
            if unit:
                self.add(
                    Kind.STASH, unit, D2H, micro, after=[me], samples=span,
                    nbytes=self._input_bytes(unit, span), uses=[self._stash(unit)], frees=[source],
                )  # fmt: skip
            if last:
                self.add(
                    Kind.SEND, unit + 1, NET_OUT, micro, after=[me], samples=span,
                    nbytes=self._input_bytes(unit + 1, span), frees=[self.label(out)],
                )  # fmt: skip

    def _input(self, unit: int, micro: int, span: Samples) -> list[str]:
        """Have a unit's input come; returns what brings it."""
        if unit == 0:
            return []
        if unit > self.stage.start:
            return [self.act(F, unit - 1, micro)]
        ends = self.act(B if unit == self.division.head else Kind.STASH, unit, micro)
        return [self._receive(Kind.RECV, unit, micro, span, name.activation(unit, micro), ends)]

    # -- a backward pass --------------------------------------------------------------------------

    def _backward_pass(self, number: int, micro: int, span: Samples) -> None:
        for unit in self.division.units_of(self.rank, self.passes[number]):
            there, sums = self._load(number, unit), self._bring_sums(number, unit)
            again, source = self._again(number, unit, span, there)
            above = self._output_gradient(unit, micro, span)
            me, below = self.act(B, unit, micro), []
            after, frees = [again, *sums, *above], [self.label(name.kept(unit, micro)), *source]
            if above:
                frees.append(self.label(name.output_gradient(unit, micro)))
            nbytes = self._input_bytes(unit, span)
            if unit > self.stage.start:
                below = [self.lay(name.output_gradient(unit - 1, micro), nbytes)]
            elif unit:
                below = [self.lay(name.input_gradient(unit, micro), nbytes)]
                after += self._sent(RETURNS, self.act(Kind.SEND_GRAD, unit, micro))
            visit = self.visits.gradients((number, unit))
            uses, gradients = [], self.label(name.gradients(unit, visit.turn))
            if visit.first == (number, unit) and not visit.turn:
                below.append(self._place(name.gradients(unit), unit, "gradients"))
                after += self._ended(visit.behind, self._gradients_gone)
            else:
                uses.append(gradients)
            ends = self.visits.weights((number, unit)).last == (number, unit)
            (frees if ends else uses).append(self._weights(number, unit))
            scratch = self._cost(unit, span).backward_scratch_bytes + self.sizes.fresh_bytes(unit)
            self.add(
                B, unit, COMPUTE, micro, after=after, samples=span, uses=uses, frees=frees,
                takes=[*self._scratch(me, unit, scratch), *below],
            )  # fmt: skip
            if unit and unit == self.stage.start:
                self.add(
                    Kind.SEND_GRAD, unit, RETURNS, micro, after=[me], samples=span,
                    nbytes=nbytes, frees=[self.label(name.input_gradient(unit, micro))],
                )  # fmt: skip
            if visit.last == (number, unit):
                self._gradients_out(unit, visit, me)

    def _again(self, number: int, unit: int, span: Samples, there: str) -> tuple[str, list[str]]:
        """The forward pass that keeps what the backward pass needs; returns it, and what that frees
        in the end."""
        micro = self.passes[number].micro
        kind, after, text = R, [there], name.activation(unit, micro, 1)
        if unit == self.division.head:
            kind, text = F, name.activation(unit, micro)
            after += self._input(unit, micro, span)
        elif unit:
            nbytes = self._input_bytes(unit, span)
            after.append(self.add(
                Kind.FETCH, unit, FETCHES, micro, nbytes=nbytes, samples=span,
                after=[
                    self.act(Kind.STASH, unit, micro),
                    *self._behind(FETCHES, self.act(B, unit, micro)),
                ],
                takes=[self.lay(text, nbytes)], uses=[self._stash(unit)],
            ))  # fmt: skip
        cost, source = self._cost(unit, span), [self.label(text)] if unit else []
        me = self.act(kind, unit, micro)
        kept = 0 if self.replayed(unit) else cost.kept_bytes
        self.add(
            kind, unit, COMPUTE, micro, after=after, samples=span,
            takes=[
                *self._scratch(me, unit, cost.recompute_scratch_bytes),
                self.lay(name.kept(unit, micro), kept),
            ],
            uses=[self._weights(number, unit), *source],
        )  # fmt: skip
        return me, source

    def _output_gradient(self, unit: int, micro: int, span: Samples) -> list[str]:
        """Have the gradient of a unit's output come; returns what brings it, nothing for the
        loss."""
        if unit == self.division.head:
            return []
        if unit + 1 < self.stage.stop:
            return [self.act(B, unit + 1, micro)]
        text = name.output_gradient(unit, micro)
        ends = self.act(B, unit, micro)
        return [self._receive(Kind.RECV_GRAD, unit + 1, micro, span, text, ends)]
