"""A pipeline that never drains: each stage updates its weights by itself, and waits for no other.

In a step `micros` micro-batches begin, each in a slot of its own. In the slot of a micro-batch
every stage makes its forward pass, and the backward pass of the micro-batch that is `depth` slots
older; an update follows the last backward pass of a step's micro-batches. So passes lag behind
their step by whole steps, and read weights that lack updates; the schedule says both of each
action, and the validator proves it (schedule/rules.py).

Stages have lanes of their own, so several on one position do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from workbench.profile.unit_costs import Sizes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, NET_IN, NET_OUT, Action, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DEVICE, Buffer, Schedule

F, B, U = Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE
FP32_BYTES = 4
FIRST_LANE = 2
"""Number of the lane of a position's second stage: the first one's has none, and 1 takes turns."""


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """The pipeline."""

    label: str
    """For titles and records."""
    positions: Sequence[int]
    """Position of each stage."""
    depths: Sequence[int]
    """Slots between the forward and the backward pass of a micro-batch, of each stage; 0 for the
    last one."""
    micros: int
    """Micro-batches of an update."""
    samples: int
    """Rows of a micro-batch."""
    sizes: Sizes
    """Of stages as units."""
    recompute: bool = True
    """Whether stages compute activations again, but for the last one."""
    stashes: bool = False
    """Whether a backward pass reads the weights that its forward pass read."""
    predicts: bool = False
    """Whether a forward pass reads a prediction of the weights of its backward pass."""
    nesterov: bool = False
    """Whether, with `predicts`, one whose weights lack no update looks one ahead."""
    averages: bool = False
    """Whether states have a mean of squared steps, of the size of the weights."""

    def lag(self, stage: int, micro: int) -> int:
        """Steps between the forward and the backward pass of a micro-batch."""
        return (micro + self.depths[stage]) // self.micros

    def stale(self, stage: int, micro: int) -> int:
        """Updates that a forward pass lacks (spec 1.11: the closed form)."""
        return max(0, -(-(self.depths[stage] - micro) // self.micros))

    def predicted(self, stage: int, micro: int) -> range | None:
        """Micro-batches of a step that read one prediction, this one among them; None where it
        reads the weights themselves."""
        ahead = self.stale(stage, micro)
        if not self.predicts or not (ahead or self.nesterov):
            return None
        same = [other for other in range(self.micros) if self.stale(stage, other) == ahead]
        return range(same[0], same[-1] + 1)

    def holds_predicted(self, stage: int) -> bool:
        """Whether backward passes read predictions, too: they are stashed, or graphs have them."""
        return self.stashes or not self.recompute or not self.depths[stage]

    def copy_bytes(self, stage: int) -> int:
        """Bytes of a copy of a stage's weights as they are updated: fp32."""
        return FP32_BYTES * self.sizes.cost(stage, self.samples).parameters

    def copies(self, stage: int) -> int:
        """Steps of which a stage holds the input of a micro-batch at a time."""
        return self.depths[stage] // self.micros + 1

    def keeps(self, stage: int, micro: int) -> str:
        """The buffer that a forward pass leaves for the backward pass."""
        again = self.recompute and self.depths[stage]
        return (name.checkpoint if again else name.kept)(stage, micro)

    @cached_property
    def lanes(self) -> list[str]:
        """Lane of each stage."""
        seen: dict[int, int] = {}
        found = []
        for at in self.positions:
            seen[at] = number = seen.get(at, FIRST_LANE - 2) + 1
            found.append(COMPUTE if number == 1 else f"{COMPUTE}.{number}")
        return found


def schedule(line: Asynchronous) -> Schedule:
    """One step of the pipeline. Raises ValueError for a last stage that waits."""
    if line.depths[-1]:
        raise ValueError(f"the last stage's depth is {line.depths[-1]}; its loss is there, give 0")
    writer = _Writer(line)
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

    def stage(self, stage: int) -> None:
        """Passes, messages and updates of a stage, slot by slot."""
        line, sizes = self.line, self.line.sizes
        versions = line.stale(stage, 0) if line.stashes and not line.predicts else 0
        versions += bool(versions) and line.averages  # an update measures how far they have moved
        nbytes = line.copy_bytes(stage) if versions else sizes.weight_bytes(stage)
        states = sizes.state_bytes(stage) + line.averages * line.copy_bytes(stage)
        self._lay(stage, name.weights(stage), nbytes, 1 + versions, True)
        self._lay(stage, name.gradients(stage), sizes.visit_bytes(stage), 1, True)
        self._lay(stage, name.states(stage), states, 1, True)
        for slot in range(line.micros):
            self._forward(stage, slot)
            if self._behind(stage):
                self._gradient_comes(stage, (slot - line.depths[stage + 1]) % line.micros)
            micro = (slot - line.depths[stage]) % line.micros
            self._backward(stage, micro)
            if micro == line.micros - 1:
                self._add(
                    U, stage, None, line.lanes[stage], lag=line.lag(stage, micro),
                    uses=self._there(stage, name.states(stage), name.gradients(stage)),
                )  # fmt: skip

    def _forward(self, stage: int, micro: int) -> None:
        line, last = self.line, stage + 1 == len(self.line.positions)
        cost = line.sizes.cost(stage, line.samples)
        kept = line.keeps(stage, micro)
        again = kept == name.checkpoint(stage, micro)
        self._lay(stage, kept, 0 if again else cost.kept_bytes, line.copies(stage))
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
        scratch = cost.forward_scratch_bytes if again else cost.recompute_scratch_bytes
        frees: list[str] = []
        if same := line.predicted(stage, micro):
            predicted = name.predicted(stage, same[0])
            if micro == same[0]:
                held = line.depths[stage] if line.holds_predicted(stage) else 0
                copies = (len(same) - 1 + held) // line.micros + 1
                self._lay(stage, predicted, line.copy_bytes(stage), copies)
            (takes if micro == same[0] else uses).append(predicted)
            if micro == same[-1] and not line.holds_predicted(stage):
                frees.append(predicted)
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
            ends = micro == same[-1]
            (frees if ends else uses).append(name.predicted(stage, same[0]))
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
