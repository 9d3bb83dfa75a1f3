"""A choice of the planner, and its program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.core.spec import RunSpec
from workbench.methods.offload.placement import Placement
from workbench.methods.offload.updates import eager_units, units_in_parts
from workbench.profile.cuda_graphs import replays
from workbench.profile.profile import Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One choice of the planner."""

    window: int
    resident: int
    pulled: int = 0
    kept: int = 0
    stash: bool = False
    hosted: bool = False
    """The host updates the embedding and the head, too."""
    on_disk: int = 0
    """The last layers, whose states live on the disk: their gradients come first and their weights
    are needed last, so they can wait for it longest."""
    eager: str = "some"
    """Updates of streamed layers that run during the backward pass: ``some`` (as many as the host
    manages), ``all`` (their gradients need little host memory then) or ``none``; so with layers
    that are pulled, too, where gradients are clipped."""
    moments_later: bool = False
    """Where a step is clipped the host updates weights first, and moments while it would be idle,
    of as many units as it then has time for."""


def placement_of(spec: RunSpec, profile: Profile, choice: Choice) -> Placement:
    """The program of a choice."""
    layers, stay = spec.model.layers, choice.resident + choice.pulled
    streamed = list(range(stay + 1, layers + 1))
    kept = frozenset(range(layers + 1 - choice.kept, layers + 1))
    if choice.kept == layers:
        kept |= {0}
    recomputed = set(range(layers + 1)) - kept
    on_disk = frozenset(streamed[max(0, len(streamed) - choice.on_disk) :])
    eager: Iterable[int] = ()
    if choice.eager == "all":
        eager = streamed
    elif choice.eager == "some":
        may = [unit for unit in streamed if unit not in on_disk]
        eager = eager_units(profile, may, recomputed)
        if spec.clip is None:
            eager |= on_disk
    later: frozenset[int] = frozenset()
    if choice.moments_later:
        on_host = {*streamed, *((0, layers + 1) if choice.hosted else ())} - on_disk
        later = units_in_parts(profile, on_host, recomputed, spec.microbatches)
    pulled, replay = frozenset(range(choice.resident + 1, stay + 1)), replays(spec, profile)
    whole = choice.resident == choice.kept == layers and not choice.hosted
    if spec.clip is not None and choice.eager != "none":
        eager = {*eager, *pulled}
    return Placement(
        method=f"stronghold w{choice.window} r{choice.resident}"
        + (f" p{choice.pulled}" if choice.pulled else "")
        + (f" k{choice.kept}" if choice.kept else "")
        + (" hosted" if choice.hosted else ""),
        resident=frozenset({*(() if choice.hosted else (0, layers + 1)), *range(1, stay + 1)}),
        pulled=pulled,
        slots=min(choice.window, len(streamed)),
        microbatches=spec.microbatches,
        kept=kept,
        stash=choice.stash,
        clipped=spec.clip is not None,
        eager=frozenset(eager),
        moments_later=later,
        on_disk=on_disk,
        host_gradient_slots=spec.options.host_workers + 1 if choice.eager == "all" else None,
        host_workers=spec.options.host_workers,
        microbatch_major=replay and whole and spec.microbatches > 1,
        replay=replay,
    )
