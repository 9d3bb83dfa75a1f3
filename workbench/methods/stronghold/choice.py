"""What the planner chooses, and the program of a choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workbench.methods.draft import Layout
from workbench.methods.updates import eager_units
from workbench.profile.profile import Profile
from workbench.runs.spec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the planner chose."""

    window: int
    resident: int
    pulled: int = 0
    kept: int = 0
    stash: bool = False
    eager: str = "some"
    """Which host updates run during the backward pass: ``some`` (what the host manages), ``all``
    (their gradients need little host memory then) or ``none``."""


def layout_of(spec: RunSpec, profile: Profile, choice: Choice) -> Layout:
    """The program of a choice."""
    layers, stay = spec.model.layers, choice.resident + choice.pulled
    streamed = list(range(stay + 1, layers + 1))
    kept = frozenset(range(layers + 1 - choice.kept, layers + 1))
    if choice.kept == layers:
        kept |= {0}
    eager: Iterable[int] = ()
    if choice.eager == "all":
        eager = streamed
    elif choice.eager == "some":
        eager = eager_units(profile, streamed, set(range(layers + 1)) - kept)
    return Layout(
        method=f"stronghold w{choice.window} r{choice.resident}"
        + (f" p{choice.pulled}" if choice.pulled else "")
        + (f" k{choice.kept}" if choice.kept else ""),
        resident=frozenset({0, layers + 1, *range(1, stay + 1)}),
        pulled=frozenset(range(choice.resident + 1, stay + 1)),
        slots=min(choice.window, len(streamed)),
        microbatches=spec.microbatches,
        kept=kept,
        stash=choice.stash,
        clipped=spec.clip is not None,
        eager=frozenset(eager),
        optimizer_tier=spec.optimizer_tier,
        host_workers=spec.host_workers,
    )
