"""Our search for the four choices: the fastest under the simulator, within memory.

For each pair of micro-batch sizes and each number of packs, the packs are those whose slowest one
is fastest among all that fit (partition.py): the published search asks its rules for one partition
each, the one with the fewest packs, and ranks by an estimate without overlap. Here an estimate with
overlap (pace.py) orders thousands of candidates, the simulator that also judges every other method
tells the time of the best, and the validator's bound on memory must keep the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.methods.harmony.draft import Rings, Sizes
from workbench.methods.harmony.pace import Pace
from workbench.methods.harmony.packs import DP, PP, Packs, Task
from workbench.methods.harmony.partition import min_max_partitions
from workbench.methods.harmony.program import build
from workbench.methods.harmony.ring import aligned
from workbench.methods.harmony.server import Server, ServerCosts
from workbench.methods.plan import DoesNotFit
from workbench.schedule.graph import unroll
from workbench.schedule.schedule import DEVICE, HOST_TIER, Schedule
from workbench.schedule.simulate import step_seconds
from workbench.schedule.validate import Validation, validate
from workbench.units import format_bytes

STEPS = 2
TRIALS = 12
"""Schedules that are simulated, the most promising first."""
KEPT = 6
"""Backward choices for which all forward choices are tried."""
ROUNDS = 6
"""Packs a direction are tried up to so many a rank one by one, and in whole rounds beyond."""


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


@dataclass(frozen=True, kw_only=True)
class Found:
    """The answer."""

    packs: Packs
    schedule: Schedule
    seconds: float
    """Predicted, of a step."""
    proved: Validation
    trials: int
    """Schedules that were simulated."""


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    packs: Packs
    pace_s: float


def search(setting: Setting, sizes: Sizes, units: int, server: Server) -> Found:
    """The fastest plan of a model of so many units. Raises DoesNotFit, saying what lacks."""
    costs = ServerCosts(sizes, server, shared_updates=setting.mode == DP)
    pace = Pace(sizes, server, units)
    candidates = _candidates(setting, sizes, units, pace)
    if not candidates:
        raise DoesNotFit(
            f"no layer of the model fits on a device of {format_bytes(setting.device_bytes)} "
            "with what its backward pass of one sample needs; give it more memory, "
            "or a shorter sequence",
            tier=DEVICE,
        )
    tried: list[tuple[float, Packs, Schedule]] = []
    for candidate in candidates[:TRIALS]:
        schedule = scheduled(candidate.packs, setting, sizes)
        tried.append((step_seconds(unroll(schedule, STEPS), costs), candidate.packs, schedule))
        tried.sort(key=lambda row: row[0])
    worst = None
    for seconds, packs, schedule in tried:
        proved = validate(schedule)
        peak = max(peaks[DEVICE] for peaks in proved.peak_bytes.values())
        host = proved.peak_bytes[0][HOST_TIER]
        if peak <= setting.device_bytes and host <= setting.host_bytes:
            return Found(
                packs=packs, schedule=schedule, seconds=seconds, proved=proved, trials=len(tried)
            )
        worst = worst or (peak, host)
    peak, host = worst
    tier = HOST_TIER if host > setting.host_bytes else DEVICE
    needed, there = (
        (host, setting.host_bytes) if tier == HOST_TIER else (peak, setting.device_bytes)
    )
    raise DoesNotFit(
        f"{format_bytes(needed)} of {tier} memory are needed, {format_bytes(there)} are there",
        tier=tier,
    )


def scheduled(packs: Packs, setting: Setting, sizes: Sizes) -> Schedule:
    """The schedule of some packs, with rings of two packs where there is room for them."""
    rings = [rings_of(packs, rank, setting.device_bytes, sizes) for rank in range(packs.ranks)]
    return build(packs, sizes, rings=rings, clipped=setting.clipped)


def rings_of(packs: Packs, rank: int, device_bytes: int, sizes: Sizes) -> Rings:
    """A rank's rings: of two packs of weights, or what there is room for but at least one."""
    tasks = [task for task in packs.tasks if task.rank == rank]
    largest = _largest(packs, sizes, tasks)
    gradients = _largest(packs, sizes, [task for task in tasks if not task.forward])
    room = device_bytes - _working(packs, sizes, tasks) - resident_bytes(packs, rank, sizes)
    weights = max(largest, min(2 * largest, room - gradients))
    return Rings(weights=weights, gradients=gradients)


