"""Small schedules to break: a sliding window over `n` streamed units, and a pipeline of two ranks.

Every unit is streamed. Unit i uses weight slot i mod window in both passes, so the last `window`
units stay for the backward pass; updates run on the host. Independent of the planners that ship.
"""

from functools import partial

from workbench.schedule import buffers as b
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST, Action, Kind
from workbench.schedule.schedule import DEVICE, HOST_TIER, Buffer, Schedule

WEIGHT, INPUT, KEPT, SCRATCH, STATES = 100, 10, 50, 5, 200
"""Sizes in bytes."""


def window_schedule(
    n=4, window=2, micro=1, *, workers=1, norm=False, stash=False, disk=False, later=False,
    budgets=None,
):  # fmt: skip
    """One step; options: host workers, a global norm, stashed inputs, optimizer states on disk,
    moments updated later than weights."""
    actions, buffers, last = [], {}, micro - 1

    def put(name, nbytes, tier=DEVICE, slot=None, permanent=False):
        buffers[name] = Buffer(tier=tier, nbytes=nbytes, slot=slot, permanent=permanent)
        return name

    def act(kind, unit, lane, m=None, *, after=(), takes=(), uses=(), frees=(), nbytes=0, turn=0):
        name = f"{kind.value}{unit}.{m}"
        if lane == COMPUTE:
            takes = (*takes, put(b.scratch(name), SCRATCH, slot="workspace"))
            frees = (*frees, b.scratch(name))
        actions.append(
            Action(
                kind=kind,
                unit=unit,
                lane=lane,
                microbatch=m,
                turn=turn,
                after=tuple(after),
                nbytes=nbytes,
                takes=tuple(takes),
                uses=tuple(uses),
                frees=tuple(frees),
            )
        )

    def load(i, turn, after):
        weights = put(b.weights(i, turn), WEIGHT, slot=f"w{i % window}")
        act(Kind.LOAD, i, H2D, turn=turn, after=after, takes=[weights], nbytes=WEIGHT)

    leaves = range(n - window)
    for i in range(n):
        put(b.host_weights(i), WEIGHT, HOST_TIER, permanent=True)
        load(i, 0, [f"U{i}@-1"] + [f"F{i - window}.{last}"] * (i >= window))
        for m in range(micro):
            source = i - 1 if i else 0  # unit 0 takes its own input
            taken = [b.activation(j, m) for j in {i: [i, i + 1]}.get(source, [i + 1]) if j < n]
            for name in taken:
                put(name, INPUT)
            act(
                Kind.FORWARD,
                i,
                COMPUTE,
                m,
                after=[f"L{i}"] + [f"F{i - 1}.{m}"] * (i > 0),
                takes=taken,
                uses=[b.weights(i)] + [b.activation(i, m)] * (i > 0),
                frees=[b.weights(i)] * (i in leaves and m == last),
            )
            if stash and i:
                name = put(b.host_activation(i, m), INPUT, HOST_TIER)
                x = b.activation(i, m)
                after = [f"F{i}.{m}"]
                act(Kind.STASH, i, D2H, m, after=after, takes=[name], frees=[x], nbytes=INPUT)

    for i in reversed(range(n)):
        turn = int(i in leaves)
        if turn:
            load(i, 1, [f"B{i + window}.{last}"])
        for m in range(micro):
            x = b.activation(i, m, int(stash and i > 0))
            if stash and i:
                put(x, INPUT, slot=f"x{i % 2}.{m}")
                after = [f"S{i}.{m}"] + [f"B{i + 2}.{m}"] * (i + 2 < n)
                held = b.host_activation(i, m)
                act(Kind.FETCH, i, H2D, m, after=after, takes=[x], frees=[held], nbytes=INPUT)
            ready = [f"L{i}" + "+1" * turn] + [f"T{i}.{m}"] * (stash and i > 0)
            w, kept = b.weights(i, turn), put(b.kept(i, m), KEPT)
            act(Kind.RECOMPUTE, i, COMPUTE, m, after=ready, uses=[w, x], takes=[kept])
            after, takes, uses, frees = [f"R{i}.{m}"], [], [], [kept, x]
            if i + 1 < n:
                after.append(f"B{i + 1}.{m}")
                frees.append(b.output_gradient(i, m))
            if i:
                takes.append(put(b.output_gradient(i - 1, m), INPUT))
            if m == 0:
                takes.append(put(b.gradients(i), WEIGHT, slot=f"g{i % 2}"))
                after += [f"G{i + 2}"] * (i + 2 < n)
            else:
                uses.append(b.gradients(i))
            (frees if m == last else uses).append(w)
            act(Kind.BACKWARD, i, COMPUTE, m, after=after, takes=takes, uses=uses, frees=frees)
        hg = put(b.host_gradients(i), WEIGHT, HOST_TIER)
        after, freed = [f"B{i}.{last}"] + [f"M{i}@-1"] * later, [b.gradients(i)]
        act(Kind.GRAD_OUT, i, D2H, after=after, takes=[hg], frees=freed, nbytes=WEIGHT)

    if norm:
        held = [b.host_gradients(i) for i in range(n)]
        act(Kind.NORM, 0, HOST, after=[f"G{i}" for i in range(n)], uses=held)
    for i in reversed(range(n)):
        states = put(
            b.host_states(i), STATES, HOST_TIER, f"s{i % 2}" if disk else None, permanent=not disk
        )
        if disk:
            ring = f"SPILL{i + 2}" if i + 2 < n else f"SPILL{i % 2}@-1"
            after = [f"SPILL{i}@-1", ring]
            act(Kind.READ, i, DISK_IN, after=after, takes=[states], nbytes=STATES)
        worker = (n - 1 - i) % workers
        act(
            Kind.UPDATE,
            i,
            HOST + f".{worker}" * (worker > 0),
            after=[f"G{i}"] + ["N0"] * norm + [f"READ{i}"] * disk,
            uses=[b.host_weights(i), states] + [b.host_gradients(i)] * later,
            frees=[b.host_gradients(i)] * (not later),
        )
        if disk:
            act(Kind.SPILL, i, DISK_OUT, after=[f"U{i}"], frees=[states], nbytes=STATES)
    for update in [a for a in actions if later and a.kind is Kind.UPDATE]:
        i, uses = update.unit, [b.host_states(update.unit)]
        freed = [b.host_gradients(i)]
        act(Kind.MOMENTS, i, update.lane, after=[update.name], uses=uses, frees=freed)

    return Schedule(
        name=f"window {window} of {n}",
        num_units=n,
        num_microbatches=micro,
        actions=tuple(actions),
        buffers=buffers,
        budgets=budgets or {},
        settings={"window": window, "workers": workers},
    )


