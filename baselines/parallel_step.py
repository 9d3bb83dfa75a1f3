"""One step of data parallelism or of a pipeline as a schedule of all ranks, as torch runs it.

Memory is what torch and our adapters (`data_parallel`, `pipeline`) have:

* 16 bytes a parameter, whatever the dtype: weights, gradients, masters and moments of all units
  that a rank has; of a tied head on another rank than the embedding a second weight and gradient.
* A pipeline's rank has memory for what it receives of every micro-batch, and keeps its output until
  the backward pass.

Everything waits for the global norm, which waits for the last backward pass of all ranks. In data
parallelism gradients are added up unit by unit beside the backward pass. The library trains by
itself, so the schedule is proved and simulated and never executed.
"""

from __future__ import annotations

from collections.abc import Callable

from baselines.stages import share_of
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile, UnitCost
from workbench.profile.unit_costs import ProfiledSizes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, NET_IN, NET_OUT, SENDS, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.schedule import DEVICE, Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD
STATE_BYTES = 16
"""Bytes of a parameter: weight, gradient, master where it is not the weight itself, two moments."""
BORROWED = 2
"""Turn of a tied weight on its way back."""
SQUARES, COEFFICIENT = 1, 2
"""Turns of the messages with the stages' norms and with what follows from them. (torch's ranks all
add the norms up; a schedule says who does.)"""
NORM_BYTES = 16
"""Loss and norm, in double precision."""

Order = Callable[[int], list[tuple[Kind, int]]]
"""Rank -> its passes over its units: (forward or backward, micro-batch)."""


