"""A module of the user's own trains as torch's own loop trains it, or is refused before it runs."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import closing
from itertools import product

import pytest
import torch
from hypothesis import given, settings

from baselines.plain_training import PlainTraining as Training
from tests.methods import kinds, torchs
from tests.methods.grammar import GENOMES, REFUSED_FLOORS, REFUSED_HABITS, drawn_as
from tests.methods.harness import LOSS_TOLERANCE, Silent, assert_near, half
from tests.methods.plain import made_up_profile, spec_for
from tests.methods.test_modules import crew_for, packs_for
from workbench.core import methods
from workbench.core.division import packs_of
from workbench.model import ModelSpec, make_model
from workbench.model.drawn import generators
from workbench.model.keyed import make_keyed
from workbench.profile import store
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.passes.statistics import undivided
from workbench.training.compared import ensure
from workbench.training.rank_host import statistics
from workbench.training.run import Training as Planned

TRAIN = (
    "augmented", "half_frozen", "counted_twice", "deltas", "numbered", "fourier", "taught",
    "normed_weights", "relative", "time_first",
)  # fmt: skip
MODES = ("pp", "dp")
COMING = (
    ("together", "stronghold"), ("together", "l2l"), ("time_first", "l2l"),
    ("normed_weights", "stronghold"),
)  # fmt: skip
"""Kinds of layers and methods; `together` has all kinds but the last two."""
PACKED = ((2, "together", "pp"), (2, "time_first", "dp"), (2, "siamese", "pp"))
DRAW = ("together", "counted_twice", "numbered", "time_first")


def spec_of(name: str, **changes):
    family = f"tests.methods.kinds:{name}"
    model = ModelSpec(family=family, layers=3, hidden=12, heads=2, seq=6, vocab=256, tied=False)
    sizes = {"batch": 4, "steps": 3, "seed": 5, "lr": 1e-2, "eps": 1e-3, "clip": None}
    return spec_for(model=model, text=__file__, **sizes, **changes)


def by_torch(spec, micro: int) -> tuple[list[float], torch.nn.Module]:
    """Torch's own loop. Nothing of ours is in it, but for the random numbers of a module that draws
    some."""
    with generators(spec.seed):
        made = getattr(kinds, spec.model.family.partition(":")[2])(spec.model)
    net = made[0] if isinstance(made, tuple) else made
    draws = make_model(spec.model, spec.seed).draws
    assert bool(draws) == spec.model.family.endswith(DRAW) or "drawn_now" in spec.model.family
    net = make_keyed(net) if draws else net
    net.train()
    losses, _ = torchs.train(spec, net, micro, draws)
    return losses, net


def assert_equal(trained, losses, parameters, statistics) -> None:
    """`trained`: what `by_torch` gave."""
    expected, net = trained
    assert losses == pytest.approx(expected, rel=10 * LOSS_TOLERANCE)
    wanted = dict(net.named_parameters(remove_duplicate=False)) | dict(net.named_buffers())
    assert_near(wanted, {**parameters, **statistics})
    assert len(parameters) == len([*net.parameters()])


@pytest.mark.parametrize(("name", "activations"), half(product(TRAIN, ["keep", "recompute"])))
def test_plain_training_is_torchs_own_loop(name, activations, tmp_path):
    spec = spec_of(name, method="plain", activations=activations, microbatches=2)
    ensure(spec, tmp_path, Silent())
    assert_trains(Training(spec, Silent(), tmp_path), by_torch(spec, 2))


def assert_trains(run: Training, trained) -> None:
    run.run()
    statistics = undivided(run.model, run.whole.units)
    assert_equal(trained, run.history.losses, run.parameters(), statistics)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(*one, marks=[] if one in COMING else [pytest.mark.thorough])
        for one in product([*TRAIN, "together"], ["stronghold", "l2l"])
    ],
)
def test_layers_that_come_and_go_are_torchs_own_loop(name, method, tmp_path, monkeypatch):
    hardware = made_up_profile(spec_for()).hardware
    monkeypatch.setattr(store, "hardware", lambda *_: hardware)
    how = {"window": 2, "resident": 0, "pulled": 1} if method == "stronghold" else {}
    spec = spec_of(name, method=method, microbatches=2, **how)
    ensure(spec, tmp_path, Silent())
    plan = methods.load(method).plan(spec, store.profile_for(spec, tmp_path))
    with closing(Planned(spec, plan, tmp_path)) as run:
        run.run(Silent())
        found = run.history.losses, run.parameters(), run.statistics()
    assert_equal(by_torch(spec, 2), *found)


@pytest.mark.parametrize(
    ("ranks", "name", "mode"),
    [
        pytest.param(*one, marks=[] if one in PACKED else [pytest.mark.thorough])
        for one in product([2, 1], ["together", "time_first", "siamese"], MODES)
    ],
)
def test_packs_of_its_layers_are_torchs_own_loop(name, mode, ranks, tmp_path):
    """Forward passes are repeated, and parts of a batch are on two ranks."""
    spec = spec_of(name)
    units = make_model(spec.model).num_units
    backward = packs_of([2, *[1] * (units - 4), 2])
    packs = packs_for(spec, mode=mode, ranks=ranks, backward=backward, forward=backward[:-1])
    with crew_for(packs, spec, tmp_path) as crew:
        crew.run(Silent())
        found = checkpoint.parameters(crew.model, crew.states, crew.flats)
        running = statistics(crew.folder, ranks)
        assert_equal(by_torch(spec, 2), crew.history.losses, found, running)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("masked_gradients", "parameter 'floors.1.mix.weight' has a hook on its gradient"),
        ("scaled_gradients", "calls 'register_hook' of a tensor outside of its blocks"),
        ("annealed", r"changes its attribute 'floors.0.seen' in every forward pass \(1 became 2\)"),
        ("remembering", "leaves something behind that the next one reads.*'floors.1.before'"),
        ("opposed", "an autograd function of its own outside of its blocks"),
        ("sometimes", "layer 1, 'floors.0': it asks for values"),
        ("pythons", "draws from numpy's or Python's generator in forward passes"),
        ("replaced", "'floors.0' had its forward replaced on the instance"),
        ("sparse", "'0' is a sparse Embedding, and AdamW takes no sparse gradients"),
        ("penalized", "it takes gradients outside of its blocks"),
        ("unlike_itself", "made twice from one seed, the module holds other numbers: 'exit.bias'"),
        ("counting", "samples of .*:counting are others when they are read again"),
    ],
)
def test_what_layers_would_train_otherwise_is_refused(name, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence) as error:
        ensure(spec_of(name), tmp_path, Silent())
    assert "\n" not in str(error.value)


def test_samples_that_depend_on_each_other_are_said_to_and_looked_at_once(tmp_path, monkeypatch):
    told = []
    report = Silent()
    monkeypatch.setattr(report, "phase", told.append)
    for _ in range(2):
        ensure(spec_of("relative"), tmp_path, report)
    compared, note, again = told
    assert "comparing" in compared
    assert note == again
    assert "depend on the others of their micro-batch" in note
    assert make_model(spec_of("relative").model).alike


def test_nothing_of_a_comparison_is_left(tmp_path, uncollected):
    """A GPU whose memory is laid out next had half a gigabyte of 1.2 billion parameters left."""

    def left() -> int:
        return sum(isinstance(one, torch.nn.Module) for one in gc.get_objects())

    before = left()
    ensure(spec_of("together"), tmp_path, Silent())
    assert left() <= before


@pytest.fixture
def uncollected():
    """Nothing is collected but where somebody asks for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def tries(request) -> int:
    return 300 if request.config.getoption("--thorough") else 30


@pytest.mark.timeout(1800)
def test_any_module_is_trained_as_by_torch_or_refused(tries, tmp_path_factory, monkeypatch):
    """Undivided by plain training, and by its layers, each of which runs twice."""
    ended = Counter()

    @settings(max_examples=tries, deadline=None, derandomize=True, database=None)
    @given(GENOMES)
    def holds(genome):
        monkeypatch.setattr(kinds, "drawn_now", drawn_as(genome), raising=False)
        spec = spec_of("drawn_now", method="plain", activations="recompute", microbatches=2)
        folder = tmp_path_factory.mktemp("drawn")
        if genome.habit in REFUSED_HABITS or {*genome.floors} & {*REFUSED_FLOORS}:
            with pytest.raises(ValueError, match=r"^.+$"):
                ensure(spec, folder, Silent())
            ended["refused"] += 1
            return
        ensure(spec, folder, Silent())
        ended["trained"] += 1
        trained, layers = by_torch(spec, 2), Training(spec, Silent(), folder)
        layers.whole.written = None
        assert_trains(Training(spec, Silent(), folder), trained)
        assert_trains(layers, trained)

    holds()
    assert min(ended["trained"], ended["refused"]) > tries // 5
