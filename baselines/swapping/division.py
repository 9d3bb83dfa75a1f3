"""A step that swaps as a question to the pipeline program: data parallelism, or 1F1B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.core.division import DP, divide, even_share
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import lists, one_f_one_b
from workbench.methods.pipeline.places import Places
from workbench.methods.pipeline.program import Program
from workbench.profile.unit_costs import Sizes
from workbench.schedule.schedule import Schedule


def divided(
    mode: str,
    minibatch: int,
    size: int,
    stages: Sequence[range],
    *,
    own: Sequence[int] = (),
    shared: int = 2,
    clipped: bool = True,
    replay: bool = False,
) -> Pipeline:
    """A minibatch in micro-batches of so many samples. In DP mode every rank has all units, and is
    a pipeline of one stage for its share of the samples; of a rank's units so many have places of
    their own, and the others share some."""
    ranks = len(stages)
    shares = [
        even_share(minibatch, r, ranks) if mode == DP else (0, minibatch) for r in range(ranks)
    ]
    counts = [len(divide(share, size)) for share in shares]
    alone = [[*one_f_one_b(0, 1, count)] for count in counts]
    return Pipeline(
        method=f"{mode}-swap",
        passes=alone if mode == DP else lists("1f1b", ranks, counts[0]),
        stages=tuple(stages),
        micro_size=size,
        shares=shares,
        activations="stash",
        places=[
            Places(units=stage, own=count, shared=shared)
            for stage, count in zip(stages, own or (0,) * ranks, strict=True)
        ],
        clipped=clipped,
        replay=replay,
    )


def build(line: Pipeline, sizes: Sizes) -> Schedule:
    """The schedule of one step."""
    settings = {
        "mode": line.method.removesuffix("-swap"),
        "size": line.micro_size,
        "stages": " ".join(str(len(stage)) for stage in line.stages),
        "own": " ".join(str(places.own) for places in line.places),
        "shared": line.places[0].shared,
    }
    return replace(Program(line, sizes).schedule(), settings=settings)
