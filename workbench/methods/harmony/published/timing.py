"""The published runtime estimator: a task graph becomes events, and these have times.

It is the third part of Harmony's scheduler (VLDB 2022), after the search and the task graph, as in
the published artifact, commit 5fd838f, whose numbers it reproduces.

Every GPU has six streams, each in order: swap-in, p2p-in, compute, p2p-out, swap-out, and the
host's work for it (messages and updates). A forward task brings in its weights, then per
micro-batch its input, computes (in pieces, cut where a stash leaves), and sends on its output. A
backward task brings in weights, then per micro-batch its stash, recomputes, takes the gradient of
its output, computes, and sends on the gradient of its input; then gradients are all-reduced (DP)
and swapped out, and the host updates. Both end by deleting what they held, a constant.

The host's link is shared by all GPUs that have tasks: each gets an equal part of its speed at all
times, even while others are idle. What waits for what is in `waits.py`, in two versions: nothing
overlaps (the published search's default), or weights and inputs are prefetched with double buffers.

Kept from the published estimator, though one may doubt it: pinned weights are charged as if brought
in, targets are free, data parallelism is simulated by its first rank alone, and its updates all run
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple

from workbench.methods.harmony.published.events import EventGraph
from workbench.methods.harmony.published.microbatches import converted
from workbench.methods.harmony.published.profiles import Direction, PublishedProfile
from workbench.methods.harmony.published.tasks import (
    Flow,
    Medium,
    Mode,
    Task,
    TaskGraph,
    TaskKind,
    What,
)
from workbench.methods.harmony.published.waits import Progress, Waits, waits_for

GIB = 2**30

SWAP_IN, P2P_IN, COMPUTE, P2P_OUT, SWAP_OUT, HOST = (
    "swap-in",
    "p2p-in",
    "compute",
    "p2p-out",
    "swap-out",
    "host",
)
COMPUTING = frozenset({"FWD", "REC", "BWD"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The machine as the estimator knows it; defaults are those of the published 1080Ti server."""

    swap_bytes_per_s: float = 11.5 * GIB
    """Host link, each way, shared by the GPUs in use."""
    p2p_bytes_per_s: float = 8.2 * GIB
    message_bytes_per_s: float = 16 * GIB
    """Copies in host memory, shared likewise; a message is written and read."""
    delete_seconds: float = 0.040


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    seconds: float
    """Seconds of an iteration."""
    rank_ends: tuple[float, ...]
    """Seconds until the last event of each GPU, 0 for one without tasks."""
    compute_seconds: tuple[float, ...]
    """Per GPU: forward, recomputation and backward."""


def simulate(
    graph: TaskGraph, profile: PublishedProfile, server: Server, *, prefetch: bool = False
) -> Timing:
    """Seconds per iteration; Deadlock where tasks wait for each other."""
    if graph.layers != profile.layers:
        raise ValueError(
            f"the task graph has {graph.layers} layers and the profile of {profile.model} "
            f"{profile.layers}"
        )
    return _Simulation(graph, profile, server, waits_for(graph, prefetch=prefetch)).run()


class _Label(NamedTuple):
    event: str
    task: Task
    microbatch: int | None = None

    def __str__(self) -> str:
        part = "" if self.microbatch is None else f" of micro-batch {self.microbatch}"
        return f"{self.event}{part} in {self.task.name}"


