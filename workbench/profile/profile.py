"""Costs as data: what hardware can do, what a model's units cost on it, what an action takes.

A `Profile` is either measured (profile/measure.py), or made from the constants of a published
machine (published/). Planners and the simulator do not care which. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from workbench.profile.units import UnitCost
from workbench.schedule.action import (
    COMPUTE,
    D2H,
    DISK_IN,
    GUESS,
    H2D,
    HOST,
    VERDICT,
    VISIT,
    Action,
    Kind,
    format_name,
    parse_name,
)
from workbench.schedule.buffers import gradients, host_gradients, kept, weights

NORM = format_name(Kind.NORM, 0)
MEMORY_LANES = frozenset({H2D, D2H, HOST})
"""Lanes that meet at the host's memory: two leave room for each other there, and all three do
not."""


GPU_SPREAD, PROCESSOR_SPREAD, ESTIMATE_SPREAD = 0.2, 0.3, 0.5
RECORDED_BELOW_S = 2e-3
"""A block's forward pass that takes longer has always been launched in time: it is not recorded."""


def all_at_once(lane: str) -> str:
    """Key in `Hardware.slowdowns` of a memory lane while the other two are busy as well."""
    return f"{lane}|{'+'.join(sorted(MEMORY_LANES - {lane}))}"


def in_the_way(slowdowns: Mapping[str, float], lane: str, busy: Sequence[str]) -> float:
    """How many times as long something takes on a lane while those are busy: the measured pairs
    multiply, where three were not measured at once."""
    beside, factor = list(busy), 1.0
    if all_at_once(lane) in slowdowns and {lane, *busy} >= MEMORY_LANES:
        factor = slowdowns[all_at_once(lane)]
        for other in MEMORY_LANES - {lane}:
            beside.remove(other)
    for other in beside:
        factor *= slowdowns.get(f"{lane}|{other}", 1.0)
    return factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """Ceilings of one machine. Rates are bytes, parameters or operations per second."""

    name: str
    source: str
    """``measured`` on this machine; ``estimated``, this machine's memory, and times by its ceilings
    or its GPU's datasheet; ``unmeasured``, its memory alone, whose times mean nothing. Of others
    ``published``, a ``datasheet``, this project's ``benchmark`` of such a GPU, or a ``file``."""
    device: str
    """``cuda``, or ``cpu`` where host memory and half of the cores play the device."""
    cores: int
    device_bytes: int
    """Memory of the device tier usable by a process."""
    host_bytes: int
    """Memory of the host tier usable by a process."""
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    host_adam_params_per_s: float
    """Fused AdamW on the host by one worker (`adam_threads` threads)."""
    device_adam_params_per_s: float
    matmul_flops_per_s: float
    host_copy_bytes_per_s: float = 0.0
    disk_read_bytes_per_s: float = 0.0
    disk_write_bytes_per_s: float = 0.0
    adam_threads: int = 1
    link_latency_s: float = 0.0
    """Fixed cost of one transfer."""
    link_busy: float = 1.0
    """Share of a transfer's time in which its thread works; below 1 where the link is emulated."""
    action_overhead_s: float = 0.0
    """Fixed cost of starting one action on a lane (a thread to wake, kernels to launch)."""
    slowdowns: dict[str, float] = field(default_factory=dict)
    """``"compute|host"``: factor by which compute slows while a host update runs beside it. On a
    GPU also `all_at_once`."""
    wires: Wires | None = None
    """Rates of the ranks of a run, where there are several and they were measured."""

    @property
    def knows_disk(self) -> bool:
        """Whether it is known how the disk and other lanes slow each other."""
        return f"{HOST}|{DISK_IN}" in self.slowdowns

    @property
    def here(self) -> bool:
        """Whether it is this machine."""
        return self.source in ("measured", "estimated", "unmeasured")

    @property
    def spread(self) -> float:
        """Share of a predicted step by which a measured one may differ. On GPUs it holds 93 of 97
        rows in results/published-here."""
        measured = self.source == "measured"
        if self.source in ("estimated", "file"):
            return ESTIMATE_SPREAD
        return GPU_SPREAD if measured and self.device == "cuda" else PROCESSOR_SPREAD


