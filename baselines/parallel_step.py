"""One step of data parallelism or of a pipeline as a schedule of all ranks, as torch runs it.

Passes are those of our pipelines (methods/pipeline/program.py); messages, memory and updates are
torch's and those of our adapters (`data_parallel`, `pipeline`):

* 16 bytes a parameter, whatever the dtype: weights, gradients, masters and moments of all units
  that a rank has; of a tied head on another rank than the embedding a second weight and gradient.
* A pipeline's rank has memory for what it receives of every micro-batch, and keeps its output until
  the backward pass. The head runs forward when its backward pass is due.

Everything waits for the global norm, which waits for the last backward pass of all ranks. In data
parallelism gradients are added up unit by unit beside the backward pass. The library trains by
itself, so the schedule is proved and simulated and never executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from baselines.stages import share_of
from workbench.core.division import Samples
from workbench.core.spec import RunSpec
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import B, F, Pass, R
from workbench.methods.pipeline.program import Program
from workbench.methods.pipeline.step_draft import ActionDraft
from workbench.profile.profile import Profile
from workbench.profile.unit_costs import ProfiledSizes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, NET_IN, NET_OUT, SENDS, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import Schedule

STATE_BYTES = 16
"""Bytes of a parameter: weight, gradient, master where it is not the weight itself, two moments."""
BORROWED = 2
"""Turn of a tied weight on its way back."""
SQUARES, COEFFICIENT = 1, 2
"""Turns of the messages with the stages' norms and with what follows from them. (torch's ranks all
add the norms up; a schedule says who does.)"""
NORM_BYTES = 16
"""Loss and norm, in double precision."""
RECEIVED, RECEIVED_GRADIENTS = "received", "received gradients"
"""Memory of a rank for inputs of its stage, and for gradients of its output."""


@dataclass(frozen=True, kw_only=True)
class Divided(Pipeline):
    """Data parallelism: every rank has all units, and a share of every micro-batch."""

    def span(self, rank: int, micro: int) -> Samples:
        """The samples of a rank's part of a micro-batch."""
        part, first = share_of(self.micro_size, rank, self.depth), micro * self.micro_size
        return first + part.start, first + part.stop


def line_of(
    spec: RunSpec, passes: Sequence[Sequence[Pass]], stages: Sequence[range], kind: type = Pipeline
) -> Pipeline:
    """The question to the program: passes and units of each rank."""
    return kind(
        method=spec.method,
        passes=passes,
        stages=stages,
        micro_size=spec.microbatch,
        activations="keep" if spec.activations == "keep" else "recompute",
    )


