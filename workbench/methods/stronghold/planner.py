"""STRONGHOLD (SC'22): what stays on the device, layer by layer.

The published system slides a window of W layers over the model and promises to find the smallest
device-resident share that hides all transfers (abstract; the inequalities of its section III are
not public in its artifact, which takes W from the command line). Here the choice is made by what
the schedule will do: every candidate is proved to fit and simulated, so the conditions that the
paper writes as inequalities (loads behind forward, loads and gradients behind backward, updates
before the next load, one serial link per direction) all hold or fail in the simulated timeline,
together.

What is chosen:

* ``window``: weight slots that slide over the streamed layers, 2 to n. A load runs window - 1
  layers ahead of compute.
* ``resident``: the first layers, whose weights and optimizer states never leave the device. They
  are the ones whose gradients come last and whose weights are needed first, so they shield the
  host updates of all others. With a given window they are as many as the window, as published;
  with ``auto`` as many as the device budget holds.
* ``pulled``: the layers after them, whose weights stay on the device while their states visit it to
  be updated: where the link has room, that is work the host need not do.
* ``kept``: the last layers, which keep their activations instead of recomputing them. Resident
  layers relieve the host, kept ones relieve compute, and both take device memory: the best split
  is where neither waits for the other. They are the last ones because their activations are gone
  when the gradients of the first layers, which take memory until the norm is known, appear.
* whether the inputs of the other layers wait for the backward pass on the host.
* ``on disk``: where the host has no room, the last layers' states live on the disk, as few as
  possible.
* which host updates are eager (methods/updates.py).

Unlike the published artifact: a slot is free once compute is done, parameters are ready once
updated (two promises, not one); clean weights are never written back; updates reach every
element, with one snapshot of the learning rate, and clipping is by the global norm.
"""

from __future__ import annotations

from dataclasses import replace

from workbench.methods.evaluate import STEPS, Budgets, Candidate, as_plan, evaluate
from workbench.methods.plan import Plan
from workbench.methods.stronghold.choice import Choice, layout_of
from workbench.methods.stronghold.search import Search
from workbench.profile.profile import Profile, ProfileCosts
from workbench.runs.spec import RunSpec
from workbench.schedule.simulate import simulate

__all__ = ["CLIPPED", "Choice", "fits", "layout_of", "plan"]

CLIPPED = "step_seconds_where_clipped"


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The fastest choice within the budgets; the smallest window where times are equal."""
    budgets = Budgets.of(spec, profile, allocated=True)
    choice = Search(spec, profile, budgets).run()
    return as_plan(
        _candidate(spec, profile, budgets, choice),
        budgets,
        method="stronghold",
        window=choice.window,
        resident=choice.resident,
        whole=choice.resident == spec.model.layers,
    )


def fits(spec: RunSpec, profile: Profile) -> bool:
    """Whether any choice is within the budgets, without a search for the fastest."""
    return Search(spec, profile, Budgets.of(spec, profile, allocated=True)).fits()


def _candidate(spec: RunSpec, profile: Profile, budgets: Budgets, choice: Choice) -> Candidate:
    """The choice, checked by all rules and simulated with its events."""
    layout = layout_of(spec, profile, choice)
    settings = {
        "slots": layout.slots,
        "pulled_layers": choice.pulled,
        "kept_layers": choice.kept,
        "stashed_inputs": choice.stash,
        "eager_updates": len(layout.eager),
        "disk_layers": len(layout.on_disk),
        "host_workers": layout.host_workers,
    }
    found = evaluate(layout, profile, budgets, settings)
    if not (layout.clipped and layout.eager):
        return found
    clips = simulate(found.schedule, ProfileCosts(profile, clips=True), steps=STEPS).step_seconds
    settings[CLIPPED] = clips
    return replace(found, schedule=replace(found.schedule, settings=settings))
