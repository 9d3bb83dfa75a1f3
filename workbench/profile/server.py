"""Costs of actions on a server of several equal devices that share their host.

Links run at the rates that were measured with all of them in use (profile/wires.py). The published
estimator gives each GPU one N-th of a single link whether the others copy or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from workbench.core.spec import RunSpec
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Hardware, Profile, all_at_once, in_the_way
from workbench.profile.unit_costs import Sizes
from workbench.profile.units import RECORDED, UnitCost, combined
from workbench.schedule.action import COMPUTE, D2H, GUESS, H2D, HOST, NET_OUT, VISIT, Action, Kind
from workbench.schedule.buffers import REPLAYS, checkpoints, keeps, on_rank
from workbench.schedule.schedule import Schedule

ADAM_BYTES = 26
"""Bytes that an update moves through the host's memory for a parameter (updates/host_adam.cpp)."""
SUM_PASSES = 4
"""Through what is added before the norm: read both, write the sum, read it again."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Rates are of one device while all do the same, bytes or parameters per second."""

    name: str
    ranks: int
    device_bytes: int
    host_bytes: int
    load_bytes_per_s: float
    store_bytes_per_s: float
    message_bytes_per_s: float
    """To the next device."""
    reduce_bytes_per_s: float
    """Bytes of a buffer that is added up over all devices, over the time it takes."""
    host_adam_params_per_s: float
    """All cores together."""
    device_adam_params_per_s: float
    """One device."""
    message_latency_s: float = 0.0
    reduce_by_group: Mapping[str, float] = field(default_factory=dict)
    """Devices of a group -> its rate, where groups add up side by side (profile.Wires)."""
    compute_slowdown: float = 1.0
    """Slowdown of ranks that divide a processor which was profiled alone."""
    pass_overhead_s: float = 0.0
    """Seconds that a layer's pass takes besides, where ranks' lanes have threads on the cores that
    compute."""
    action_overhead_s: float = 0.0
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    """Slowdowns of lanes of one device that are busy at once, by pairs (profile.Hardware)."""
    cores: float = 0.0
    """Cores of one rank, where a processor plays the devices: its lanes take turns on them."""
    threads: Mapping[str, int] = field(default_factory=dict)
    """Threads by kind of lane, where lanes take turns; other lanes have one."""

    def message_seconds(self, nbytes: int) -> float:
        """Seconds of one message to the next device."""
        return self.message_latency_s + nbytes / self.message_bytes_per_s

    def sum_seconds(self, nbytes: int, devices: int) -> float:
        """Seconds in which each group of so many devices adds up a buffer; one device stands for
        all of them."""
        return nbytes / self.reduce_by_group.get(str(devices), self.reduce_bytes_per_s)

    def pass_seconds(self, alone: float) -> float:
        """Seconds of a layer's pass that takes `alone` where nothing else runs."""
        return self.compute_slowdown * alone + self.pass_overhead_s

    def turns(self, lane: str, busy: Iterable[str]) -> float:
        """How many times as long work on a lane takes, as its rank's cores are shared with these
        lanes."""
        own = self.threads.get(lane, 1)
        wanted = own + sum(self.threads.get(other, 1) for other in busy)
        return max(1.0, wanted / self.cores) / max(1.0, own / self.cores)


