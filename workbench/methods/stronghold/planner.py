"""STRONGHOLD (SC'22): how many layers to keep on the device, and which.

The published system slides a window of W layers over the model and promises to find the smallest
device-resident share that hides all transfers (abstract; the inequalities of its section III are
not public in its artifact, which takes W from the command line). Here the choice is made by what
the schedule will do: every candidate is proved to fit and simulated, so the conditions that the
paper writes as inequalities (loads behind forward, loads and gradients behind backward, updates
before the next load, one serial link per direction) all hold or fail in the simulated timeline,
together.

Two numbers are chosen:

* ``window``: weight slots that slide over the streamed layers, 2 to n. A load runs window - 1
  layers ahead of compute.
* ``resident``: the first layers, whose weights and optimizer states never leave the device. They
  are the ones whose gradients come last and whose weights are needed first, so they shield the
  host updates of all others. With a given window they are as many as the window, as published;
  with ``auto`` as many as the device budget holds.

Unlike the published artifact: a slot is free once compute is done, parameters are ready once
updated (two promises, not one); clean weights are never written back; updates reach every
element, with one snapshot of the learning rate, and clipping is by the global norm.
"""

from __future__ import annotations

from workbench.methods.draft import Layout
from workbench.methods.evaluate import (
    Budgets,
    Candidate,
    as_plan,
    evaluate,
    largest,
    proved_peak,
)
from workbench.methods.plan import Plan
from workbench.profile.profile import Profile
from workbench.runs.spec import RunSpec
from workbench.schedule.schedule import DEVICE

TOLERANCE = 0.01
"""A smaller window is preferred when it costs no more than this share of the step time."""


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The fastest window and residency within the budgets; the smallest one where times are
    equal.
    """
    budgets = Budgets.of(spec, profile)
    layers = spec.model.layers
    candidates = []
    for window in _windows(spec, layers):
        resident = _residency(spec, profile, budgets, window)
        layout = layout_of(spec, window, resident)
        candidates.append((window, resident, evaluate(layout, profile, budgets, _settings(layout))))
        if resident == layers:  # nothing is streamed: every larger window is the same plan
            break
    fitting = [c for c in candidates if budgets.lacking(c[2].peak) is None]
    window, resident, best = _choose(fitting or candidates, fits=bool(fitting))
    return as_plan(
        best,
        budgets,
        method="stronghold",
        window=window,
        resident=resident,
        whole=resident == layers,
    )


def layout_of(spec: RunSpec, window: int, resident: int) -> Layout:
    """The program of a window and a number of resident first layers."""
    layers = spec.model.layers
    return Layout(
        method=f"stronghold w{window} r{resident}",
        resident=frozenset({0, layers + 1, *range(1, resident + 1)}),
        slots=min(window, layers - resident),
        microbatches=spec.microbatches,
        activations=spec.activations,
        deferred=spec.clip is not None,
        optimizer_tier=spec.optimizer_tier,
        host_workers=spec.host_workers,
    )


def _windows(spec: RunSpec, layers: int) -> list[int]:
    """Windows to try: the given one, or a grid that grows by about a third."""
    if spec.window != "auto":
        return [min(spec.window, layers)]
    windows, window = [], min(2, layers)
    while window < layers:
        windows.append(window)
        window = max(window + 1, window * 4 // 3)
    return [*windows, layers]


def _residency(spec: RunSpec, profile: Profile, budgets: Budgets, window: int) -> int:
    """How many first layers stay: as asked, else as many as fit (up to the window if that is
    given).
    """
    layers = spec.model.layers
    if spec.resident != "auto":
        return spec.resident
    most = layers if spec.window == "auto" else min(window, layers)

    def fits(resident: int) -> bool:
        # The device only: each more resident layer costs it memory and relieves the host.
        peak = proved_peak(layout_of(spec, window, resident), profile)
        return peak[DEVICE] <= budgets.device

    if fits(most):
        return most
    return largest(0, most, fits) or 0


def _choose(
    candidates: list[tuple[int, int, Candidate]], *, fits: bool
) -> tuple[int, int, Candidate]:
    """The smallest window among the fastest; where nothing fits, the smallest layout."""
    if not fits:
        return min(candidates, key=lambda c: sum(c[2].peak.values()))
    fastest = min(c[2].step_seconds for c in candidates)
    return next(c for c in candidates if c[2].step_seconds <= fastest * (1 + TOLERANCE))


def _settings(layout: Layout) -> dict:
    return {
        "slots": layout.slots,
        "deferred_updates": layout.deferred,
        "activations": layout.activations,
        "optimizer_tier": layout.optimizer_tier,
        "host_workers": layout.host_workers,
    }
