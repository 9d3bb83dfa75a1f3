"""Pipelines as tests want them: a schedule for a spec without planning, and its training."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.methods import plain
from tests.methods.harness import Silent
from tests.methods.plain import made_up_profile
from tests.methods.rank_server import process
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.program import Program
from workbench.model import units_of
from workbench.profile.unit_costs import ProfiledSizes
from workbench.runtime.checkpoint import checkpoint
from workbench.schedule.schedule import Schedule
from workbench.training.rank_processes import RankTraining

MODEL = ModelSpec(layers=6, hidden=32, heads=4, seq=16, vocab=256, dropout=0.1, tied=True)
UNITS = MODEL.layers + 2


def spec_for(**changes) -> RunSpec:
    """A short training with dropout, clipping and tied weights."""
    return plain.spec_for(
        **{"model": MODEL, "batch": 12, "steps": 4, "lr_decay_steps": 20, **changes}
    )


def schedule_for(
    order: str,
    spec: RunSpec,
    ranks: int,
    micros: int,
    *,
    replicas: int = 1,
    activations: str = "keep",
) -> Schedule:
    """Stages of about as many units each; two stages a rank where the order has several."""
    chunks = 2 if order == "interleaved" else 1
    stages, units = ranks * chunks, units_of(spec.model)
    cuts = [units * stage // stages for stage in range(stages + 1)]
    samples = -(-spec.batch // replicas)
    model = spec.model
    tied = {units - 1: (0, model.vocab * model.hidden)} if model.tied else {}
    profile = made_up_profile(spec.with_(microbatches=spec.batch))
    pipeline = Pipeline(
        method=order,
        passes=lists(order, ranks, micros, chunks),
        stages=[range(*pair) for pair in zip(cuts, cuts[1:], strict=False)],
        micro_size=-(-samples // micros),
        samples=samples,
        replicas=replicas,
        activations=activations,
        clipped=spec.clip is not None,
    )
    return Program(pipeline, ProfiledSizes({1: profile}, tied=tied)).schedule()


def trained(schedule: Schedule, spec: RunSpec, folder: Path, what: str = "delays"):
    """The training, ended, and the parameters that it has left on the host."""
    with closing(
        RankTraining(spec, schedule, folder, device="cpu", process=process(what))
    ) as training:
        training.run(Silent())
        return training, checkpoint.parameters(training.model, training.states, training.flats)
