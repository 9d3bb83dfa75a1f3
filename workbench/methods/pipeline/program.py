"""The program that turns an order of passes into a schedule, pass by pass over a list of drafts.

Each step of it adds one thing to all positions, and can be read by itself: units and what they
compute (`_compute`), messages between stages (`_messages`), inputs that wait on the host and units
that visit from there (swaps.py), sums over replicas, norm and updates (updates.py), when memory is
free again (`_free`), and where messages arrive (`_inbox`). A buffer is free after its last reader,
whichever order the passes come in.
"""

from __future__ import annotations

from collections import defaultdict

from workbench.methods.pipeline import swaps, updates
from workbench.methods.pipeline.definition import AHEAD, room
from workbench.methods.pipeline.orders import B, F, I, R, W
from workbench.methods.pipeline.step_draft import ActionDraft, StepDraft
from workbench.profile.cuda_graphs import replay_bytes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, LATER, Kind, lane_kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.inbox import INBOX, PLACES, taken_from
from workbench.schedule.build.ring import aligned
from workbench.schedule.schedule import Schedule


class Program(StepDraft):
    """Writes one step of a pipeline."""

    def schedule(self) -> Schedule:
        """The whole program."""
        line = self.line
        self._permanent()
        self.drafts = [self._messages(self._compute(position)) for position in range(line.depth)]
        self.drafts = [swaps.stash(self, at, drafts) for at, drafts in enumerate(self.drafts)]
        self._updates()
        for position, drafts in enumerate(self.drafts):
            self._free(drafts)
            self._inbox(position, drafts)
        return Schedule(
            name=line.method,
            num_units=line.head + 1,
            num_microbatches=line.micros,
            num_ranks=line.depth,
            replicas=line.replicas,
            actions=self.actions(),
            buffers=self.buffers,
            settings={
                "stages": " ".join(str(len(stage)) for stage in line.stages),
                "replicas": line.replicas,
                "activations": line.activations,
                **({"recorded": True} if line.replay and not line.places else {}),
            },
        )

    # -- memory that is there all the time ------------------------------------------------------

    def _permanent(self) -> None:
        """Tokens and recordings on devices; weights and optimizer states on the host, where runs
        begin and checkpoints end."""
        line, sizes = self.line, self.sizes
        for position in range(line.depth):
            first, end = line.share(position)
            self.lay(position, "tokens", sizes.token_bytes(end - first), permanent=True)
            if sizes.library_bytes:
                self.lay(position, "libraries", sizes.library_bytes, permanent=True)
            if line.replay and (nbytes := self._replay_bytes(position)):
                self.lay(position, name.REPLAYS, nbytes, permanent=True)
        for unit in range(line.head + 1):
            self.lay_host(name.host_weights(unit), sizes.weight_bytes(unit))
            self.lay_host(name.host_states(unit), sizes.state_bytes(unit))

    def _replay_bytes(self, position: int) -> int:
        """Bytes in which the recordings of a position's blocks work."""
        line = self.line
        blocks = [u for u in range(line.head) if line.replays(u) and position in line.homes_of(u)]
        costs = [self.cost(unit, position, 0) for unit in blocks]
        pairs = [*zip(costs, map(self.sizes.visit_bytes, blocks), strict=True)]
        chains = [[pair] for pair in pairs] if line.alone else [pairs]
        return replay_bytes(costs, chains) if blocks else 0

    # -- passes ---------------------------------------------------------------------------------

    def _compute(self, position: int) -> list[ActionDraft]:
        """A position's passes over units: what each reads and makes."""
        line, drafts = self.line, []
        turns = any(each.kind is R for each in line.passes[position])
        for number, each in enumerate(line.passes[position]):
            begun = len(drafts)
            units = line.stages[line.held[position][each.chunk]]
            forward = each.kind in (F, R)
            for unit in units if forward else reversed(units):
                if each.kind in (B, I) and line.recomputes(unit) and not line.listed:
                    drafts.append(self._forward(R, unit, each.micro, position))
                if forward:
                    drafts.append(self._forward(each.kind, unit, each.micro, position))
                elif each.kind is not I or unit:  # the embedding's input has no gradient
                    drafts.append(self._backward(each.kind, unit, each.micro, position))
            keeps = turns and each.kind in (B, I) and units[0] not in line.listed
            if each.kind is R or keeps:  # its forward pass is on the other lane
                drafts[begun].after.append(act(F, units[-1], each.micro, rank=position))
            if each.kind is F and line.stash and each.micro >= line.stash:
                leaves = act(B, units[0], each.micro - line.stash, rank=position)
                drafts[begun].after.append(leaves)
            for draft in drafts[begun:]:
                draft.number = number
                if turns and each.kind is not F:
                    draft.lane = LATER
        return drafts

    def _forward(self, kind: Kind, unit: int, micro: int, position: int) -> ActionDraft:
        line, cost = self.line, self.cost(unit, position, micro)
        keeps = kind is R or not line.recomputes(unit)
        draft = ActionDraft(kind=kind, unit=unit, micro=micro, position=position)
        self._scratch(draft, cost.recompute_scratch_bytes if keeps else cost.forward_scratch_bytes)
        draft.reads += [name.weights(unit), *self._input(draft)]
        if keeps:
            kept = 0 if line.replays(unit) else cost.kept_bytes
            self.make(draft, self._kept(unit, micro), kept)
        if unit < line.head and (kind is F or line.repeats(unit + 1)):
            nbytes = (
                0 if keeps and line.chained(unit) else self.input_bytes(unit + 1, position, micro)
            )
            again = name.activation(unit + 1, micro, 1)
            self.make(draft, self._output(unit, micro) if kind is F else again, nbytes)
        return draft

    def _backward(self, kind: Kind, unit: int, micro: int, position: int) -> ActionDraft:
        """A backward pass or one of its halves. Autograd's graph holds input, output and gradient
        of the output until the pass, or its second half, is done."""
        line, cost = self.line, self.cost(unit, position, micro)
        draft = ActionDraft(kind=kind, unit=unit, micro=micro, position=position)
        fresh = 0 if kind is I else self.sizes.fresh_bytes(unit)
        first, second = cost.halves.scratch_bytes
        scratch = {B: cost.backward_scratch_bytes, I: first, W: second}
        self._scratch(draft, scratch[kind] + fresh)
        draft.reads += [name.weights(unit), self._kept(unit, micro), *self._input(draft)]
        if unit < line.head:
            draft.reads.append(name.output_gradient(unit, micro))
            if unit + 1 in line.boundaries and not line.recomputes(unit):
                draft.reads.append(name.output(unit, micro))
                if kind is not W or unit == 0:
                    draft.after.append(act(Kind.SEND, unit + 1, micro, rank=position))
        if kind is not I:
            draft.reads.append(name.gradients(unit))
        if kind is not W and unit:
            nbytes = 0 if line.chained(unit - 1) else self.input_bytes(unit, position, micro)
            self.make(draft, self._input_gradient(unit, micro), nbytes)
        if kind is I:
            self.make(draft, name.half(unit, micro), cost.halves.nbytes)
        elif kind is W and unit:
            draft.reads.append(name.half(unit, micro))
        return draft

    def _scratch(self, draft: ActionDraft, nbytes: int) -> None:
        """Have a pass take what it needs for itself."""
        if not self.line.replays(draft.unit):
            self.make(draft, name.scratch(draft.name), max(0, nbytes))

    def _input(self, draft: ActionDraft) -> list[str]:
        """Where a pass reads its input; nowhere for tokens."""
        unit, line = draft.unit, self.line
        again = draft.kind is not F and (line.stashes(unit) or line.repeats(unit))
        return [name.activation(unit, draft.micro, int(again))] if unit else []

    def _kept(self, unit: int, micro: int) -> str:
        """Buffer of the tensors that autograd keeps of a unit until its backward pass."""
        text = name.checkpoint if self.line.checkpoints(unit) else name.kept
        return text(unit, micro)

    def _output(self, unit: int, micro: int) -> str:
        if unit + 1 in self.line.boundaries:
            return name.output(unit, micro)
        return name.activation(unit + 1, micro)

    def _input_gradient(self, unit: int, micro: int) -> str:
        if unit in self.line.boundaries:
            return name.input_gradient(unit, micro)
        return name.output_gradient(unit - 1, micro)

    # -- messages -------------------------------------------------------------------------------

    def _messages(self, drafts: list[ActionDraft]) -> list[ActionDraft]:
        """Add to a position's passes messages that bring their inputs and take their outputs."""
        found: list[ActionDraft] = []
        sent: dict[Kind, list[str]] = defaultdict(list)
        came: set[str] = set()
        for draft in drafts:
            unit, micro = draft.unit, draft.micro
            into, above = name.activation(unit, micro), name.output_gradient(unit, micro)
            for kind, of, label, readers in (
                (Kind.RECV, unit, into, (F,)),
                (Kind.RECV_GRAD, unit + 1, above, (B, I, W)),
            ):
                if of not in self.line.boundaries or draft.kind not in readers or label in came:
                    continue
                came.add(label)
                message = self.message(kind, of, micro, draft.position)
                message.makes.append(label)
                if kind is Kind.RECV:  # has no place either, where the stash is full
                    message.after += draft.after
                draft.after.append(message.name)
                found.append(message)
            found.append(draft)
            for kind, of, label in (
                (Kind.SEND, unit + 1, name.output(unit, micro)),
                (Kind.SEND_GRAD, unit, name.input_gradient(unit, micro)),
            ):
                if label in draft.makes:
                    message = self.message(kind, of, micro, draft.position)
                    message.after.append(draft.name)
                    message.reads.append(label)
                    draft.after += sent[kind][-AHEAD : 1 - AHEAD]
                    draft.after.append(f"{message.name}@-1")
                    sent[kind].append(message.name)
                    found.append(message)
        return found

    # -- sums, norm and updates -----------------------------------------------------------------

    def _updates(self) -> None:
        """Add sums over replicas, the norm and updates; and where units visit, their visits."""
        if self.line.places:
            swaps.write(self)
        else:
            updates.write(self)

    # -- when memory is free --------------------------------------------------------------------

    def _free(self, drafts: list[ActionDraft]) -> None:
        """Every buffer that an action takes is freed by its last reader. Passes read an output that
        was sent only after that (`_backward`), and nothing else is read on two lanes."""
        made = {label for draft in drafts for label in draft.makes}
        last = {
            label: draft
            for draft in drafts
            for label in (*draft.makes, *draft.reads)
            if label in made
        }
        for label, draft in last.items():
            draft.frees.append(label)

    def _inbox(self, position: int, drafts: list[ActionDraft]) -> None:
        """Give every message a place in the position's inbox: one whose reader is done some passes
        before the message is needed, else a new one; the receiver waits for that reader."""
        passes = [draft for draft in drafts if lane_kind(draft.lane) == COMPUTE]
        needed = {other: draft for draft in reversed(passes) for other in draft.after}
        freed = {label: draft for draft in drafts for label in draft.frees}
        start = 0
        for kind in (Kind.RECV, Kind.RECV_GRAD):
            messages = [d for d in drafts if d.kind is kind and d.micro is not None]
            size = max((aligned(d.nbytes) for d in messages), default=0)
            ends = [freed[message.makes[0]] for message in messages]
            used = [needed[message.name].number for message in messages]
            ahead, most = AHEAD, PLACES // 2 if self.line.places else None  # swaps lack memory
            if kind is Kind.RECV and self.line.listed:
                ahead, most = len(used), room(self.line.held[position], len(self.line.stages))
            places: list[list[int]] = []
            """Numbers of the messages that come to each place."""
            at: dict[int, int] = {}
            left = [end.number for end in ends]
            for message, before in enumerate(taken_from(used, left, ahead, most)):
                at[message] = at[before] if before >= 0 else len(places)
                if before < 0:
                    places.append([])
                places[at[message]].append(message)
            for place, those in enumerate(places):
                before = f"{ends[those[-1]].name}@-1"
                for message in (messages[each] for each in those):
                    (label,) = message.makes
                    self.lay(
                        position, label, message.nbytes, slot=INBOX, offset=start + place * size
                    )
                    message.after.append(before)
                    before = freed[label].name
            start += len(places) * size
        for draft in drafts:
            if draft.kind in (Kind.RECV, Kind.RECV_GRAD) and draft.micro is None:
                (label,) = draft.makes
                self.lay(position, label, draft.nbytes, slot=INBOX, offset=start)
                start += aligned(draft.nbytes)
