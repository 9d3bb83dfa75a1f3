"""Asynchronous 1F1B, written out: each stage takes a backward pass of an earlier micro-batch after
each forward pass, and updates its weights after those of a step, whatever other stages do."""

from __future__ import annotations

from dataclasses import replace

from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, NET_IN, NET_OUT, Action, Kind, format_name
from workbench.schedule.schedule import DEVICE, Buffer, Schedule

SIZE = 100
"""Bytes of the input of a stage."""
KEPT = 10
"""Bytes that a forward pass keeps for its backward pass."""


def asynchronous(
    stages: int, micros: int, *, stashes: bool = False, recompute: bool = False
) -> Schedule:
    """`micros` micro-batches an update. With `stashes` a backward pass reads the weights that its
    forward pass read, of which a stage keeps copies; with `recompute` all but the last stage
    compute activations again."""
    actions: list[Action] = []
    buffers: dict[str, Buffer] = {}
    lags = {}
    for stage in range(stages):
        behind = stages - 1 - stage  # micro-batches between a forward pass and its backward pass
        for micro in range(micros):
            lags[stage, micro] = (micro + behind) // micros
        label = name.on_rank(stage, name.weights(stage))
        copies = 1 + (-(-behind // micros) if stashes else 0)
        buffers[label] = Buffer(tier=DEVICE, nbytes=1, rank=stage, permanent=True, copies=copies)

    def add(kind: Kind, stage: int, rank: int, micro: int | None, lane: str, **kw) -> None:
        actions.append(Action(kind=kind, unit=stage, rank=rank, microbatch=micro, lane=lane, **kw))

    def at(kind: Kind, stage: int, rank: int, micro: int, back: int = 0) -> str:
        return format_name(kind, stage, micro, rank=rank, step=-back)

    for stage in range(stages):
        behind = stages - 1 - stage
        for slot in range(micros):
            keeps = name.checkpoint if recompute and behind else name.kept
            x, kept = (name.on_rank(stage, of(stage, slot)) for of in (name.activation, keeps))
            flying = behind // micros + 1
            buffers[kept] = Buffer(tier=DEVICE, nbytes=KEPT, rank=stage, copies=flying)
            if stage:
                buffers[x] = Buffer(tier=DEVICE, nbytes=SIZE, rank=stage, copies=flying)
                freed = at(Kind.BACKWARD, stage, stage, slot, flying - lags[stage, slot])
                came = at(Kind.RECV, stage, stage, slot)
                add(Kind.RECV, stage, stage, slot, NET_IN, takes=(x,), after=(freed,), nbytes=1)
            add(
                Kind.FORWARD, stage, stage, slot, COMPUTE,
                after=(came,) if stage else (), uses=(x,) if stage else (), takes=(kept,),
                stale=old(behind, slot, micros),
            )  # fmt: skip
            if stage + 1 < stages:
                add(
                    Kind.SEND, stage + 1, stage, slot, NET_OUT, nbytes=1,
                    after=(at(Kind.FORWARD, stage, stage, slot),),
                )  # fmt: skip
            if stage + 1 < stages:  # in the order in which they are sent
                sent = (slot - behind + 1) % micros
                back = lags[stage + 1, sent]
                late = lags[stage, sent] - back  # between the message and the backward pass
                d = name.on_rank(stage, name.output_gradient(stage, sent))
                buffers[d] = Buffer(tier=DEVICE, nbytes=0, rank=stage)
                add(
                    Kind.RECV_GRAD, stage + 1, stage, sent, NET_IN + ".1", lag=back, nbytes=1,
                    takes=(d,), after=(at(Kind.BACKWARD, stage, stage, sent, 1 - late),),
                )  # fmt: skip
            micro = (slot - behind) % micros
            lag, after, above = lags[stage, micro], (), ()
            if stage + 1 < stages:
                back = lag - lags[stage + 1, micro]
                after = (at(Kind.RECV_GRAD, stage + 1, stage, micro, back),)
                above = (name.on_rank(stage, name.output_gradient(stage, micro)),)
            add(
                Kind.BACKWARD, stage, stage, micro, COMPUTE, lag=lag, after=after,
                frees=above
                + tuple(
                    name.on_rank(stage, of(stage, micro))
                    for of in (name.activation, keeps)[not stage :]
                ),
                stale=old(behind, micro, micros) if stashes else 0,
            )  # fmt: skip
            if stage:
                add(
                    Kind.SEND_GRAD, stage, stage, micro, NET_OUT + ".1", lag=lag, nbytes=1,
                    after=(at(Kind.BACKWARD, stage, stage, micro),),
                )  # fmt: skip
            if micro == micros - 1:
                add(Kind.UPDATE, stage, stage, None, COMPUTE, lag=lag)
    return Schedule(
        name="async-1f1b", num_units=stages, num_microbatches=micros, num_ranks=stages,
        actions=tuple(actions), buffers=buffers,
    )  # fmt: skip


def old(behind: int, micro: int, micros: int) -> int:
    """Updates that the weights of a forward pass lack."""
    return max(0, -(-(behind - micro) // micros))


def changed(schedule: Schedule, i: int, **kw) -> Schedule:
    """The schedule with another action number i."""
    actions = [*schedule.actions]
    actions[i] = replace(actions[i], **kw)
    return replace(schedule, actions=tuple(actions))
