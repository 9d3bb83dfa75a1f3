"""In fp64, where rounding hides nothing: gradients of a minibatch, and updates that are guessed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import Tensor

from tests.methods import double, plain
from tests.methods.harness import Silent
from tests.methods.rank_server import process
from tests.methods.test_guesses import settled
from tests.unit.harmony.made_up import cut, largest_pack, mirrored
from workbench.core.division import packs_of
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.program import build
from workbench.methods.harmony.visits import Rings
from workbench.runtime.checkpoint import checkpoint
from workbench.schedule import validate
from workbench.schedule.schedule import Schedule
from workbench.training.rank_processes import RankTraining

MODEL = ModelSpec(layers=4, hidden=16, heads=2, seq=8, vocab=256, dropout=0.1, tied=True)
UNITS = MODEL.units
BATCH, STEPS = 7, 20
TOLERANCE = 1e-10


def spec_for(**changes):
    return plain.spec_for(**{"model": MODEL, "batch": BATCH, "steps": STEPS, **changes})


def sizes() -> double.Doubled:
    profile = plain.made_up_profile(spec_for(microbatches=BATCH))
    return double.Doubled({1: profile}, tied={UNITS - 1: (0, MODEL.vocab * MODEL.hidden)})


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


def of_packs(packs: Packs, clipped: bool, *, guesses: bool = False) -> Schedule:
    made = sizes()
    largest = largest_pack(packs, made)
    rings = [Rings(weights=2 * largest, gradients=largest)] * packs.ranks
    return build(packs, made, rings=rings, clipped=clipped, guesses=guesses)


def on(ranks: int, mode: str) -> Packs:
    """Of one layer, and of several; forward passes divide the minibatch otherwise."""
    return Packs(
        mode=mode, ranks=ranks, minibatch=BATCH, forward_size=3, backward_size=2,
        forward=packs_of([1, 1, 1, 1]), backward=packs_of([1, 1, 1, 1, 2]),
    )  # fmt: skip


@contextmanager
def trained(
    schedule: Schedule, spec: RunSpec, folder: Path, how: str = "fp64"
) -> Iterator[RankTraining]:
    """A crew that has trained in fp64; this process computes in it, too."""
    validate(schedule)
    with pytest.MonkeyPatch.context() as patch:
        double.use(patch)
        with closing(
            RankTraining(spec, schedule, folder, device="cpu", process=process(how))
        ) as crew:
            crew.run(Silent())
            yield crew


def assert_follows(crew: RankTraining, spec: RunSpec) -> None:
    """Losses and weights are those of plain training."""
    losses, expected = plain.train(spec, torch.float64)
    parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
    assert crew.history.losses == pytest.approx(losses, rel=TOLERANCE)
    assert_equal(parameters, expected)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        assert found[name].dtype == value.dtype == torch.float64
        assert float((found[name] - value).abs().max()) <= TOLERANCE, name


@pytest.mark.parametrize("what", [2, "pp", "dp"])
def test_gradients_after_one_minibatch_are_those_of_plain_training(what, tmp_path):
    """First moments begin at zero, so that after one step they are a share of the gradients."""
    packs = on(4, what) if isinstance(what, str) else drawn(what)
    spec = spec_for(clip=None, ranks=packs.ranks, steps=1)
    expected: dict[str, Tensor] = {}
    with trained(of_packs(packs, False), spec, tmp_path) as crew:
        plain.train(spec, torch.float64, gradients=expected)
        found = {
            crew.model.state_name(unit, name): view / (1 - spec.beta1)
            for unit, flat in enumerate(crew.flats)
            for name, view in flat.views(crew.states.states(unit).exp_avg)
        }
    assert_equal(found, expected)
    assert all(float(value.abs().max()) > 0 for value in expected.values())


@cache
def norms(steps: int) -> tuple[float, ...]:
    """Of steps in which nothing is clipped."""
    found: list[float] = []
    plain.train(spec_for(clip=1e6, steps=steps), torch.float64, norms=found)
    return tuple(found)


@pytest.mark.parametrize(
    ("mode", "ranks", "steps", "how"),
    [
        ("pp", 2, STEPS, "fp64"),
        pytest.param("dp", 4, STEPS // 2, "fp64 delays", marks=pytest.mark.thorough),
        pytest.param("dp", 2, STEPS, "fp64", marks=pytest.mark.thorough),
        pytest.param("pp", 4, STEPS // 2, "fp64 delays", marks=pytest.mark.thorough),
    ],
)
def test_guesses_that_stand_and_that_are_taken_back_are_plain_training_too(
    mode, ranks, steps, how, tmp_path
):
    """Under a limit that some steps exceed and some do not, as a run does without being told to
    wait."""
    spec = spec_for(clip=median(norms(steps)), ranks=ranks, steps=steps)
    with trained(of_packs(on(ranks, mode), True, guesses=True), spec, tmp_path, how) as crew:
        assert_follows(crew, spec)
        assert min(settled(crew).values()) > 0, "stood, redone, waited"
        clipped = [norm > spec.clip for norm in crew.history.grad_norms]
        assert True in clipped
        assert False in clipped


@pytest.mark.parametrize(
    ("mode", "ranks"),
    [
        ("pp", 2),
        pytest.param("dp", 4, marks=pytest.mark.thorough),
        pytest.param("dp", 2, marks=pytest.mark.thorough),
        pytest.param("pp", 4, marks=pytest.mark.thorough),
    ],
)
def test_what_was_guessed_in_a_step_that_is_skipped_is_as_if_it_had_not_been(mode, ranks, tmp_path):
    """Taken back and not made again: weights are those of the step before."""
    spec = spec_for(clip=1e6, ranks=ranks, steps=6, lr_decay_steps=STEPS)
    last = spec.steps - 1
    schedule = of_packs(on(ranks, mode), True, guesses=True)
    with trained(schedule, spec, tmp_path, f"fp64 1:nan:{last}") as crew:
        _, expected = plain.train(spec.with_(steps=last), torch.float64)
        assert crew.history.skipped == [last]
        assert settled(crew)["redone"] > 0
        assert_equal(checkpoint.parameters(crew.model, crew.states, crew.flats), expected)
