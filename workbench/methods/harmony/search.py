"""Our search for the four choices: the fastest under the simulator, within memory.

For each pair of micro-batch sizes and each number of packs, the packs are those whose slowest one
is fastest among all that fit (partition/chain.py): the published search asks its rules for one
partition each, the one with the fewest packs, and ranks by an estimate without overlap. Here an
estimate with overlap (step_time.py) orders thousands of candidates, the simulator that also judges
every other method tells the time of the best, and the validator's bound on memory must keep the
budget.

Where updates are guesses, made before the norm of all gradients is known, a step takes one time if
they stand and another if gradients are clipped, so that all updates wait for the norm. What is made
small is the mean of both, as on one device (stronghold/search.py).

Estimates are about a percent off, so that a search with more memory may end with a slower plan. So
the search also makes those of the next few budgets below, out of a row that is always the same
and takes the fastest: no plan is slower than what a search at one of these budgets finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from statistics import fmean

from workbench.core.bytesize import format_bytes
from workbench.core.division import DP
from workbench.methods.harmony.candidates import Candidates
from workbench.methods.harmony.memory_estimate import MemoryEstimate
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.problem import PackingProblem
from workbench.methods.harmony.program import build
from workbench.methods.harmony.step_time import StepTimeEstimate
from workbench.methods.rank_plans import check_states
from workbench.profile.server import Server, ServerCosts, records
from workbench.profile.unit_costs import Sizes, longest_forward_s
from workbench.schedule.action import Kind
from workbench.schedule.graph import unroll
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE, HOST_TIER, Schedule
from workbench.schedule.simulate import step_seconds
from workbench.schedule.validate import Validation, validate

STEPS = 2
TRIALS, ACTIONS, MOST_ACTIONS = 12, 40_000, 300_000
"""Schedules that are simulated at a time, the most promising first: so many at least, and so many
actions in all. Those of a small model take no time, and estimates are least sure of them. But no
more actions than the last: of hundreds of layers and dozens of micro-batches a few schedules do."""
MOST_TRIALS = 96
"""After so many that do not fit nothing is expected to."""
LESS = 0.02
"""Share of a device that candidates are made smaller by at least, where none of the first fits."""
MOST_WORK, ACTION = 3_000_000, 50
"""Micro-batches in all estimates of a search, some seconds' worth, and how many of them take as
long as an action of a schedule that is simulated."""
BARE, SMALLER = 4, (0.9, 0.8, 0.65, 0.45, 0.0)
"""So many of the fastest packs are tried with fewer residents too: with those of devices that are
smaller by these shares. Residents take the room in which a ring loads the next pack."""
RUNGS, WORTH_S, MOST_WALK = 3, 1.0, 5 * MOST_WORK
"""Smaller budgets that are searched as well, for a plan for less memory is a plan for more; not
where a step takes less, or it is more work in all."""
MORE = 0.1
"""Share by which what is foreseen may be too much: where nothing else is left to try."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The answer."""

    packs: Packs
    schedule: Schedule
    seconds: float
    """Predicted, of a step: where it makes a difference whether gradients are clipped, the mean of
    one in which they are not and one in which they are, unless the user is sure."""
    proved: Validation
    trials: int
    """Schedules that were simulated."""
    in_part: bool = False
    """Whether there was too much to look at, so that only a part was."""


@dataclass(frozen=True, kw_only=True)
class _Tried:
    packs: Packs
    schedule: Schedule
    seconds: float
    less: int
    """Bytes that were taken off the rings."""


def search(
    problem: PackingProblem,
    sizes: Sizes,
    units: int,
    server: Server,
    *,
    most_trials: int = MOST_TRIALS,
    last_resort: bool = True,
    most_work: float = MOST_WORK,
    most_simulated: float = inf,
) -> Found:
    """The fastest plan of a model of so many units. Raises DoesNotFit, saying what lacks, after
    `most_trials` plans that do not fit. As a last resort plans are tried that hardly can. Where all
    plans would be more than `most_work` to look at, a part of them is; it ends without a plan after
    `most_simulated` schedules."""
    check_states(sizes, units, problem.host_bytes)
    searching = _Search(problem, sizes, units, server, most_work, most_simulated)
    best = searching.found(problem.device_bytes, most_trials, last_resort)
    if most_work == inf or best.in_part or best.seconds < WORTH_S:
        return best
    cost, device = searching.work, problem.device_bytes
    for _ in range(RUNGS):
        device = _less(device)
        if searching.work + cost > MOST_WALK:
            break
        try:
            best = min(best, searching.found(device, TRIALS, False), key=lambda one: one.seconds)
        except DoesNotFit:
            break
    return replace(best, trials=searching.trials)


