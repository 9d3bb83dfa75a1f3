"""Ordinary modules, decomposed, train on several ranks as they do whole and undivided."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn import functional as F

from baselines.plain_training import PlainTraining
from tests.methods import chain, torchs
from tests.methods.harness import LOSS_TOLERANCE, PARAMETER_TOLERANCE, Silent, assert_near, half
from tests.methods.plain import made_up_profile, spec_for
from tests.methods.rank_server import process
from workbench.core.division import packs_of
from workbench.core.model_spec import ModelSpec
from workbench.methods.harmony import planner
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.program import build
from workbench.methods.harmony.visits import Rings
from workbench.model import bert, make_model, units_of, vision
from workbench.model.whole import make_whole
from workbench.profile.alone import Setting
from workbench.profile.measure import kind_costs
from workbench.profile.profile import Profile
from workbench.profile.unit_costs import profiled_sizes
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.passes.statistics import undivided
from workbench.schedule import validate
from workbench.schedule.build.ring import aligned
from workbench.training.rank_host import statistics
from workbench.training.rank_processes import RankTraining
from workbench.training.run import load_batches

BERT = ModelSpec(family="bert", layers=3, hidden=32, heads=4, seq=32, vocab=300, tied=False)
VGG = ModelSpec(family="vgg", layers=7, hidden=4, heads=1, seq=32, vocab=10, tied=False)
OWN = ModelSpec(family="tests.methods.dropping:net", layers=4, hidden=16, vocab=3, tied=False)
RESNET = ModelSpec(family="resnet", layers=4, hidden=4, heads=1, seq=64, vocab=10, tied=False)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> str:
    """A folder in MRPC's format: reading the standard library takes each rank seconds."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    for n in range(64):
        first, second = f"The number {n} is even.", f"Half of {n} is {n / 2}."
        lines.append(f"{n % 2}\t{n}\t{n + 64}\t{first}\t{second}")
    for part in ("train", "test"):
        (folder / f"msr_paraphrase_{part}.txt").write_text("\n".join(lines) + "\n")
    return str(folder)


def text_for(model: ModelSpec, pairs: str) -> str:
    return {"bert": pairs, "gpt": __file__}.get(model.family, "stdlib")


def original(model: ModelSpec, seed: int) -> torch.nn.Module:
    """The module as anybody would write and train it."""
    if model.family == "bert":
        shape = bert.BertShape(
            layers=model.layers, hidden=model.hidden, heads=model.heads, vocab=model.vocab,
            positions=model.seq,
        )  # fmt: skip
        return bert.Bert(shape)
    if model.family == "vgg":
        shape = vision.VggShape(
            convs=(1, 1, 1, 2, 2), width=model.hidden, image=model.seq, hidden=64 * model.hidden,
            classes=model.vocab,
        )  # fmt: skip
        return vision.Vgg(shape)
    shape = vision.ResNetShape(blocks=(1, 1, 1, 1), width=model.hidden, classes=model.vocab)
    return vision.ResNet(shape)


def train_original(spec, micro: int) -> tuple[list[float], torch.nn.Module]:
    net, model = original(spec.model, spec.seed), make_model(spec.model)
    net.load_state_dict(make_whole(model, seed=spec.seed).state_dict())
    losses, _ = torchs.train(spec, net, micro)
    return losses, net


def assert_equals_original(spec, crew: RankTraining, micro: int) -> None:
    """Losses, parameters and running statistics of a crew at its end."""
    losses, net = train_original(spec, micro)
    assert crew.history.losses == pytest.approx(losses, rel=10 * LOSS_TOLERANCE)
    for found, expected in (
        (checkpoint.parameters(crew.model, crew.states, crew.flats), net.named_parameters()),
        (statistics(crew.folder, crew.schedule.mesh.processes), net.named_buffers()),
    ):
        expected = dict(expected)
        assert found.keys() == expected.keys()
        assert_near(found, expected)


def assert_follows(whole: PlainTraining, crew: RankTraining) -> None:
    """Losses and parameters of a crew that trains now are those of torch's training before."""
    crew.run(Silent())
    assert crew.history.losses == pytest.approx(whole.history.losses, rel=10 * LOSS_TOLERANCE)
    assert_near(checkpoint.parameters(crew.model, crew.states, crew.flats), whole.parameters())


def crew_for(packs: Packs, spec, folder, measured: int = 1):
    """`measured`: samples of the only micro-batch with a profile."""
    profile = made_up_profile(spec.with_(batch=measured, microbatches=1))
    sizes = profiled_sizes(make_model(spec.model), spec, {measured: profile})
    largest = max(sum(aligned(sizes.visit_bytes(u)) for u in pack) for pack in packs.backward)
    rings = [Rings(weights=2 * largest, gradients=largest)] * packs.ranks
    schedule = build(packs, sizes, rings=rings, clipped=True)
    validate(schedule)
    return closing(RankTraining(spec, schedule, folder, device="cpu", process=process("delays")))


