"""Moves from a plan to others: operators, devices, samples (primitives of Aceso, EuroSys'24).

Every move chooses recomputation anew where it changed anything. A move gives one plan or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from workbench.methods.aceso.bottleneck import Move, ideal, worst_first
from workbench.methods.aceso.costs import StageCost
from workbench.methods.aceso.plan import Stage
from workbench.methods.aceso.space import Rated, Space, uniform

RATIOS = (0.4, 0.2, 0.0)
"""Parts of the difference in work to the partner. A bottleneck's time, with its messages, is to be
under its work without them by the first part that can be."""
ROUNDS = 5
"""Stages that are relieved one after the other in one move of operators."""
DOUBLE, HALF = bytes(min(2 * i, 255) for i in range(256)), bytes(i // 2 for i in range(256))
OVERFULL = 10.0
"""Milliseconds for each MB too many, where a stage's tp and dp are chosen."""

Stages = tuple[Stage, ...]
Measure = Callable[[StageCost], float]


def moved(space: Space, rated: Rated, index: int, move: Move, skip: int = 0) -> Rated | None:
    """The plan that a move for a stage makes. `skip`: its best partners, which were tried."""
    if move == "dec-op":
        return move_operators(space, rated, index, skip)
    if move.endswith("mbs"):
        return move_micro(space, rated, 1 if move == "inc-mbs" else -1)
    return move_devices(space, rated, index, move, skip)


# -- operators to another stage --------------------------------------------------------------------
def move_operators(space: Space, rated: Rated, index: int, skip: int = 0) -> Rated | None:
    """Relieve the stage, and those that are then the worst, by handing operators on."""
    best = None
    for number in range(ROUNDS):
        found = _hand_on(space, rated, index, 0 if number else skip)
        if found is None:
            return best
        best = rated = found
        index = worst_first(space, rated.cost)[0]
    return best


def _hand_on(space: Space, rated: Rated, index: int, skip: int) -> Rated | None:
    plan, cost = rated
    count, limit = len(plan.stages), space.cluster.memory
    if skip >= count - 1:
        return None
    memory = cost.memory > limit
    others = [i for i in range(count) if i != index]
    goals = [limit]
    if memory:
        others.sort(key=lambda i: cost.stages[i].memory)
    else:
        slowest = max(stage.time for stage in cost.stages)
        others.sort(key=lambda i: -idle(space, rated, i, slowest))
        work = [stage.forward + stage.backward + stage.recompute for stage in cost.stages]
        gap = work[index] - work[others[skip]]
        goals = [work[index] - ratio * gap for ratio in RATIOS]
    for measure in (_memory,) if memory else (_time, _time_from_input):
        for goal in goals:
            stages = _walk(space, rated, index, others[skip], goal, measure)
            if stages is not None:
                return space.rated(plan.micro, stages)
    return None


def idle(space: Space, rated: Rated, index: int, slowest: float) -> float:
    """Milliseconds that a stage could work more, less what its own inefficiency would take."""
    stage = rated.cost.stages[index]
    gap = slowest - stage.time
    if stage.recompute:
        gap /= 2
    else:
        room = max(0.0, (space.cluster.memory / stage.memory - 1) * stage.time)
        gap = min(gap, room + max(0.0, gap - room) / 2)
    return gap * ideal(space, rated.plan, index) / stage.time


def _memory(cost: StageCost) -> float:
    return cost.memory


def _time(cost: StageCost) -> float:
    return cost.time


def _time_from_input(cost: StageCost) -> float:
    """Without the message that comes: it is sent whatever the stage holds."""
    return cost.time - cost.into


def _walk(
    space: Space, rated: Rated, source: int, partner: int, goal: float, measure: Measure
) -> Stages | None:
    """Hand operators from stage to stage up to the partner, each as few as meet the goal."""
    micro, count = rated.plan.micro, len(rated.plan.stages)
    stages, starts = list(rated.plan.stages), list(rated.plan.starts)
    step = 1 if partner > source else -1

    def value(at: int) -> float:
        behind = count - 1 - at
        stages[at] = space.choose(stages[at], starts[at], micro, behind)
        cost = space.costs.stage(stages[at], starts[at], micro, behind=behind)
        return measure(cost)

    for at in range(source, partner, step):
        whole, begin, size = stages[at], starts[at], len(stages[at].tp)

        def lowered(gone: int, at: int = at, whole: Stage = whole, begin: int = begin) -> bool:
            kept = slice(gone, None) if step < 0 else slice(0, len(whole.tp) - gone)
            stages[at], starts[at] = _cut(whole, kept), begin + (gone if step < 0 else 0)
            return value(at) < goal

        gone = _smallest(lowered, size - 1)
        if gone is None:
            return None
        lowered(gone)  # the last number that was tried may be another one
        if gone:
            near = at + step
            algo = whole.algo[:gone] if step < 0 else whole.algo[size - gone :]
            stages[near] = _joined(stages[near], algo, at_front=step > 0)
            starts[near] -= gone if step > 0 else 0
    return tuple(stages) if value(partner) < goal else None


