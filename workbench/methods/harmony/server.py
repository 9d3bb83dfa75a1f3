"""What an action costs on a server of several equal devices that share their host.

Links run at the rates that were measured with all of them in use (profile/wires.py). The published
estimator gives each GPU one N-th of a single link whether the others copy or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from workbench.methods.harmony.draft import Sizes
from workbench.profile.profile import UnitCost, in_the_way
from workbench.schedule.action import GUESS, H2D, NET_OUT, VISIT, Action, Kind
from workbench.schedule.buffers import REPLAYS, keeps, on_rank
from workbench.schedule.schedule import Schedule

ADAM_BYTES = 26
"""That an update moves through the host's memory for a parameter (runtime/host_adam.cpp)."""
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
    compute_slowdown: float = 1.0
    """Of ranks that divide a processor which was profiled alone."""
    pass_overhead_s: float = 0.0
    """Of such ranks, whose lanes have threads on the cores that compute: of one pass of a layer."""
    action_overhead_s: float = 0.0
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    """Of lanes of one device that are busy at once, by pairs (profile.Hardware)."""
    cores: float = 0.0
    """Cores of one rank, where a processor plays the devices: its lanes take turns on them."""
    threads: Mapping[str, int] = field(default_factory=dict)
    """Threads by kind of lane, where lanes take turns; other lanes have one."""

    def message_seconds(self, nbytes: int) -> float:
        """Of one message to the next device."""
        return self.message_latency_s + nbytes / self.message_bytes_per_s

    def pass_seconds(self, alone: float) -> float:
        """Of a layer's pass that takes so long where nothing else runs."""
        return self.compute_slowdown * alone + self.pass_overhead_s

    def turns(self, lane: str, busy: Iterable[str]) -> float:
        """How many times as long work on a lane takes, as its rank's cores are shared with these
        lanes."""
        own = self.threads.get(lane, 1)
        wanted = own + sum(self.threads.get(other, 1) for other in busy)
        return max(1.0, wanted / self.cores) / max(1.0, own / self.cores)


def records(schedule: Schedule) -> bool:
    """Whether passes of blocks are recorded."""
    return any(on_rank(rank, REPLAYS) in schedule.buffers for rank in range(schedule.num_ranks))


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
    ) -> None:
        """`shared_updates`: each rank updates its share of every layer, as in DP mode. `clips`:
        gradients exceed the limit in every step, so that nobody guesses; else all guesses stand.
        `recorded`: passes of blocks are (`records`)."""
        self._sizes, self._server, self._clips = sizes, server, clips
        self._parts = server.ranks if shared_updates else 1
        self._recorded = recorded
        self._cost = cache(self._cost_of)
        self._slowdowns: dict[tuple[str, ...], float] = {}

    def _cost_of(self, unit: int, samples: int) -> UnitCost:
        cost = self._sizes.cost(unit, samples)
        return cost.as_recorded() if self._recorded else cost

    def seconds(self, action: Action) -> float:
        """Duration of an action with the rest of its rank idle."""
        server = self._server
        return server.action_overhead_s + self._seconds(action, server)

    def _seconds(self, action: Action, server: Server) -> float:
        first, end = action.span
        match action.kind:
            case Kind.FORWARD:
                cost = self._cost(action.unit, end - first)
                seconds = cost.recompute_s if keeps(action) else cost.forward_s
                return server.pass_seconds(seconds)
            case Kind.RECOMPUTE:
                cost = self._cost(action.unit, end - first)
                return server.pass_seconds(cost.recompute_s)
            case Kind.BACKWARD:
                cost = self._cost(action.unit, end - first)
                return server.pass_seconds(cost.backward_s + cost.gradient_copy_s)
            case Kind.LOAD | Kind.FETCH | Kind.SUM_IN:
                return action.nbytes / server.load_bytes_per_s
            case Kind.STASH | Kind.GRAD_OUT | Kind.SUM_OUT:
                return action.nbytes / server.store_bytes_per_s
            case Kind.SEND | Kind.RECV | Kind.SEND_GRAD | Kind.RECV_GRAD:
                return server.message_seconds(action.nbytes)
            case Kind.REDUCE:
                return action.nbytes / server.reduce_bytes_per_s
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
        do outputs and gradients to other devices, and lanes of different kinds disturb each other
        as on a single device: each of several has its part of the host's memory and cores, and of
        what the others take of them."""
        if self._server.cores:
            return self._server.turns(lane, busy)
        key = lane, *busy
        if key not in self._slowdowns:
            beside = sorted({*key[1:]} - {lane})  # two lanes of a link take no more of the rest
            alike = key[1:].count(lane) if lane in (H2D, NET_OUT) else 0
            factor = in_the_way(self._server.slowdowns, lane, beside)
            self._slowdowns[key] = (1 + alike) * max(1.0, factor)
        return self._slowdowns[key]