def packs_for(spec, **changes) -> Packs:
    backward = packs_of([2, *[1] * (units_of(spec.model) - 4), 2])
    chosen = {"mode": "pp", "ranks": 2, "forward": backward[:-1], "backward": backward, **changes}
    return Packs(minibatch=spec.batch, forward_size=2, backward_size=2, **chosen)


@pytest.mark.parametrize(
    ("model", "mode"),
    [pytest.param(BERT, "mirrored", marks=pytest.mark.thorough), (VGG, "dp")],
    ids=lambda value: getattr(value, "family", value),
)
def test_a_module_trains_as_it_does_undivided(model, mode, pairs, tmp_path):
    """Masks are relayed, a convolution is only a module. Statistics are asked of ResNets, below."""
    spec = spec_for(model=model, text=text_for(model, pairs), batch=4, steps=3, clip=0.5)
    if mode == "mirrored":
        packs = packs_for(spec, mirrored=True, resident=frozenset({1, 3}))
    else:
        packs = packs_for(spec, mode=mode)
    with crew_for(packs, spec, tmp_path) as crew:
        crew.run(Silent())
        assert_equals_original(spec, crew, packs.backward_size)
    moved = crew.schedule.moved_bytes()
    for way in ("load", "store"):
        assert sum(r["moved_bytes"][way] for r in crew.results()) == moved[way] * spec.steps


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        (replace(BERT, dropout=0.2), "pp"),
        pytest.param(replace(VGG, dropout=0.2), "dp", marks=pytest.mark.thorough),
        (OWN, "pp"),
    ],
    ids=lambda value: getattr(value, "family", value),
)
def test_what_is_drawn_is_the_same_undivided(model, mode, pairs, tmp_path):
    """Dropout by modules belongs to samples, whatever their micro-batch; what else a block draws
    belongs to the micro-batch. Layers run twice, on either rank."""
    spec = spec_for(model=model, text=text_for(model, pairs), batch=4, steps=3, clip=0.5)
    parts = 2 if model is OWN else 1
    whole = PlainTraining(
        spec.with_(method="plain", microbatches=parts), Silent(), tmp_path / "whole"
    )
    whole.run()
    with crew_for(packs_for(spec, mode=mode), spec, tmp_path) as crew:
        assert_follows(whole, crew)
    if model is not OWN:
        without = replace(model, dropout=0.0)
        dry = PlainTraining(spec.with_(method="plain", model=without), Silent(), tmp_path / "dry")
        dry.run()
        assert dry.history.losses != pytest.approx(whole.history.losses, rel=1e-4)


@pytest.mark.parametrize(
    ("made", "mode"), half(product(["looped", "shared", "listed"], ["pp", "dp"]))
)
def test_modules_that_are_used_again_train_as_they_do_undivided(made, mode, tmp_path):
    """Also layers that have no weights."""
    family = f"tests.methods.reusing:{made}"
    model = ModelSpec(family=family, layers=4, hidden=16, heads=1, vocab=3, tied=False)
    spec = spec_for(model=model, text="stdlib", batch=4, steps=4, clip=0.5, seed=3)
    units = make_model(model).num_units
    backward = packs_of([2, *[1] * (units - 4), 2])
    whole = PlainTraining(spec.with_(method="plain", microbatches=1), Silent(), tmp_path / "whole")
    whole.run()
    packs = packs_for(spec, mode=mode, backward=backward, forward=backward[:-1])
    with crew_for(packs, spec, tmp_path) as crew:
        assert_follows(whole, crew)


@pytest.mark.parametrize("made", ["net", "buffered"])
def test_the_first_step_is_of_what_the_function_makes(made, tmp_path):
    """Units are made one at a time: made at once, the function's draws would mix. Blocks that are
    unlike each other in what nobody prints of them run as themselves, whose memory
    ever they take."""
    family = f"tests.methods.chain:{made}"
    model = ModelSpec(family=family, layers=8, hidden=64, heads=1, seq=8, vocab=300, tied=False)
    spec = spec_for(model=model, batch=4, steps=1, seed=3, lr=1e-9, min_lr=1e-9)
    torch.manual_seed(spec.seed)
    net = getattr(chain, made)(model)
    ids, targets = load_batches(spec, make_model(model)).batch(0)
    expected = F.cross_entropy(net(ids).flatten(0, -2), targets.flatten())
    with crew_for(packs_for(spec), spec, tmp_path) as crew:
        crew.run(Silent())
        assert crew.history.losses == pytest.approx([float(expected.detach())], rel=LOSS_TOLERANCE)
        found = checkpoint.parameters(crew.model, crew.states, crew.flats)
        assert_near(found, dict(net.named_parameters()), 10 * spec.lr)


