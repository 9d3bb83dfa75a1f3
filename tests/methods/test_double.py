"""In fp64, where rounding hides nothing, packs of any cut train as plain training does."""

from __future__ import annotations

import random
from contextlib import closing

import pytest
import torch

from baselines.swapping.division import Division
from baselines.swapping.program import build as build_swapping
from tests.methods import double, plain
from tests.methods.harness import Silent
from tests.methods.rank_server import process
from tests.unit.harmony.made_up import cut, largest_pack, mirrored
from workbench.methods.harmony.crew import Crew
from workbench.methods.harmony.draft import Rings
from workbench.methods.harmony.packs import Packs, packs_of
from workbench.methods.harmony.program import build
from workbench.model.spec import ModelSpec
from workbench.runtime import checkpoint
from workbench.schedule import validate
from workbench.schedule.schedule import Schedule

MODEL = ModelSpec(layers=4, hidden=16, heads=2, seq=8, vocab=256, dropout=0.1, tied=True)
UNITS = MODEL.units
BATCH, STEPS = 7, 20
TOLERANCE = 1e-10


def spec_for(**changes):
    return plain.spec_for(model=MODEL, batch=BATCH, steps=STEPS, **changes)


def sizes() -> double.Doubled:
    profile = plain.made_up_profile(spec_for(microbatches=BATCH))
    return double.Doubled(profile, tied={UNITS - 1: (0, MODEL.vocab * MODEL.hidden)})


def drawn(seed: int) -> Packs:
    """Random packs of the model; every fourth is a mirrored pipeline in which layers stay."""
    rng = random.Random(seed)
    backward = cut(UNITS, rng)
    first = backward[-1].start
    packs = Packs(
        mode=("pp", "dp")[seed % 2], ranks=rng.randint(1, 3), minibatch=BATCH,
        forward_size=rng.randint(1, BATCH), backward_size=rng.randint(1, BATCH),
        forward=cut(first, rng) if first else (), backward=backward,
    )  # fmt: skip
    return mirrored(packs, rng, tied={0, UNITS - 1}) if seed % 4 == 2 else packs


def of_packs(packs: Packs, clipped: bool) -> Schedule:
    made = sizes()
    largest = largest_pack(packs, made)
    rings = [Rings(weights=2 * largest, gradients=largest)] * packs.ranks
    return build(packs, made, rings=rings, clipped=clipped)


def swapping(mode: str, clipped: bool) -> Schedule:
    stages = packs_of([2, 4]) if mode == "pp" else (range(UNITS),) * 2
    division = Division(mode=mode, minibatch=BATCH, size=2, stages=stages, own=(1, 0))
    return build_swapping(division, sizes(), clipped=clipped)


@pytest.mark.parametrize("what", [*range(5), "pp", "dp"])
def test_weights_after_twenty_steps_are_those_of_plain_training(what, tmp_path):
    clip = 0.5 if what in (0, 1, 2, "pp") else None
    make = of_packs if isinstance(what, int) else swapping
    schedule = make(drawn(what) if isinstance(what, int) else what, clip is not None)
    validate(schedule)
    spec = spec_for(clip=clip, ranks=schedule.num_ranks)
    with pytest.MonkeyPatch.context() as patch:
        double.use(patch)
        losses, expected = plain.train(spec, torch.float64)
        with closing(Crew(spec, schedule, tmp_path, device="cpu", process=process("fp64"))) as crew:
            crew.run(Silent())
            parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
            assert crew.history.losses == pytest.approx(losses, rel=TOLERANCE)
    for name, value in expected.items():
        assert parameters[name].dtype == value.dtype == torch.float64
        assert float((parameters[name] - value).abs().max()) <= TOLERANCE, name
