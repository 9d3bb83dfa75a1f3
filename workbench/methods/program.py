"""One training step of a layered model on one device, written down as a schedule.

Every single-device method is a choice of four things, and this builder turns the choice into actions:

* which units are **resident** (weights, gradients and optimizer states never leave the device; the
  device updates them) and which are **streamed** (states on the host or disk, updated there);
* how many weight **slots** the streamed units share. Streamed unit k always occupies slot k mod slots,
  so the loads run ahead of compute by slots - 1 units in both directions, the last `slots` units stay
  from forward to backward pass, and a device copy is never written back: it is never dirty;
* what becomes of **activations**: kept, recomputed from each unit's input, or the input stashed on
  the host;
* whether updates are **deferred** until the global gradient norm is known (exact clipping and
  skipping of non-finite steps), or run as gradients arrive.

Two promises are kept apart, unlike in the published artifact: a slot is free as soon as compute is done
with it, while a unit's parameters are ready only after its update, which its next load waits for.
Deferred updates run in the order of the next forward pass and overlap it, one unit ahead of its load.

Micro-batches are layer-major (all of them pass a unit while it is loaded, as in L2L), except where
everything is resident and micro-batch-major order saves activation memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.profile.profile import Profile
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST, Action, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Buffer, Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD
TOKEN_BYTES = 16
"""Two 64-bit integers per position: the token and its target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What a method chose."""

    method: str
    resident: frozenset[int]
    """Units that never leave the device; the first and last are always among them."""
    slots: int
    """Weight slots of the streamed units."""
    microbatches: int = 1
    activations: str = "recompute"
    """``keep``, ``recompute`` or ``host``."""
    deferred: bool = True
    """Updates wait for the global norm."""
    optimizer_tier: str = HOST_TIER
    """``host`` or ``disk``: where the states of streamed units live."""
    host_workers: int = 1
    gradient_slots: int = 2
    """Gradient buffers the streamed units share on the device."""
    staging_slots: int = 3
    """Host buffers for states on their way from and to the disk."""
    microbatch_major: bool = False


def build(
    layout: Layout,
    profile: Profile,
    *,
    budgets: dict[str, int] | None = None,
    settings: dict[str, int | float | str | bool | None] | None = None,
) -> Schedule:
    """The schedule of one step. Unit costs and sizes come from `profile`."""
    return _Builder(layout, profile).schedule(budgets or {}, settings or {})


class _Builder:
    """Collects the actions and buffers of one step, pass by pass."""

    def __init__(self, layout: Layout, profile: Profile) -> None:
        self.layout, self.profile = layout, profile
        self.num_units = len(profile.units)
        self.head = self.num_units - 1
        self.micros = range(layout.microbatches)
        self.streamed = [u for u in range(self.num_units) if u not in layout.resident]
        self.index = {unit: k for k, unit in enumerate(self.streamed)}
        self.actions: list[Action] = []
        self.buffers: dict[str, Buffer] = {}
        self._check()

    def _check(self) -> None:
        layout = self.layout
        if not {0, self.head} <= layout.resident:
            raise ValueError("the embedding and the head must be resident")
        if self.streamed and layout.slots < 1:
            raise ValueError(f"{len(self.streamed)} streamed units need at least 1 slot, got 0")
        if self.streamed and layout.microbatch_major:
            raise ValueError("micro-batch-major order needs every unit resident")

    def schedule(self, budgets: dict[str, int], settings: dict) -> Schedule:
        self._permanent_buffers()
        if self.layout.microbatch_major:
            for micro in self.micros:
                self._forward_pass([micro])
                self._backward_pass([micro])
        else:
            self._forward_pass(list(self.micros))
            self._backward_pass(list(self.micros))
        if self.layout.deferred:
            self._norm()
            self._deferred_updates()
        return Schedule(
            name=self.layout.method,
            num_units=self.num_units,
            num_microbatches=self.layout.microbatches,
            actions=tuple(self.actions),
            buffers=self.buffers,
            budgets=budgets,
            settings=settings,
        )

    # -- what is there all the time -------------------------------------------------------------

    def _permanent_buffers(self) -> None:
        profile, layout = self.profile, self.layout
        tokens = profile.microbatch * layout.microbatches * profile.seq * TOKEN_BYTES
        self._buffer("tokens", DEVICE, tokens, permanent=True)
        for unit, cost in enumerate(profile.units):
            weight = cost.parameters * profile.weight_bytes
            state = cost.parameters * profile.state_bytes
            if unit in layout.resident:
                self._buffer(name.weights(unit), DEVICE, weight, permanent=True)
                self._buffer(name.gradients(unit), DEVICE, weight, permanent=True)
                self._buffer(name.states(unit), DEVICE, state, permanent=True)
                continue
            self._buffer(name.host_weights(unit), HOST_TIER, weight, permanent=True)
            if layout.optimizer_tier == DISK:
                self._buffer(name.disk_states(unit), DISK, state, permanent=True)
            else:
                self._buffer(name.host_states(unit), HOST_TIER, state, permanent=True)

    def _buffer(self, label: str, tier: str, nbytes: int, **kw) -> str:
        self.buffers[label] = Buffer(tier=tier, nbytes=nbytes, **kw)
        return label

    # -- forward --------------------------------------------------------------------------------

    def _forward_pass(self, micros: list[int]) -> None:
        for unit in range(self.num_units):
            if unit in self.index:
                self._load(unit, turn=0)
            for micro in micros:
                self._forward(unit, micro, last=micro == micros[-1])
                if unit == self.head:  # its logits are large: consume them at once
                    self._backward(unit, micro)
                elif self._stashed(unit):
                    self._stash(unit, micro)

    def _load(self, unit: int, turn: int) -> None:
        """Bring a streamed unit's weights into its slot, when the slot is free and they are ready."""
        layout, k = self.layout, self.index[unit]
        slot = k % layout.slots
        if turn == 0:
            after = [act(Kind.UPDATE, unit, step=-1)]
            if k >= layout.slots:
                previous = self.streamed[k - layout.slots]
                after.append(act(F, previous, self.micros[-1]))
            else:
                # The unit that held the slot last in the step before is this one itself.
                after.append(act(B, unit, self.micros[-1], step=-1))
        else:
            after = [act(B, self.streamed[k + layout.slots], self.micros[-1])]
        nbytes = self._weight_bytes(unit)
        label = self._buffer(name.weights(unit, turn), DEVICE, nbytes, slot=f"weights {slot}")
        self._add(Kind.LOAD, unit, H2D, turn=turn, after=after, nbytes=nbytes, takes=[label])

    def _forward(self, unit: int, micro: int, *, last: bool) -> None:
        cost, layout = self.profile.units[unit], self.layout
        me = act(F, unit, micro)
        after, uses, frees = [], [self._weights(unit, turn=0)], []
        if unit:
            after.append(act(F, unit - 1, micro))
            uses.append(name.activation(unit, micro))
        if unit in self.index:
            after.append(act(Kind.LOAD, unit))
        takes = [self._scratch(me, cost.forward_scratch_bytes)]
        if unit < self.head:
            takes.append(self._activation(unit + 1, micro, after))
        if unit == self.head or (layout.activations == "keep" and cost.kept_bytes):
            slot = "head" if unit == self.head else None
            takes.append(self._buffer(name.kept(unit, micro), DEVICE, cost.kept_bytes, slot=slot))
        if last and unit in self.index and self._leaves(unit):
            frees.append(self._weights(unit, turn=0))
        self._add(F, unit, COMPUTE, micro, after=after, uses=uses, takes=takes, frees=frees)

    def _activation(self, unit: int, micro: int, after: list[str]) -> str:
        """The buffer for a unit's input; stashed ones share a ring, so that depth costs nothing."""
        nbytes = self.profile.units[unit].input_bytes
        label = name.activation(unit, micro)
        if not self._stashed(unit):
            return self._buffer(label, DEVICE, nbytes)
        count = len(self.micros)
        ring = 2 * count + 1
        place = (unit * count + micro) % ring
        earlier = unit * count + micro - ring
        if earlier // count >= 1 and self._stashed(earlier // count):
            after.append(act(Kind.STASH, earlier // count, earlier % count))
        return self._buffer(label, DEVICE, nbytes, slot=f"inputs {place}")

    def _stash(self, unit: int, micro: int) -> None:
        nbytes = self.profile.units[unit].input_bytes
        kept = self._buffer(name.host_activation(unit, micro), HOST_TIER, nbytes)
        self._add(
            Kind.STASH,
            unit,
            D2H,
            micro,
            after=[act(F, unit, micro)],
            nbytes=nbytes,
            takes=[kept],
            frees=[name.activation(unit, micro)],
        )

    # -- backward -------------------------------------------------------------------------------

    def _backward_pass(self, micros: list[int]) -> None:
        for unit in reversed(range(self.head)):
            if unit in self.index and self._leaves(unit):
                self._load(unit, turn=1)
            for micro in micros:
                if self._stashed(unit):
                    self._fetch(unit, micro)
                if self.layout.activations != "keep":
                    self._recompute(unit, micro)
                self._backward(unit, micro)
            if micros[-1] == self.micros[-1]:
                self._gradients_done(unit)
        if not self.layout.deferred and micros[-1] == self.micros[-1]:
            self._update(self.head)

    def _fetch(self, unit: int, micro: int) -> None:
        """Bring a stashed input back, a whole unit ahead of compute."""
        count = len(self.micros)
        ring = 2 * count
        place = (unit * count + micro) % ring
        after = [act(Kind.STASH, unit, micro)]
        later = unit * count + micro + ring
        if self._stashed(later // count):
            after.append(act(B, later // count, later % count))
        nbytes = self.profile.units[unit].input_bytes
        label = name.activation(unit, micro, 1)
        self._buffer(label, DEVICE, nbytes, slot=f"fetched {place}")
        self._add(
            Kind.FETCH,
            unit,
            H2D,
            micro,
            after=after,
            nbytes=nbytes,
            takes=[label],
            frees=[name.host_activation(unit, micro)],
        )

    def _recompute(self, unit: int, micro: int) -> None:
        cost = self.profile.units[unit]
        me = act(R, unit, micro)
        kept = self._buffer(name.kept(unit, micro), DEVICE, cost.kept_bytes, slot="recomputed")
        self._add(
            R,
            unit,
            COMPUTE,
            micro,
            after=[act(B, unit + 1, micro), *self._ready(unit, micro)],
            uses=self._inputs(unit, micro) + [self._weights(unit, turn=1)],
            takes=[kept, self._scratch(me, cost.recompute_scratch_bytes)],
            frees=[name.scratch(me)],
        )

    def _backward(self, unit: int, micro: int) -> None:
        cost, layout = self.profile.units[unit], self.layout
        me = act(B, unit, micro)
        recomputed = layout.activations != "keep" and unit != self.head
        after = [act(R if recomputed else F, unit, micro)]
        uses = [self._weights(unit, turn=1), name.gradients(unit)]
        takes = [self._scratch(me, cost.backward_scratch_bytes)]
        frees = self._inputs(unit, micro)
        if unit < self.head:
            after.append(act(B, unit + 1, micro))
            frees.append(name.output_gradient(unit, micro))
        if not recomputed:
            after += self._ready(unit, micro)
        if cost.kept_bytes or recomputed or unit == self.head:
            frees.append(name.kept(unit, micro))
        if unit:
            grad = name.output_gradient(unit - 1, micro)
            takes.append(self._buffer(grad, DEVICE, cost.input_bytes))
        if unit in self.index:
            if micro == self.micros[0]:
                takes.append(self._gradient_slot(unit, after))
                uses.remove(name.gradients(unit))
            if micro == self.micros[-1]:
                frees.append(self._weights(unit, turn=1))
        self._add(B, unit, COMPUTE, micro, after=after, uses=uses, takes=takes, frees=frees)

    def _gradient_slot(self, unit: int, after: list[str]) -> str:
        """A device gradient buffer, once the unit that had it has left for the host."""
        slots, k = self.layout.gradient_slots, self.index[unit]
        if k + slots < len(self.streamed):
            after.append(act(Kind.GRAD_OUT, self.streamed[k + slots]))
        else:
            wrapped = self._wrapped(k, slots)
            after.append(act(Kind.GRAD_OUT, self.streamed[wrapped], step=-1))
        nbytes = self._weight_bytes(unit)
        label = name.gradients(unit)
        return self._buffer(label, DEVICE, nbytes, slot=f"gradients {k % slots}")

    def _wrapped(self, k: int, slots: int) -> int:
        """The streamed index that used slot k mod slots last in the step before."""
        return k % slots

    def _gradients_done(self, unit: int) -> None:
        """After a unit's last backward pass: gradients leave, or the unit is updated."""
        if unit in self.index:
            self._gradients_out(unit)
        if not self.layout.deferred:
            self._update(unit)

    def _gradients_out(self, unit: int) -> None:
        layout, k = self.layout, self.index[unit]
        nbytes = self._weight_bytes(unit)
        after = [act(B, unit, self.micros[-1])]
        slot = None
        if not layout.deferred:  # a short ring is enough when updates follow at once
            ring = layout.host_workers + 1
            slot = f"host gradients {k % ring}"
            if k + ring < len(self.streamed):
                after.append(act(Kind.UPDATE, self.streamed[k + ring]))
            else:
                after.append(act(Kind.UPDATE, self.streamed[self._wrapped(k, ring)], step=-1))
        label = self._buffer(name.host_gradients(unit), HOST_TIER, nbytes, slot=slot)
        self._add(
            Kind.GRAD_OUT,
            unit,
            D2H,
            after=after,
            nbytes=nbytes,
            takes=[label],
            frees=[name.gradients(unit)],
        )

    # -- updates --------------------------------------------------------------------------------

    def _norm(self) -> None:
        last = act(B, 0, self.micros[-1])
        self._add(Kind.NORM, 0, COMPUTE, after=[last])

    def _deferred_updates(self) -> None:
        """The order of the next forward pass: whoever is needed soonest is updated first."""
        for unit in range(self.num_units):
            self._update(unit)

    def _update(self, unit: int) -> None:
        layout = self.layout
        after = [act(Kind.NORM, 0)] if layout.deferred else []
        if unit in layout.resident:
            after.append(act(B, unit, self.micros[-1]))
            uses = [name.weights(unit), name.gradients(unit), name.states(unit)]
            self._add(Kind.UPDATE, unit, COMPUTE, after=after, uses=uses)
            return
        k = self.index[unit]
        worker = k % layout.host_workers
        after.append(act(Kind.GRAD_OUT, unit))
        uses, on_disk = [name.host_weights(unit)], layout.optimizer_tier == DISK
        if on_disk:
            self._read(unit)
            after.append(act(Kind.READ, unit))
            uses.append(name.host_states(unit))
        else:
            uses.append(name.host_states(unit))
        self._add(
            Kind.UPDATE,
            unit,
            HOST + (f".{worker}" if worker else ""),
            after=after,
            uses=uses,
            frees=[name.host_gradients(unit)],
        )
        if on_disk:
            self._add(
                Kind.SPILL,
                unit,
                DISK_OUT,
                after=[act(Kind.UPDATE, unit)],
                nbytes=self._state_bytes(unit),
                frees=[name.host_states(unit)],
            )

    def _read(self, unit: int) -> None:
        """States from the disk into a staging slot, in the order of the updates."""
        layout, k = self.layout, self.index[unit]
        order = k if layout.deferred else len(self.streamed) - 1 - k
        slots = layout.staging_slots
        after = [act(Kind.SPILL, unit, step=-1)]
        if order >= slots:
            earlier = order - slots
            before = earlier if layout.deferred else len(self.streamed) - 1 - earlier
            after.append(act(Kind.SPILL, self.streamed[before]))
        else:
            last = order + (len(self.streamed) - 1 - order) // slots * slots
            before = last if layout.deferred else len(self.streamed) - 1 - last
            after.append(act(Kind.SPILL, self.streamed[before], step=-1))
        label = name.host_states(unit)
        nbytes = self._state_bytes(unit)
        self._buffer(label, HOST_TIER, nbytes, slot=f"staging {order % slots}")
        self._add(Kind.READ, unit, DISK_IN, after=after, nbytes=nbytes, takes=[label])

    # -- small answers --------------------------------------------------------------------------

    def _weight_bytes(self, unit: int) -> int:
        return self.profile.units[unit].parameters * self.profile.weight_bytes

    def _state_bytes(self, unit: int) -> int:
        return self.profile.units[unit].parameters * self.profile.state_bytes

    def _leaves(self, unit: int) -> bool:
        """Whether a streamed unit gives its slot up between forward and backward pass."""
        return self.index[unit] < len(self.streamed) - self.layout.slots

    def _weights(self, unit: int, turn: int) -> str:
        """The buffer that holds a unit's weights in the forward (0) or backward (1) pass."""
        if unit in self.index and turn == 1 and self._leaves(unit):
            return name.weights(unit, 1)
        return name.weights(unit)

    def _stashed(self, unit: int) -> bool:
        """Inputs of inner blocks go to the host; the backward pass begins with the last ones."""
        return self.layout.activations == "host" and 0 < unit < self.head - 1

    def _inputs(self, unit: int, micro: int) -> list[str]:
        if unit == 0:
            return []
        return [name.activation(unit, micro, 1 if self._stashed(unit) else 0)]

    def _ready(self, unit: int, micro: int) -> list[str]:
        """What the backward visit of a unit waits for besides its output gradient."""
        after = []
        if unit in self.index and self._leaves(unit):
            after.append(act(Kind.LOAD, unit, turn=1))
        if self._stashed(unit):
            after.append(act(Kind.FETCH, unit, micro))
        return after

    def _scratch(self, owner: str, nbytes: int) -> str:
        return self._buffer(name.scratch(owner), DEVICE, nbytes, slot=name.WORKSPACE)

    def _add(
        self,
        kind: Kind,
        unit: int,
        lane: str,
        micro: int | None = None,
        *,
        turn: int = 0,
        after: list[str] | None = None,
        nbytes: int = 0,
        takes: list[str] | None = None,
        uses: list[str] | None = None,
        frees: list[str] | None = None,
    ) -> None:
        takes, frees = list(takes or []), list(frees or [])
        scratch = [t for t in takes if t.startswith("t:") and t not in frees]
        self.actions.append(
            Action(
                kind=kind,
                unit=unit,
                lane=lane,
                microbatch=micro,
                turn=turn,
                after=tuple(dict.fromkeys(after or [])),
                nbytes=nbytes,
                takes=tuple(takes),
                uses=tuple(uses or []),
                frees=tuple(frees + scratch),
            )
        )
