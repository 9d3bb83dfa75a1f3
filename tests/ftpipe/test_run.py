"""Runs of FTPipe train as plain training where nothing is stale, else on the declared weights."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from baselines import plain
from benchmarks.delayed import Delayed
from tests.methods import double
from tests.methods import plain as whole
from tests.methods.harness import Silent, fork_ranks, made_up_profile
from tests.methods.test_parallel_baselines import Disturbing, children, kill
from tests.methods.test_t5 import MODEL as T5
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods import ftpipe
from workbench.ranks.failures import RankFailed
from workbench.runs.planning import choose_profiles
from workbench.runs.store import Store
from workbench.runtime.checkpoint.checkpoint import STATISTICS
from workbench.runtime.checkpoint.manifest import step_name
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.schedule.plan import DoesNotFit
from workbench.training import trained_ranks
from workbench.training.run import check_data

MODEL = ModelSpec(layers=4, hidden=16, heads=2, seq=8, vocab=256, tied=False)
TIED = replace(MODEL, tied=True)
TUNED = ModelSpec(family="tests.ftpipe.branches:tuned", layers=5)
later = partial(pytest.param, marks=pytest.mark.thorough)


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    fork_ranks(monkeypatch)
    made_up = "workbench.methods.ftpipe.run.profile_for"
    monkeypatch.setattr(made_up, lambda spec, *_: made_up_profile(spec))


def spec_of(**kw) -> RunSpec:
    values = {"method": "ftpipe", "model": MODEL, "batch": 4, "steps": 7, "ranks": 2, "clip": None}
    return RunSpec.of(**{**values, "microbatches": 2, "device": "cpu", **kw})


@pytest.mark.parametrize(
    "case",
    [
        {"map": "0 1 0 1", "cut": "2 1 1 2"},
        {"microbatches": 1, "cut": "2 2 1 1", "map": "0 1 1 0"},
        {"microbatches": 1, "cut": "2 2 2", "map": "0 1 0", "weight_stashing": True},
        {"cut": "2 2 2", "map": "0 1 0", "stage_order": "virtual-stages-1f1b", "supremum": 3},
        {"model": TIED, "cut": "3 3", "save_every": 4},
        later({"model": TIED, "cut": "2 2 2", "map": "0 1 0", "microbatches": 1,
               "weight_stashing": True}),
        {"model": TIED, "cut": "2 1 1 2", "map": "0 1 0 1", "microbatches": 1},
        later({"model": TIED, "cut": "2 2 1 1", "map": "0 1 1 0", "microbatches": 1}),
        {"model": TIED, "cut": "2 2 2", "map": "0 1 0", "save_every": 3},
        {"model": TIED, "cut": "5 1", "map": "0 1", "stage_order": "virtual-stages-1f1b"},
        {"cut": "3 3", "optimizer": "sgd", "momentum": 0.9, "nesterov": True, "lr": 0.05},
        {"cut": "2 2 2", "map": "0 1 0", "optimizer": "adafactor", "lr": 0.01, "batch": 5},
        {"cut": "3 3", "optimizer": "adam", "clip": 0.3, "stage_clip": "local-prop"},
        {"model": TUNED, "cut": "1 2 1 2", "map": "0 1 0 1", "microbatches": 1, "save_every": 4},
        {"model": TUNED, "cut": "2 2 2", "map": "0 1 0", "weight_stashing": True},
    ],
)  # fmt: skip
def test_losses_are_those_of_the_declared_versions(case, tmp_path):
    spec = spec_of(**case)
    found = ftpipe.train(spec, Silent(), tmp_path / "run")
    reference = Delayed(spec, tmp_path)
    wanted = [reference.step(step) for step in range(spec.steps)]
    assert found.losses == pytest.approx(wanted, rel=1e-5)
    assert "asynchronous" in found.notes[0]


def test_predictions_are_trained_with_and_their_memory_is_proved(tmp_path):
    spec = spec_of(cut="2 2 2", map="0 1 0", microbatches=1)
    ahead = spec.with_(prediction="msnag", weight_stashing=True)
    stale = ftpipe.train(spec, Silent(), tmp_path / "stale")
    predicted = ftpipe.train(ahead, Silent(), tmp_path / "predicted")
    assert predicted.losses[0] == stale.losses[0], "no update is lacking at first"
    assert predicted.losses[-1] != stale.losses[-1]
    assert "weights that msnag predicts" in predicted.notes[1]
    peaks = [found.predicted["peak_bytes"]["device"] for found in (stale, predicted)]
    assert peaks[1] > peaks[0]


@pytest.mark.parametrize("close", [1e-10, pytest.param(1e-5, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "case",
    [
        {"stage_order": "gpipe-lifo", "cut": "2 1 1 2", "map": "0 1 0 1", "save_every": 2},
        {"stage_order": "sync-1f1b", "cut": "2 2 2", "map": "0 1 0", "microbatches": 4},
        {"stage_order": "seq", "cut": "3 3", "activations": "keep"},
    ],
)
def test_synchronous_orders_are_plain_training(case, close, monkeypatch, tmp_path):
    """With tied weights and the norm of the whole model, in fp32 and in fp64."""
    exact, norms = close < 1e-5, []
    if exact:
        fork_ranks(monkeypatch, "fp64 stages")
    spec = spec_of(model=TIED, clip=0.5, **case)
    found = ftpipe.train(spec, Silent(), tmp_path / "run")
    alone = RunSpec.of(method="plain", model=TIED, batch=4, steps=7, clip=0.5, device="cpu")
    dtype = torch.float64 if exact else torch.float32
    with pytest.MonkeyPatch.context() as patch:
        if exact:
            double.use(patch)
        wanted, _ = whole.train(alone, dtype, norms)
    assert found.losses == pytest.approx(wanted, rel=close)
    assert found.grad_norms == pytest.approx(norms, rel=close)
    assert max(found.grad_norms) > 0.5


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"stage_order": "seq"}, marks=pytest.mark.thorough),
        {"stage_order": "gpipe-lifo", "map": "0 1 0 1"},
        {"ahead": 1},
    ],
)
def test_frozen_weights_stay_wherever_they_are_read(how, tmp_path):
    """A stage learns nothing, and two stages read frozen words, which predictions do not mind.
    Training goes on from a checkpoint to the last bit."""
    sizes = {"cut": "1 3 1 1"} if "ahead" not in how else {"cut": "1 4 1", "map": "0 1 0"}
    how = how if "ahead" not in how else {"prediction": "msnag", "microbatches": 1}
    spec = spec_of(model=TUNED, steps=4, **{"clip": 0.5} | sizes | how)
    spec = spec.with_(lr_decay_steps=4, save_every=2)
    whole = ftpipe.train(spec, Silent(), tmp_path / "whole")
    if spec.options.synchronous:
        alone = RunSpec.of(
            method="plain", model=TUNED, batch=4, steps=4, microbatches=2, clip=0.5, device="cpu"
        )
        assert whole.losses == pytest.approx(
            plain.train(alone, Silent(), tmp_path / "plain").losses, rel=1e-5
        )
    ftpipe.train(spec.with_(steps=2), Silent(), tmp_path / "run")
    assert ftpipe.train(spec, Silent(), tmp_path / "run").losses == whole.losses


@pytest.mark.parametrize("order", ["async-1f1b", "gpipe-lifo"])
def test_peaks_in_bf16_are_planned_with_the_casts_of_weights(order, tmp_path):
    """Weights are fp32, and each pass that keeps what its backward pass needs keeps their casts."""
    model = replace(T5, hidden=128, feed_forward=1024)
    spec = spec_of(model=model, cut="4 5", stage_order=order, dtype="bf16", microbatches=4, steps=2)
    found = ftpipe.train(spec, Silent(), tmp_path / "runs" / "one")
    counted = choose_profiles(spec, Store(tmp_path), "h200-141gb", str)[spec.microbatch]
    counted = replace(counted, library_bytes=0)  # a GPU's
    planned = ftpipe.plan(spec, counted).peak_bytes["device"]
    assert found.peak_bytes["device"] == pytest.approx(planned, rel=0.05)


@pytest.mark.parametrize("order", ["async-1f1b", "sync-1f1b"])
def test_a_process_a_stage_trains_alike_within_the_memory_of_its_device(order, tmp_path):
    """Tied weights travel between processes of one device as between devices."""
    spec = spec_of(model=TIED, cut="2 1 1 2", map="0 1 0 1", stage_order=order, clip=0.5)
    spec = spec.with_(device_memory=1 << 22)
    one = ftpipe.train(spec, Silent(), tmp_path / "one")
    each = ftpipe.train(spec.with_(process_per_stage=True), Silent(), tmp_path / "each")
    assert each.losses == one.losses
    assert "a process a stage: 4 on 2 devices" in " ".join(each.notes)
    peaks = next(note for note in each.notes if note.startswith("device peak"))
    assert peaks.count(" KiB") + peaks.count(" MiB") == 4, "of each process"
    for found in (one, each):
        assert found.peak_bytes["device"] <= found.predicted["peak_bytes"]["device"]
    full = each.predicted["peak_bytes"]["device"] - 1
    with pytest.raises(DoesNotFit, match=r"rank [01] needs"):
        ftpipe.train(spec.with_(process_per_stage=True, device_memory=full), Silent(), tmp_path)


@pytest.mark.thorough
def test_an_encoder_decoder_trains_alike_on_any_map(tmp_path):
    """With dropout, and a table of words that three ranks have in common, or one has twice."""
    (tmp_path / "pairs.tsv").write_text("".join(f"doubles {n}\ttwo {n}s\n" for n in range(40)))
    same = {"model": T5, "text": str(tmp_path / "pairs.tsv"), "clip": 0.5, "steps": 4}
    alone = RunSpec.of(method="plain", batch=4, microbatches=2, device="cpu", **same)
    wanted = plain.train(alone, Silent(), tmp_path / "plain").losses
    found = {}
    for order, places, ranks in (
        ("sync-1f1b", "0 1 0", 2), ("async-1f1b", "0 1 0", 2), ("async-1f1b", "0 1 2", 3),
    ):  # fmt: skip
        spec = spec_of(cut="4 3 2", map=places, ranks=ranks, order=order, **same)
        found[order, places] = ftpipe.train(spec, Silent(), tmp_path / order / places).losses
    assert found.pop(("sync-1f1b", "0 1 0")) == pytest.approx(wanted, rel=1e-5)
    one, other = found.values()
    assert one == other


@pytest.mark.parametrize("order", ["sync-1f1b", "async-1f1b"])
def test_gradients_that_are_not_finite_update_nothing(order, tmp_path):
    """A synchronous step is left out as a whole, as with other methods; else each stage decides."""
    wild = {"lr": 1e18, "lr_schedule": "constant", "steps": 4, "clip": 1.0}
    found = ftpipe.train(spec_of(stage_order=order, cut="3 3", **wild), Silent(), tmp_path / "run")
    alone = RunSpec.of(method="plain", model=MODEL, batch=4, device="cpu", **wild)
    skipped = plain.train(alone, Silent(), tmp_path / "plain").skipped_steps
    assert skipped
    assert found.skipped_steps == (skipped if order == "sync-1f1b" else [])
    left_out = "updates of single stages were left out" in " ".join(found.notes)
    assert left_out == (order == "async-1f1b")


def test_a_run_that_is_killed_goes_on_as_if_undisturbed(tmp_path):
    """After a saving at which the pipeline drains, which the reference knows."""
    before, spec = children(), spec_of(cut="2 1 1 2", map="0 1 0 1", save_every=3, steps=60)
    with pytest.raises(RankFailed, match="rank 0 was killed by SIGKILL"):
        ftpipe.train(spec, Disturbing(4, lambda: kill(0)), tmp_path / "run")
    assert children() <= before
    report = Silent()
    found = ftpipe.train(spec, report, tmp_path / "run")
    kinds = [kind for kind, _ in report.events]
    assert "resumed" in kinds
    assert 0 < kinds.count("step") < spec.steps
    reference = Delayed(spec, tmp_path)
    wanted = [reference.step(step) for step in range(spec.steps)]
    assert found.losses == pytest.approx(wanted, rel=1e-5)


@pytest.mark.thorough
def test_a_rank_that_is_stopped_is_named(monkeypatch, tmp_path):
    before, spec, watches = children(), spec_of(cut="3 3", steps=500), []
    made = trained_ranks.Watchdog
    monkeypatch.setattr(trained_ranks, "HANG_STEPS", 0)
    monkeypatch.setattr(
        trained_ranks, "Watchdog", lambda *args: watches.append(made(*args)) or watches[0]
    )

    def stop() -> None:
        kill(1, signal.SIGSTOP)
        watches[0]._limits = replace(trained_ranks.LIMITS, hang_s=2.0)

    with pytest.raises(RankFailed, match="rank 1 hangs: it is stopped"):
        ftpipe.train(spec, Disturbing(2, stop), tmp_path / "run")
    assert children() <= before


@pytest.mark.parametrize("first", ["plain", "ftpipe"])
def test_weights_go_on_under_another_method(first, tmp_path):
    """Without staleness the second half is that of plain training, whichever makes the first."""
    ours = spec_of(stage_order="virtual-stages-1f1b", supremum=1, cut="3 3", steps=6)
    alone = RunSpec.of(method="plain", model=MODEL, batch=4, steps=6, clip=None, device="cpu")
    whole = plain.train(alone, Silent(), tmp_path / "whole").losses
    specs = {"ftpipe": (ftpipe, ours), "plain": (plain, alone)}
    (begins, one), (ends, other) = specs.pop(first), *specs.values()
    half = one.with_(steps=3, save_every=3, lr_decay_steps=6)
    begins.train(half, Silent(), tmp_path / "half")
    found = ends.train(
        other.with_(start_from=str(tmp_path / "half"), lr_decay_steps=6), Silent(), tmp_path / "end"
    )
    assert found.losses == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        {"optimizer": "adafactor"},
        pytest.param({"optimizer": "sgd-tf", "momentum": 0.9}, marks=pytest.mark.thorough),
        pytest.param({}, marks=pytest.mark.thorough),
    ],
)
def test_states_of_every_optimizer_go_on(kind, tmp_path):
    """To the last bit, on other stages and ranks of a synchronous order, too."""
    spec = spec_of(model=TIED, cut="3 3", save_every=3, steps=6, lr_decay_steps=6, **kind)
    whole = ftpipe.train(spec, Silent(), tmp_path / "whole").losses
    ftpipe.train(spec.with_(steps=3), Silent(), tmp_path / "run")
    assert ftpipe.train(spec, Silent(), tmp_path / "run").losses == whole
    other = spec.with_(start_from=str(tmp_path / "run"), save_every=0, steps=7)
    moved = other.with_(cut="2 2 2", map="1 0 1", stage_order="gpipe-lifo")
    last = [
        ftpipe.train(each, Silent(), tmp_path / name / "run").losses[-1]
        for name, each in (("same", other), ("moved", moved))
    ]
    assert last[0] == pytest.approx(last[1], rel=1e-5)


@pytest.mark.parametrize(
    "kind", [{}, pytest.param({"optimizer": "sgd", "momentum": 0.9}, marks=pytest.mark.thorough)]
)
def test_gap_aware_runs_go_on(kind, tmp_path):
    """To the last bit, with their means of steps, without which they would train otherwise."""
    spec = spec_of(
        cut="2 2 2", map="0 1 0", microbatches=1, weight_stashing=True, gap_aware=True, lr=0.1,
        save_every=4, steps=8, lr_decay_steps=8, **kind,
    )  # fmt: skip
    whole = ftpipe.train(spec, Silent(), tmp_path / "whole").losses
    ftpipe.train(spec.with_(steps=4), Silent(), tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints" / step_name(4) / "unit-00002.safetensors"
    named = load_file(saved)
    assert any(name.startswith("gap_square/") and t.any() for name, t in named.items()), named
    assert ftpipe.train(spec, Silent(), tmp_path / "run").losses == whole


def test_statistics_of_batchnorm_go_on(tmp_path):
    """A module that is cut into layers, of which some keep their weights as they are."""
    family = "tests.methods.kinds:half_frozen"
    model = ModelSpec(family=family, layers=3, hidden=12, heads=2, seq=6, vocab=256, tied=False)
    whole = check_data(spec_of(model=model), Silent(), tmp_path).num_units
    sizes = {"cut": f"2 {whole - 3} 1", "map": "0 1 0", "lr_decay_steps": 4}
    spec = spec_of(model=model, save_every=2, steps=4, **sizes)
    expected = ftpipe.train(spec, Silent(), tmp_path / "whole").losses
    ftpipe.train(spec.with_(steps=2), Silent(), tmp_path / "run")
    assert ftpipe.train(spec, Silent(), tmp_path / "run").losses == expected
    found, wanted = (
        load_file(tmp_path / name / "checkpoints" / step_name(4) / STATISTICS)
        for name in ("run", "whole")
    )
    assert any(value.any() for value in wanted.values())
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_a_stage_over_the_memory_of_its_device_is_named(tmp_path):
    spec = spec_of(cut="3 3", device_memory=200_000)
    with pytest.raises((OutOfMemory, DoesNotFit), match="device"):
        ftpipe.train(spec, Silent(), tmp_path / "planned")
    with pytest.raises(OutOfMemory, match=r"device tier is out of memory: .* of rank \d "):
        trained_ranks.train("workbench.methods.ftpipe", spec, Silent(), tmp_path / "run")


def test_the_partitioner_finds_stages_that_train(tmp_path):
    """FTPipe's own, three blocks for two ranks: two of them on one."""
    spec = spec_of()
    found = ftpipe.train(spec, Silent(), tmp_path / "run")
    settings = found.predicted["settings"]
    chosen = spec.with_(cut=settings["cut"], map=settings["map"])
    reference = Delayed(chosen, tmp_path)
    assert found.losses == pytest.approx([reference.step(n) for n in range(7)], rel=1e-5)


