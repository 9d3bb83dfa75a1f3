"""Questions before running: does it fit, with which method and settings, how fast, and what binds?

Nothing trains and nothing is measured here, but by `measure`. Answers are for this machine: memory
is its own; times come from its stored profile where there is one, else they are estimated from what
is known of it (published/machines.py), or left out. Another machine is asked for by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf

from workbench.core import methods
from workbench.core.bytesize import format_bytes
from workbench.core.record import Predicted
from workbench.core.spec import AUTO, RunSpec
from workbench.profile.dividing import best_division, divisions, spares
from workbench.profile.machine import USABLE
from workbench.profile.profile import Hardware, Profile
from workbench.published import FOLDER as PUBLISHED
from workbench.runs import device_locks
from workbench.runs.answer import Answer
from workbench.runs.resolve import check_method, resolve, settled
from workbench.runs.store import Store
from workbench.schedule.plan import CLIPPED, DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER

EXAMINED_S = 0.1
"""Length of one timing where a plan measures the machine."""
DISK_ALONE = (
    "this machine's disk was not measured beside other work, and times are as if neither slowed "
    "the other; a run with a disk, or `workbench plan --measure`, measures it"
)
LEAST_BYTES = 12
"""Bytes of a parameter that training keeps somewhere, whatever the method and dtype."""


def answer(
    spec: RunSpec, store: Store, *, machine: str | None = None, soon: bool = False,
    rough: bool = False,
) -> Answer:  # fmt: skip
    """The plan of the spec's method; `fits` is False where nothing fits. Raises ValueError.

    `machine` names another one, or its file; None is this machine. `soon`: by a part of a search
    that takes a while. `rough`: as soon as plans can be compared, if not trained under. An open
    number of micro-batches is chosen by rough plans.
    """
    if spec.microbatches == AUTO:
        here = partial(answer, store=store, machine=machine, soon=soon)
        best = best_division(spec, partial(here, rough=True))
        return replace(here(best.spec, rough=rough), chosen=True)
    check_method(spec, gpus=machine is None)
    spec = settled(spec, store.root)
    module = methods.load(spec.method)
    if hasattr(module, "foreseen"):  # by costs of its own
        plan, parameters, devices = module.foreseen(spec, store.root, PUBLISHED)
        if machine is not None:
            raise ValueError(f"machine is {machine!r}; {spec.method} has profiles of {devices} "
                             "alone, leave it out")  # fmt: skip
        return Answer(
            plan=plan, spec=spec, hardware=devices, source="published", here=False,
            parameters=parameters,
        )  # fmt: skip
    heard: list[str] = []
    profiles = choose_profiles(spec, store, machine, heard.append)
    return _by_profiles(spec, profiles, heard, soon=soon, rough=rough)


def promised(spec: RunSpec, store: Store, known: RunSpec) -> Answer | None:
    """A rough plan of the spec in smaller micro-batches than those of `known`, by what was measured
    of these, in proportion. None where that is not stored, and where the spec's own is: that
    answers as soon. None of a method that plans from other costs. Raises ValueError."""
    from workbench.profile.several import scaled
    from workbench.profile.store import stored_profile

    module, found = methods.load(spec.method), stored_profile(known, store.root)
    others = hasattr(module, "foreseen") or hasattr(module, "plan_sizes")
    if others or found is None or stored_profile(spec, store.root) is not None:
        return None
    check_method(spec)
    spec = settled(spec, store.root)
    profiles = {spec.microbatch: scaled(found, spec.microbatch)}
    return _by_profiles(spec, profiles, [], soon=False, rough=True)


def _by_profiles(
    spec: RunSpec, profiles: Mapping[int, Profile], heard: Iterable[str], *, soon: bool, rough: bool
) -> Answer:
    """The plan from profiles by samples in a micro-batch, with notes that were `heard`."""
    profile = profiles[min(profiles)]
    hardware = profile.hardware
    possible = on_machine(spec, hardware)
    try:
        check_room(possible, profile)
        plan = plan_from(possible, profiles, soon=soon, rough=rough)
    except DoesNotFit as refusal:
        plan = Plan(
            method=spec.method,
            fits=False,
            schedule=None,
            step_seconds=None,
            peak_bytes={},
            moved_bytes={},
            binding=str(refusal),
            lacking=refusal.tier,
        )
    if not plan.fits and plan.lacking in (DEVICE, HOST_TIER):
        name = f"{plan.lacking}_memory"
        if getattr(possible, name) != getattr(spec, name):
            plan = replace(plan, binding=f"{plan.binding}, all that this machine has")
    notes = dict.fromkeys((*plan.notes, *heard))
    if spec.may_use_disk and hardware.here and hardware.slowdowns and not hardware.knows_disk:
        notes[DISK_ALONE] = None
    plan = replace(plan, notes=tuple(notes), spread=hardware.spread)
    return Answer(
        plan=checked_against(plan, hardware, spec.ranks),
        spec=spec,
        hardware=hardware.name,
        source=hardware.source,
        here=hardware.here,
        parameters=sum(unit.parameters for unit in profile.units),
        basis="" if hardware.source == "measured" else profile.note,
        spares=spares(
            plan, spec.device_memory or hardware.device_bytes, measured=bool(profile.origin)
        ),
    )


def check_room(spec: RunSpec, profile: Profile) -> None:
    """Raise DoesNotFit where all tiers together cannot hold the weights in fp32 and their moments,
    which every method keeps: schedules of a hopeless depth take long to build."""
    hardware, tier = profile.hardware, getattr(spec.options, "optimizer_tier", HOST_TIER)
    devices = spec.ranks if spec.device_memory or hardware.device == "cuda" else 1
    room = devices * (spec.device_memory or hardware.device_bytes)
    room += (spec.host_memory or hardware.host_bytes) + (spec.disk_memory or 0)
    needs = LEAST_BYTES * sum(unit.parameters for unit in profile.units)
    if needs > room and (tier != DISK or spec.disk_memory):
        raise DoesNotFit(
            f"weights and optimizer states need {format_bytes(needs)}, all memory that there is "
            f"holds {format_bytes(room)}",
            tier=HOST_TIER,
        )


def on_machine(spec: RunSpec, hardware: Hardware) -> RunSpec:
    """The spec with budgets that this machine has: nobody can use more than it has in all."""
    has = [int(n / USABLE) for n in (hardware.device_bytes, hardware.host_bytes)]
    if hardware.device == "cpu":  # one memory, of which the budgets are shares
        has = [sum(has)] * 2
    most = zip(("device_memory", "host_memory"), has, strict=True)
    over = {name: nbytes for name, nbytes in most if (getattr(spec, name) or 0) > nbytes}
    return replace(spec, **over) if hardware.here and over else spec


def one_memory(spec: RunSpec, hardware: Hardware) -> int:
    """Bytes of the one memory that a processor's device and host share, where the spec's budgets do
    not divide it between them: one is missing, or together they are more; else 0."""
    if not (hardware.here and hardware.device == "cpu"):
        return 0
    shared = hardware.device_bytes + hardware.host_bytes
    budgets = (spec.device_memory, spec.host_memory)
    divided = None not in budgets and spec.ranks * budgets[0] + budgets[1] <= shared
    return 0 if divided else shared


def checked_against(plan: Plan, hardware: Hardware, ranks: int) -> Plan:
    """The plan where the hardware bears it out; else refused, where this machine's one memory
    cannot hold all tiers, or without its times, where they are not this machine's."""
    has = (hardware.device_bytes + hardware.host_bytes) / USABLE
    needs = ranks * plan.peak_bytes.get(DEVICE, 0) + plan.peak_bytes.get(HOST_TIER, 0)
    if plan.fits and hardware.here and hardware.device == "cpu" and needs > has:
        words = f"device and host need {format_bytes(needs)}, this machine has {format_bytes(has)}"
        plan = replace(plan, fits=False, lacking=HOST_TIER, binding=f"host memory: {words}")
    if hardware.source != "unmeasured":
        return plan
    settings = {name: value for name, value in plan.settings.items() if name != CLIPPED}
    binding = "what its times would tell" if plan.fits else plan.binding
    return replace(plan, step_seconds=None, settings=settings, binding=binding, candidates=())