class Step(Program):
    """Writes one step of all ranks."""

    state_bytes: float = STATE_BYTES
    """Bytes of a parameter."""
    updaters = 1
    """Ranks that divide the update of a stage."""
    norms = COMPUTE
    """Lane on which the norm is taken."""

    def __init__(
        self, spec: RunSpec, profile: Profile, line: Pipeline, sizes: ProfiledSizes | None = None,
        *, shared: int | None = None,
    ) -> None:  # fmt: skip
        """`shared`: bytes of weights that the last stage shares with the first, by default those of
        a decoder's embedding."""
        super().__init__(line, sizes or ProfiledSizes({profile.microbatch: profile}, tied={}))
        self.spec, self.profile, first = spec, profile, line.stages[0]
        self.tied = spec.model.tied and 0 in first and line.head not in first
        self.borrowed = spec.model.vocab * spec.model.hidden * profile.weight_bytes
        if shared is not None:
            self.tied, self.borrowed = shared > 0, shared

    def schedule(self) -> Schedule:
        """The step."""
        found = super().schedule()
        settings = {"ranks": self.line.depth, "stages": found.settings["stages"]}
        return replace(found, settings=settings)

    # -- what is there all the time -------------------------------------------------------------

    def _permanent(self) -> None:
        for rank, stage in enumerate(self.line.stages):
            for text, nbytes in self._fixed(rank, stage).items():
                self.lay(rank, text, nbytes, permanent=True)

    def _fixed(self, rank: int, stage: range) -> dict[str, int]:
        """Bytes of a rank's device that are taken all the time, by what has them."""
        sizes, (first, end) = self.sizes, self.line.span(rank, 0)
        tokens = sizes.token_bytes((end - first) * self.line.micros)
        fixed = {"tokens": tokens, "libraries": sizes.library_bytes}
        for unit in stage:
            weight = sizes.weight_bytes(unit)
            states = round(self.state_bytes * self.profile.units[unit].parameters) - 2 * weight
            fixed[name.weights(unit)] = fixed[name.gradients(unit)] = weight
            fixed[name.states(unit)] = states
        if self.tied and self.line.head in stage:
            fixed["borrowed"] = self._borrowed_bytes()
        came, returned = self._received(rank)
        if stage.start:
            fixed[RECEIVED] = came * self.input_bytes(stage.start, rank, 0)
        if stage.stop <= self.line.head:
            fixed[RECEIVED_GRADIENTS] = returned * self.input_bytes(stage.stop, rank, 0)
        return fixed

    def _received(self, rank: int) -> tuple[int, int]:
        """Micro-batches that a rank has memory for: of what it receives, and of its gradients."""
        return self.line.micros, self.line.micros

    def _borrowed_bytes(self) -> int:
        """Bytes that a tied weight takes beside its owner: weight and gradient."""
        return 2 * self.borrowed

    # -- passes ---------------------------------------------------------------------------------

    def _compute(self, rank: int) -> list[ActionDraft]:
        drafts, head = super()._compute(rank), self.line.head
        late = {draft.micro: draft for draft in drafts if (draft.kind, draft.unit) == (F, head)}
        found: list[ActionDraft] = []
        for draft in drafts:
            if draft.unit == head and draft.kind is B:
                found += [late[draft.micro], draft]
            elif draft.unit != head:
                found.append(draft)
        return found

    def _scratch(self, draft: ActionDraft, nbytes: int) -> None:
        if draft.kind is B and not draft.micro and not self.line.apart:
            nbytes -= self.sizes.fresh_bytes(draft.unit)  # autograd's own gradients are kept
        super()._scratch(draft, nbytes)

    def _input(self, draft: ActionDraft) -> list[str]:
        return [RECEIVED] if draft.unit in self.line.boundaries else super()._input(draft)

    def _backward(self, kind: Kind, unit: int, micro: int, rank: int) -> ActionDraft:
        draft = super()._backward(kind, unit, micro, rank)
        if unit + 1 in self.line.boundaries:
            draft.reads.remove(name.output_gradient(unit, micro))
            draft.reads += [RECEIVED_GRADIENTS, name.output(unit, micro)]
        return draft

    # -- messages -------------------------------------------------------------------------------

    def message(self, kind: Kind, unit: int, micro: int | None, rank: int) -> ActionDraft:
        """As `Sheet.message`; activations and gradients go on the same lanes."""
        message = super().message(kind, unit, micro, rank)
        message.lane = NET_OUT if kind in SENDS else NET_IN
        return message

    def _messages(self, drafts: list[ActionDraft]) -> list[ActionDraft]:
        line, found, last = self.line, [], drafts[-1].micro
        for draft in drafts:
            kind, unit, micro, rank = draft.kind, draft.unit, draft.micro, draft.position
            if kind is F and unit in line.boundaries:
                found.append(self.message(Kind.RECV, unit, micro, rank))
                draft.after.append(found[-1].name)
            if unit + 1 in line.boundaries and kind is (R if line.recomputes(unit) else B):
                found.append(self.message(Kind.RECV_GRAD, unit + 1, micro, rank))
                sent = act(
                    Kind.SEND, unit + 1, micro, rank=rank
                )  # its output was needed until then
                draft.after += [sent, found[-1].name]
            found.append(draft)
            if kind is F and unit + 1 in line.boundaries:
                found.append(self.message(Kind.SEND, unit + 1, micro, rank))
                found[-1].after, found[-1].reads = [draft.name], [name.output(unit, micro)]
            if kind is B and unit in line.boundaries:
                found.append(self.message(Kind.SEND_GRAD, unit, micro, rank))
                found[-1].after, found[-1].reads = [draft.name], [name.input_gradient(unit, micro)]
            if kind is B and line.apart and micro == last:
                found.append(self._sum(unit, rank, draft.name))
        return found

    def _sum(self, unit: int, rank: int, after: str) -> ActionDraft:
        """Gradients of a unit added up over the ranks that have it."""
        return ActionDraft(
            kind=Kind.REDUCE, unit=unit, position=rank, lane=NET_OUT, after=[after],
            reads=[name.gradients(unit)], nbytes=self.sizes.weight_bytes(unit),
        )  # fmt: skip

    def _inbox(self, rank: int, drafts: list[ActionDraft]) -> None:
        """No places: messages of a library have memory of their own all the time (`_fixed`)."""

    # -- norm and updates -----------------------------------------------------------------------

    def _updates(self) -> None:
        for rank, stage in enumerate(self.line.stages):
            if self.line.apart:
                reduced = [act(Kind.REDUCE, unit, rank=rank) for unit in stage]
                ready = self.put(Kind.NORM, 0, rank, COMPUTE, reduced)
            else:
                last = act(B, stage.start, self.line.passes[rank][-1].micro, rank=rank)
                ready = self._norm_of_all(rank, self._reduce(rank, last))
            for unit in stage:
                reads = [name.weights(unit), name.gradients(unit), name.states(unit)]
                self.put(Kind.UPDATE, unit, rank, COMPUTE, [ready], reads=reads)
            self._return_tied(rank, ready)

    def put(
        self, kind: Kind, unit: int, rank: int, lane: str, after: list[str], **more: Any
    ) -> str:
        """Write an action of no micro-batch; returns its name."""
        draft = ActionDraft(kind=kind, unit=unit, position=rank, lane=lane, after=after, **more)
        self.write(draft)
        return draft.name

    def _return_tied(self, rank: int, ready: str) -> None:
        """The owner of a tied weight sends it to the other stage."""
        if self.tied and rank in (0, self.line.depth - 1):
            kind, lane, after = Kind.RECV, NET_IN, ready
            if rank == 0:
                kind, lane, after = Kind.SEND, NET_OUT, act(Kind.UPDATE, 0)
            self.put(kind, 0, rank, lane, [after], turn=BORROWED, nbytes=self.borrowed)

    def _reduce(self, rank: int, ready: str) -> str:
        """The owner of a tied weight gets the other stage's gradients."""
        if self.tied and rank in (0, self.line.depth - 1):
            kind, lane = (Kind.SEND_GRAD, NET_OUT) if rank else (Kind.RECV_GRAD, NET_IN)
            ready = self.put(kind, 0, rank, lane, [ready], nbytes=self.borrowed)
        return ready

    def _norm_of_all(self, rank: int, ready: str) -> str:
        """Norms are added up, where there are several."""
        if self.line.depth == 1:
            return self.put(Kind.NORM, 0, 0, self.norms, [ready])
        for turn in (SQUARES, COEFFICIENT):
            ready = self.put(Kind.REDUCE, 0, rank, NET_OUT, [ready], turn=turn, nbytes=NORM_BYTES)
            if turn == SQUARES and rank == 0:
                ready = self.put(Kind.NORM, 0, 0, self.norms, [ready])
        return ready