def test_without_staleness_it_is_plain_training(tmp_path):
    """A supremum of 1 lets no stage be ahead of its own backward passes."""
    spec = spec_of(stage_order="virtual-stages-1f1b", supremum=1, cut="3 3")
    found = ftpipe.train(spec, Silent(), tmp_path / "run")
    alone = RunSpec.of(
        method="plain", model=MODEL, batch=4, steps=7, clip=None, microbatches=2, device="cpu"
    )
    assert found.losses == pytest.approx(
        plain.train(alone, Silent(), tmp_path / "plain").losses, rel=1e-5
    )


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"map": "0 0", "cut": "3 3"}, "map is '0 0'; give a rank for each of 2 stages"),
        ({"map": "0 1"}, "map is '0 1' without a cut"),
        ({"cut": "2 2"}, "cut is '2 2', 4 units; the model has 6"),
        ({"stage_order": "1f1b"}, "stage_order is '1f1b'; give one of async-1f1b"),
        ({"stage_order": "seq", "prediction": "nag"}, "'seq', which drains with each step"),
        ({"gap_aware": True}, "gap_aware with 2 micro-batches an update"),
        ({"gap_aware": True, "microbatches": 1}, "update, weight_stashing False"),
        ({"prediction": "nag", "activations": "keep"}, "'nag' with kept activations"),
        ({"gap_aware": True, "optimizer": "adafactor"}, "gap_aware with adafactor, whose steps"),
        ({"prediction": "nag", "optimizer": "adafactor"}, "'nag' with adafactor, whose steps"),
        ({"prediction": "nag", "model": TIED, "cut": "3 3"}, "can neither predict them nor tell"),
        ({"weight_stashing": True, "stage_order": "seq"}, "'seq', which drains with each step"),
        ({"dtype": "bf16", "activations": "keep"}, "kept in bf16 without weight_stashing"),
        ({"batch": 1}, "a batch of 1 has no row for each of 2 micro-batches"),
        ({"momentum": 0.9}, "adamw has none of that name"),
        ({"optimizer": "sgd", "nesterov": True}, "nesterov is true without momentum"),
        ({"stage_clip": "local-prop"}, "it needs a clip and an asynchronous order"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(case, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        ftpipe.train(spec_of(**case), Silent(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