@pytest.mark.parametrize("mode", ["pp", pytest.param("dp", marks=pytest.mark.thorough)])
def test_what_asks_for_no_gradient_stays_and_the_rest_trains_as_beside_it(mode, tmp_path):
    """It has no part in the norm, and does not decay."""
    family = "tests.methods.chain:frozen"
    model = ModelSpec(family=family, layers=8, hidden=16, heads=1, seq=8, vocab=300, tied=False)
    spec = spec_for(model=model, batch=4, steps=4, seed=3, clip=0.1)
    torch.manual_seed(spec.seed)
    net = chain.frozen(model)
    first = {name: value.clone() for name, value in net.named_parameters()}
    losses, norms = torchs.train(spec, net)
    assert min(norms) > spec.clip
    with crew_for(packs_for(spec, mode=mode), spec, tmp_path) as crew:
        crew.run(Silent())
        assert crew.history.losses == pytest.approx(losses, rel=10 * LOSS_TOLERANCE)
        found = checkpoint.parameters(crew.model, crew.states, crew.flats)
        assert_near(found, dict(net.named_parameters()))
        for name, value in net.named_parameters():
            assert torch.equal(found[name], first[name]) != value.requires_grad, name


def test_batch_statistics_of_uneven_micro_batches(tmp_path):
    """Five samples in micro-batches of two: the last one counts for a fifth of the gradients, and
    for as much as the others in running statistics."""
    spec = spec_for(model=RESNET, text="stdlib", batch=5, steps=3)
    packs = packs_for(spec)
    assert [end - first for first, end in packs.tasks[0].micros] == [2, 2, 1]
    with crew_for(packs, spec, tmp_path) as crew:
        crew.run(Silent())
        assert_equals_original(spec, crew, packs.backward_size)


def test_statistics_go_on_where_they_were_on_another_number_of_ranks(tmp_path):
    """Replicas, whose statistics are each a part of the whole, then a pipeline, then torch's own
    training."""
    changes = {"model": RESNET, "text": "stdlib", "batch": 4, "save_every": 2, "lr_decay_steps": 6}
    for mode, ranks, steps in (("dp", 2, 2), ("pp", 3, 4)):
        spec = spec_for(**changes, steps=steps)
        with crew_for(packs_for(spec, mode=mode, ranks=ranks), spec, tmp_path) as crew:
            crew.run(Silent())
            assert len(crew.results()) == ranks
            assert_equals_original(spec, crew, 2)
    more = spec.with_(method="plain", steps=6, start_from=str(tmp_path), microbatches=2)
    whole = PlainTraining(more, Silent(), tmp_path / "plain")
    whole.run()
    losses, net = train_original(more, 2)
    assert len(whole.history.step_seconds) == 2
    assert whole.history.losses == pytest.approx(losses, rel=10 * LOSS_TOLERANCE)
    statistics = undivided(whole.model, whole.whole.units)
    for name, value in net.named_buffers():
        assert torch.allclose(statistics[name], value, atol=PARAMETER_TOLERANCE), name


def test_a_layer_that_owns_nothing_is_in_checkpoints_of_every_method(tmp_path):
    """Plain training saves, and ranks go on."""
    family = "tests.methods.reusing:tied"
    model = ModelSpec(family=family, layers=3, hidden=16, heads=1, seq=8, vocab=256, tied=False)
    spec = spec_for(model=model, batch=4, steps=6, save_every=2, lr_decay_steps=9)
    by_torch = spec.with_(method="plain", microbatches=1)
    first = PlainTraining(by_torch.with_(steps=4), Silent(), tmp_path)
    first.run()
    with crew_for(packs_for(spec, mode="dp"), spec, tmp_path) as crew:
        crew.run(Silent())
        assert crew.results()[0]["steps"] == 2
    whole = PlainTraining(by_torch.with_(save_every=0), Silent(), tmp_path / "whole")
    whole.run()
    assert crew.history.losses[:4] == first.history.losses
    assert crew.history.losses == pytest.approx(whole.history.losses, rel=10 * LOSS_TOLERANCE)


def measured(spec, size: int) -> Profile:
    """Layers measured, the machine made up: measuring it takes longer than the training."""
    model = make_model(spec.model)
    *inputs, targets = load_batches(spec, model).rows(range(size))
    how = {"seq": spec.model.seq, "dtype": "fp32", "device": "cpu"}
    costs, libraries = kind_costs(Setting.of(model, tuple(inputs), targets, **how))
    return Profile(
        hardware=made_up_profile(spec).hardware,
        units=tuple(costs[model.kind(unit)] for unit in range(model.num_units)),
        microbatch=size,
        seq=spec.model.seq,
        weight_bytes=4,
        library_bytes=libraries,
    )