def resident_bytes(packs: Packs, rank: int, sizes: Sizes) -> int:
    """Weights, states and gradients of the layers that stay on a rank."""
    return sum(
        2 * aligned(sizes.visit_bytes(unit)) + sizes.state_bytes(unit)
        for task in packs.tasks
        if task.rank == rank and not task.forward
        for unit in task.units
        if unit in packs.resident
    )


def with_residents(packs: Packs, setting: Setting, sizes: Sizes) -> Packs:
    """The same packs with as many layers resident on each rank as it has room for, those first
    whose weights the next step needs first. Layers that lend or borrow weights are updated on the
    host, where both parts of their gradients meet."""
    tied = {u for u in range(packs.num_units) if sizes.owner(u) != u}
    tied |= {sizes.owner(u) for u in tied}
    stay: set[int] = set()
    for rank in range(packs.ranks):
        own = sorted(
            unit
            for task in packs.tasks
            if task.rank == rank and not task.forward
            for unit in task.units
            if unit not in tied
        )
        for count in range(len(own), 0, -1):
            # Fewer visitors need smaller rings, so more may fit where fewer do not.
            tried = replace(packs, resident=frozenset(own[:count]))
            if device_bytes_of(tried, rank, sizes) <= setting.device_bytes:
                stay |= tried.resident
                break
    return replace(packs, resident=frozenset(stay))


def device_bytes_of(packs: Packs, rank: int, sizes: Sizes) -> int:
    """About what a rank needs at least for packs and residents; the validator proves the rest."""
    tasks = [task for task in packs.tasks if task.rank == rank]
    rings = rings_of(packs, rank, 0, sizes)
    return (
        rings.weights
        + rings.gradients
        + resident_bytes(packs, rank, sizes)
        + _working(packs, sizes, tasks)
    )


def _largest(packs: Packs, sizes: Sizes, among: Sequence[Task]) -> int:
    return max(
        (
            sum(
                aligned(sizes.visit_bytes(unit))
                for unit in task.units
                if unit not in packs.resident
            )
            for task in among
        ),
        default=0,
    )


def _working(packs: Packs, sizes: Sizes, tasks: Sequence[Task]) -> int:
    """About what a rank needs beside weights and gradients: the micro-batch in work, the next one's
    inputs, and what lies there all the time."""
    size = packs.backward_size
    passes = [
        sum(sizes.cost(u, size).kept_bytes + sizes.cost(u, size).input_bytes for u in task.units)
        + max(sizes.cost(u, size).backward_scratch_bytes + sizes.visit_bytes(u) for u in task.units)
        for task in tasks
        if not task.forward
    ]
    messages = 6 * max(sizes.input_bytes(unit, max(size, packs.forward_size)) for unit in (1, 2))
    fixed = sizes.library_bytes + sizes.token_bytes(packs.minibatch)
    return max(passes, default=0) + messages + fixed


