"""The program that turns an order of passes into a schedule, pass by pass over a list of drafts.

Each step of it adds one thing to all ranks, and can be read by itself: units and what they compute
(`_compute`), messages between stages (`_messages`), sums over replicas, norm and updates
(`_updates`), when memory is free again (`_free`), and where messages arrive (`_places`). A buffer
is free after its last reader, whichever order the passes come in.
"""

from __future__ import annotations

from collections import defaultdict

from workbench.methods.pipeline.draft import AHEAD, LANES, Draft, Pipeline
from workbench.methods.pipeline.orders import B, F, I, R, W
from workbench.profile.profile import UnitCost
from workbench.profile.unit_costs import Sizes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, HOST, NET_OUT, VISIT, Action, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.inbox import INBOX, taken_from
from workbench.schedule.build.ring import aligned
from workbench.schedule.schedule import DEVICE, HOST_TIER, Buffer, Schedule

SUMS = NET_OUT + ".2"
"""Sums over replicas, beside the backward passes that follow."""


class Program:
    """Writes one step of a pipeline."""

    def __init__(self, pipeline: Pipeline, sizes: Sizes) -> None:
        self.pipeline, self.sizes = pipeline, sizes
        self.boundaries = {stage.start for stage in pipeline.stages[1:]}
        """Units whose inputs may come from another rank."""
        if pipeline.ranks == 1:
            self.boundaries = set()
        self.drafts: list[list[Draft]] = []
        """Of each rank, in the order of all its lanes."""
        self.buffers: dict[str, Buffer] = {}

    def schedule(self, budgets: dict[str, int] | None = None) -> Schedule:
        """The whole program."""
        line = self.pipeline
        self._permanent()
        self.drafts = [self._compute(rank) for rank in range(line.ranks)]
        self.drafts = [self._messages(drafts) for drafts in self.drafts]
        self._updates()
        for rank, drafts in enumerate(self.drafts):
            self._free(drafts)
            self._places(rank, drafts)
        return Schedule(
            name=line.method,
            num_units=line.head + 1,
            num_microbatches=line.micros,
            num_ranks=line.ranks,
            replicas=line.replicas,
            actions=tuple(self._action(draft) for drafts in self.drafts for draft in drafts),
            buffers=self.buffers,
            budgets=budgets or {},
            settings={
                "stages": " ".join(str(len(stage)) for stage in line.stages),
                "replicas": line.replicas,
                "activations": line.activations,
            },
        )

    # -- memory that is there all the time ------------------------------------------------------

    def _permanent(self) -> None:
        """Weights, optimizer states and tokens on devices; the host's copies, where runs begin and
        checkpoints end."""
        line, sizes = self.pipeline, self.sizes
        for rank in range(line.ranks):
            self._lay(rank, "tokens", sizes.token_bytes(line.micro * line.micros), permanent=True)
            if sizes.library_bytes:
                self._lay(rank, "libraries", sizes.library_bytes, permanent=True)
        for unit in range(line.head + 1):
            rank = line.rank_of[unit]
            self._lay(rank, name.weights(unit), sizes.visit_bytes(unit), permanent=True)
            self._lay(rank, name.states(unit), sizes.state_bytes(unit), permanent=True)
            gradients = name.gradients(unit)
            self._lay(rank, gradients, sizes.visit_bytes(unit), slot=gradients)
            for text, nbytes in (
                (name.host_weights(unit), sizes.weight_bytes(unit)),
                (name.host_states(unit), sizes.state_bytes(unit)),
            ):
                self.buffers[text] = Buffer(tier=HOST_TIER, nbytes=nbytes, permanent=True)

    # -- passes ---------------------------------------------------------------------------------

    def _compute(self, rank: int) -> list[Draft]:
        """A rank's passes over units: what each reads and makes."""
        line, drafts = self.pipeline, []
        started: set[int] = set()
        for turn, each in enumerate(line.passes[rank]):
            begun = len(drafts)
            units = line.stages[each.chunk * line.ranks + rank]
            for unit in units if each.kind is F else reversed(units):
                if each.kind in (B, I) and line.recomputes(unit):
                    drafts.append(self._forward(R, unit, each.micro, rank))
                if each.kind is F:
                    drafts.append(self._forward(F, unit, each.micro, rank))
                    if unit not in started:
                        drafts[-1].after.append(act(Kind.UPDATE, unit, rank=rank, step=-1))
                elif each.kind is not I or unit:  # the embedding's input has no gradient
                    drafts.append(self._backward(each.kind, unit, each.micro, rank))
                    if each.kind in (B, W) and ("g", unit) not in started:
                        started.add(("g", unit))
                        drafts[-1].makes.append(name.gradients(unit))
                started.add(unit)
            for draft in drafts[begun:]:
                draft.turn = turn
        return drafts

    def _forward(self, kind: Kind, unit: int, micro: int, rank: int) -> Draft:
        line, cost = self.pipeline, self._cost(unit)
        keeps = kind is R or not line.recomputes(unit)
        draft = Draft(kind=kind, unit=unit, micro=micro, rank=rank)
        scratch = cost.recompute_scratch_bytes if keeps else cost.forward_scratch_bytes
        self._scratch(draft, scratch)
        draft.reads += [name.weights(unit), *([name.activation(unit, micro)] if unit else [])]
        if keeps:
            self._make(draft, self._kept(unit, micro), cost.kept_bytes)
        if kind is F and unit < line.head:
            self._make(draft, self._output(unit, micro), self._input_bytes(unit + 1))
        return draft

    def _backward(self, kind: Kind, unit: int, micro: int, rank: int) -> Draft:
        """A backward pass or one of its halves. Autograd's graph holds input, output and gradient
        of the output until the pass, or its second half, is done."""
        line, cost = self.pipeline, self._cost(unit)
        draft = Draft(kind=kind, unit=unit, micro=micro, rank=rank)
        fresh = 0 if kind is I else self.sizes.fresh_bytes(unit)
        scratch = {
            B: cost.backward_scratch_bytes,
            I: cost.input_half_scratch_bytes,
            W: cost.weight_half_scratch_bytes,
        }
        self._scratch(draft, scratch[kind] + fresh)
        draft.reads += [name.weights(unit), self._kept(unit, micro)]
        if unit:
            draft.reads.append(name.activation(unit, micro))
        if unit < line.head:
            draft.reads.append(name.output_gradient(unit, micro))
            if unit + 1 in self.boundaries and not line.recomputes(unit):
                draft.reads.append(name.output(unit, micro))
                if kind is not W or unit == 0:
                    draft.after.append(act(Kind.SEND, unit + 1, micro, rank=rank))
        if kind is not I:
            draft.reads.append(name.gradients(unit))
        if kind is not W and unit:
            self._make(draft, self._input_gradient(unit, micro), self._input_bytes(unit))
        if kind is I:
            self._make(draft, name.half(unit, micro), cost.half_bytes)
        elif kind is W and unit:
            draft.reads.append(name.half(unit, micro))
        return draft

    def _kept(self, unit: int, micro: int) -> str:
        """What autograd keeps of a unit until its backward pass."""
        text = name.checkpoint if self.pipeline.checkpoints(unit) else name.kept
        return text(unit, micro)

    def _output(self, unit: int, micro: int) -> str:
        if unit + 1 in self.boundaries:
            return name.output(unit, micro)
        return name.activation(unit + 1, micro)

    def _input_gradient(self, unit: int, micro: int) -> str:
        if unit in self.boundaries:
            return name.input_gradient(unit, micro)
        return name.output_gradient(unit - 1, micro)

    # -- messages -------------------------------------------------------------------------------

    def _messages(self, drafts: list[Draft]) -> list[Draft]:
        """Add to a rank's passes the messages that bring their inputs and take their outputs."""
        found: list[Draft] = []
        sent: dict[Kind, list[str]] = defaultdict(list)
        came: set[str] = set()
        for draft in drafts:
            unit, micro = draft.unit, draft.micro
            into, above = name.activation(unit, micro), name.output_gradient(unit, micro)
            for kind, of, label, readers in (
                (Kind.RECV, unit, into, (F,)),
                (Kind.RECV_GRAD, unit + 1, above, (B, I, W)),
            ):
                if of not in self.boundaries or draft.kind not in readers or label in came:
                    continue
                came.add(label)
                message = self._message(kind, of, micro, draft.rank)
                message.makes.append(label)
                draft.after.append(message.name)
                found.append(message)
            found.append(draft)
            for kind, of, label in (
                (Kind.SEND, unit + 1, name.output(unit, micro)),
                (Kind.SEND_GRAD, unit, name.input_gradient(unit, micro)),
            ):
                if label in draft.makes:
                    message = self._message(kind, of, micro, draft.rank)
                    message.after.append(draft.name)
                    message.reads.append(label)
                    draft.after += sent[kind][-AHEAD : 1 - AHEAD]
                    draft.after.append(f"{message.name}@-1")
                    sent[kind].append(message.name)
                    found.append(message)
        return found

    def _message(self, kind: Kind, unit: int, micro: int | None, rank: int) -> Draft:
        nbytes = 0 if micro is None else self._input_bytes(unit)
        return Draft(kind=kind, unit=unit, micro=micro, rank=rank, lane=LANES[kind], nbytes=nbytes)

    # -- sums, norm and updates -----------------------------------------------------------------

    def _updates(self) -> None:
        """Gradients are added up over replicas as soon as they are complete, those of borrowed
        weights go to the owner; the norm of all is taken; then each rank updates its own units."""
        line = self.pipeline
        complete: dict[int, str] = {}
        """Unit -> what completes its gradients, in the order in which they are."""
        for drafts in self.drafts:
            for draft in drafts:
                if draft.kind in (B, W):
                    complete.pop(draft.unit, None)
                    complete[draft.unit] = draft.name
        if line.replicas > 1:
            for unit, last in complete.items():
                draft = Draft(kind=Kind.REDUCE, unit=unit, rank=line.rank_of[unit], lane=SUMS)
                draft.after, draft.nbytes = [last], self.sizes.visit_bytes(unit)
                draft.reads.append(name.gradients(unit))
                self._write(draft)
                complete[unit] = draft.name
        borrowers = {u: self.sizes.owner(u) for u in complete if self.sizes.owner(u) != u}
        apart = {u: o for u, o in borrowers.items() if line.rank_of[u] != line.rank_of[o]}
        for unit, owner in apart.items():
            complete[owner] = self._lend(
                unit, owner, Kind.SEND_GRAD, Kind.RECV_GRAD, complete[unit], complete[owner]
            )
        ready = [*complete.values()]
        if line.clipped:
            norm = Draft(kind=Kind.NORM, unit=0, rank=0, lane=HOST, after=ready)
            self._write(norm)
        for unit in sorted(complete, key=lambda unit: (unit in borrowers, unit)):
            rank, owner = line.rank_of[unit], borrowers.get(unit)
            draft = Draft(kind=Kind.UPDATE, unit=unit, rank=rank, lane=VISIT)
            draft.after.append(norm.name if line.clipped else complete[unit])
            draft.reads += [name.weights(unit), name.states(unit), name.gradients(unit)]
            if unit in apart:  # its gradients are on their way until then
                draft.after.append(act(Kind.SEND_GRAD, owner, rank=rank))
            elif owner is not None:  # whose weights it copies
                draft.after.append(act(Kind.UPDATE, owner, rank=rank))
                draft.reads.append(name.weights(owner))
            if unit in apart.values():
                draft.after.append(act(Kind.SEND, unit, rank=rank, step=-1))
            self._write(draft)
        for unit, owner in apart.items():
            updated = act(Kind.UPDATE, owner, rank=line.rank_of[owner])
            there = act(Kind.UPDATE, unit, rank=line.rank_of[unit])
            came = self._lend(unit, owner, Kind.SEND, Kind.RECV, updated, there)
            first = next(
                d for d in self.drafts[line.rank_of[unit]] if (d.kind, d.unit) == (F, unit)
            )
            first.after.append(f"{came}@-1")

    def _lend(
        self, borrower: int, owner: int, send: Kind, receive: Kind, sent: str, there: str
    ) -> str:
        """Have weights go to a borrower on another rank, or their gradients to the owner, where
        they are added when its own are there; returns what takes them in."""
        line, gradients = self.pipeline, send is Kind.SEND_GRAD
        ranks = [
            line.rank_of[unit] for unit in ((borrower, owner) if gradients else (owner, borrower))
        ]
        text = name.lent_gradients if gradients else name.lent_weights
        nbytes = self.sizes.visit_bytes(borrower) - self.sizes.weight_bytes(borrower)
        what = name.gradients if gradients else name.weights
        out, into = (
            self._message(k, owner, None, r) for k, r in zip((send, receive), ranks, strict=True)
        )
        out.nbytes = into.nbytes = nbytes
        units = (borrower, owner) if gradients else (owner, borrower)
        out.after.append(sent)
        out.reads.append(what(units[0]))
        into.after += [there, f"{into.name}@-1"]
        into.makes.append(text(owner, borrower))
        into.reads.append(what(units[1]))
        self._write(out)
        self._write(into)
        return into.name

    def _write(self, draft: Draft) -> None:
        """At the end of its lane."""
        self.drafts[draft.rank].append(draft)

    # -- when memory is free --------------------------------------------------------------------

    def _free(self, drafts: list[Draft]) -> None:
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

    def _places(self, rank: int, drafts: list[Draft]) -> None:
        """Give every message a place in the rank's inbox: one whose reader is done some passes
        before the message is needed, else a new one; the receiver waits for that reader."""
        passes = [draft for draft in drafts if draft.lane == COMPUTE]
        number = {draft.name: draft.turn for draft in passes}
        needed = {other: draft for draft in reversed(passes) for other in draft.after}
        freed = {label: draft for draft in drafts for label in draft.frees}
        start = 0
        for kind in (Kind.RECV, Kind.RECV_GRAD):
            messages = [d for d in drafts if d.kind is kind and d.micro is not None]
            size = max((aligned(d.nbytes) for d in messages), default=0)
            ends = [freed[message.makes[0]].name for message in messages]
            used = [number[needed[message.name].name] for message in messages]
            places: list[list[int]] = []
            """Of each place: the numbers of the messages that come there."""
            at: dict[int, int] = {}
            for message, before in enumerate(taken_from(used, [number[e] for e in ends], AHEAD)):
                at[message] = at[before] if before >= 0 else len(places)
                if before < 0:
                    places.append([])
                places[at[message]].append(message)
            for place, those in enumerate(places):
                before = f"{ends[those[-1]]}@-1"
                for message in (messages[each] for each in those):
                    (label,) = message.makes
                    self._lay(rank, label, message.nbytes, slot=INBOX, offset=start + place * size)
                    message.after.append(before)
                    before = freed[label].name
            start += len(places) * size
        for draft in drafts:
            if draft.kind in (Kind.RECV, Kind.RECV_GRAD) and draft.micro is None:
                (label,) = draft.makes
                self._lay(rank, label, draft.nbytes, slot=INBOX, offset=start)
                start += aligned(draft.nbytes)

    # -- small answers --------------------------------------------------------------------------

    def _cost(self, unit: int) -> UnitCost:
        cost = self.sizes.cost(unit, self.pipeline.micro)
        return cost.from_checkpoint() if self.pipeline.checkpoints(unit) else cost

    def _input_bytes(self, unit: int) -> int:
        return self.sizes.input_bytes(unit, self.pipeline.micro)

    def _scratch(self, draft: Draft, nbytes: int) -> None:
        self._make(draft, name.scratch(draft.name), max(0, nbytes))

    def _make(self, draft: Draft, text: str, nbytes: int) -> None:
        draft.makes.append(text)
        self._lay(draft.rank, text, nbytes)

    def _lay(self, rank: int, text: str, nbytes: int, **kw) -> str:
        self.buffers[self._label(rank, text)] = Buffer(tier=DEVICE, nbytes=nbytes, rank=rank, **kw)
        return text

    def _label(self, rank: int, text: str) -> str:
        return text if name.is_scratch(text) else name.on_rank(rank, text)

    def _action(self, draft: Draft) -> Action:
        micro, size = draft.micro, self.pipeline.micro
        takes, frees = (
            [self._label(draft.rank, t) for t in those] for those in (draft.makes, draft.frees)
        )
        reads = [self._label(draft.rank, t) for t in draft.reads]
        return Action(
            kind=draft.kind,
            unit=draft.unit,
            lane=draft.lane,
            microbatch=micro,
            rank=draft.rank,
            after=tuple(dict.fromkeys(draft.after)),
            nbytes=draft.nbytes,
            takes=tuple(takes),
            uses=tuple(dict.fromkeys(t for t in reads if t not in takes and t not in frees)),
            frees=tuple(frees),
            samples=None if micro is None else (micro * size, (micro + 1) * size),
        )