@pytest.mark.parametrize(
    "model",
    [RESNET, pytest.param(OWN, marks=pytest.mark.thorough)],
    ids=lambda model: model.family,
)
def test_micro_batches_are_alike_where_samples_depend_on_them(model, pairs):
    """Unless somebody asks for something else, and then it is said."""
    spec = spec_for(
        method="harmony-pp", model=model, ranks=2, batch=4, text=text_for(model, pairs),
        clipping="auto",
    )  # fmt: skip
    profiles = {size: made_up_profile(spec.with_(batch=size)) for size in (1, 2, 4)}
    for asked in ({}, {"forward_size": 2}, {"backward_size": 4}):
        plan = planner.plan(spec.with_(**asked), profiles, mode="pp")
        chosen = plan.settings
        assert chosen["forward_size"] == chosen["backward_size"]
        assert plan.notes == ()
    asked = {"forward_size": 4, "backward_size": 2}
    (note,) = planner.plan(spec.with_(**asked), profiles, mode="pp").notes
    assert "4 samples forward and 2 backward, as asked, and" in note
    assert "this is not the training of other methods" in note


@pytest.mark.parametrize(
    ("model", "mode"),
    [(BERT, "pp"), (replace(BERT, family="gpt", layers=4), "dp")],
    ids=lambda value: getattr(value, "family", value),
)
def test_no_rank_holds_more_than_its_plan_says(model, mode, pairs, tmp_path):
    """Sizes measured kind by kind, packs and what stays chosen by the search; and BERT trains under
    them as it does undivided."""
    text = text_for(model, pairs)
    spec = spec_for(method=f"harmony-{mode}", model=model, ranks=2, batch=8, steps=3, text=text)
    plan = planner.plan(spec, {size: measured(spec, size) for size in (1, 8)}, mode=mode)
    proved = validate(plan.schedule).peak_bytes
    how = {"device": "cpu", "process": process("")}
    with closing(RankTraining(spec, plan.schedule, tmp_path, **how)) as crew:
        crew.run(Silent())
        for rank, result in enumerate(crew.results()):
            assert 0.8 * proved[rank]["device"] < result["device_peak"] <= proved[rank]["device"]
        if model is BERT:
            assert_equals_original(spec, crew, spec.batch)


def biased_for(net: str, batch: int):
    family = f"tests.methods.biased:{net}"
    model = ModelSpec(family=family, layers=4, hidden=16, heads=1, vocab=3, tied=False)
    spec = spec_for(model=model, text="stdlib", batch=batch, steps=4, clip=0.5, seed=3)
    return spec, packs_of([2, *[1] * (make_model(model).num_units - 4), 2])


@pytest.mark.parametrize(
    ("mode", "ranks", "batch", "measured"),
    [
        pytest.param("pp", 1, 4, 1, marks=pytest.mark.thorough),
        ("pp", 2, 5, 2),
        ("dp", 2, 8, 1),
    ],
    ids=["on one rank", "by message, the last alone", "twice on each rank"],
)
def test_what_does_not_grow_with_the_batch_has_gradients_of_every_micro_batch(
    mode, ranks, batch, measured, tmp_path
):
    """Also where a micro-batch is smaller than any that was measured."""
    spec, backward = biased_for("net", batch)
    assert any(part.batch_dim is None for part in make_model(spec.model).boundary(2, 1))
    whole = PlainTraining(spec.with_(method="plain", microbatches=1), Silent(), tmp_path / "whole")
    whole.run()
    packs = packs_for(spec, mode=mode, ranks=ranks, backward=backward, forward=backward[:-1])
    with crew_for(packs, spec, tmp_path, measured) as crew:
        assert_follows(whole, crew)
    moved = crew.schedule.moved_bytes()
    for way in ("load", "store"):
        assert sum(r["moved_bytes"][way] for r in crew.results()) == moved[way] * spec.steps


@pytest.mark.parametrize("batch", [2, 4])
def test_what_is_made_of_samples_without_growing_needs_one_micro_batch(batch, tmp_path):
    """Each micro-batch would have another, and a run that may be wrong ends."""
    spec, backward = biased_for("summing", batch)
    packs = packs_for(spec, backward=backward, forward=backward[:-1])
    with crew_for(packs, spec, tmp_path) as crew:
        if batch > packs.backward_size:
            with pytest.raises(ValueError, match="layer 0 passes on .* differs between micro-batc"):
                crew.run(Silent())
            return
        whole = PlainTraining(spec.with_(method="plain"), Silent(), tmp_path / "whole")
        whole.run()
        assert_follows(whole, crew)