def _candidates(setting: Setting, sizes: Sizes, units: int, pace: Pace) -> list[_Candidate]:
    """First every backward choice with forward packs like it, then other forward packs for the
    best of them."""
    share = setting.minibatch
    if setting.mode == DP:
        share = -(-setting.minibatch // setting.ranks)
    backward_sizes = _micro_batches(
        min(share, setting.largest_backward or share), setting.backward_size
    )
    forward_sizes = _micro_batches(
        min(share, setting.largest_forward or share), setting.forward_size
    )
    counts = [n for n in range(1, units + 1) if _tried(n, setting.ranks)]
    made: dict[Packs, _Candidate] = {}

    def add(
        forward: tuple[range, ...],
        backward: tuple[range, ...],
        sizes_: tuple[int, int],
        mirrored: bool = False,
    ) -> None:
        packs = Packs(
            mode=setting.mode,
            ranks=setting.ranks,
            minibatch=setting.minibatch,
            forward_size=sizes_[0],
            backward_size=sizes_[1],
            forward=forward,
            backward=backward,
            mirrored=mirrored,
        )
        if mirrored:
            packs = with_residents(packs, setting, sizes)
        if packs not in made:
            made[packs] = _Candidate(packs=packs, pace_s=pace.step_seconds(packs))

    for size in backward_sizes:
        like = min((n for n in forward_sizes if n >= size), default=forward_sizes[-1])
        for backward in _backward_packs(setting, sizes, units, size, counts):
            add(backward[:-1], backward, (like, size))
            if setting.mode == PP and len(backward) >= setting.ranks:
                add(backward[:-1], backward, (like, size), mirrored=True)
    best = sorted(made.values(), key=lambda c: c.pace_s)[:KEPT]
    few = [n for n in counts if n % setting.ranks == 0 or n <= setting.ranks]
    for candidate in best:
        backward, size = candidate.packs.backward, candidate.packs.backward_size
        for forward_size in forward_sizes:
            before = backward[-1].start
            for forward in _forward_packs(setting, sizes, before, forward_size, few):
                add(forward, backward, (forward_size, size))
    return sorted(made.values(), key=lambda c: c.pace_s)


def _tried(count: int, ranks: int) -> bool:
    return count <= ROUNDS * ranks or count % ranks == 0


def _micro_batches(share: int, pinned: int | None) -> list[int]:
    """Sizes worth trying: powers of two, and all samples at once."""
    if pinned is not None:
        return [pinned]
    return sorted({min(1 << k, share) for k in range(share.bit_length() + 1)})


def _backward_packs(
    setting: Setting, sizes: Sizes, units: int, size: int, counts: list[int]
) -> list[tuple[range, ...]]:
    costs = [sizes.cost(unit, size) for unit in range(units)]
    needs = [
        2 * aligned(sizes.visit_bytes(unit)) + cost.kept_bytes + cost.input_bytes
        for unit, cost in enumerate(costs)
    ]
    scratch = [
        cost.backward_scratch_bytes + sizes.visit_bytes(unit) for unit, cost in enumerate(costs)
    ]
    seconds = [cost.recompute_s + cost.backward_s for cost in costs]
    return _partitions(seconds, needs, scratch, setting.device_bytes, counts)


def _forward_packs(
    setting: Setting, sizes: Sizes, units: int, size: int, counts: list[int]
) -> list[tuple[range, ...]]:
    costs = [sizes.cost(unit, size) for unit in range(units)]
    needs = [aligned(sizes.visit_bytes(unit)) for unit in range(units)]
    scratch = [cost.forward_scratch_bytes + 2 * cost.output_bytes for cost in costs]
    seconds = [cost.forward_s for cost in costs]
    return _partitions(seconds, needs, scratch, setting.device_bytes, counts)


def _partitions(
    seconds: list[float],
    needs: list[int],
    scratch: list[int],
    room: int,
    counts: list[int],
) -> list[tuple[range, ...]]:
    """The best packs for each number of them; memory is what they add up and the most of one."""
    ends = [0]
    for nbytes in needs:
        ends.append(ends[-1] + nbytes)

    def fits(first: int, last: int) -> bool:
        return ends[last + 1] - ends[first] + max(scratch[first : last + 1]) <= room

    wanted = [count for count in counts if count <= len(seconds)]
    return list(min_max_partitions(seconds, wanted, fits).values()) if seconds else []
