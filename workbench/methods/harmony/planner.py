"""Plans of Harmony for a spec: its packs chosen, or pinned, on this machine's profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.core.bytesize import format_bytes
from workbench.core.spec import RunSpec
from workbench.methods.evaluate import Budgets
from workbench.methods.harmony import faithful
from workbench.methods.harmony.faithful import FAITHFUL
from workbench.methods.harmony.options import NO_PACKS, Options
from workbench.methods.harmony.packs import DP, Packs, packs_of
from workbench.methods.harmony.room import Setting
from workbench.methods.harmony.search import Found, outlook, scheduled, search, settles
from workbench.methods.harmony.server import Server, ServerCosts, records
from workbench.methods.harmony.sizes import ProfiledSizes
from workbench.methods.options import check_visits
from workbench.methods.replays import recorded_below_s
from workbench.profile.match import check_profiles
from workbench.profile.profile import Hardware, Profile, all_at_once
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST, NET_IN, NET_OUT
from workbench.schedule.graph import unroll
from workbench.schedule.plan import CLIPPED, DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER
from workbench.schedule.simulate import Simulation, simulate, step_seconds
from workbench.schedule.validate import validate

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel

STEPS = 3
RECORDED_TRIALS = 24
"""Schedules of recorded passes that may be found too large before others are tried."""
LATE = 1.4
"""How many times as long as in a profile launched passes may take, where the lanes of copies and
updates share the interpreter with the one that launches (an H100, micro-batches of 4 samples)."""
PUBLISHED_RULES = (
    "micro-batches and packs are those of the published rules, at the costs of this server"
)
IN_PART = (
    "all packs of so many layers, micro-batches and ranks take too long to compare: a part was, "
    "evenly spread"
)
LANES = {
    COMPUTE: "compute",
    H2D: "the link to the device",
    D2H: "the link to the host",
    HOST: "the host optimizer",
    NET_OUT: "messages between devices",
    NET_IN: "messages between devices",
}


def plan(spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str) -> Plan:
    """The plan of a spec, from profiles by samples in a micro-batch. Raises DoesNotFit where no
    packs keep the budgets, ValueError for pinned packs that cannot be and for profiles of another
    model."""
    from workbench.model import make_model

    model = make_model(spec.model)
    check_profiles(profiles, spec, model)
    profile = profiles[min(profiles)]
    sizes = profiled_sizes(model, spec, profiles)
    server = server_of(profile, spec)
    limits, known = profile.limits, max(profiles) if len(profiles) > 1 else None
    asked: Options = spec.options
    forward_size, backward_size = (
        None if size == "auto" else size for size in (asked.forward_size, asked.backward_size)
    )
    setting = Setting(
        mode=mode,
        ranks=spec.ranks,
        minibatch=spec.batch,
        device_bytes=server.device_bytes,
        host_bytes=server.host_bytes,
        clipped=spec.clip is not None,
        guesses=asked.clipping != "wait",
        sure=asked.clipping == "speculate",
        recorded_below_s=recorded_below_s(spec, profile.hardware),
        forward_size=forward_size or (backward_size if model.alike else None),
        backward_size=backward_size or (forward_size if model.alike else None),
        largest_forward=limits.forward if limits else known,
        largest_backward=limits.backward if limits else known,
        smallest=limits.smallest if limits else 1,
        alike=model.alike and (forward_size is None or backward_size is None),
    )
    less = setting.device_bytes - Budgets.launched(spec, profile)
    launched = replace(setting, recorded_below_s=0.0, device_bytes=less)
    pinned = _pinned(spec, mode)
    if asked.packing == FAITHFUL:
        found = faithful.choose(setting, sizes, spec.model.units, server, profiles)
    elif pinned is None:
        found = _searched(spec, setting, launched, sizes, server)
    else:
        schedule = scheduled(pinned, setting, sizes)
        if not records(schedule):
            schedule = scheduled(pinned, launched, sizes)
        found = Found(
            packs=pinned, schedule=schedule, seconds=0.0, proved=validate(schedule), trials=0
        )
    told = {"shared_updates": mode == DP, "recorded": records(found.schedule)}
    costs = ServerCosts(sizes, server, **told)
    simulated = simulate(found.schedule, costs, steps=STEPS)
    settings = dict(found.schedule.settings)
    if settles(found.schedule):
        clips = ServerCosts(sizes, server, **told, clips=True)
        settings[CLIPPED] = step_seconds(unroll(found.schedule, STEPS), clips)
    peak = {
        DEVICE: max(peaks[DEVICE] for peaks in found.proved.peak_bytes.values()),
        HOST_TIER: found.schedule.mapped_bytes,
        DISK: 0,
    }
    budgets = Budgets(device=server.device_bytes, host=server.host_bytes)
    if tier := budgets.lacking(peak):
        there = budgets.to_dict()[tier]
        raise DoesNotFit(
            f"{format_bytes(peak[tier])} of {tier} memory are needed, {format_bytes(there)} are "
            "there",
            tier=tier,
        )
    return Plan(
        method=f"harmony-{mode}",
        fits=True,
        schedule=found.schedule,
        step_seconds=simulated.step_seconds,
        peak_bytes=peak,
        moved_bytes=found.schedule.moved_bytes(),
        binding=binding(simulated, spec.ranks),
        settings=settings,
        notes=tuple(_notes(spec, found, model)),
    )


def _searched(
    spec: RunSpec, setting: Setting, launched: Setting, sizes: ProfiledSizes, server: Server
) -> Found:
    """The fastest plan; `launched` is the setting of one without recorded passes. Where nobody
    asked for those, which work in memory of their own, it is such a one where they leave no room
    for a plan, or for none but with micro-batches so small that launched passes are faster, late as
    they are. Raises DoesNotFit."""
    asked = sizes, spec.model.units, server
    if spec.replay != "auto" or setting.recorded_below_s <= 0:
        return search(setting if spec.replay == "on" else launched, *asked)
    try:
        found = search(setting, *asked, most_trials=RECORDED_TRIALS, last_resort=False)
    except DoesNotFit as error:
        if error.tier != DEVICE:
            raise
        return search(launched, *asked)
    if not records(found.schedule):
        fits = launched.device_bytes == setting.device_bytes
        return found if fits else search(launched, *asked)
    if found.seconds < LATE * outlook(launched, *asked):
        return found
    try:
        other = search(launched, *asked)
    except DoesNotFit:  # less was foreseen than they need
        return found
    return other if LATE * other.seconds < found.seconds else found


def _notes(spec: RunSpec, found: Found, model: LayeredModel) -> Iterator[str]:
    packs = found.packs
    if spec.options.packing == FAITHFUL:
        yield PUBLISHED_RULES
    if found.in_part:
        yield IN_PART
    if model.alike and packs.forward_size != packs.backward_size:
        why = model.couples or "samples of a user's own module may depend on each other"
        yield (
            f"micro-batches are {packs.forward_size} samples forward and {packs.backward_size} "
            f"backward, as asked, and {why}: this is not the training of other methods"
        )


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
        rates = {name: getattr(wires, name) for name in rates}
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


def _slowdowns(hardware: Hardware, ranks: int, rates: Mapping[str, float]) -> dict[str, float]:
    """Of lanes of one of several devices, of which a single one was measured: updates on the host
    meet the transfers of all of them, at these rates."""
    full = hardware.h2d_bytes_per_s + hardware.d2h_bytes_per_s
    times = ranks * (rates["load_bytes_per_s"] + rates["store_bytes_per_s"]) / full
    found = dict(hardware.slowdowns)
    for pair in (f"{HOST}|{H2D}", f"{HOST}|{D2H}", all_at_once(HOST)):
        if pair in found:
            found[pair] = 1 + times * (found[pair] - 1)
    return found


def profiled_sizes(
    model: LayeredModel, spec: RunSpec, profiles: Mapping[int, Profile]
) -> ProfiledSizes:
    """What the layers of the spec's model need. Raises ValueError as `borrowed` does.

    Where a decoder was measured, its first unit and its head were run as the engine of a single
    device runs them (profile/bench.py): gradients go to slabs one by one, and the largest is in
    their scratch, or was made by the loss. Here all are there at once.
    """
    from workbench.methods.train import DTYPES
    from workbench.runtime.bundle import Boundary

    profile, tied, fresh = profiles[min(profiles)], borrowed(model), {}
    if profile.hardware.source == "measured" and not spec.model.decomposed:
        for unit in (0, model.head):
            numels = [shape.numel() for shape in model.shapes(unit).values()]
            numels += [tied[unit][1]] if unit in tied else []
            fresh[unit] = (sum(numels) - max(numels)) * profile.weight_bytes
    constant = {
        unit: Boundary(model.boundary(unit, spec.model.seq), DTYPES[spec.dtype]).nbytes(0)
        for unit in range(1, model.num_units)
    }
    return ProfiledSizes(profiles, tied=tied, fresh=fresh, constant=constant)


def borrowed(model: LayeredModel) -> dict[int, tuple[int, int]]:
    """Unit -> (owner, parameters) of what it borrows. Raises ValueError for a unit that borrows of
    several."""
    found: dict[int, tuple[int, int]] = {}
    for (unit, _), (owner, lent) in model.tied().items():
        before, parameters = found.get(unit, (owner, 0))
        if owner == unit:  # one parameter under two names of one unit
            continue
        if before != owner:
            raise ValueError(
                f"unit {unit} borrows parameters of units {before} and {owner}; one owner a unit "
                "is what can be planned"
            )
        found[unit] = (owner, parameters + model.shapes(owner)[lent].numel())
    return found


def check(spec: RunSpec, mode: str) -> None:
    """Raise ValueError, before anything is measured, for what no plan can take."""
    check_visits(spec)
    _pinned(spec, mode)
    check_shares(spec, mode)


def check_shares(spec: RunSpec, mode: str) -> None:
    """Raise ValueError where a rank would have no samples, or no layers."""
    if mode == DP and spec.batch < spec.ranks:
        raise ValueError(
            f"a batch of {spec.batch} samples leaves some of {spec.ranks} ranks without any; "
            "give at least one for each, or use fewer ranks"
        )
    if mode != DP and spec.model.units < spec.ranks:
        raise ValueError(
            f"ranks is {spec.ranks}; the model has {spec.model.units} units (layers, embedding and "
            f"head), so at most {spec.model.units} ranks have any"
        )


def _pinned(spec: RunSpec, mode: str) -> Packs | None:
    """The packs a spec names; None where it leaves them to a search."""
    asked: Options = spec.options
    words = (asked.forward_packs, asked.backward_packs)
    if asked.packing == FAITHFUL:
        pins = (asked.forward_size, asked.backward_size, *words)
        if pins != ("auto",) * 4:
            raise ValueError(
                "packing faithful chooses forward_size, backward_size, forward_packs and "
                f"backward_packs; they are {', '.join(map(str, pins))}, and must all be auto"
            )
        return None
    if words == ("auto", "auto"):
        return None
    if "auto" in words or "auto" in (asked.forward_size, asked.backward_size):
        together = ("forward_packs", "backward_packs", "forward_size", "backward_size")
        left = [name for name in together if getattr(asked, name) == "auto"]
        given = [f"{name} {getattr(asked, name)!r}" for name in together if name not in left]
        raise ValueError(
            f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} given without "
            f"{', '.join(left)}; packs are pinned together with both sizes: give all four, or "
            "leave the packs at auto"
        )
    forward, backward = ([int(word) for word in text.split()] for text in words)
    if sum(backward) != spec.model.units:
        raise ValueError(
            f"backward_packs {asked.backward_packs!r} hold {sum(backward)} units, the model has "
            f"{spec.model.units}: {spec.model.layers} layers, the embedding and the head"
        )
    if sum(forward) != sum(backward[:-1]):
        raise ValueError(
            f"forward_packs {asked.forward_packs or NO_PACKS!r} hold {sum(forward)} units; they "
            f"should hold {sum(backward[:-1])}, all before the last pack of backward_packs "
            f"{asked.backward_packs!r}"
        )
    return Packs(
        mode=mode,
        ranks=spec.ranks,
        minibatch=spec.batch,
        forward_size=asked.forward_size,
        backward_size=asked.backward_size,
        forward=packs_of(forward),
        backward=packs_of(backward),
    )


def binding(simulated: Simulation, ranks: int) -> str:
    """The lane that is busiest on any rank, in words."""
    seconds = simulated.step_seconds
    busy = {
        (rank, lane): simulated.busy_seconds(lane, rank) for rank in range(ranks) for lane in LANES
    }
    (rank, lane), most = max(busy.items(), key=lambda item: item[1])
    return f"{LANES[lane]} of rank {rank}: busy {most / seconds:.0%} of a step of {seconds:.4g} s"
