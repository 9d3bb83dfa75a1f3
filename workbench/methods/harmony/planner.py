"""Plans of Harmony for a spec: its packs chosen, or pinned, on this machine's profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.core.bytesize import format_bytes
from workbench.core.division import DP, PP, packs_of
from workbench.core.spec import RunSpec
from workbench.methods.harmony import faithful
from workbench.methods.harmony.faithful import FAITHFUL
from workbench.methods.harmony.options import NO_PACKS, Options
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.problem import MicroBatchSizes, PackingProblem
from workbench.methods.harmony.search import Found, estimated_seconds, scheduled, search, settles
from workbench.methods.rank_plans import binding, check_shares
from workbench.model import make_model, units_of
from workbench.profile.budgets import Budgets
from workbench.profile.cuda_graphs import recorded_below_s
from workbench.profile.match import check_profiles
from workbench.profile.profile import Profile
from workbench.profile.server import Server, ServerCosts, records, server_of
from workbench.profile.unit_costs import ProfiledSizes, profiled_sizes
from workbench.schedule.plan import CLIPPED, DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Schedule
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel

STEPS = 3
RECORDED_TRIALS = 24
"""Schedules of recorded passes that may be found too large before others are tried."""
SOON_TRIALS, SOON_WORK = 8, 100_000
"""Schedules, and micro-batches in estimates, of a search that is to take about a second."""
LATE = 1.4
"""How many times as long as in a profile launched passes may take, where the lanes of copies and
updates share the interpreter with the one that launches (an H100, micro-batches of 4 samples)."""
PUBLISHED_RULES = (
    "micro-batches and packs are those of the published rules, at the costs of this server"
)
SOON = "packs are the best of a few: -l with this depth, without --largest, compares all"
IN_PART = (
    "all packs of so many layers, micro-batches and ranks take too long to compare: a part was, "
    "evenly spread"
)


def plan_soon(spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str) -> Plan:
    """A plan from a small part of the search: to ask how many layers fit, depth after depth.
    Raises as `plan` does, and where only plans fit that the whole search would come to late."""
    check(spec, mode)
    found = plan(spec, profiles, mode=mode, soon=True)
    searched = _pinned(spec, mode) is None and spec.options.packing != FAITHFUL
    return replace(found, notes=(*found.notes, SOON)) if searched else found


def plan(spec: RunSpec, profiles: Mapping[int, Profile], *, mode: str, soon: bool = False) -> Plan:
    """The plan of a spec, from profiles by samples in a micro-batch. Raises DoesNotFit where no
    packs keep the budgets, ValueError for pinned packs that cannot be and for profiles of another
    model."""
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
    problem = PackingProblem(
        mode=mode,
        ranks=spec.ranks,
        minibatch=spec.batch,
        device_bytes=server.device_bytes,
        host_bytes=server.host_bytes,
        clipping=None if spec.clip is None else asked.clipping,
        recorded_below_s=recorded_below_s(spec, profile),
        forward=MicroBatchSizes(
            asked=forward_size or (backward_size if model.alike else None),
            largest=limits.forward if limits else known,
        ),
        backward=MicroBatchSizes(
            asked=backward_size or (forward_size if model.alike else None),
            largest=limits.backward if limits else known,
        ),
        smallest=limits.smallest if limits else 1,
        alike=model.alike and (forward_size is None or backward_size is None),
    )
    less = problem.device_bytes - Budgets.launched(spec, profile)
    launched = replace(problem, recorded_below_s=0.0, device_bytes=less)
    pinned = _pinned(spec, mode)
    if asked.packing == FAITHFUL:
        found = faithful.choose(problem, sizes, model.num_units, server, profiles)
    elif pinned is None:
        found = _searched(spec, problem, launched, sizes, server, soon=soon)
    else:
        schedule = scheduled(pinned, problem, sizes)
        if not records(schedule):
            schedule = scheduled(pinned, launched, sizes)
        found = Found(
            packs=pinned, schedule=schedule, seconds=0.0, proved=validate(schedule), trials=0
        )
    packs = found.packs
    if model.draws_together and packs.forward_size != packs.backward_size:
        raise ValueError(
            f"forward_size is {packs.forward_size}, backward_size {packs.backward_size}, and a "
            "layer draws random numbers for a micro-batch as a whole, which a backward pass of "
            "another one would not repeat; make them equal"
        )
    recorded = records(found.schedule)
    costs = ServerCosts(sizes, server, shared_updates=mode == DP, recorded=recorded)
    simulated = simulate(found.schedule, costs, steps=STEPS)
    settings, clipped = dict(found.schedule.settings), []
    if settles(found.schedule):
        costs = ServerCosts(sizes, server, shared_updates=mode == DP, recorded=recorded, clips=True)
        settled = simulate(found.schedule, costs, steps=STEPS)
        settings[CLIPPED], clipped = settled.step_seconds, settled.events
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
        simulated=simulated.events,
        simulated_clipped=clipped,
        step_seconds=simulated.step_seconds,
        peak_bytes=peak,
        moved_bytes=found.schedule.moved_bytes(),
        binding=binding(simulated, spec.ranks),
        settings=settings,
        notes=tuple(_notes(spec, found, model, soon)),
    )


def _searched(
    spec: RunSpec,
    problem: PackingProblem,
    launched: PackingProblem,
    sizes: ProfiledSizes,
    server: Server,
    *,
    soon: bool = False,
) -> Found:
    """The fastest plan, or `soon`, in about a second, the best of few. `launched` is the problem of
    one without recorded passes. Where nobody asked for those, which work in memory of their own, it
    is such a one where they leave no room for a plan, or for none but with micro-batches so small
    that launched passes are faster, late as they are. Raises DoesNotFit."""
    asked = sizes, units_of(spec.model), server
    if soon:
        few = {"most_simulated": SOON_TRIALS, "most_work": SOON_WORK, "last_resort": False}
        return search(problem if spec.replay == "on" else launched, *asked, **few)
    if spec.replay != "auto" or problem.recorded_below_s <= 0:
        return search(problem if spec.replay == "on" else launched, *asked)
    try:
        found = search(problem, *asked, most_trials=RECORDED_TRIALS, last_resort=False)
    except DoesNotFit as error:
        if error.tier != DEVICE:
            raise
        return search(launched, *asked)
    if not records(found.schedule):
        fits = launched.device_bytes == problem.device_bytes
        return found if fits else search(launched, *asked)
    if found.seconds < LATE * estimated_seconds(launched, *asked):
        return found
    try:
        other = search(launched, *asked)
    except DoesNotFit:  # less was foreseen than they need
        return found
    return other if LATE * other.seconds < found.seconds else found


def _notes(spec: RunSpec, found: Found, model: LayeredModel, soon: bool) -> Iterator[str]:
    packs = found.packs
    if spec.options.packing == FAITHFUL:
        yield PUBLISHED_RULES
    if found.in_part and not soon:
        yield IN_PART
    if model.alike and packs.forward_size != packs.backward_size:
        why = model.couples or "samples of a user's own module may depend on each other"
        yield (
            f"micro-batches are {packs.forward_size} samples forward and {packs.backward_size} "
            f"backward, as asked, and {why}: this is not the training of other methods"
        )


def check(spec: RunSpec, mode: str) -> None:
    """Raise ValueError, before anything is measured, for what no plan can take."""
    _pinned(spec, mode)
    check_shares(spec, mode)


def rehearsal(spec: RunSpec, profile: Profile) -> Schedule:
    """A schedule of a model with 4 units a rank, to rehearse: two packs of two units for each rank,
    so that every rank has some of both directions."""
    packs = units_of(spec.model) // 2
    pinned = spec.with_(
        forward_packs=" ".join(["2"] * (packs - 1)), backward_packs=" ".join(["2"] * packs)
    )
    return plan(pinned, {profile.microbatch: profile}, mode=PP).schedule


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
    if sum(backward) != (units := units_of(spec.model)):
        raise ValueError(
            f"backward_packs {asked.backward_packs!r} hold {sum(backward)} units, the model has "
            f"{units}: {spec.model.layers} layers, the embedding and the head"
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
