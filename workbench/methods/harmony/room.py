"""What packs need on each device, and how many layers it has room to keep."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from workbench.methods.harmony.draft import Rings, Sizes
from workbench.methods.harmony.packs import PP, Packs, Task
from workbench.methods.harmony.ring import aligned
from workbench.methods.harmony.sheet import AHEAD


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is asked."""

    mode: str
    ranks: int
    minibatch: int
    device_bytes: int
    host_bytes: int
    clipped: bool = True
    forward_size: int | None = None
    """Samples of a forward micro-batch; None for the search to choose."""
    backward_size: int | None = None
    largest_forward: int | None = None
    """Samples of the largest forward micro-batch that was profiled."""
    largest_backward: int | None = None


def rings_of(
    packs: Packs, rank: int, device_bytes: int, sizes: Sizes, stay: Set[int] | None = None
) -> Rings:
    """A rank's rings: of two packs of weights, or what there is room for but at least one. `stay`
    are the resident units, by default the packs'."""
    stay = packs.resident if stay is None else stay
    tasks = packs.tasks_of(rank)
    largest = _largest(sizes, tasks, stay)
    gradients = _largest(sizes, [task for task in tasks if not task.forward], stay)
    room = device_bytes - _working(packs, sizes, tasks) - resident_bytes(packs, rank, sizes, stay)
    weights = max(largest, min(2 * largest, room - gradients))
    return Rings(weights=weights, gradients=gradients)


def resident_bytes(packs: Packs, rank: int, sizes: Sizes, stay: Set[int] | None = None) -> int:
    """Weights, states and gradients of the layers that stay on a rank."""
    stay = packs.resident if stay is None else stay
    return sum(_kept_bytes(sizes, unit) for unit in packs.backward_units(rank) if unit in stay)


def _kept_bytes(sizes: Sizes, unit: int) -> int:
    return 2 * aligned(sizes.visit_bytes(unit)) + sizes.state_bytes(unit)


def with_residents(packs: Packs, setting: Setting, sizes: Sizes) -> Packs:
    """The same packs with as many layers resident on each rank as it has room for, those first
    whose weights the next step needs first. Layers that lend or borrow weights are updated on the
    host, where both parts of their gradients meet."""
    tied = {u for u in range(packs.num_units) if sizes.owner(u) != u}
    tied |= {sizes.owner(u) for u in tied}
    stay: set[int] = set()
    for rank in range(packs.ranks):
        own = sorted(unit for unit in packs.backward_units(rank) if unit not in tied)

        def fits(count: int, own: list[int] = own, rank: int = rank) -> bool:
            needed = device_bytes_of(packs, rank, sizes, {*own[:count]})
            return needed <= setting.device_bytes

        if fits(len(own)):  # no ring at all: all may fit where fewer do not
            stay.update(own)
            continue
        low, high = 0, len(own)
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        stay.update(own[:low])
    return replace(packs, resident=frozenset(stay))


def with_fewer_residents(packs: Packs, over: dict[int, int], sizes: Sizes) -> Packs:
    """The same packs with so many bytes fewer on the ranks that hold too much."""
    stay = set(packs.resident)
    for rank, excess in over.items():
        own = sorted(unit for unit in packs.backward_units(rank) if unit in stay)
        while excess > 0 and own:
            unit = own.pop()
            stay.remove(unit)
            excess -= _kept_bytes(sizes, unit)
    return replace(packs, resident=frozenset(stay))


def device_bytes_of(packs: Packs, rank: int, sizes: Sizes, stay: Set[int] | None = None) -> int:
    """About what a rank needs at least for packs and residents; the validator proves the rest."""
    rings = rings_of(packs, rank, 0, sizes, stay)
    return (
        rings.weights
        + rings.gradients
        + resident_bytes(packs, rank, sizes, stay)
        + _working(packs, sizes, packs.tasks_of(rank))
    )


def _largest(sizes: Sizes, among: Sequence[Task], stay: Set[int]) -> int:
    return max(
        (
            sum(aligned(sizes.visit_bytes(unit)) for unit in task.units if unit not in stay)
            for task in among
        ),
        default=0,
    )


def _working(packs: Packs, sizes: Sizes, tasks: Sequence[Task]) -> int:
    """About what a rank needs beside weights and gradients: the micro-batch in work, what waits
    between tasks, and what lies there all the time."""
    costs = {unit: sizes.cost(unit, packs.backward_size) for unit in range(packs.num_units)}
    most = max(
        (
            sum(costs[u].kept_bytes + costs[u].input_bytes for u in task.units)
            + max(costs[u].backward_scratch_bytes + sizes.visit_bytes(u) for u in task.units)
            + _waiting(packs, sizes, task)
            for task in tasks
            if not task.forward
        ),
        default=0,
    )
    forward = max((_waiting(packs, sizes, task) for task in tasks if task.forward), default=0)
    return max(most, forward) + sizes.library_bytes + sizes.token_bytes(packs.minibatch)


def _waiting(packs: Packs, sizes: Sizes, task: Task) -> int:
    """Activations or their gradients between a task and its neighbours: of all samples where the
    neighbour is on the same rank, else what was made for it, and what came in the inbox."""
    ends = (task.units.start, task.units.stop)
    into, out = ends if task.forward else reversed(ends)
    apart = packs.mode == PP and packs.ranks > 1
    largest, whole = task.micros[0][1] - task.micros[0][0], task.micros[-1][1] - task.micros[0][0]
    total = 0
    if 0 < into < packs.num_units:
        total += sizes.input_bytes(into, 2 * AHEAD * largest if apart else whole)
    if 0 < out < packs.num_units:
        total += sizes.input_bytes(out, whole)
    return total