def replicas():
    """Two ranks with a copy of one unit add up its gradients, and update it beside compute."""
    actions, buffers = [], {}
    for rank in (0, 1):
        w, g = (b.on_rank(rank, text(0)) for text in (b.weights, b.gradients))
        for name in (w, g):
            buffers[name] = Buffer(tier=DEVICE, nbytes=WEIGHT, rank=rank, permanent=True)
        span, at = (rank, rank + 1), b.on_rank(rank, "")
        act = partial(Action, unit=0, rank=rank)
        actions += [
            act(kind=Kind.FORWARD, lane=COMPUTE, microbatch=0, samples=span, after=(at + "U0@-1",)),
            act(kind=Kind.BACKWARD, lane=COMPUTE, microbatch=0, samples=span, uses=(w, g)),
            act(kind=Kind.REDUCE, lane="net-out", after=(at + "B0.0",), nbytes=WEIGHT, uses=(g,)),
            act(kind=Kind.UPDATE, lane="visit", after=(at + "REDUCE0",), uses=(w, g)),
        ]
    return Schedule(
        name="replicas", num_units=1, num_microbatches=1, num_ranks=2, actions=tuple(actions),
        buffers=buffers,
    )  # fmt: skip


def pipeline():
    """Two ranks with a unit each; activations go down, gradients come back."""

    def act(kind, unit, lane, m=None, after=(), nbytes=0):
        rank = int(unit == 1) ^ (kind in (Kind.SEND, Kind.RECV_GRAD))
        return Action(
            kind=kind, unit=unit, rank=rank, lane=lane, microbatch=m, after=after, nbytes=nbytes
        )

    actions = []
    for m in (0, 1):
        actions += [
            act(Kind.FORWARD, 0, "compute", m),
            act(Kind.SEND, 1, "net-out", m, (f"F0.{m}",), 8),
            act(Kind.RECV, 1, "net-in", m, (), 8),
            act(Kind.FORWARD, 1, "compute", m, (f"1:RECV1.{m}",)),
            act(Kind.BACKWARD, 1, "compute", m),
            act(Kind.SEND_GRAD, 1, "net-out", m, (f"1:B1.{m}",), 8),
            act(Kind.RECV_GRAD, 1, "net-in", m, (), 8),
        ]
    actions += [act(Kind.BACKWARD, 0, "compute", m, (f"RECV_GRAD1.{m}",)) for m in (0, 1)]
    actions += [act(Kind.UPDATE, 0, "compute"), act(Kind.UPDATE, 1, "compute")]
    return Schedule(
        name="pipeline", num_units=2, num_microbatches=2, num_ranks=2, actions=tuple(actions)
    )
