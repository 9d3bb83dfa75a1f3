"""Messages and sums between the processes of a job, by what carries those of a run.

Neighbours send a message back and forth while both compute; all rings of copies that a run would
have add up at once. How late single messages are is their jitter.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from math import pi, sqrt
from statistics import fmean, median, pvariance
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist

from workbench.core.stage_map import StageMap
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.stage_lines import stage_schedule
from workbench.profile.loads import Load, Product
from workbench.profile.slices import Deviation, RingSum, Wire
from workbench.profile.timing import Sample, summarize, undisturbed
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.transport.groups import as_one
from workbench.runtime.transport.neighbours import group, neighbours
from workbench.schedule.action import Kind

SMALL, FACTOR, LARGE, MOST = 4096, 16, 1 << 20, 1 << 28
"""Bytes of the least message, and how many times as many the next one has; bytes that are measured
in any case, and at most."""
TRIPS, SUMS = 24, 8
"""Round trips of a message, and sums, of each size, after one that warms up."""
Times = dict[tuple[int, int], list[float]]
"""(whether within a host, or ranks of a ring; bytes) -> seconds of single ones."""


class Network:
    """A process's part in the measurements; all processes call all methods, in one order."""

    def __init__(
        self, everybody: dist.ProcessGroup, backend: str, device: torch.device, per_host: int
    ) -> None:
        """`per_host` ranks in a row are those of one host."""
        self._rank, self._world, self._per_host = dist.get_rank(), dist.get_world_size(), per_host
        self._everybody, self._backend, self._device = everybody, backend, device
        places = StageMap.of(self._world, 1)
        self._groups = neighbours(
            places, [*pairwise(range(self._world))], self._rank, backend, everybody, device
        )

    def wires(self, largest: int) -> tuple[Wire | None, Wire | None]:
        """Messages of up to so many bytes within hosts, and between them."""
        times = self._gathered(partial(self._all_trips, sizes_to(largest)))
        of = [{n: each for (here, n), each in times.items() if here == now} for now in (1, 0)]
        within, between = (wire_of(trips) if trips else None for trips in of)
        return within, between

    def sums(self, largest: int) -> tuple[RingSum, ...]:
        """All-reduces of up to so many bytes over rings of copies: powers of two, and all."""
        times = self._gathered(partial(self._all_sums, sizes_to(largest)))
        timings = {at: summarize([Sample(s, s) for s in found]) for at, found in times.items()}
        return tuple(
            RingSum(ranks=n, nbytes=b, seconds=t.seconds, spread_s=t.spread * t.seconds)
            for (n, b), t in sorted(timings.items())
        )

    def _gathered(self, measure: Callable[[], Times]) -> Times:
        """Times that all processes have measured."""
        every: Times = defaultdict(list)
        for times in as_one(lambda: [*measure().items()], self._everybody):
            for key, seconds in times:
                every[*key] += seconds
        return every

    def _all_trips(self, sizes: Sequence[int]) -> Times:
        times: Times = {}
        if self._world == 1:
            return times
        with closing(Product(self._device, torch.float32)) as load:
            for first in (0, 1):  # of all pairs of neighbours, those that have no rank in common
                low = self._rank - (self._rank - first) % 2
                here = low // self._per_host == (low + 1) // self._per_host
                if low >= 0 and low + 1 < self._world:
                    with _computing(load):
                        found = {(here, n): self._trips((low, low + 1), n) for n in sizes}
                    times |= found if self._rank == low else {}
                dist.barrier(self._everybody)
        return times

    def _all_sums(self, sizes: Sequence[int]) -> Times:
        times: Times = {}
        powers = {1 << power for power in range(1, self._world.bit_length())}
        for ranks in sorted(powers | {self._world} - {1}):
            apart = self._world // ranks
            rings = [range(first, apart * ranks, apart) for first in range(apart)]
            made = {ring: group(ring, self._backend) for ring in rings}  # by all, in one order
            for members in (made[ring] for ring in rings if self._rank in ring):
                for nbytes in sizes:
                    values = torch.zeros(nbytes // 4, device=self._device)
                    add_up = partial(dist.all_reduce, values, group=members)
                    times[ranks, nbytes] = self._timed(lambda _, do=add_up: do(), SUMS)
            dist.barrier(self._everybody)
        return times

    def _trips(self, pair: tuple[int, int], nbytes: int) -> list[float]:
        """Seconds of round trips: a message as of an activation, and back as of its gradient."""
        transport = GroupTransport(
            self._groups, self._everybody, process=lambda stage: pair[stage],
            forms=lambda action, step: [((nbytes,), torch.uint8, False)], device=self._device,
        )  # fmt: skip
        schedule = stage_schedule("1f1b", lists("1f1b", 2, TRIPS + 1))
        transport.use(schedule)
        acts = {(action.kind, action.microbatch): action for action in schedule.actions}
        message = (torch.zeros(nbytes, dtype=torch.uint8, device=self._device),)
        begins = self._rank == pair[0]
        goes, comes = (Kind.SEND, Kind.RECV_GRAD) if begins else (Kind.SEND_GRAD, Kind.RECV)

        def trip(micro: int) -> None:
            if begins:
                transport.send(acts[goes, micro], message, 0)
            transport.receive(acts[comes, micro], 0)
            if micro < TRIPS:
                transport.announce(acts[comes, micro + 1], 0)
            if not begins:
                transport.send(acts[goes, micro], message, 0)

        transport.announce(acts[comes, 0], 0)
        return self._timed(trip, TRIPS)

    def _timed(self, action: Callable[[int], object], times: int) -> list[float]:
        """Seconds of actions to their end on the device, without the first one's."""
        found = []
        for number in range(times + 1):
            begun = perf_counter()
            action(number)
            if self._device.type == "cuda":  # what computes meanwhile has a stream of its own
                torch.cuda.current_stream(self._device).synchronize()
            found.append(perf_counter() - begun)
        return found[1:]


def sizes_to(largest: int) -> list[int]:
    """Bytes of what is measured for messages, or sums, of up to so many.

    >>> sizes_to(5 << 20)
    [4096, 65536, 1048576, 5242880]
    """
    last, sizes = min(max(largest, LARGE), MOST), [SMALL]
    while sizes[-1] * FACTOR < last:
        sizes.append(sizes[-1] * FACTOR)
    return [*sizes, last]


def wire_of(trips: Mapping[int, Sequence[float]]) -> Wire:
    """The wire on which round trips, by bytes, take so many seconds. A message is late by
    |N(0, sd)|, and a trip by two such, which decides its mean and variance. The variance is the
    median of all sizes', and trips far above the others are left out."""
    kept = {nbytes: undisturbed(trips[nbytes]) for nbytes in sorted(trips)}
    sd = sqrt(median(map(pvariance, kept.values())) / (2 - 4 / pi))
    late = 2 * sd * sqrt(2 / pi)
    sizes, quick = [*kept], [max(min(some), fmean(some) - late) / 2 for some in kept.values()]
    slope, latency = np.polyfit(sizes, quick, 1, w=np.divide(1, quick))
    if slope <= 0:  # jitter hides what bytes take
        slope = quick[-1] / sizes[-1]
    middle = median(abs(each - median(some)) for some in kept.values() for each in some)
    jitter = Deviation(median_s=middle / sqrt(2), sd_s=sd)
    return Wire(latency_s=max(0.0, float(latency)), bytes_per_s=float(1 / slope), jitter=jitter)


@contextmanager
def _computing(load: Load) -> Iterator[None]:
    """Have a thread compute meanwhile."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            load.once()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