@dataclass(frozen=True, kw_only=True, slots=True)
class Wires:
    """Rates of each of several ranks while all of them do the same work, in bytes per second."""

    ranks: int
    load_bytes_per_s: float
    store_bytes_per_s: float
    message_bytes_per_s: float
    """To the next rank."""
    reduce_bytes_per_s: float
    """Bytes of a buffer that is added up over all ranks, over the time it takes."""
    message_latency_s: float
    reduce_by_group: dict[str, float] = field(default_factory=dict)
    """Ranks of a group -> the same, while all groups of so many neighbours add up."""
    pass_overhead_s: float | None = None
    """Seconds that the pass of a layer takes beside its own time, where all ranks train on one
    processor (profile/rehearsal.py); None where that was not measured."""
    pass_slowdown: float = 1.0
    """How many times its own time the pass takes besides."""
    host_adam_params_per_s: float | None = None
    """Fused AdamW on the host by all ranks, in all; None without GPUs, where ranks compute on the
    same cores."""
    slowdowns: dict[str, float] = field(default_factory=dict)
    """As `Hardware.slowdowns`, of the lanes that meet at the host's memory, with all ranks at work
    (profile/contention.py); with GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How many samples a micro-batch may have: see probe.py."""

    smallest: int
    """Fewest that the model runs with."""
    forward: int
    """Most for which the device has room in every unit's forward pass, as far as was tried."""
    backward: int
    """Most for which the device has room in forward and backward passes; never more than
    `forward`."""

    def sizes(self) -> list[int]:
        """Numbers of samples to profile: both ends, and one about halfway in ratio."""
        middle = round((self.smallest * self.backward) ** 0.5)
        return sorted({self.smallest, middle, self.backward})


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A machine and the units of a model on it."""

    hardware: Hardware
    units: tuple[UnitCost, ...]
    """One per unit of the model, in order."""
    microbatch: int
    """Samples in a micro-batch."""
    seq: int
    weight_bytes: int = 4
    """Bytes of one working weight (and of its gradient): 4 for fp32, 2 for bf16."""
    library_bytes: int = 0
    """Device memory in use beside all units once they have run: workspaces of libraries, and
    tensors that the model keeps for all its passes."""
    note: str = ""
    """A sentence for readers of predictions, e.g. that times were scaled."""
    origin: str = ""
    """The file it was read from; empty where it was made."""
    limits: Limits | None = None
    """Limits of micro-batches on the spec's device, where they were looked for."""

    @property
    def state_bytes(self) -> int:
        """Bytes of optimizer states per parameter: two fp32 moments, and the 16 bits that a bf16
        weight lacks of its fp32 master."""
        return 8 if self.weight_bytes == 4 else 10

    @property
    def apart(self) -> float:
        """Share of an update's seconds on the host that its weights alone take, or its moments
        alone: bytes of memory, of which either reads weights or moments that the other writes."""
        return (16 + self.weight_bytes) / (24 + self.weight_bytes)

    def with_link(self, bytes_per_s: float | None) -> Profile:
        """Return the profile with a slower (emulated) link; unchanged for None.

        An emulated transfer copies at full rate and then sleeps, so it disturbs others, and is
        disturbed, for that share of its time only.
        """
        hardware = self.hardware
        if bytes_per_s is None or bytes_per_s >= hardware.h2d_bytes_per_s:
            return self
        share = bytes_per_s / hardware.h2d_bytes_per_s
        slowdowns = {
            pair: 1 + (factor - 1) * share if {H2D, D2H} & set(re.split(r"[|+]", pair)) else factor
            for pair, factor in hardware.slowdowns.items()
        }
        hardware = replace(
            hardware,
            h2d_bytes_per_s=bytes_per_s,
            d2h_bytes_per_s=min(bytes_per_s, hardware.d2h_bytes_per_s),
            link_busy=share,
            slowdowns=slowdowns,
        )
        return replace(self, hardware=hardware)


