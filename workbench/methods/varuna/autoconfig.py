"""The shape in which a user's model trains on so many GPUs (Athlur et al., EuroSys 2022).

From a profile (profile.py) all numbers of stages, copies and micro-batches are compared
(methods/pipeline/shapes.py): stages of any slices in a row, balanced by time and memory, of which
the last one computes nothing again; P = 1, a slice a stage, and m = 1 are among them. Memory is
proved for the schedule of stages. The step of a shape that is proved has the measured jitter, the
mean of some draws; the others are further from the best than jitter makes up for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import fmean

import numpy as np

from workbench.core.bytesize import format_bytes, parse_bytes
from workbench.core.division import packs_of
from workbench.core.stage_map import StageMap
from workbench.methods.pipeline.balance import Stages
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.orders import ORDERS, in_flight
from workbench.methods.pipeline.prediction import Prediction, Question, line_of
from workbench.methods.pipeline.program import Program
from workbench.methods.pipeline.quick import Links
from workbench.methods.pipeline.shapes import Cut, search
from workbench.methods.pipeline.slice_sizes import SliceSizes
from workbench.profile.slices import Named, SliceProfile, Wire, load
from workbench.schedule.plan import Candidate, DoesNotFit
from workbench.schedule.schedule import DEVICE
from workbench.schedule.validate import validate

MORE = 8
"""Micro-batches beside six a stage, with which a schedule holds as much as with any more."""
SEEDS = 3
"""Draws of jitter whose mean is a step."""


class HostsNetwork:
    """Links within hosts and between them, and sums over rings (pipeline/prediction.py)."""

    contention, norm_s, by_stage = None, 0.0, True

    def __init__(self, profile: SliceProfile, gpus_per_vm: int) -> None:
        self._profile, self._per_host = profile, gpus_per_vm

    def pass_seconds(self, alone: float) -> float:
        return alone

    def wires(self, positions: Sequence[int], copy: int = 0) -> list[Wire | None]:
        """Wires of the links between stages at these positions of one copy, whose ranks are
        neighbours."""
        first = copy * (1 + max(positions))
        hosts = [(first + position) // self._per_host for position in positions]
        return [
            self._profile.within if a == b else self._profile.between for a, b in pairwise(hosts)
        ]

    def messages(
        self, nbytes: Sequence[int], positions: Sequence[int], replicas: int
    ) -> list[Links]:
        found = []
        for copy in range(replicas):
            wires = self.wires(positions, copy)
            times = [n / wire.bytes_per_s for n, wire in zip(nbytes, wires, strict=True)]
            latencies = tuple(wire.latency_s for wire in wires)
            found.append(Links(seconds=latencies, places=True, wire_s=tuple(times)))
        return found

    def message_seconds(self, nbytes: int) -> float:
        return 0.0  # a slice's weights are its own

    def sum_seconds(self, nbytes: int, replicas: int) -> float:
        """From the ring that was measured with the nearest number of copies; in a ring of n each
        byte goes through 2 (n - 1) / n times."""
        if replicas == 1:
            return 0.0
        sums = self._profile.sums
        ring = min((one.ranks for one in sums), key=lambda ranks: (abs(ranks - replicas), ranks))
        points = sorted((one.nbytes, one.seconds) for one in sums if one.ranks == ring)
        high, last = points[-1]
        if nbytes > high:
            seconds = last * nbytes / high
        else:
            seconds = float(np.interp(nbytes, *zip(*points, strict=True)))
        return seconds * (1 - 1 / replicas) / (1 - 1 / ring)

    def update_seconds(self, unit: int) -> float:
        return self._profile.slices[unit].update_s

    def lacks(self, row: Candidate) -> str:
        stages, replicas = row.stages, row.replicas
        if replicas > 1 and not self._profile.sums:
            return "sums over copies were not profiled; profile on two ranks or more"
        wires = [wire for copy in range(replicas) for wire in self.wires(range(stages), copy)]
        if None in wires:
            where = "between hosts" if self._profile.between is None else "within a host"
            return f"messages {where} were not profiled; profile on such ranks"
        return ""


class AutoConfig:
    """The fastest shape, and what was compared.

    `gpu_memory_capacity` is in bytes or as ``16GiB``, else the profiled devices'; `order` is
    ``auto`` for the fastest of all orders; a `model` that is named must be the profile's.
    """

    def __init__(
        self, num_gpus: int, gpus_per_vm: int, batch_size: int, profile_folder: str | Path,
        gpu_memory_capacity: int | str | None = None, verbose: bool = True, order: str = "varuna",
        model: Named | None = None,
    ) -> None:  # fmt: skip
        """Compare all shapes. Raises ValueError for a number below 1, an order that is none, and a
        profile that is not there or of another model. That nothing fits is said by `get_min`."""
        counts = {"num_gpus": num_gpus, "gpus_per_vm": gpus_per_vm, "batch_size": batch_size}
        for name, number in counts.items():
            if number < 1:
                raise ValueError(f"{name} is {number}; it must be 1 or more")
        if order not in (*ORDERS, "auto"):
            raise ValueError(f"order is {order!r}; it must be one of {', '.join(ORDERS)}, auto")
        self.profile = load(Path(profile_folder), model)
        self.num_gpus, self.batch_size = num_gpus, batch_size
        self._network = HostsNetwork(self.profile, gpus_per_vm)
        others = [name for name in ORDERS if name != "varuna"]
        capacity = gpu_memory_capacity
        self._question = Question(
            sizes=SliceSizes(self.profile), units=len(self.profile.slices), ranks=num_gpus,
            batch=batch_size, micro_sizes=self.profile.samples, activations="keep",
            device_bytes=self.profile.device_bytes if capacity is None else parse_bytes(capacity),
            orders=("varuna", *others) if order == "auto" else (order,),
        )  # fmt: skip
        self.candidates, self.stages = search(self._question, self._network, self._proved)
        """All shapes, the best first, the others by their seconds, those that are refused last; and
        slices of each stage of the best, None where nothing fits."""
        fitting = [row for row in reversed(self.candidates) if not row.reason]
        self.batch_times = {row.stages: row.seconds for row in fitting}
        """Stages -> seconds of the fastest shape with so many that fits; of those that are far from
        the best of all seconds and memory are predicted, or seconds are the least that they can be
        (`candidates`)."""
        self.micro_batch = {row.stages: row.micro for row in fitting}
        """Stages -> samples of its micro-batches."""
        if verbose:
            sys.stdout.writelines(f"{row.words()}\n" for row in self.candidates)

    def get_min(self) -> tuple[int, int, float]:
        """Stages, samples of a micro-batch, and seconds of a step of the fastest shape. Raises
        DoesNotFit where none fits."""
        best = self.candidates[0]
        if best.reason:
            raise DoesNotFit(
                f"no shape of {self.profile.model.name} fits {self.num_gpus} GPUs; the first of "
                f"{len(self.candidates)}: {best.words()}"
            )
        return best.stages, best.micro, best.seconds

    def _proved(self, row: Candidate, cut: Cut) -> tuple[Candidate, Stages]:
        """Bytes of the schedule whose units are stages, and a step with jitter."""
        asked, stages = self._question, cut.stages
        units = packs_of([1] * len(stages))
        few = min(row.microbatches, row.stages * (6 + ceil(MORE / row.stages)))
        line = line_of(asked, row, units, few)
        if few in map(in_flight, line.passes):  # more are in flight where there are more
            line = line_of(asked, row, units)
        sizes = SliceSizes(self.profile, stages)
        proved = validate(Program(line, sizes).schedule()).peak_bytes
        tokens = sizes.token_bytes(row.micro * (row.microbatches - line.micros))
        most = max(peaks[DEVICE] for peaks in proved.values()) + tokens
        if most > asked.device_bytes:
            needed, there = format_bytes(most), format_bytes(asked.device_bytes)
            reason = f"{needed} of device memory are needed, {there} are there"
            return replace(row, device_bytes=most, reason=reason), stages
        prediction = Prediction.of(asked, self._network, row)
        steps = (
            prediction.seconds(stages, jitter) for jitter in self._draws(line.positions, stages)
        )
        return replace(row, device_bytes=most, seconds=fmean(steps)), stages

    def _draws(self, positions: Sequence[int], stages: Stages) -> list[Jitter]:
        """The measured jitter of a pipeline's passes and links, under each seed."""
        wires = self._network.wires(positions)
        jitter = Jitter(
            compute_s=tuple(self.profile.jitter.sd_s * len(units) ** 0.5 for units in stages),
            network_s=tuple(wire.jitter.sd_s for wire in wires) or 0.0,
        )
        return [replace(jitter, seed=seed) for seed in range(SEEDS)]


def get_varuna_config(stage_to_rank_map: str) -> tuple[int, int]:
    """Stages, and copies of each.

    >>> get_varuna_config("0,4;1,5;2,6;3,7;")
    (4, 2)
    """
    found = StageMap.parse(stage_to_rank_map)
    return found.stages, found.replicas


def get_this_rank_config_varuna(stage_to_rank_map: str, rank: int) -> tuple[int, int]:
    """Stage and copy of a rank. Raises ValueError for one that is not in the map.

    >>> get_this_rank_config_varuna("0,4;1,5;2,6;3,7;", 5)
    (1, 1)
    """
    return StageMap.parse(stage_to_rank_map).place(rank)
