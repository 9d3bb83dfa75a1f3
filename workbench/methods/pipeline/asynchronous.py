"""A pipeline that never drains: each stage updates its weights by itself, and waits for no other.

In a step `micros` micro-batches begin, each in a slot of its own. In the slot of a micro-batch
every stage makes its forward pass, and the backward pass of the micro-batch that is `depth` slots
older; an update follows the last backward pass of a step's micro-batches. So passes lag behind
their step by whole steps, and read weights that lack updates; the schedule says both of each
action, and the validator proves it (schedule/rules.py).

Stages have lanes of their own. Several on one position take turns: of the passes that are ready,
the deepest stage's comes first (schedule/turns.py), and none waits for another's order.

A weight that a stage borrows of one in front travels with the activations: the copy that a step
finds is of the version that the owner's first micro-batch of that step has read, so nobody waits
for it. It is installed by the borrower's own update, and lacks as many updates more than the
borrower's own weights as its message declares (`Asynchronous.late`). Gradients of a step reach the
owner before it is updated for that step, since a stage in front updates later.

With lists of `passes` the same program drains with each step, and nothing is stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.methods.pipeline.asynchronous_line import Asynchronous, B, F, Loan
from workbench.schedule import buffers as name
from workbench.schedule.action import NET_IN, NET_OUT, Action, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DEVICE, Buffer, Schedule

U = Kind.UPDATE
SEND, RECV = Kind.SEND, Kind.RECV
SEND_GRAD, RECV_GRAD = Kind.SEND_GRAD, Kind.RECV_GRAD


def schedule(line: Asynchronous) -> Schedule:
    """One step of the pipeline. Raises ValueError for a last stage that waits, and for an owner of
    lent weights behind its borrower."""
    for loan in line.loans:
        if line.late(loan) < 0 or loan.owner > loan.borrower:
            raise ValueError(
                f"stage {loan.borrower} borrows a weight of stage {loan.owner} behind it; the "
                "owner of a shared weight must be the first of its users"
            )
    if line.depths[-1]:
        raise ValueError(f"the last stage's depth is {line.depths[-1]}; its loss is there, give 0")
    writer = _Writer(line)
    writer.fixed()
    for stage in range(len(line.positions)):
        writer.stage(stage)
    return Schedule(
        name=line.label,
        num_units=len(line.positions),
        num_microbatches=line.micros,
        num_ranks=1 + max(line.positions),
        actions=tuple(writer.actions),
        buffers=writer.buffers,
        settings={"positions": " ".join(map(str, line.positions)), "recompute": line.recompute},
    )


@dataclass
class _Writer:
    """Actions and buffers of a step."""

    line: Asynchronous
    actions: list[Action] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def fixed(self) -> None:
        """What every position has all the time: workspaces of libraries, and tokens of the steps
        that are under way."""
        line, sizes = self.line, self.line.sizes
        steps = 2 + max(line.lag(stage, line.micros - 1) for stage in range(len(line.positions)))
        tokens = steps * sizes.token_bytes(line.micros * line.samples)
        for at in {*line.positions}:
            for text, nbytes in (("libraries", sizes.library_bytes), ("tokens", tokens)):
                if nbytes:
                    self.buffers[name.on_rank(at, text)] = Buffer(
                        tier=DEVICE, nbytes=nbytes, permanent=True, rank=at
                    )

    def stage(self, stage: int) -> None:
        """Passes, messages and updates of a stage, slot by slot."""
        line, sizes = self.line, self.line.sizes
        versions = line.versions(stage)
        loans = [loan for loan in line.loans if loan.borrower == stage]
        borrowed = sum(loan.nbytes for loan in loans)
        weights = sizes.weight_bytes(stage) + borrowed + sum(loan.frozen for loan in loans)
        weights = line.copy_bytes(stage) if versions > 1 else weights
        states = sizes.state_bytes(stage) + line.averages * line.copy_bytes(stage)
        self._lay(stage, name.weights(stage), weights, versions, True)
        self._lay(stage, name.gradients(stage), sizes.visit_bytes(stage) + borrowed, 1, True)
        self._lay(stage, name.states(stage), states, 1, True)
        for kind, micro in line.turns(stage):
            (self._forward if kind is F else self._backward)(stage, micro)
            if kind is B and micro == line.last(stage):
                self._update(stage, micro)
        if self._behind(stage):
            for kind, micro in line.turns(stage + 1):
                if kind is B:
                    self._gradient_comes(stage, micro)

    def _update(self, stage: int, micro: int) -> None:
        """The update behind the backward pass of a micro-batch, with messages of lent weights."""
        line, after, frees, stale = self.line, [], [], 0
        for number, loan in enumerate(line.lends):
            if loan.borrower == stage:
                after += self._borrow(number, loan, micro)
                local = not self._apart(loan)
                frees += [] if local else [name.lent_weights(loan.owner, stage)]
                stale = line.late(loan) if local else stale
            if loan.owner == stage:
                after += self._lend(number, loan)
                frees.append(name.lent_gradients(stage, loan.borrower))
        at, takes = line.positions[stage], []
        if line.update_bytes:
            takes = [name.scratch(act(U, stage, rank=at))]
            nbytes = line.update_bytes[stage]
            self.buffers[takes[0]] = Buffer(tier=DEVICE, nbytes=nbytes, rank=at)
        self._add(
            U, stage, None, line.lanes[stage], lag=line.lag(stage, micro), after=after, stale=stale,
            uses=self._there(stage, name.states(stage), name.gradients(stage)),
            takes=tuple(takes), frees=(*self._there(stage, *frees), *takes),
        )  # fmt: skip

    def _apart(self, loan: Loan) -> bool:
        return self.line.positions[loan.owner] != self.line.positions[loan.borrower]

    def _borrow(self, number: int, loan: Loan, micro: int) -> list[str]:
        """A borrower's side of a loan; returns what its update waits for. Two copies of the weights
        are enough for owners that are a few updates ahead to go on."""
        own, line, late = loan.borrower, self.line, self.line.late(loan)
        updated = act(U, loan.owner, rank=line.positions[own])
        if not self._apart(loan):
            return [updated]
        lag, text = line.lag(own, micro), name.lent_weights(loan.owner, own)
        copies = 1 + late // 2
        self._lay(own, text, loan.nbytes, copies)
        self._message(
            number, SEND_GRAD, loan, own, lag=lag, after=[self._name(B, own, micro, own)],
            uses=self._there(own, name.gradients(own)),
        )  # fmt: skip
        there = act(U, own, rank=line.positions[own], step=-copies)
        self._message(
            number, RECV, loan, own, lag=lag, stale=late, after=[there],
            takes=self._there(own, text),
        )  # fmt: skip
        return [self._loan(kind, number, loan, own) for kind in (SEND_GRAD, RECV)]

    def _lend(self, number: int, loan: Loan) -> list[str]:
        """An owner's side of a loan; returns what its update waits for."""
        own, line, late = loan.owner, self.line, self.line.late(loan)
        lag, last = line.lag(loan.borrower, line.micros - 1), line.last(loan.borrower)
        updated, text = (
            act(U, own, rank=line.positions[own]),
            name.lent_gradients(own, loan.borrower),
        )
        self._lay(own, text, loan.nbytes, late + 1)
        if not self._apart(loan):
            installed = act(U, loan.borrower, rank=line.positions[own], step=-1)
            return [self._name(B, loan.borrower, last, own, back=late), installed]
        self._message(
            number, RECV_GRAD, loan, own, lag=lag, after=[f"{updated}@-1"],
            takes=self._there(own, text),
        )  # fmt: skip
        self._message(
            number, SEND, loan, own, lag=lag, stale=late, after=[updated],
            uses=self._there(own, name.weights(own)),
        )  # fmt: skip
        came = self._loan(RECV_GRAD, number, loan, own, back=late)
        return [came, self._loan(SEND, number, loan, own, back=1)]

    def _message(self, number: int, kind: Kind, loan: Loan, stage: int, **kw: Any) -> None:
        """A message of lent weights or of their gradients, on a lane of its own."""
        lane = 2 * (len(self.line.positions) + number) + (kind in (SEND_GRAD, RECV_GRAD))
        out = kind in (SEND, SEND_GRAD)
        self._add(
            kind, loan.owner, None, f"{NET_OUT if out else NET_IN}.{lane}", turn=number,
            rank=self.line.positions[stage], nbytes=loan.nbytes, **kw,
        )  # fmt: skip

    def _loan(self, kind: Kind, number: int, loan: Loan, stage: int, *, back: int = 0) -> str:
        at = self.line.positions[stage]
        return act(kind, loan.owner, turn=number, rank=at, step=-back)

    def _forward(self, stage: int, micro: int) -> None:
        line, last = self.line, stage + 1 == len(self.line.positions)
        cost = line.sizes.cost(stage, line.samples)
        kept = line.keeps(stage, micro)
        again = kept == name.checkpoint(stage, micro)
        graph = cost.kept_bytes  # and its output, which no other buffer stands for once it is sent
        graph += 0 if last else line.sizes.input_bytes(stage + 1, line.samples)
        self._lay(stage, kept, 0 if again else graph, line.copies(stage))
        takes, uses, after = [kept], [name.weights(stage)], []
        if stage:
            uses.append(name.activation(stage, micro))
            came = F if line.positions[stage] == line.positions[stage - 1] else Kind.RECV
            if came is Kind.RECV:
                self._input_comes(stage, micro)
            after.append(self._name(came, stage - (came is F), micro, stage))
        if not last and self._behind(stage):
            out = name.output(stage, micro)
            self._lay(stage, out, line.sizes.input_bytes(stage + 1, line.samples), 1)
            takes.append(out)
            after.append(self._name(Kind.SEND, stage + 1, micro, stage, back=1))
        elif not last:  # to the next stage, here
            takes.append(self._lay_input(stage + 1, micro))
            after.append(self._input_is_free(stage + 1, micro))
        frees: list[str] = []
        if same := line.predicted(stage, micro):
            predicted, holds = name.predicted(stage, same[0]), line.holds_predicted(stage)
            slots = len(same) + line.depths[stage] * holds
            self._lay(stage, predicted, line.copy_bytes(stage), (slots - 1) // line.micros + 1)
            (takes if micro == same[0] else uses).append(predicted)
            if micro == same[-1] and not holds:
                frees.append(predicted)
        scratch = cost.forward_scratch_bytes if again else cost.recompute_scratch_bytes
        if same and micro == same[0] and line.predict_bytes:
            scratch = max(scratch, line.predict_bytes[stage])
        self._pass(
            F, stage, micro, scratch, after=after, takes=takes, uses=uses, frees=frees,
            stale=line.stale(stage, micro),
        )  # fmt: skip
        if self._behind(stage):
            self._add(
                Kind.SEND, stage + 1, micro, f"{NET_OUT}.{2 * stage}",
                rank=line.positions[stage], frees=self._there(stage, name.output(stage, micro)),
                after=[self._name(F, stage, micro, stage)],
                nbytes=line.sizes.input_bytes(stage + 1, line.samples),
            )  # fmt: skip

    def _backward(self, stage: int, micro: int) -> None:
        line, lag = self.line, self.line.lag(stage, micro)
        cost = line.sizes.cost(stage, line.samples)
        kept = line.keeps(stage, micro)
        again = kept == name.checkpoint(stage, micro)
        frees, takes, after = [kept], [], []
        uses = [name.weights(stage), name.gradients(stage)]
        if stage:
            frees.append(name.activation(stage, micro))
        for loan in line.lends if micro == line.last(stage) else ():
            if loan.borrower == stage and not self._apart(loan):  # leaves its part of a gradient
                takes.append(name.lent_gradients(loan.owner, stage))
                after.append(act(U, loan.owner, rank=line.positions[stage], step=-1))
        if stage + 1 < len(line.positions):
            frees.append(name.output_gradient(stage, micro))
            came = Kind.RECV_GRAD if self._behind(stage) else B
            back = lag - line.lag(stage + 1, micro)
            after.append(self._name(came, stage + 1, micro, stage, back=back))
        nbytes = line.sizes.input_bytes(stage, line.samples) if stage else 0
        sends = stage > 0 and line.positions[stage] != line.positions[stage - 1]
        if sends:
            out = name.input_gradient(stage, micro)
            self._lay(stage, out, nbytes, 1)
            takes.append(out)
            after.append(self._name(Kind.SEND_GRAD, stage, micro, stage, back=1))
        elif stage:
            takes.append(name.output_gradient(stage - 1, micro))
            self._lay(stage - 1, takes[-1], nbytes, 1)
            after.append(self._gradient_is_free(stage - 1, micro))
        same = line.predicted(stage, micro) if line.holds_predicted(stage) else None
        if same:
            (frees if micro == same[-1] else uses).append(name.predicted(stage, same[0]))
        scratch = cost.backward_scratch_bytes + (cost.kept_bytes if again else 0)
        self._pass(
            B, stage, micro, scratch, after=after, takes=takes, uses=uses, frees=frees, lag=lag,
            stale=line.stale(stage, micro) if line.stashes and same is None else 0,
        )  # fmt: skip
        if sends:
            self._add(
                Kind.SEND_GRAD, stage, micro, f"{NET_OUT}.{2 * stage + 1}", lag=lag, nbytes=nbytes,
                frees=self._there(stage, name.input_gradient(stage, micro)),
                after=[self._name(B, stage, micro, stage)],
            )  # fmt: skip

    def _input_comes(self, stage: int, micro: int) -> None:
        """The message that brings a stage's input, where there is a place for it."""
        self._add(
            Kind.RECV, stage, micro, f"{NET_IN}.{2 * stage}",
            takes=self._there(stage, self._lay_input(stage, micro)),
            after=[self._input_is_free(stage, micro)],
            nbytes=self.line.sizes.input_bytes(stage, self.line.samples),
        )  # fmt: skip

    def _gradient_comes(self, stage: int, micro: int) -> None:
        """The message of the gradient of a stage's output, in the order in which they are sent."""
        line, above = self.line, name.output_gradient(stage, micro)
        nbytes = line.sizes.input_bytes(stage + 1, line.samples)
        self._lay(stage, above, nbytes, 1)
        self._add(
            Kind.RECV_GRAD, stage + 1, micro, f"{NET_IN}.{2 * stage + 1}", nbytes=nbytes,
            lag=line.lag(stage + 1, micro), rank=line.positions[stage],
            takes=self._there(stage, above), after=[self._gradient_is_free(stage, micro)],
        )  # fmt: skip

    def _lay_input(self, stage: int, micro: int) -> str:
        nbytes = self.line.sizes.input_bytes(stage, self.line.samples)
        self._lay(stage, name.activation(stage, micro), nbytes, self.line.copies(stage))
        return name.activation(stage, micro)

    def _input_is_free(self, stage: int, micro: int) -> str:
        """The backward pass that frees the oldest copy of a stage's input, for the action that
        brings the next."""
        back = self.line.copies(stage) - self.line.lag(stage, micro)
        return self._name(B, stage, micro, stage, back=back)

    def _gradient_is_free(self, stage: int, micro: int) -> str:
        """The backward pass that frees the last gradient of a stage's output, for the action that
        brings the next."""
        late = self.line.lag(stage, micro) - self.line.lag(stage + 1, micro)
        return self._name(B, stage, micro, stage, back=1 - late)

    def _behind(self, stage: int) -> bool:
        """Whether the stage behind is on another position."""
        positions = self.line.positions
        return stage + 1 < len(positions) and positions[stage] != positions[stage + 1]

    def _pass(self, kind: Kind, stage: int, micro: int, scratch: int, **kw: Any) -> None:
        """A pass, and the memory that it works in."""
        text = name.scratch(self._name(kind, stage, micro, stage))
        self.buffers[text] = Buffer(
            tier=DEVICE, nbytes=max(0, scratch), rank=self.line.positions[stage]
        )
        takes, uses, frees = (
            self._there(stage, *kw.pop(what, [])) for what in ("takes", "uses", "frees")
        )
        self._add(
            kind, stage, micro, self.line.lanes[stage], takes=(*takes, text), uses=uses,
            frees=(*frees, text), **kw,
        )  # fmt: skip

    def _add(
        self, kind: Kind, unit: int, micro: int | None, lane: str, *, rank: int | None = None,
        after: Sequence[str] = (), **kw: Any,
    ) -> None:  # fmt: skip
        at = self.line.positions[unit] if rank is None else rank
        if micro is not None:
            first = micro * self.line.samples
            kw["samples"] = first, first + self.line.samples
        self.actions.append(
            Action(
                kind=kind, unit=unit, microbatch=micro, lane=lane, rank=at, after=tuple(after), **kw
            )  # fmt: skip
        )

    def _name(self, kind: Kind, unit: int, micro: int, stage: int, *, back: int = 0) -> str:
        """An action on the position of a stage, so many steps back."""
        return act(kind, unit, micro, rank=self.line.positions[stage], step=-back)

    def _there(self, stage: int, *labels: str) -> tuple[str, ...]:
        return tuple(name.on_rank(self.line.positions[stage], label) for label in labels)

    def _lay(
        self, stage: int, text: str, nbytes: int, copies: int, permanent: bool = False
    ) -> None:
        """A buffer on the position of a stage."""
        (label,) = self._there(stage, text)
        self.buffers[label] = Buffer(
            tier=DEVICE, nbytes=nbytes, rank=self.line.positions[stage], copies=copies,
            permanent=permanent,
        )  # fmt: skip