def handed_over(stages: Stages, place: int, count: int) -> Stages | None:
    """Stages after `count` operators went from the one behind a cut to the one before it, or the
    other way where it is below 0; None where a stage has no more."""
    left, right = stages[place], stages[place + 1]
    giver = right if count > 0 else left
    if len(giver.tp) <= abs(count):
        return None
    if count > 0:
        left, right = (
            _joined(left, right.algo[:count], at_front=False),
            _cut(right, slice(count, None)),
        )
    else:
        left, right = _cut(left, slice(0, count)), _joined(right, left.algo[count:], at_front=True)
    return (*stages[:place], left, right, *stages[place + 2 :])


def _smallest(holds: Callable[[int], bool], most: int) -> int | None:
    """The smallest number up to `most` for which something holds that holds from there on."""
    if most < 0:
        return None
    low, high = -1, 0
    while not holds(high):
        if high == most:
            return None
        low, high = high, min(max(1, high * 2), most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _cut(stage: Stage, kept: slice) -> Stage:
    return Stage(stage.gpus, *(each[kept] for each in stage[1:]))


def _joined(stage: Stage, algo: bytes, *, at_front: bool) -> Stage:
    """The stage with more operators, which take its tp and dp and keep their partition."""
    count, edge = len(algo), 0 if at_front else -1
    more = (bytes([stage.tp[edge]]) * count, bytes([stage.dp[edge]]) * count, algo, bytes(count))
    pairs = zip(more, stage[1:], strict=True)
    return Stage(stage.gpus, *(new + old if at_front else old + new for new, old in pairs))


# -- devices ---------------------------------------------------------------------------------------
def _scaled(stage: Stage, dimension: str, *, up: bool) -> Stage | None:
    """The stage with twice or half the devices, in tp or dp; None where it has no half."""
    held = stage.tp if dimension == "tp" else stage.dp
    if not up and min(held) == 1:
        return None
    gpus = stage.gpus * 2 if up else stage.gpus // 2
    if gpus > 128:
        return None
    scaled = held.translate(DOUBLE if up else HALF)
    return stage._replace(gpus=gpus, **{dimension: scaled})


def move_devices(space: Space, rated: Rated, index: int, move: Move, skip: int = 0) -> Rated | None:
    """Double or halve the stage's devices; others give or take as many."""
    plan = rated.plan
    up, dimension = move.startswith("inc"), move[-2:]
    own = _scaled(plan.stages[index], dimension, up=up)
    if own is None:
        return None
    offers = _offers(space, rated, index, up=not up)
    for start in range(skip, len(offers)):
        stages = [*plan.stages]
        stages[index] = own
        wanted = own.gpus - plan.stages[index].gpus
        for at, changed in (offers[start], *offers[:start], *offers[start + 1 :]):
            given = plan.stages[at].gpus - changed.gpus
            if stages[at] is plan.stages[at] and 0 < given * (1 if up else -1) <= abs(wanted):
                stages[at], wanted = changed, wanted - given
            if wanted == 0:
                break
        if wanted == 0 and space.legal(plan.micro, tuple(stages)):
            return space.rated(plan.micro, space.choose_all(plan.micro, tuple(stages)))
    return None


def _offers(space: Space, rated: Rated, index: int, *, up: bool) -> list[tuple[int, Stage]]:
    """Other stages with twice or half their devices, the fastest then first."""
    plan, found = rated.plan, []
    for at, stage in enumerate(plan.stages):
        for dimension in ("tp", "dp"):
            changed = _scaled(stage, dimension, up=up) if at != index else None
            if changed is None or not _profiled(space, changed, plan.micro):
                continue
            behind = len(plan.stages) - 1 - at
            changed = space.choose(changed, plan.starts[at], plan.micro, behind)
            cost = space.costs.stage(changed, plan.starts[at], plan.micro, behind=behind)
            found.append((cost.time, at, dimension, changed))
    found.sort(key=lambda each: each[:3])
    return [(at, changed) for _, at, _, changed in found]


def _profiled(space: Space, stage: Stage, micro: int) -> bool:
    return max(stage.tp) <= space.most_tp and all(
        micro % dp == 0 and micro // dp in space.micros for dp in set(stage.dp)
    )


# -- samples ---------------------------------------------------------------------------------------
def move_micro(space: Space, rated: Rated, step: int) -> Rated | None:
    """Take the next larger or smaller micro-batch; each stage chooses tp and dp anew."""
    plan = rated.plan
    place = space.micros.index(plan.micro) + step
    if not 0 <= place < len(space.micros):
        return None
    micro, stages = space.micros[place], []
    for index, stage in enumerate(plan.stages):
        behind = len(plan.stages) - 1 - index
        best = None
        for shape in shapes(space, len(stage.tp), stage.gpus, micro):
            made = space.choose(shape, plan.starts[index], micro, behind)
            cost = space.costs.stage(made, plan.starts[index], micro, behind=behind)
            over = max(0.0, cost.memory - space.cluster.memory)
            rating = cost.time * stage.gpus + OVERFULL * over
            if best is None or rating < best[0]:
                best = rating, made
        if best is None:
            return None
        stages.append(best[1])
    return space.rated(micro, tuple(stages)) if space.legal(micro, tuple(stages)) else None


def shapes(space: Space, count: int, gpus: int, micro: int) -> Iterator[Stage]:
    """Uniform stages of so many devices, whose samples are profiled."""
    sizes = [2**k for k in range(gpus.bit_length())]
    for tp, dp in product(sizes, sizes):
        stage = uniform(count, tp, dp) if tp * dp == gpus else None
        if stage is not None and _profiled(space, stage, micro):
            yield stage