class ProfileCosts:
    """The cost model of the simulator (schedule.simulate.Costs), read from a profile."""

    def __init__(self, profile: Profile, *, clips: bool = False, recorded: bool = False) -> None:
        """`clips`: whether gradients exceed the clipping limit, so that no guess stands. The norm
        seen so far tells early: such a step does not even guess. `recorded`: whether passes of
        blocks are, where tensors that they keep have no buffer of their own."""
        self.profile, self.clips = profile, clips
        self._recorded = [unit.as_recorded() for unit in profile.units] if recorded else ()
        self._slowdowns: dict[tuple[str, ...], float] = {}

    def seconds(self, action: Action) -> float:
        hardware, unit = self.profile.hardware, self.profile.units[action.unit]
        overhead = hardware.action_overhead_s
        if self._recorded and action.microbatch is not None:
            keeps = kept(action.unit, action.microbatch)
            if keeps not in action.takes and keeps not in action.frees:
                unit = self._recorded[action.unit]
        match action.kind:
            case Kind.FORWARD if kept(action.unit, action.microbatch) in action.takes:
                return overhead + unit.recompute_s
            case Kind.FORWARD:
                return overhead + unit.forward_s
            case Kind.RECOMPUTE:
                return overhead + unit.recompute_s
            case Kind.BACKWARD:
                return overhead + unit.backward_s + self._gradient_s(action)
            case Kind.INPUT_GRAD:
                return overhead + unit.halves.seconds[0]
            case Kind.WEIGHT_GRAD:
                return overhead + (unit.halves.seconds[1] if action.unit else unit.backward_s)
            case Kind.UPDATE if self.clips and self._guesses(action):
                return overhead
            case Kind.SETTLE if not self.clips:
                return overhead
            case Kind.PULL | Kind.PUSH if action.turn == (GUESS if self.clips else VERDICT):
                return overhead
            case Kind.MOMENTS if not self.clips and parse_name(action.after[0]).kind is Kind.SETTLE:
                return overhead
            case Kind.UPDATE | Kind.SETTLE if action.lane in (COMPUTE, VISIT):
                return overhead + unit.parameters / hardware.device_adam_params_per_s
            case Kind.UPDATE | Kind.SETTLE | Kind.MOMENTS:
                share = self.profile.apart if self._apart(action) else 1.0
                return overhead + share * unit.parameters / hardware.host_adam_params_per_s
            case Kind.LOAD | Kind.FETCH | Kind.PULL | Kind.SUM_IN:
                rate = hardware.h2d_bytes_per_s
            case Kind.EVICT | Kind.STASH | Kind.GRAD_OUT | Kind.PUSH | Kind.SUM_OUT:
                rate = hardware.d2h_bytes_per_s
            case Kind.READ:
                rate = hardware.disk_read_bytes_per_s
            case Kind.SPILL:
                rate = hardware.disk_write_bytes_per_s
            case Kind.NORM:
                return overhead
            case _:
                raise ValueError(f"{action.name}: a profile of one device has no cost for it")
        if rate <= 0:
            what = "its disk" if action.kind in (Kind.READ, Kind.SPILL) else f"its {action.lane}"
            raise ValueError(
                f"no rate of {what} is known of {hardware.name}: plan for a machine that has one, "
                "such as h100-80gb, or for this one (workbench plan --measure)"
            )
        return overhead + hardware.link_latency_s + action.nbytes / rate

    def _guesses(self, action: Action) -> bool:
        """Whether an update keeps its gradients, for its verdict needs them."""
        on_host, on_device = host_gradients(action.unit), gradients(action.unit)
        if action.lane == VISIT:
            return on_device in action.uses
        return on_host in action.uses and NORM not in action.after

    def _apart(self, action: Action) -> bool:
        """Whether an update on the host is of weights alone, or of moments."""
        if action.kind is Kind.MOMENTS:
            return True
        return NORM in action.after and host_gradients(action.unit) in action.uses

    def _gradient_s(self, action: Action) -> float:
        """Seconds that a unit's gradients cost once a step. A unit that frees its weights gives its
        gradients away, and copies them first."""
        unit = self.profile.units[action.unit]
        gives = weights(action.unit) in action.frees or weights(action.unit, 1) in action.frees
        seconds = unit.gradient_s if action.microbatch == 0 else 0.0
        return seconds + (unit.gradient_copy_s if gives else 0.0)

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        """The measured pairs multiply, where three were not measured at once. Lanes that together
        have more threads than there are cores also share the cores, as far as the pairs do not show
        that already."""
        key = (lane, *busy)
        if key not in self._slowdowns:
            self._slowdowns[key] = self._slowdown(lane, key[1:])
        return self._slowdowns[key]

    def _slowdown(self, lane: str, busy: tuple[str, ...]) -> float:
        factor, in_pairs = in_the_way(self.profile.hardware.slowdowns, lane, busy), 1.0
        for other in busy:
            in_pairs *= self._crowding((lane, other))
        return max(1.0, factor * self._crowding((lane, *busy)) / in_pairs)

    def _crowding(self, lanes: tuple[str, ...]) -> float:
        """Threads of busy lanes per core, at least 1; copy engines and disks need none."""
        hardware = self.profile.hardware
        workers = lanes.count(HOST)  # they divide the threads of one among them
        threads = max(workers, hardware.adam_threads) if workers else 0
        if hardware.device == "cpu":
            threads += lanes.count(COMPUTE) * max(1, hardware.cores // 2)
            threads += (lanes.count(H2D) + lanes.count(D2H)) * hardware.link_busy
        return max(1.0, threads / hardware.cores)
