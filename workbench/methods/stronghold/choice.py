"""A choice of the planner, and its program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.core.spec import RunSpec
from workbench.methods.offload.placement import Placement
from workbench.methods.offload.updates import eager_units, later_units
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
    """As many of the streamed layers as the backward pass has time for have their weights updated
    first, and their moments beside that pass."""


def placement_of(spec: RunSpec, profile: Profile, choice: Choice) -> Placement:
    """The program of a choice."""
    layers, stay = spec.model.layers, choice.resident + choice.pulled
    streamed = list(range(stay + 1, layers + 1))
    kept = frozenset(range(layers + 1 - choice.kept, layers + 1))
    if choice.kept == layers:
        kept |= {0}
    on_disk = frozenset(streamed[max(0, len(streamed) - choice.on_disk) :])
    on_host = [unit for unit in streamed if unit not in on_disk]
    recomputed = set(range(layers + 1)) - kept
    eager: Iterable[int] = ()
    if choice.eager == "all":
        eager = streamed
    elif choice.eager == "some":
        eager = eager_units(profile, on_host, recomputed)
        if spec.clip is None:
            eager |= on_disk
    pulled, replay = frozenset(range(choice.resident + 1, stay + 1)), replays(spec, profile)
    whole = choice.resident == choice.kept == layers and not choice.hosted
    if spec.clip is not None and choice.eager != "none":
        eager = {*eager, *pulled}
    later: frozenset[int] = frozenset()
    if choice.moments_later:
        later = later_units(profile, on_host, recomputed, spec.options.host_workers)
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
