"""Packs and micro-batch sizes worth simulating, the most promising first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from math import ceil, inf
from statistics import fmean

from workbench.core.division import DP, PP, micro_batches
from workbench.methods.harmony.cuts import (
    backward_packs,
    costs_of,
    cut_moved,
    forward_packs,
    last_starts,
    pack_counts,
    packs_up_to,
    shared_out,
)
from workbench.methods.harmony.memory_estimate import MemoryEstimate
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.problem import MicroBatchSizes, PackingProblem
from workbench.methods.harmony.step_time import StepTimeEstimate
from workbench.profile.unit_costs import Sizes

KEPT = 4
"""Backward choices for which all forward choices are tried."""
IMPROVED = 8
"""Choices of different numbers of packs whose cuts are moved about."""
MOVES = 30_000
"""Micro-batches in all estimates that moving the cuts of one choice may take."""
STEPS = (8, 2, 1)
"""Units that a cut is moved by."""
WIDENED = 6
"""Choices of different sizes whose last pack is cut off first."""
FAR = 1.1
"""Packs that compute so many times as long as the fastest take are not looked at."""
NEAR = 1.05
"""Estimates that the simulator may still put in another order."""
GAIN = 1e-4
"""Share of a step that a move must save."""
MOST_PASSES, PROOF = 250_000, 6
"""Forward passes of layers in a step, divided by ranks and so many: a schedule of more takes many
seconds to make and to prove, which grows with the ranks."""
TASK = 20
"""Micro-batches that take as long to estimate as all else that is asked of a task."""
SHARES, MOVING = (0.3, 0.4, 0.2), 0.2 / IMPROVED
"""Shares of the allowed work for backward packs, for packs with a wide last one, and for other
forward packs; and for moving the cuts of each choice."""


class Candidates:
    """Packs in the order of their estimated step times. First every backward choice with forward
    packs like it, then other forward packs for the best of them, then the best with their cuts
    moved about."""

    def __init__(
        self,
        problem: PackingProblem,
        sizes: Sizes,
        units: int,
        step_time: StepTimeEstimate,
        memory: MemoryEstimate,
        most_work: float = inf,
    ) -> None:
        """`most_work`: micro-batches in all estimates, or what takes as long."""
        self.problem, self.sizes, self.units = problem, sizes, units
        self._most_work = most_work
        self.work = 0
        self.left_out = False
        """Whether packs were not looked at, since that would be too much work."""
        self._step_time, self._memory = step_time, memory
        self._late = _late(problem, sizes, units)
        self._made: dict[Packs, float] = {}
        self._seen: set[Packs] = set()
        self._fastest = inf
        self._backward_sizes = _sizes(problem, units, problem.backward)
        self._forward_sizes = _sizes(problem, units, problem.forward)
        if problem.alike:
            both = [size for size in self._forward_sizes if size in self._backward_sizes]
            self._forward_sizes = self._backward_sizes = both

    @property
    def fastest(self) -> float:
        """Seconds of a step of the best that were found, as estimated; infinite without any."""
        return self._fastest

    def ordered(self) -> list[Packs]:
        """All that were found: the fastest of each kind that are near the fastest, then the rest,
        the fastest first."""
        problem, ranks = self.problem, self.problem.ranks
        counts = pack_counts(self.units, ranks)
        self._add_all(self._alike(counts), SHARES[0])
        self._add_all(self._widened(counts), SHARES[1])
        few = [n for n in counts if n % ranks == 0 or n <= ranks]
        known: dict[tuple[int, int], list[tuple[range, ...]]] = {}
        tries = []
        for packs in [*self._best(KEPT), *self._unlike(lambda p: p.backward_size, KEPT // 2)]:
            before = packs.backward[-1].start
            for forward_size in self._forward_sizes:
                if packs.mirrored:
                    like_it = replace(packs, forward_size=forward_size, resident=frozenset())
                    tries.append(like_it)
                of = before, forward_size
                if of not in known:
                    known[of] = forward_packs(problem, self.sizes, *of, few)
                for forward in known[of]:
                    sizes = forward_size, packs.backward_size
                    tries.append(self._packs(forward, packs.backward, *sizes))
        self._add_all(tries, SHARES[2])
        for packs in self._unlike(lambda p: (len(p.backward), p.mirrored), IMPROVED):
            self._improve(packs)
        kinds = self._unlike(lambda p: (p.backward_size, p.mirrored), WIDENED)
        limit = NEAR * self._fastest
        first = [packs for packs in kinds if self._made[packs] < limit]
        if self.left_out:  # those that are proved in less time, if they are as good
            near = [packs for packs in self._best(len(self._made)) if self._made[packs] < limit]
            first.extend(packs for packs in near if packs not in first)
            first.sort(key=lambda packs: 2 * self._work(packs) > self._work(near[0]))
        return [*first, *(packs for packs in self._best(len(self._made)) if packs not in first)]

    @property
    def smallest(self) -> int:
        """Samples of the smallest micro-batch that is looked at."""
        return min(self._backward_sizes)

    def any_fits(self) -> bool:
        """Whether there would be any; all others are made from those that are looked at here."""
        device = self.problem.device_bytes
        tries = self._alike(pack_counts(self.units, self.problem.ranks))
        return any(min(self._memory.spare(self._settled(packs), device)) >= 0 for packs in tries)

    def _alike(self, counts: list[int]) -> Iterator[Packs]:
        """Every backward choice with forward packs like it."""
        problem = self.problem
        for size in reversed(self._backward_sizes):  # the fast ones first
            like = min((n for n in self._forward_sizes if n >= size), default=size)
            for backward in backward_packs(problem, self.sizes, self.units, size, counts):
                packs = self._packs(backward[:-1], backward, like, size)
                yield packs
                if problem.mode == PP and len(backward) >= problem.ranks:
                    yield replace(packs, mirrored=True)

    def _add_all(self, tries: Iterable[Packs], share: float) -> None:
        """Note packs; where all are too much work, as many of them, evenly spread, as take a share
        of what is allowed, and more only as long as none fits."""
        tries = [packs for packs in dict.fromkeys(tries) if packs not in self._seen]
        every = max(1, ceil(sum(map(self._work, tries)) / (share * self._most_work)))
        for packs in tries[::every]:
            self._add(packs)
        left_out = tries if every > 1 else []
        for packs in left_out:
            if self._made:
                self.left_out = True
                break
            self._add(packs)

    def _work(self, packs: Packs) -> int:
        """Work of an estimate of these packs, counted in micro-batches."""
        samples = packs.minibatch // (packs.ranks if packs.mode == DP else 1)
        passes = (packs.forward, packs.forward_size), (packs.backward, packs.backward_size)
        return sum(len(cuts) * (TASK + ceil(samples / size)) for cuts, size in passes)

    def _widened(self, counts: list[int]) -> list[Packs]:
        """Packs of which the last has more than its share, and each rank as much to do. The last
        pack makes its own forward pass, so that the larger it is, the less is computed twice."""
        found = []
        for packs in self._unlike(lambda p: (p.backward_size, p.mirrored), WIDENED):
            ranks = packs.ranks if packs.mirrored else 1
            costs = costs_of(self.problem, self.sizes, self.units, packs.backward_size)
            once = [cost.recompute_s + cost.backward_s for cost in costs]
            twice = [seconds + cost.forward_s for seconds, cost in zip(once, costs, strict=True)]
            for start in last_starts(once, sum(once) / (packs.ranks if packs.mode == PP else 1)):
                last = range(start, self.units)
                for count in [count for count in counts if count <= start]:
                    before = shared_out(twice[:start], sum(once[start:]), ranks, count)
                    sizes = packs.forward_size, packs.backward_size
                    backward = *before, last
                    found.append(self._packs(before, backward, *sizes, mirrored=packs.mirrored))
        return found

    def _best(self, count: int) -> list[Packs]:
        return sorted(self._made, key=self._made.__getitem__)[:count]

    def _unlike(self, what: Callable[[Packs], Hashable], count: int) -> list[Packs]:
        """The best ones, one of a kind."""
        found: dict[Hashable, Packs] = {}
        for packs in self._best(len(self._made)):
            found.setdefault(what(packs), packs)
        return [*found.values()][:count]

    def _packs(
        self,
        forward: tuple[range, ...],
        backward: tuple[range, ...],
        forward_size: int,
        backward_size: int,
        *,
        mirrored: bool = False,
    ) -> Packs:
        return Packs(
            mode=self.problem.mode,
            ranks=self.problem.ranks,
            minibatch=self.problem.minibatch,
            forward_size=forward_size,
            backward_size=backward_size,
            forward=forward,
            backward=backward,
            mirrored=mirrored,
        )

    def _add(self, packs: Packs) -> None:
        """Note packs that fit and are not far from the fastest."""
        if packs in self._seen or (
            self.problem.alike and packs.forward_size != packs.backward_size
        ):
            return
        self._seen.add(packs)
        if self._step_time.least_seconds(packs) > FAR * self._fastest:
            return
        packs = self._settled(packs)
        seconds = self._step_seconds(packs)
        self.work += self._work(packs)
        if seconds < inf:
            self._made[packs] = seconds
            self._fastest = min(self._fastest, seconds)

    def _step_seconds(self, packs: Packs) -> float:
        """Estimated, the mean of steps that differ; infinite where they do not fit."""
        spare = self._memory.spare(packs, self.problem.device_bytes)
        if min(spare) < 0:
            return inf
        differ = {late - packs.resident for late in self._late}
        return fmean(self._step_time.step_seconds(packs, spare, late) for late in differ)

    def _settled(self, packs: Packs) -> Packs:
        """With residents, where there may be any."""
        if not packs.mirrored:
            return packs
        return self._memory.with_residents(packs, self.problem.device_bytes)

    def _improve(self, packs: Packs) -> None:
        """Move cuts while that helps, by many units first and then by few. Equal packs are rarely
        best: a short first one fills the pipeline sooner."""
        seconds = self._made[packs]
        left = MOVES // sum(len(task.micros) for task in packs.tasks)
        left = min(left, MOVING * self._most_work / self._work(packs))
        like = packs.forward == packs.backward[:-1]
        for by in STEPS:
            moves = [
                (forward, number, more, way)
                for forward in (False, True)[: 1 if like else 2]
                for number in range(len(packs.forward if forward else packs.backward) - 1)
                for more in (False, True)
                for way in (-by, by)
            ]
            since, at = 0, 0
            while since < len(moves) and left > 0:
                moved = self._moved(packs, *moves[at % len(moves)])
                better = False
                if moved is not None and self._step_time.least_seconds(moved) < seconds:
                    left -= 1
                    moved = self._settled(moved)
                    then = self._step_seconds(moved)
                    better = then < seconds * (1 - GAIN)
                if better:
                    packs, seconds, since = moved, then, 0
                else:
                    since, at = since + 1, at + 1
        self._made[packs] = seconds
        self._fastest = min(self._fastest, seconds)

    def _moved(self, packs: Packs, forward: bool, number: int, more: bool, by: int) -> Packs | None:
        """Packs with one cut of one direction moved, or with all cuts behind it; None where a pack
        would be empty."""
        cut = cut_moved(packs.forward if forward else packs.backward, number, more, by)
        if cut is None:
            return None
        if forward:
            return self._again(packs, cut, packs.backward)
        if packs.forward == packs.backward[:-1]:
            return self._again(packs, cut[:-1], cut)
        to = packs_up_to(packs.forward, cut[-1].start)
        return self._again(packs, to, cut) if to else None

    def _again(
        self, packs: Packs, forward: tuple[range, ...], backward: tuple[range, ...]
    ) -> Packs:
        sizes = packs.forward_size, packs.backward_size
        return self._packs(forward, backward, *sizes, mirrored=packs.mirrored)


def _late(problem: PackingProblem, sizes: Sizes, units: int) -> list[frozenset[int]]:
    """Units that are updated after the norm, in a step whose guesses stand and in one that is
    clipped, as far as there are such steps. Nobody guesses what others' gradients are added to."""
    if problem.clipping is None:
        return [frozenset()]
    every = frozenset(range(units))
    lenders = frozenset(sizes.owner(unit) for unit in every if sizes.owner(unit) != unit)
    if problem.clipping == "wait":
        return [every]
    return [lenders] if problem.clipping == "speculate" else [lenders, every]


def _sizes(problem: PackingProblem, units: int, sizes: MicroBatchSizes) -> list[int]:
    """Samples of the micro-batches to try in one direction. Raises ValueError where a step has too
    many passes with each of them."""
    parts = problem.ranks if problem.mode == DP else 1
    found = [sizes.asked] if sizes.asked is not None else micro_batches(
        problem.minibatch, parts, least=problem.smallest, most=sizes.largest
    )  # fmt: skip
    most = MOST_PASSES // (PROOF + problem.ranks)
    few = [size for size in found if units * ceil(problem.minibatch / size) <= most]
    if not few:
        raise ValueError(
            f"a step of {problem.minibatch} samples in micro-batches of {max(found)} is "
            f"{units * ceil(problem.minibatch / max(found))} forward passes over {units} units; a "
            f"search takes at most {most} on {problem.ranks} ranks: name the packs, or use fewer "
            f"layers, or a batch of at most {most // units * max(found)}"
        )
    return few