def library_prediction(spec: RunSpec, store: Store, norms: Iterable[float | None]) -> Predicted:
    """Prediction of a run whose library plans for itself and left none: our model of its schedule
    with this machine's costs; `norms` are those of the steps. Empty where costs were not measured.
    """
    from workbench.profile.store import stored_profile

    with suppress(ValueError):
        if stored_profile(spec, store.root) and (plan := answer(spec, store).plan).step_seconds:
            how = "our model of the library's schedule, simulated"
            return {"how": how, **plan.predicted(norms, spec.clip)}
    return {}


def examine(specs: list[RunSpec], store: Store, echo: Callable[[str], object]) -> None:
    """Measure this machine's rates where plans would have no times without them, some 10 s; `echo`
    hears so, or why it cannot be done now."""
    from workbench.profile.store import ceilings
    from workbench.profile.timing import brief
    from workbench.published import machines

    if brief() or machines.here(specs[0].device, store.root).hardware.source != "unmeasured":
        return
    echo("this machine is not known yet: it is measured, once, for some 10 s (--no-measure: not)")

    how = {"seconds": EXAMINED_S, "disk": any(spec.may_use_disk for spec in specs)}
    try:
        measure(specs[:1], store, echo, lambda s, to, _: ceilings(to, s.device, **how))
    except ValueError as error:
        echo(f"it is not measured, so no times are told: {error}")


