"""Schedules broken, or changed, in one way."""

from dataclasses import replace

from tests.unit.schedule.window import WEIGHT
from workbench.schedule.action import Action, Kind
from workbench.schedule.schedule import HOST_TIER, Buffer
from workbench.schedule.validate import validate


def edit(schedule, name, **changes):
    """The schedule with one action's fields changed."""
    assert name in schedule.by_name
    actions = [replace(a, **changes) if a.name == name else a for a in schedule.actions]
    return replace(schedule, actions=tuple(actions))


def forget(schedule, name, dependency):
    """The schedule with one dependency less."""
    after = schedule.by_name[name].after
    assert dependency in after
    return edit(schedule, name, after=tuple(d for d in after if d != dependency))


def remove(schedule, *names):
    """The schedule without some actions and without the references to them."""
    assert all(name in schedule.by_name for name in names)
    actions = [
        replace(a, after=tuple(d for d in a.after if d.partition("@")[0] not in names))
        for a in schedule.actions
        if a.name not in names
    ]
    return replace(schedule, actions=tuple(actions))


def swap(schedule, first, second):
    """The schedule with two actions in each other's place."""
    places = {first: schedule.by_name[second], second: schedule.by_name[first]}
    return replace(schedule, actions=tuple(places.get(a.name, a) for a in schedule.actions))


def insert(schedule, action, *, after):
    """The schedule with one more action, right behind another in the list."""
    at = [a.name for a in schedule.actions].index(after) + 1
    actions = schedule.actions
    return replace(schedule, actions=(*actions[:at], action, *actions[at:]))


def add(schedule, kind, unit, lane, *, behind, **fields):
    return insert(schedule, Action(kind=kind, unit=unit, lane=lane, **fields), after=behind)


def rename(schedule, name, **changes):
    """One action becomes another, and references to it follow."""
    new = replace(schedule.by_name[name], **changes).name
    actions = [
        replace(a, after=tuple(new if d == name else d for d in a.after))
        for a in edit(schedule, name, **changes).actions
    ]
    return replace(schedule, actions=tuple(actions))


def rebuffer(schedule, name, **changes):
    changed = replace(schedule.buffers[name], **changes)
    return replace(schedule, buffers={**schedule.buffers, name: changed})


def split(schedule, *kinds):
    """B1.0 becomes its halves, or one of them; B0.0 then waits for the first."""
    backward = schedule.by_name["B1.0"]
    halves = [
        replace(
            backward,
            kind=kind,
            takes=backward.takes if kind is kinds[0] else (),
            uses=(*backward.uses, *backward.frees[:-1]),
            frees=backward.frees if kind is kinds[-1] else (),
        )
        for kind in kinds
    ]
    heirs = {"B0.0": halves[0].name}
    actions = []
    for a in schedule.actions:
        heir = heirs.get(a.name, halves[-1].name)
        after = tuple(heir if d == "B1.0" else d for d in a.after)
        actions += halves if a.name == "B1.0" else [replace(a, after=after)]
    return replace(schedule, actions=tuple(actions))


def free_early(schedule, buffer, by, instead):
    """`instead` frees a buffer that `by` used to free, and still uses."""
    action, early = schedule.by_name[by], schedule.by_name[instead]
    frees = tuple(name for name in action.frees if name != buffer)
    schedule = edit(schedule, by, frees=frees, uses=(*action.uses, buffer))
    uses = tuple(name for name in early.uses if name != buffer)
    return edit(schedule, instead, uses=uses, frees=(*early.frees, buffer))


def take_late(schedule, buffer, by, instead):
    """`instead` takes a buffer that `by` used to take."""
    action, late = schedule.by_name[by], schedule.by_name[instead]
    takes = tuple(name for name in action.takes if name != buffer)
    return edit(edit(schedule, by, takes=takes), instead, takes=(*late.takes, buffer))


def nobody_waits_for(schedule):
    """A buffer is freed by an action that may lag behind by any number of steps."""
    backward = schedule.by_name["B3.0"]
    schedule = edit(schedule, "B3.0", takes=(*backward.takes, "q"))
    buffers = {**schedule.buffers, "q": Buffer(tier=HOST_TIER, nbytes=1)}
    return add(
        replace(schedule, buffers=buffers),
        Kind.REDUCE,
        3,
        "net-out",
        behind="B3.0",
        after=("B3.0",),
        frees=("q",),
    )


def peak(schedule, tier):
    return validate(schedule).peak_bytes[0][tier]


def moved_update(schedule):
    """Unit 0 is updated on the device, right behind its backward pass."""
    schedule = edit(schedule, "U0", lane="compute", after=(), frees=())
    return edit(schedule, "G0", frees=("g0", "hg0"))


def written_back(schedule):
    """Unit 0 is updated on the device and evicted before its next load."""
    schedule = add(
        moved_update(schedule), Kind.EVICT, 0, "d2h", after=("U0",), nbytes=WEIGHT, behind="U0"
    )
    return edit(schedule, "L0", after=("E0@-1",))