def _less(nbytes: int) -> int:
    """The next budget below that has four binary digits, whatever was asked for: 10, 9, 8, 7.5."""
    step = 1 << max(0, (nbytes - 1).bit_length() - 4)
    return (nbytes - 1) // step * step


def estimated_seconds(problem: PackingProblem, sizes: Sizes, units: int, server: Server) -> float:
    """About what a step of the fastest plan takes, without trying any; infinite where none is
    foreseen to fit."""
    searching = _Search(problem, sizes, units, server)
    candidates = searching.candidates(problem.device_bytes)
    candidates.ordered()
    return candidates.fastest


class _Search:
    """Candidates that were tried. They fit as far as is foreseen; where a proof finds that those
    tried do not, others are made for a device that is smaller by the bytes they lacked."""

    def __init__(
        self,
        problem: PackingProblem,
        sizes: Sizes,
        units: int,
        server: Server,
        most_work: float = MOST_WORK,
        most_simulated: float = inf,
    ) -> None:
        self._problem, self._sizes, self._units, self._server = problem, sizes, units, server
        self._costs = {
            recorded: [
                ServerCosts(
                    sizes, server, shared_updates=problem.mode == DP, clips=clips,
                    recorded=recorded,
                )
                for clips in ((False,) if problem.clipping == "speculate" else (False, True))
            ]
            for recorded in (False, True)
        }  # fmt: skip
        """Costs of steps that are clipped and not, by whether passes are recorded."""
        self._memory = MemoryEstimate(sizes, units, problem.recorded_below_s)
        self._step_time = StepTimeEstimate(sizes, server, units, self._memory.recorded)
        self._all_work = self._most_work = most_work
        self._most_simulated = most_simulated
        self.trials = 0
        self.work = 0.0
        """Work done, counted in micro-batches of estimates."""
        self._lacking: tuple[int, int] | None = None
        """Bytes of the device and of the host that the smallest of all tried needs."""

    def found(self, device_bytes: int, most_trials: int, last_resort: bool) -> Found:
        """The fastest for a device of so many bytes."""
        self._problem = problem = replace(self._problem, device_bytes=device_bytes)
        self._seen: set[Packs] = set()
        self._lacking, self._in_part = None, False
        self._most_work, foreseen = self._all_work, device_bytes
        sizes = [foreseen, int(foreseen * (1 + MORE))] if last_resort else [foreseen]
        candidates = chain.from_iterable(map(self._candidates, sizes))
        while self._goes_on(most_trials) and (tried := self._first(candidates)):
            if self._all_work < inf and not self._in_part:
                tried += self._with_fewer(tried)
            found, shortage = self._fitting(tried)
            if found is not None:
                return found
            if shortage > 0:
                foreseen -= max(shortage, int(LESS * problem.device_bytes))
                candidates = chain(self._candidates(foreseen), candidates)
        if self._lacking is None:
            smallest, instead = self.candidates(device_bytes).smallest, "a shorter sequence"
            if smallest > problem.smallest:
                instead = "a smaller batch: smaller micro-batches are too many for a search"
            raise DoesNotFit(
                f"no layer of the model fits on a device of {format_bytes(problem.device_bytes)} "
                f"with what its backward pass in a micro-batch of {smallest} needs; give it about "
                f"{format_bytes(self._least())}, or {instead}",
                tier=DEVICE,
            )
        peak, host = self._lacking
        if host > problem.host_bytes:
            raise _lacks(host, HOST_TIER, problem)
        raise _lacks(peak, DEVICE, problem)

    def _goes_on(self, most_trials: int) -> bool:
        return len(self._seen) < most_trials and self.trials < self._most_simulated

    def _least(self) -> int:
        """Bytes of a device for which there are candidates, to a few percent."""
        low = high = self._problem.device_bytes
        while not self.candidates(high).any_fits():
            low, high = high, 2 * high
        while high > (1 + LESS) * low:
            middle = (low + high) // 2
            if not self.candidates(middle).any_fits():
                low = middle
            else:
                high = middle
        return high

    def candidates(self, device_bytes: int) -> Candidates:
        """For a device of so many bytes."""
        foreseen = replace(self._problem, device_bytes=device_bytes)
        asked = foreseen, self._sizes, self._units, self._step_time, self._memory
        return Candidates(*asked, self._most_work)

    def _candidates(self, device_bytes: int) -> Iterator[Packs]:
        """`candidates` in their order, without those that were tried. More of them may be half the
        work each time, so that all ends."""
        candidates = self.candidates(device_bytes)
        ordered = candidates.ordered()
        self._in_part |= candidates.left_out
        self.work += candidates.work
        self._most_work /= 2
        return (packs for packs in ordered if packs not in self._seen)

    def _first(self, candidates: Iterator[Packs]) -> list[_Tried]:
        """The next schedules, simulated."""
        found: list[_Tried] = []
        actions = 0
        for packs in candidates:
            most = min(MOST_ACTIONS, 2 * self._most_work / ACTION)
            self._seen.add(packs)
            found.append(self._tried(packs))
            actions += len(found[-1].schedule.actions)
            if actions >= most or (len(found) >= TRIALS and actions >= ACTIONS):
                break
        return found

    def _fitting(self, tried: list[_Tried]) -> tuple[Found | None, int]:
        """The fastest that fits, made smaller where it must be; else how many bytes of a device the
        one that lacks fewest lacks as it was, 0 or less where the host lacks them."""
        problem, shortages = self._problem, []
        first = {*map(id, tried)}
        while tried and (not shortages or self.trials < self._most_simulated):
            best = min(tried, key=lambda one: one.seconds)
            tried.remove(best)
            proved = validate(best.schedule)
            peaks = {rank: proved.peak_bytes[rank][DEVICE] for rank in range(problem.ranks)}
            needed = max(peaks.values()), best.schedule.mapped_bytes
            if needed[0] <= problem.device_bytes and needed[1] <= problem.host_bytes:
                found = Found(
                    packs=best.packs, schedule=best.schedule, seconds=best.seconds, proved=proved,
                    trials=self.trials, in_part=self._in_part,
                )  # fmt: skip
                return found, 0
            self._lacking = min(self._lacking or needed, needed)
            if id(best) in first:
                shortages.append(needed[0] - problem.device_bytes)
            over = {rank: peak - problem.device_bytes for rank, peak in peaks.items()}
            for packs, less in self._smaller(best, over):
                again = self._tried(packs, less)
                if again.schedule != best.schedule:
                    tried.append(again)
                    break
        return None, min(shortages)

    def _with_fewer(self, tried: list[_Tried]) -> list[_Tried]:
        """The fastest of them with fewer residents."""
        device, found = self._problem.device_bytes, {}
        keeping = [one for one in tried if one.packs.resident]
        for one in sorted(keeping, key=lambda one: one.seconds)[:BARE]:
            for share in SMALLER:
                packs = self._memory.with_residents(one.packs, int(share * device))
                if packs != one.packs and packs not in found:
                    found[packs] = self._tried(packs)
        return [*found.values()]

    def _smaller(self, tried: _Tried, over: dict[int, int]) -> Iterator[tuple[Packs, int]]:
        """Candidates that may need so many bytes less: fewer residents, smaller rings, smaller
        micro-batches."""
        packs = tried.packs
        if (fewer := self._memory.with_fewer_residents(packs, over)) != packs:
            yield fewer, tried.less
        yield packs, tried.less + max(over.values())
        if packs.forward_size > packs.backward_size:
            yield replace(packs, forward_size=max(packs.backward_size, packs.forward_size // 2)), 0

    def _tried(self, packs: Packs, less: int = 0) -> _Tried:
        self.trials += 1
        schedule = scheduled(packs, self._problem, self._sizes, self._memory, less)
        self.work += ACTION * len(schedule.actions)
        graph = unroll(schedule, STEPS)
        costs = self._costs[records(schedule)]
        differ = costs if settles(schedule) else costs[:1]
        seconds = fmean(step_seconds(graph, each) for each in differ)
        return _Tried(packs=packs, schedule=schedule, seconds=seconds, less=less)


def _lacks(needed: int, tier: str, problem: PackingProblem) -> DoesNotFit:
    there = problem.host_bytes if tier == HOST_TIER else problem.device_bytes
    text = f"{format_bytes(needed)} of {tier} memory are needed, {format_bytes(there)} are there"
    return DoesNotFit(text, tier=tier)


def settles(schedule: Schedule) -> bool:
    """Whether updates are guesses, so that a step whose gradients are clipped takes another time
    than one whose are not."""
    return any(action.kind is Kind.SETTLE for action in schedule.actions)


def scheduled(
    packs: Packs,
    problem: PackingProblem,
    sizes: Sizes,
    memory: MemoryEstimate | None = None,
    less: int = 0,
) -> Schedule:
    """The schedule of some packs, with rings of two packs where there is room for them, so many
    bytes `less`."""
    if memory is None:
        memory = MemoryEstimate(sizes, packs.num_units, problem.recorded_below_s)
    rings = [memory.rings(packs, rank, problem.device_bytes, less) for rank in range(packs.ranks)]
    most = max(packs.forward_size, packs.backward_size)
    longest = longest_forward_s(sizes, packs.num_units, most)
    return build(
        packs, sizes, rings=rings, clipped=problem.clipping is not None,
        guesses=problem.clipping != "wait", replay=longest < problem.recorded_below_s,
    )  # fmt: skip