def server_of(profile: Profile, spec: RunSpec) -> Server:
    """This machine with as many devices as the spec has ranks. Without GPUs the ranks divide the
    cores and the memory that play the device."""
    hardware, ranks = profile.hardware, spec.ranks
    cuda = hardware.device == "cuda"
    budgets = Budgets.of(spec, profile, allocated=True)
    device = budgets.device
    if not cuda and spec.device_memory is None:
        device //= ranks
    host_copy = hardware.host_copy_bytes_per_s or ranks * hardware.h2d_bytes_per_s
    rates = {  # what is not measured: full links, until the host's memory is
        "load_bytes_per_s": min(hardware.h2d_bytes_per_s, 2 * host_copy / ranks),
        "store_bytes_per_s": min(hardware.d2h_bytes_per_s, 2 * host_copy / ranks),
        "message_bytes_per_s": hardware.h2d_bytes_per_s if cuda else host_copy / 2,
        "reduce_bytes_per_s": (hardware.h2d_bytes_per_s if cuda else host_copy / 2) / 2,
        "message_latency_s": 0.0,
    }
    overhead, slower, updates, wires = 0.0, 1.0, hardware.host_adam_params_per_s, hardware.wires
    if wires is not None and wires.ranks == ranks:
        rates = {name: getattr(wires, name) for name in (*rates, "reduce_by_group")}
        overhead, slower = wires.pass_overhead_s or 0.0, wires.pass_slowdown
        updates = wires.host_adam_params_per_s or updates
        slowdowns = hardware.slowdowns | wires.slowdowns
    else:
        slowdowns = _slowdowns(hardware, ranks, rates)
    return Server(
        name=hardware.name,
        ranks=ranks,
        device_bytes=device,
        host_bytes=budgets.host,
        host_adam_params_per_s=updates,
        device_adam_params_per_s=hardware.device_adam_params_per_s,
        compute_slowdown=1.0 if cuda else slower * max(1.0, ranks / 2),
        cores=0.0 if cuda else hardware.cores / ranks,
        threads={COMPUTE: max(1, hardware.cores // 2), HOST: max(1, hardware.cores // ranks)},
        pass_overhead_s=overhead,
        action_overhead_s=hardware.action_overhead_s,
        slowdowns=slowdowns if cuda else {},
        **rates,
    )


def of_a_rank(profile: Profile, server: Server) -> Profile:
    """The profile as each of the server's ranks has it while all do as it does: its share of every
    micro-batch, of the links and of the disk. Updates are of all ranks together."""
    if (ranks := server.ranks) == 1:
        return profile
    hardware, share = profile.hardware, profile.microbatch // ranks / profile.microbatch
    costs = [combined(cost, cost, share, 0.0) for cost in profile.units]
    passes = ("forward_s", "recompute_s", "backward_s")
    return replace(
        profile,
        units=tuple(
            replace(cost, **{name: server.pass_seconds(getattr(cost, name)) for name in passes})
            for cost in costs
        ),
        microbatch=profile.microbatch // ranks,
        hardware=replace(
            hardware,
            device_bytes=hardware.device_bytes // (1 if hardware.device == "cuda" else ranks),
            h2d_bytes_per_s=server.load_bytes_per_s,
            d2h_bytes_per_s=server.store_bytes_per_s,
            host_adam_params_per_s=server.host_adam_params_per_s,
            disk_read_bytes_per_s=hardware.disk_read_bytes_per_s / ranks,
            disk_write_bytes_per_s=hardware.disk_write_bytes_per_s / ranks,
            slowdowns={**hardware.slowdowns, **server.slowdowns},
        ),
    )


def _slowdowns(hardware: Hardware, ranks: int, rates: Mapping[str, float]) -> dict[str, float]:
    """Slowdowns of lanes of one of several devices, of which a single one was measured: updates on
    the host meet the transfers of all of them, at these rates."""
    full = hardware.h2d_bytes_per_s + hardware.d2h_bytes_per_s
    times = ranks * (rates["load_bytes_per_s"] + rates["store_bytes_per_s"]) / full
    found = dict(hardware.slowdowns)
    for pair in (f"{HOST}|{H2D}", f"{HOST}|{D2H}", all_at_once(HOST)):
        if pair in found:
            found[pair] = 1 + times * (found[pair] - 1)
    return found


def records(schedule: Schedule) -> bool:
    """Whether passes of blocks are recorded."""
    return any(on_rank(rank, REPLAYS) in schedule.buffers for rank in range(schedule.num_ranks))


def shares_updates(schedule: Schedule) -> bool:
    """Whether several ranks update a unit, each its share."""
    updates = {(a.unit, a.rank) for a in schedule.actions if a.kind is Kind.UPDATE}
    return len(updates) > len({unit for unit, _ in updates})


class ServerCosts:
    """The simulator's cost model for schedules of several ranks (schedule.simulate.Costs)."""

    def __init__(
        self,
        sizes: Sizes,
        server: Server,
        *,
        shared_updates: bool,
        clips: bool = False,
        recorded: bool = False,
        replicas: int = 1,
        device_adam: float | None = None,
    ) -> None:
        """`shared_updates`: each rank updates its share of every layer, as in DP mode. `clips`:
        gradients exceed the limit in every step, so that nobody guesses; else all guesses stand.
        `recorded`: passes of blocks are (`records`). `replicas` of a pipeline add up.
        `device_adam`: parameters a second of a device, where devices update their own weights."""
        self._sizes, self._server, self._clips = sizes, server, clips
        self._parts = server.ranks if shared_updates else 1
        self._recorded, self._replicas = recorded, replicas
        self._device_adam, self._cost = device_adam, cache(self._cost_of)
        self._slowdowns: dict[tuple[str, ...], float] = {}

    def _cost_of(self, unit: int, samples: int) -> UnitCost:
        cost = self._sizes.cost(unit, samples)
        return cost.as_recorded() if self._recorded else cost

    def seconds(self, action: Action) -> float:
        """Duration of an action with the rest of its rank idle. Recorded passes were timed one
        behind the other, so that the gaps between them are in their times."""
        server, overhead = self._server, self._server.action_overhead_s
        if self._recorded and action.kind in (Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD):
            first, end = action.span
            overhead *= self._cost(action.unit, end - first).variant(RECORDED) is None
        return overhead + self._seconds(action, server)

    def _seconds(self, action: Action, server: Server) -> float:
        first, end = action.span
        match action.kind:
            case Kind.FORWARD:
                cost = self._cost(action.unit, end - first)
                kept = keeps(action) and not checkpoints(action)
                seconds = cost.recompute_s if kept else cost.forward_s
                return server.pass_seconds(seconds)
            case Kind.RECOMPUTE:
                cost = self._cost(action.unit, end - first)
                return server.pass_seconds(cost.recompute_s)
            case Kind.BACKWARD:
                cost = self._cost(action.unit, end - first)
                cost = cost.from_checkpoint() if checkpoints(action) else cost
                return server.pass_seconds(cost.backward_s + cost.gradient_copy_s)
            case Kind.INPUT_GRAD:
                return server.pass_seconds(self._cost(action.unit, end - first).halves.seconds[0])
            case Kind.WEIGHT_GRAD:  # of the first unit, whose input has no gradient, all
                cost = self._cost(action.unit, end - first)
                half = cost.halves.seconds[1]
                return server.pass_seconds(half if action.unit else cost.backward_s)
            case Kind.LOAD | Kind.FETCH | Kind.SUM_IN:
                return action.nbytes / server.load_bytes_per_s
            case Kind.STASH | Kind.GRAD_OUT | Kind.SUM_OUT:
                return action.nbytes / server.store_bytes_per_s
            case Kind.SEND | Kind.RECV | Kind.SEND_GRAD | Kind.RECV_GRAD:
                return server.message_seconds(action.nbytes)
            case Kind.REDUCE:
                return server.sum_seconds(action.nbytes, self._replicas)
            case Kind.UPDATE if self._device_adam is not None:
                cost = self._sizes.cost(action.unit, 1)
                adam_s = cost.parameters / self._device_adam
                return server.compute_slowdown * (cost.gradient_s + adam_s)
            case Kind.UPDATE if action.turn == GUESS and self._clips:
                return 0.0
            case Kind.SETTLE if not self._clips:
                return 0.0
            case Kind.UPDATE if action.lane == VISIT:
                parameters = self._sizes.cost(action.unit, 1).parameters
                return parameters / server.device_adam_params_per_s
            case Kind.UPDATE | Kind.SETTLE:
                parameters = self._sizes.cost(action.unit, 1).parameters / self._parts
                return parameters * server.ranks / server.host_adam_params_per_s
            case Kind.NORM:
                one_rank = ADAM_BYTES * server.host_adam_params_per_s / server.ranks
                return SUM_PASSES * action.nbytes / one_rank
            case _:
                raise ValueError(f"{action.name}: a server of several devices has no cost for it")

    def slowdown(self, lane: str, busy: Iterable[str]) -> float:
        """Lanes on a processor take turns. Else weights and stashed inputs come over one link, as
        do outputs and gradients to other devices, passes of several stages of a device take turns,
        and lanes of different kinds disturb each other as on a single device: each of several has
        its part of the host's memory and cores, and of what the others take of them."""
        if self._server.cores:
            return self._server.turns(lane, busy)
        key = lane, *busy
        if key not in self._slowdowns:
            beside = sorted({*key[1:]} - {lane})  # two lanes of a link take no more of the rest
            alike = key[1:].count(lane) if lane in (H2D, NET_OUT, COMPUTE) else 0
            factor = in_the_way(self._server.slowdowns, lane, beside)
            self._slowdowns[key] = (1 + alike) * max(1.0, factor)
        return self._slowdowns[key]
