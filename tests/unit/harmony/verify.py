"""What must hold of a task graph, however it was made.

Packs of each pass cover every layer once and in order, every output has its input at the other end
over the same medium, and the micro-batches of every pack add up to the minibatch. The published
scheduler makes the same checks, but compares media without acting on the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from workbench.methods.harmony.published.build import check_cover
from workbench.methods.harmony.published.tasks import (
    Flow,
    Medium,
    Mode,
    Task,
    TaskGraph,
    TaskKind,
    What,
)

WITHIN_ONE_GPU = (Medium.SWAP, Medium.PINNED, Medium.LOCAL)


def verify(graph: TaskGraph) -> None:
    """ValueError that names the first task that is wrong, and why."""
    if any(task.index != index for index, task in enumerate(graph.tasks)):
        raise ValueError("a task graph lists task 0, 1, ... in the order of their indices")
    replicas = [graph.of_rank(rank) for rank in range(graph.gpus)]
    for tasks in replicas if graph.mode is Mode.DP else [list(graph.tasks)]:
        _covers(tasks, graph.layers)
    for task in graph.tasks:
        if not 0 <= task.rank < graph.gpus:
            raise ValueError(f"{task.name} is on rank {task.rank} of {graph.gpus}")
        for flow in task.inputs:
            _has_peer(graph, task, flow, incoming=True)
        for flow in task.outputs:
            _has_peer(graph, task, flow, incoming=False)
        _has_all_inputs(graph, task)
        _has_all_outputs(graph, task)
    _samples(graph)


def _covers(tasks: list[Task], layers: int) -> None:
    kinds = {kind: [task.pack for task in tasks if task.kind is kind] for kind in TaskKind}
    backward = kinds[TaskKind.BACKWARD]
    if not backward:
        raise ValueError("a task graph without backward tasks trains nothing")
    # The pack of the loss is its own forward.
    check_cover("forward", [*kinds[TaskKind.FORWARD], backward[0]], layers)
    check_cover("backward", backward[::-1], layers)
    check_cover("update", kinds[TaskKind.UPDATE][::-1], layers)


def _has_peer(graph: TaskGraph, task: Task, flow: Flow, *, incoming: bool) -> None:
    way = "takes" if incoming else "gives"
    label = f"{task.name} {way} {flow.what} of {_layers(flow)} by {flow.medium}"
    if flow.medium in (Medium.DATA, Medium.SHARED):
        if flow.peer is not None:
            raise ValueError(f"{label}, which is the host's, yet names task {flow.peer}")
        return
    if flow.peer is None or not 0 <= flow.peer < len(graph.tasks):
        raise ValueError(f"{label}, and the task at the other end is {flow.peer}")
    peer = graph.tasks[flow.peer]
    theirs = peer.outputs if incoming else peer.inputs
    if not any(
        (other.what, other.medium, other.layers, other.peer)
        == (flow.what, flow.medium, flow.layers, task.index)
        for other in theirs
    ):
        raise ValueError(f"{label}, but {peer.name} does not {'give' if incoming else 'take'} it")
    if flow.medium in WITHIN_ONE_GPU and peer.rank != task.rank:
        raise ValueError(f"{label}, but {peer.name} is on another rank")
    if flow.medium in WITHIN_ONE_GPU and (peer.index < task.index) is not incoming:
        raise ValueError(f"{label}, but {peer.name} comes {'later' if incoming else 'earlier'}")
    if flow.medium is Medium.P2P and peer.rank == task.rank:
        raise ValueError(f"{label}, but {peer.name} is on the same rank")


def _has_all_inputs(graph: TaskGraph, task: Task) -> None:
    """The weights of its layers and the activations its first computation starts from."""
    wanted = {(What.WEIGHTS, layer) for layer in task.pack}
    if task.kind is TaskKind.UPDATE:
        wanted |= {(what, layer) for what in (What.GRADIENTS, What.STATES) for layer in task.pack}
    else:
        wanted.add((What.X, task.pack.start))
    if task.kind is TaskKind.BACKWARD and task.pack.stop < graph.layers:
        wanted.add((What.DX, task.pack.stop))
    found = Counter((flow.what, layer) for flow in task.inputs for layer in flow.layers)
    missing = sorted(wanted - found.keys())
    if missing:
        raise ValueError(f"{task.name} cannot run: nothing gives it {_listed(missing)}")
    twice = sorted(key for key, times in found.items() if times > 1)
    if twice:
        raise ValueError(f"{task.name} is given {_listed(twice)} more than once")


def _has_all_outputs(graph: TaskGraph, task: Task) -> None:
    """An update gives the host weights and states. What other tasks give, those miss that take
    it."""
    wanted = {(what, layer) for what in (What.WEIGHTS, What.STATES) for layer in task.pack}
    given = {(flow.what, layer) for flow in task.outputs for layer in flow.layers}
    if task.kind is TaskKind.UPDATE and (missing := sorted(wanted - given)):
        raise ValueError(f"{task.name} changes nothing: it does not give {_listed(missing)}")


def _samples(graph: TaskGraph) -> None:
    """Every layer sees each sample of the minibatch once in each pass."""
    for kind in (TaskKind.FORWARD, TaskKind.BACKWARD):
        seen: Counter[int] = Counter()
        for task in graph.tasks:
            if task.kind is kind:
                if not task.microbatches or min(task.microbatches) < 1:
                    raise ValueError(f"{task.name} has no micro-batches, or empty ones")
                seen.update({layer: sum(task.microbatches) for layer in task.pack})
        for layer, samples in seen.items():
            if samples != graph.minibatch:
                raise ValueError(
                    f"layer {layer} sees {samples} samples in its {kind.name.lower()} tasks, and "
                    f"the minibatch has {graph.minibatch}"
                )


def _layers(flow: Flow) -> str:
    first, last = flow.layers.start, flow.layers.stop - 1
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def _listed(keys: Iterable[tuple[What, int]]) -> str:
    return ", ".join(f"{what} of layer {layer}" for what, layer in keys)