class _Simulation:
    def __init__(
        self, graph: TaskGraph, profile: PublishedProfile, server: Server, waits: Waits
    ) -> None:
        self.graph, self.profile, self.server, self.waits = graph, profile, server, waits
        self.sharing = graph.used_gpus
        self.events = EventGraph()
        # (producing task, what, layer) -> its events, by the consumer's micro-batches
        self.given: dict[tuple[int | None, What, range], range] = {}
        self.cut: dict[tuple[tuple[int, ...], int], list[list[tuple[int, int]]]] = {}
        # Rank -> its latest task; backward task -> the event that brings its gradients out
        self.before: dict[int, Progress] = {}
        self.taken_out: dict[int, int] = {}

    def run(self) -> Timing:
        replicated = self.graph.mode is Mode.DP
        tasks = self.graph.of_rank(0) if replicated else self.graph.tasks
        for task in tasks:
            self._reserve_outputs(task)
        for task in tasks:
            if task.kind is TaskKind.FORWARD:
                self._forward(task)
            elif task.kind is TaskKind.BACKWARD:
                self._backward(task)
            else:
                self._update(task)
        times = self.events.run()
        gpus = self.graph.gpus
        ends, computed = [0.0] * gpus, [0.0] * gpus
        for end, seconds, label in zip(
            times.end, self.events.seconds, self.events.labels, strict=True
        ):
            rank = label.task.rank
            ends[rank] = max(ends[rank], end)
            if label.event in COMPUTING:
                computed[rank] += seconds
        for task in tasks:  # a transfer ends on the taking side as well
            for flow in task.inputs:
                if flow.medium is Medium.P2P:
                    last = self._events_of(flow)[-1]
                    ends[task.rank] = max(ends[task.rank], times.end[last])
        if replicated:
            ends, computed = ends[:1] * gpus, computed[:1] * gpus
        return Timing(seconds=max(ends), rank_ends=tuple(ends), compute_seconds=tuple(computed))

    # -- tasks -------------------------------------------------------------------------------
    def _forward(self, task: Task) -> None:
        before, now = self.before.get(task.rank), Progress()
        source = task.flows_in(What.X)[0]
        outgoing = task.flows_out(What.X)
        output = next(flow for flow in outgoing if flow.layers.start == task.pack.stop)
        stashes = {flow.layers.start: flow for flow in outgoing if flow is not output}
        cuts = sorted({task.pack.start, *stashes, task.pack.stop})
        pieces = [range(first, stop) for first, stop in pairwise(cuts)]
        for k, size in enumerate(task.microbatches):
            entered = self._bring_in(task, source, k, now, before)
            costs = self.profile.at(Direction.FORWARD, size)
            latest = entered
            for piece in pieces:
                inputs = [latest, *self.waits.first_compute(now)]
                if piece.start in stashes:
                    waits = [latest, *self.waits.stash(now)]
                    flow = stashes[piece.start]
                    copied = self._send_message(task, flow, k, waits, "sX")
                    inputs += self.waits.compute_after_stash(copied)
                latest = self._add(task, COMPUTE, costs.time(piece), inputs, "FWD", k)
            now.computes.append(latest)
            self._send(task, output, k, now, "Y")
        after = self.waits.forward_delete(now)
        now.deleted = self._add(task, COMPUTE, self.server.delete_seconds, after, "DEL")
        self.before[task.rank] = now

    def _backward(self, task: Task) -> None:
        before, now = self.before.get(task.rank), Progress()
        source = task.flows_in(What.X)[0]
        gradients = task.flows_in(What.DX)
        outputs = task.flows_out(What.DX)
        for k, size in enumerate(task.microbatches):
            entered = self._bring_in(task, source, k, now, before)
            forward = self.profile.at(Direction.FORWARD, size).time(task.pack)
            both = self.profile.at(Direction.BACKWARD, size).time(task.pack)
            inputs = [entered, *self.waits.first_compute(now)]
            now.recomputes.append(self._add(task, COMPUTE, forward, inputs, "REC", k))
            inputs = [now.recomputes[-1]]
            for flow in gradients:
                waits = self.waits.gradient(k, now, before)
                inputs.append(self._take(task, flow, k, waits, "dY"))
            now.computes.append(self._add(task, COMPUTE, both - forward, inputs, "BWD", k))
            for flow in outputs:
                self._send(task, flow, k, now, "dX")
        now.takes_gradients = bool(gradients)
        swapped = self.profile.swapped_bytes(task.pack)
        after = now.computes[-1:]
        if self.graph.mode is Mode.DP and self.graph.gpus > 1:
            gpus = self.graph.gpus
            seconds = 2 * (gpus - 1) / gpus * swapped / self.server.p2p_bytes_per_s
            after = [self._add(task, COMPUTE, seconds, self.waits.reduce(now), "ARD")]
        out = self._add(task, SWAP_OUT, self._swap(swapped), after, "dWB")
        self.taken_out[task.index] = out
        now.deleted = self._add(task, COMPUTE, self.server.delete_seconds, [out], "DEL")
        self.before[task.rank] = now

    def _update(self, task: Task) -> None:
        after = [self.taken_out[flow.peer] for flow in task.flows_in(What.GRADIENTS)]
        self._add(task, HOST, self.profile.update_time(task.pack), after, "UPD")

    # -- what comes in -----------------------------------------------------------------------
    def _bring_in(
        self, task: Task, flow: Flow, k: int, now: Progress, before: Progress | None
    ) -> int:
        """The input of micro-batch k, and with the first one the weights, in their order."""
        if k > 0:
            return self._take(task, flow, k, self.waits.entering(k, now, before), "X")
        if self.waits.weights_first(before):
            self._weights(task, now, before)
            return self._take(task, flow, k, self.waits.entering(k, now, before), "X")
        entered = self._take(task, flow, k, self.waits.entering(k, now, before), "X")
        self._weights(task, now, before)
        return entered

    def _weights(self, task: Task, now: Progress, before: Progress | None) -> None:
        seconds = self._swap(self.profile.swapped_bytes(task.pack))
        now.weights = self._add(task, SWAP_IN, seconds, self.waits.weights(before), "WB")

    def _take(self, task: Task, flow: Flow, k: int, waits: Iterable[int], event: str) -> int:
        if flow.medium is Medium.P2P:
            transfer = self._events_of(flow)[k]
            self.events.join(transfer, (task.rank, P2P_IN), waits)
            return transfer
        produced = [] if flow.medium is Medium.DATA else [self._events_of(flow)[k]]
        seconds = self._swap(self._bytes(flow, task.microbatches[k]))
        return self._add(task, SWAP_IN, seconds, [*waits, *produced], event, k)

    # -- what goes out -----------------------------------------------------------------------
    def _send(self, task: Task, flow: Flow, k: int, now: Progress, event: str) -> None:
        computed = [now.computes[-1]]
        if flow.medium is Medium.MESSAGE:
            now.outputs.append(self._send_message(task, flow, k, computed, event))
            return
        nbytes = self._bytes(flow, task.microbatches[k])
        if flow.medium is Medium.P2P:
            stream, seconds = P2P_OUT, nbytes / self.server.p2p_bytes_per_s
        else:
            stream, seconds = SWAP_OUT, self._swap(nbytes)
        reserved = self.given[task.index, flow.what, flow.layers][k]
        now.outputs.append(self._add(task, stream, seconds, computed, event, k, reserved))

    def _send_message(
        self, task: Task, flow: Flow, k: int, waits: Iterable[int], event: str
    ) -> int:
        """Swapped out at once, then passed on in the sizes of the backward pass."""
        seconds = self._swap(self._bytes(flow, task.microbatches[k]))
        copied = self._add(task, SWAP_OUT, seconds, waits, event, k)
        taker = self.graph.tasks[flow.peer]
        speed = self.server.message_bytes_per_s / self.sharing
        events = self.given[task.index, flow.what, flow.layers]
        for number, size in self._messages(task.microbatches, taker.microbatches[0])[k]:
            seconds = 0.0 if taker.rank == task.rank else 2 * self._bytes(flow, size) / speed
            self._add(task, HOST, seconds, [copied], f"{event} message", number, events[number])
        return copied

    # -- small things ------------------------------------------------------------------------
    def _messages(self, sizes: tuple[int, ...], size: int) -> list[list[tuple[int, int]]]:
        """Per micro-batch: the messages it completes, as (number, samples)."""
        if (sizes, size) not in self.cut:
            numbers = count()
            self.cut[sizes, size] = [
                [(next(numbers), samples) for samples in emitted]
                for emitted in converted(sizes, size)
            ]
        return self.cut[sizes, size]

    def _reserve_outputs(self, task: Task) -> None:
        for flow in task.outputs:
            if flow.what in (What.X, What.DX):
                number = len(self.graph.tasks[flow.peer].microbatches)
                self.given[task.index, flow.what, flow.layers] = self.events.reserve(number)

    def _events_of(self, flow: Flow) -> range:
        return self.given[flow.peer, flow.what, flow.layers]

    def _bytes(self, flow: Flow, samples: int) -> int:
        return self.profile.boundary_bytes(flow.layers.start) * samples

    def _swap(self, nbytes: float) -> float:
        return nbytes * self.sharing / self.server.swap_bytes_per_s

    def _add(
        self,
        task: Task,
        stream: str,
        seconds: float,
        inputs: Iterable[int],
        event: str,
        k: int | None = None,
        reserved: int | None = None,
    ) -> int:
        label = _Label(event, task, k)
        return self.events.add((task.rank, stream), seconds, inputs, label, reserved)