class Step(ScheduleBuilder):
    """Collects one step's actions and buffers of all ranks."""

    state_bytes: float = STATE_BYTES
    """Bytes of a parameter."""
    updaters = 1
    """Ranks that divide the update of a stage."""
    norms = COMPUTE
    """Lane on which the norm is taken."""

    def __init__(
        self, spec: RunSpec, profile: Profile, stages: tuple[range, ...], order: Order
    ) -> None:
        super().__init__()
        self.spec, self.profile, self.stages, self.order = spec, profile, stages, order
        self.head = len(profile.units) - 1
        self.replicas = len(stages) > 1 and stages[0] == stages[1]
        """Whether every rank has all units."""
        self.sizes = ProfiledSizes({profile.microbatch: profile}, tied={})
        self.keeps = spec.activations == "keep"
        first, last = stages[0], stages[-1]
        self.tied = spec.model.tied and 0 in first and self.head not in first
        self.borrowed = spec.model.vocab * spec.model.hidden * profile.weight_bytes
        assert self.head in last

    def schedule(self) -> Schedule:
        """The step."""
        for rank in range(len(self.stages)):
            self._permanent(rank)
            for kind, micro in self.order(rank):
                (self._forward if kind is F else self._backward)(rank, micro)
            self._finish(rank)
        return Schedule(
            name=self.spec.method,
            num_units=self.head + 1,
            num_microbatches=self.spec.microbatches,
            num_ranks=len(self.stages),
            actions=tuple(self.actions),
            buffers=self.buffers,
            settings={
                "ranks": len(self.stages),
                "stages": " ".join(str(len(stage)) for stage in self.stages),
            },
        )

    # -- what is there all the time -------------------------------------------------------------

    def _permanent(self, rank: int) -> None:
        sizes, count = self.sizes, self.spec.microbatches
        samples = self._span(rank, 0)[1] - self._span(rank, 0)[0]
        stage = self.stages[rank]
        fixed = {"tokens": sizes.token_bytes(samples * count), "libraries": sizes.library_bytes}
        for unit in stage:
            weight = sizes.weight_bytes(unit)
            states = round(self.state_bytes * self.profile.units[unit].parameters) - 2 * weight
            fixed[name.weights(unit)] = fixed[name.gradients(unit)] = weight
            fixed[name.states(unit)] = states
        if self.tied and self.head in stage:
            fixed["borrowed"] = self._borrowed_bytes()
        came, returned = self._received(rank)
        if stage.start:
            fixed["received"] = came * sizes.input_bytes(stage.start, samples)
        if stage.stop <= self.head:
            fixed["received gradients"] = returned * sizes.input_bytes(stage.stop, samples)
        for text, nbytes in fixed.items():
            self._lay(rank, text, nbytes, permanent=True)

    def _received(self, rank: int) -> tuple[int, int]:
        """Micro-batches that a rank has memory for: of what it receives, and of its gradients."""
        return self.spec.microbatches, self.spec.microbatches

    def _borrowed_bytes(self) -> int:
        """Bytes that a tied weight takes beside its owner: weight and gradient."""
        return 2 * self.borrowed

    # -- passes ---------------------------------------------------------------------------------

    def _forward(self, rank: int, micro: int) -> None:
        """Through a rank's units. The head runs when its backward pass is due."""
        stage = self.stages[rank]
        if stage.start:
            self._message(Kind.RECV, stage.start, rank, micro, [])
        for unit in stage:
            if unit < self.head:
                self._forward_unit(unit, rank, micro)
        if stage.stop <= self.head:
            label = self._label(rank, name.output(stage.stop - 1, micro))
            after = [act(F, stage.stop - 1, micro, rank=rank)]
            self._message(Kind.SEND, stage.stop, rank, micro, after, uses=[label])

    def _forward_unit(self, unit: int, rank: int, micro: int) -> None:
        stage, span = self.stages[rank], self._span(rank, micro)
        cost, me = self._cost(unit, rank), act(F, unit, micro, rank=rank)
        keeps = self._kept_from_forward(unit)
        scratch = cost.recompute_scratch_bytes if keeps else cost.forward_scratch_bytes
        takes, after = [self.scratch(me, scratch, rank=rank)], []
        if keeps and cost.kept_bytes:
            takes.append(self._lay(rank, name.kept(unit, micro), cost.kept_bytes))
        if unit < self.head:
            inside = unit + 1 in stage
            text = name.activation(unit + 1, micro) if inside else name.output(unit, micro)
            takes.append(self._lay(rank, text, self._input_bytes(unit + 1, rank)))
        if unit > stage.start:
            after.append(act(F, unit - 1, micro, rank=rank))
        elif unit:
            after.append(act(Kind.RECV, unit, micro, rank=rank))
        uses = [self._label(rank, name.weights(unit)), *self._inputs(unit, rank, micro)]
        self.add(
            F, unit, COMPUTE, micro, rank=rank, after=after, takes=takes, uses=uses, samples=span
        )

    def _backward(self, rank: int, micro: int) -> None:
        """Back through a rank's units."""
        stage = self.stages[rank]
        came = []
        if stage.stop <= self.head:
            came = [act(Kind.SEND, stage.stop, micro, rank=rank)]  # its output was still needed
            came.append(self._message(Kind.RECV_GRAD, stage.stop, rank, micro, []))
        for unit in reversed(stage):
            if unit == self.head:
                self._forward_unit(unit, rank, micro)
            elif not self._kept_from_forward(unit):
                self._recompute(unit, rank, micro, came)
            came = [self._backward_unit(unit, rank, micro, came)]
            if self.replicas and micro == self.order(rank)[-1][1]:
                self.add(
                    Kind.REDUCE, unit, NET_OUT, rank=rank, after=came,
                    nbytes=self.sizes.weight_bytes(unit),
                    uses=[self._label(rank, name.gradients(unit))],
                )  # fmt: skip
        if stage.start:
            label = self._label(rank, name.input_gradient(stage.start, micro))
            self._message(Kind.SEND_GRAD, stage.start, rank, micro, came, frees=[label])

    def _recompute(self, unit: int, rank: int, micro: int, after: list[str]) -> None:
        cost, me = self._cost(unit, rank), act(R, unit, micro, rank=rank)
        kept = self._lay(rank, name.kept(unit, micro), cost.kept_bytes)
        self.add(
            R, unit, COMPUTE, micro, rank=rank, samples=self._span(rank, micro),
            after=[act(F, unit, micro, rank=rank), *after],
            takes=[kept, self.scratch(me, cost.recompute_scratch_bytes, rank=rank)],
            uses=[self._label(rank, name.weights(unit)), *self._inputs(unit, rank, micro)],
        )  # fmt: skip

    def _backward_unit(self, unit: int, rank: int, micro: int, came: list[str]) -> str:
        stage, cost = self.stages[rank], self._cost(unit, rank)
        me = act(B, unit, micro, rank=rank)
        recomputed = not self._kept_from_forward(unit)
        # Autograd's own gradients are added to those that are there.
        added = self.sizes.weight_bytes(unit) if self.replicas or micro else 0
        takes = [self.scratch(me, cost.backward_scratch_bytes + added, rank=rank)]
        inputs, frees, uses = self._inputs(unit, rank, micro), [], []
        if unit:
            inside = unit > stage.start
            text = name.output_gradient(unit - 1, micro)
            text = text if inside else name.input_gradient(unit, micro)
            takes.append(self._lay(rank, text, self._input_bytes(unit, rank)))
            (frees if inside else uses).extend(inputs)
        if recomputed or cost.kept_bytes or unit == self.head:
            frees.append(self._label(rank, name.kept(unit, micro)))
        if unit < self.head and unit + 1 in stage:
            frees.append(self._label(rank, name.output_gradient(unit, micro)))
        elif unit < self.head:
            frees.append(self._label(rank, name.output(unit, micro)))
            uses.append(self._label(rank, "received gradients"))
        uses += [self._label(rank, text(unit)) for text in (name.weights, name.gradients)]
        after = [act(R if recomputed else F, unit, micro, rank=rank), *came]
        return self.add(
            B, unit, COMPUTE, micro, rank=rank, after=after, takes=takes, uses=uses, frees=frees,
            samples=self._span(rank, micro),
        )  # fmt: skip

    # -- norm and updates -----------------------------------------------------------------------

    def _finish(self, rank: int) -> None:
        stage, last = self.stages[rank], self.order(rank)[-1][1]
        ready = act(B, stage.start, last, rank=rank)
        if self.replicas:
            reduced = [act(Kind.REDUCE, unit, rank=rank) for unit in stage]
            ready = self.add(Kind.NORM, 0, COMPUTE, rank=rank, after=reduced)
        else:
            ready = self._norm_of_all(rank, self._reduce(rank, ready))
        for unit in stage:
            texts = (name.weights(unit), name.gradients(unit), name.states(unit))
            uses = [self._label(rank, text) for text in texts]
            self.add(Kind.UPDATE, unit, COMPUTE, rank=rank, after=[ready], uses=uses)
        self._return_tied(rank, ready)

    def _return_tied(self, rank: int, ready: str) -> None:
        """The owner of a tied weight sends it to the other stage."""
        if self.tied and rank in (0, len(self.stages) - 1):
            owns = rank == 0
            after = [act(Kind.UPDATE, 0)] if owns else [ready]
            kind = Kind.SEND if owns else Kind.RECV
            self._message(kind, 0, rank, None, after, turn=BORROWED, nbytes=self.borrowed)

    def _reduce(self, rank: int, ready: str) -> str:
        """The owner of a tied weight gets the other stage's gradients."""
        if self.tied and rank in (0, len(self.stages) - 1):
            kind = Kind.RECV_GRAD if rank == 0 else Kind.SEND_GRAD
            ready = self._message(kind, 0, rank, None, [ready], nbytes=self.borrowed)
        return ready

    def _norm_of_all(self, rank: int, ready: str) -> str:
        """Norms are added up, where there are several."""
        if len(self.stages) == 1:
            return self.add(Kind.NORM, 0, self.norms, after=[ready])
        for turn in (SQUARES, COEFFICIENT):
            ready = self.add(
                Kind.REDUCE, 0, NET_OUT, rank=rank, turn=turn, after=[ready], nbytes=NORM_BYTES
            )
            if turn == SQUARES and rank == 0:
                ready = self.add(Kind.NORM, 0, self.norms, after=[ready])
        return ready

    # -- small answers --------------------------------------------------------------------------

    def _message(
        self,
        kind: Kind,
        unit: int,
        rank: int,
        micro: int | None,
        after: list[str],
        *,
        turn: int = 0,
        nbytes: int | None = None,
        uses: list[str] | None = None,
        frees: list[str] | None = None,
    ) -> str:
        """Send or receive the input of a unit, or its gradient."""
        return self.add(
            kind, unit, NET_OUT if kind in SENDS else NET_IN, micro, rank=rank, turn=turn,
            after=after, nbytes=self._input_bytes(unit, rank) if nbytes is None else nbytes,
            uses=uses or [], frees=frees or [],
            samples=None if micro is None else self._span(rank, micro),
        )  # fmt: skip

    def _kept_from_forward(self, unit: int) -> bool:
        """The embedding and the head are never recomputed."""
        return self.keeps or unit in (0, self.head)

    def _inputs(self, unit: int, rank: int, micro: int) -> list[str]:
        """Where a unit's input is; nowhere for tokens."""
        if unit == 0:
            return []
        inside = unit > self.stages[rank].start
        return [self._label(rank, name.activation(unit, micro) if inside else "received")]

    def _span(self, rank: int, micro: int) -> tuple[int, int]:
        """First sample of a rank's part of a micro-batch, and the one after its last."""
        size = self.spec.microbatch
        part = share_of(size, rank, len(self.stages)) if self.replicas else range(size)
        return micro * size + part.start, micro * size + part.stop

    def _cost(self, unit: int, rank: int) -> UnitCost:
        first, end = self._span(rank, 0)
        return self.sizes.cost(unit, end - first)

    def _input_bytes(self, unit: int, rank: int) -> int:
        first, end = self._span(rank, 0)
        return self.sizes.input_bytes(unit, end - first)

    def _label(self, rank: int, text: str) -> str:
        return name.on_rank(rank, text)

    def _lay(self, rank: int, text: str, nbytes: int, **kw: bool) -> str:
        return self.buffer(self._label(rank, text), DEVICE, nbytes, rank=rank, **kw)