def measure(
    specs: list[RunSpec],
    store: Store,
    echo: Callable[[str], object],
    timing: Callable[..., object] | None = None,
) -> None:
    """Time on this machine what plans of these specs are made from, as their runs would, or by
    `timing`; what is stored and holds is not timed again. A spec that cannot be is left to `answer`
    to refuse.

    Raises ValueError while another run holds the device.
    """
    from workbench.profile.store import profile_for  # imports torch, when it measures

    for spec in specs:
        try:
            spec = resolve(spec, store.root)
        except ValueError:
            continue
        among = device_locks.lockable_devices(spec.device)
        held = device_locks.take(among, 1, "workbench plan --measure")
        if held is None:
            raise ValueError(
                f"{device_locks.holder(among[0])} holds {among[0].name}, and both would be "
                "slower: measure when that has ended, or plan without --measure"
            )
        os.environ.update(held.environment)
        try:
            timed = timing or getattr(methods.load(spec.method), "measure", profile_for)
            timed(spec, store.root, echo)
        except (ValueError, RuntimeError) as error:  # out of memory, too, is one
            echo(f"layers of {spec.method} are not measured: {' '.join(str(error).split())}")
        finally:
            held.release()


def plan_from(
    spec: RunSpec, profiles: Mapping[int, Profile], *, soon: bool = False, rough: bool = False
) -> Plan:
    """The plan of the spec's method from profiles by samples in a micro-batch; its notes say where
    a run would have more of them. `soon` and `rough` as in `answer`. Raises ValueError, DoesNotFit
    where nothing fits."""
    from workbench.profile.several import in_proportion

    module = methods.load(spec.method)
    if not hasattr(module, "plan_sizes"):
        (profile,) = profiles.values()
        rough = rough and hasattr(module, "plan_roughly")
        return (module.plan_roughly if rough else module.plan)(spec, profile)
    soon = soon and hasattr(module, "plan_soon")
    plan = (module.plan_soon if soon else module.plan_sizes)(spec, profiles)
    note = in_proportion(spec, profiles)
    return replace(plan, notes=(*plan.notes, note)) if note else plan


def fits(spec: RunSpec, store: Store, machine: str | None = None, *, soon: bool = False) -> bool:
    """Whether the spec's method has a plan within the budgets; `soon` as in `answer`. Raises
    ValueError."""
    if spec.microbatches == AUTO:  # the smallest ones need the least
        return any(fits(each, store, machine, soon=soon) for each in reversed(divisions(spec)))
    module = methods.load(spec.method)
    if hasattr(module, "fits"):
        profiles = choose_profiles(spec, store, machine, lambda text: None)
        profile = profiles[min(profiles)]  # of the smallest micro-batch, which needs the least
        fitting = module.fits(on_machine(spec, profile.hardware), profile)
        if not fitting or not one_memory(spec, profile.hardware):
            return fitting  # else one memory holds both tiers, so the plan that a run makes tells
    return answer(spec, store, machine=machine, soon=soon).plan.fits


def choose_profiles(
    spec: RunSpec, store: Store, machine: str | None, echo: Callable[[str], object]
) -> dict[int, Profile]:
    """By samples in a micro-batch: `stored_sizes`, else the one of `choose_profile`."""
    found = stored_sizes(spec, store) if machine is None else {}
    return found or {spec.microbatch: choose_profile(spec, store, machine, echo)}


def stored_sizes(spec: RunSpec, store: Store) -> dict[int, Profile]:
    """Stored profiles of this machine that a run would take, for a method that chooses its own
    micro-batches; none of another method."""
    from workbench.profile.several import stored_profiles

    several = hasattr(methods.load(spec.method), "plan_sizes")
    return stored_profiles(spec, store.root) if several else {}


def choose_profile(
    spec: RunSpec,
    store: Store,
    machine: str | None,
    echo: Callable[[str], object] = lambda text: None,
) -> Profile:
    """The profile of the spec's model on a machine; None is this one, as it was measured, in
    proportion to what was measured of other micro-batches or, where nothing was, as far as it is
    known. `echo` hears why a measurement that is stored is not used, and of a proportion."""
    from workbench.profile.several import nearest_profile
    from workbench.profile.store import stored_profile
    from workbench.published import machines
    from workbench.published.hardware import profile_on

    if machine is None:
        if (found := stored_profile(spec, store.root, echo)) is not None:
            return found
        if (found := nearest_profile(spec, store.root)) is not None:
            echo(found.note)
            return found
    on = machines.find(machine, store.root) if machine else machines.here(spec.device, store.root)
    how = "off" if methods.find(spec.method).needs == "deepspeed" else spec.compile
    found = profile_on(on, spec.model, spec.microbatch, spec.dtype, how)
    return found.with_link(spec.link_bytes_per_s)


def rank(plan: Plan) -> tuple[float, float]:
    """The faster plan first; of those without times, the one that moves fewer bytes."""
    seconds = plan.step_seconds
    return inf if seconds is None else seconds, sum(plan.moved_bytes.values())
