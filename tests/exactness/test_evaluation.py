"""Every method's evaluations are those of plain training, and change nothing of what it trains."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.methods import plain
from tests.methods.harness import Silent, fork_ranks
from tests.methods.plain import made_up_profile
from workbench.core import methods
from workbench.core.bytesize import format_bytes
from workbench.core.model_spec import ModelSpec
from workbench.core.record import HELD_OUT, Outcome
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.held_out import load_part
from workbench.model.pairs import COLUMNS
from workbench.runs.inputs import check_inputs
from workbench.runs.resolve import key_of
from workbench.runs.store import Store
from workbench.runtime.passes.visiting import Place, Units
from workbench.training import answered
from workbench.training.evaluation import Evaluator

NEAR = 1e-5
MODELS = {
    "decoder": ModelSpec(layers=4, hidden=16, heads=2, seq=8, vocab=256, dropout=0.1, tied=True),
    "bert": ModelSpec(family="bert", layers=3, hidden=16, heads=2, seq=24, vocab=259, dropout=0.1),
    "t5": ModelSpec(family="t5", layers=2, hidden=16, heads=2, seq=24, target_seq=6, vocab=258),
    "resnet": ModelSpec(family="resnet", layers=4, hidden=4, seq=8, vocab=4),
}
TEXTS = {"decoder": plain.__file__, "bert": "", "t5": "", "resnet": "stdlib"}
"""Sources of text; `files` writes the sources that are empty here."""
FIGURES = {
    "decoder": ["loss", "perplexity"],
    "bert": ["loss", "accuracy"],
    "t5": ["loss", "exact", "f1"],
    "resnet": ["loss", "accuracy"],
}


def later(*one):
    return pytest.param(*one, marks=pytest.mark.thorough)


def spec_of(method: str, model: str, **changes) -> RunSpec:
    """Four steps, held out after the third and the last."""
    return RunSpec.of(**{
        "method": method, "model": MODELS[model], "text": TEXTS[model], "batch": 4,
        "microbatches": 2, "steps": 4, "device": "cpu", "lr": 1e-3, "eval_every": 3,
        "eval_samples": 8, **changes,
    })  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def files(tmp_path_factory):
    """Pairs with a part of their own for evaluations, and answers without one."""
    folder = tmp_path_factory.mktemp("texts")
    for name, first in (("train.tsv", 0), ("dev.tsv", 50)):
        lines = ["\t".join(COLUMNS)]
        for n in range(first, first + 40):
            lines.append(f"{n % 2}\t1\t2\tThe {n} of {n * n % 7}.\tA {n % 5} or {n * 3 % 11}.")
        (folder / name).write_text("\n".join(lines) + "\n")
    answers = "".join(f"what follows {n}\t{n + 1}\n" for n in range(60))
    (folder / "answers.txt").write_text(answers)
    TEXTS.update(bert=str(folder), t5=str(folder / "answers.txt"))


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Trains in this process and ranks that are forked from one; nothing is measured before."""
    fork_ranks(monkeypatch)
    for where in ("profile.store", "methods.ftpipe.run"):
        monkeypatch.setattr(
            f"workbench.{where}.profile_for", lambda spec, *_: made_up_profile(spec)
        )
    monkeypatch.setattr("workbench.training.ranks.profiles_for", _profiles)

    def train(spec: RunSpec, name: str = "run", report: Silent | None = None) -> Outcome:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        return methods.load(spec.method).train(spec, report or Silent(), folder)

    return train


def _profiles(planner, spec: RunSpec, *_):
    return {size: made_up_profile(spec.with_(batch=size, microbatches=1)) for size in (1, 2, 4)}


@cache
def expected(model: str, **changes) -> Outcome:
    with TemporaryDirectory() as folder:
        spec = spec_of("plain", model, **changes)
        return methods.load("plain").train(spec, Silent(), Path(folder, "runs", "plain"))


@pytest.mark.parametrize(
    ("method", "model", "changes"),
    [
        ("stronghold", "decoder", {}),
        ("fsdp", "decoder", {}),
        ("harmony-pp", "decoder", {"ranks": 2, "microbatches": 1}),
        ("torch-1f1b", "decoder", {"ranks": 2}),
        ("1f1b", "bert", {"ranks": 2}),
        ("stronghold", "t5", {}),
        later("l2l", "bert", {}),
        later("harmony-dp", "decoder", {"ranks": 2, "microbatches": 1}),
        later("pp-swap", "decoder", {"ranks": 2, "microbatches": 1}),
        later("data-parallel", "decoder", {"ranks": 2}),
        later("torch-gpipe", "decoder", {"ranks": 2}),
        later("1f1b", "t5", {"ranks": 2}),
        later("stronghold", "resnet", {}),
        pytest.param("deepspeed-pipe", "decoder", {"ranks": 2},
                     marks=[pytest.mark.deepspeed, pytest.mark.thorough]),
        pytest.param("zero-offload", "decoder", {},
                     marks=[pytest.mark.deepspeed, pytest.mark.thorough]),
    ],
)  # fmt: skip
def test_evaluations_are_those_of_plain_training(train, method, model, changes):
    report = Silent()
    found = train(spec_of(method, model, **changes), report=report)
    told = [values for kind, values in report.events if kind == "evaluated"]
    assert told == found.evaluations
    want = expected(model).evaluations
    assert [e["step"] for e in found.evaluations] == [3, 4]
    for ours, theirs in zip(found.evaluations, want, strict=True):
        assert [name for name in HELD_OUT if name in ours] == FIGURES[model]
        for name in (*FIGURES[model], "epoch", "samples"):
            assert ours[name] == pytest.approx(theirs[name], rel=NEAR), name


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("stronghold", "decoder"),
        ("l2l", "bert"),
        later("plain", "decoder"),
        later("stronghold", "t5"),
        later("plain", "resnet"),
    ],
)
def test_weights_that_visit_a_device_are_evaluated_alike(train, monkeypatch, method, model):
    """As on a GPU, where a few weights are at a time, here with the processor as the device."""
    want = expected(model)
    monkeypatch.setattr("workbench.training.places.HOST", None)

    def ways(device, dtype, budget):
        yield nullcontext(Place(device=device, dtype=dtype, room=2048))

    monkeypatch.setattr("workbench.training.places.ways", ways)
    found = train(spec_of(method, model))
    assert found.losses == pytest.approx(want.losses, rel=NEAR)
    for ours, theirs in zip(found.evaluations, want.evaluations, strict=True):
        for name in (*FIGURES[model], "step"):
            assert ours[name] == pytest.approx(theirs[name], rel=NEAR), name


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("method", "changes"),
    [("l2l", {"dtype": "bf16"}), ("plain", {"dtype": "bf16"}), ("l2l", {})],
)
def test_a_gpu_evaluates_within_the_memory_of_training(
    train, monkeypatch, tmp_path, method, changes
):
    """As the processor does with these weights, and sooner; `-s` shows by how much."""
    (text := tmp_path / "text.txt").write_text(Path(plain.__file__).read_text() * 20)
    shape = {"layers": 6, "hidden": 1024, "heads": 16, "seq": 512, "vocab": 32000, "dropout": 0.0}
    how = {"text": str(text), "device": "cuda", "microbatches": 1, "compile": "off"}
    spec = spec_of(method, "decoder", **how, **changes).with_(model=ModelSpec(**shape, tied=True))
    made_up = made_up_profile(spec)
    large = {"device": "cuda", "device_bytes": 1 << 36, "host_bytes": 1 << 36}
    profile = replace(made_up, hardware=replace(made_up.hardware, **large))
    monkeypatch.setattr("workbench.profile.store.profile_for", lambda *_: profile)
    real, both = Evaluator.evaluate, []

    def evaluate(self, *given, **how):
        found = real(self, *given, **how)
        with monkeypatch.context() as patch:
            patch.setattr("workbench.training.places.ways", lambda *_: iter(()))
            both.append((found, real(self, *given, **how)))
        return found

    calm = train(spec.with_(eval_every=0), "calm")
    monkeypatch.setattr(Evaluator, "evaluate", evaluate)
    found = train(spec)
    peaks = [format_bytes(each.peak_bytes["device"]) for each in (calm, found)]
    assert not [note for note in found.notes if "evaluated on" in note]
    for there, here in both:
        print(
            f"{method} {spec.dtype}: loss {there['loss']:.5f} in {there['seconds']:.2f} s, on the "
            f"processor {here['loss']:.5f} in {here['seconds']:.2f} s; device peak of training "
            f"{peaks[0]}, with evaluations {peaks[1]}"
        )
        near = 1e-4 if spec.dtype == "fp32" else 5e-3
        assert there["loss"] == pytest.approx(here["loss"], rel=near)
    assert peaks[0] == peaks[1]


def test_an_asynchronous_pipeline_does_not_drain_for_an_evaluation(train):
    """Each stage's weights are those after the same step, and losses those without evaluations."""
    one = spec_of("ftpipe", "bert", ranks=2, cut="2 2 1 1", map="0 1 0 1", steps=6, microbatches=1)
    calm = train(one.with_(eval_every=6), "calm")
    often = train(one.with_(eval_every=2), "often")
    short = train(one.with_(steps=2, lr_decay_steps=6), "short")
    assert often.losses == calm.losses
    assert [e["step"] for e in often.evaluations] == [2, 4, 6]
    for ours, theirs in ((often, calm), (often, short)):
        last = theirs.evaluations[-1]
        (same,) = (e for e in ours.evaluations if e["step"] == last["step"])
        assert same | {"seconds": 0} == last | {"seconds": 0}


@pytest.mark.parametrize("model", ["resnet", later("decoder"), later("t5")])
def test_stages_that_drain_with_each_step_evaluate_as_plain_training(train, model):
    """In a synchronous order, with BatchNorm's statistics of each stage."""
    units = make_model(MODELS[model]).num_units
    one = {"ranks": 2, "cut": f"{units - 2} 2", "stage_order": "sync-1f1b", "clip": 1.0}
    found, want = train(spec_of("ftpipe", model, **one)), expected(model)
    for ours, theirs in zip(found.evaluations, want.evaluations, strict=True):
        for name in (*FIGURES[model], "step"):
            assert ours[name] == pytest.approx(theirs[name], rel=NEAR), name


def test_evaluations_change_nothing_and_stay_with_a_run_that_goes_on(train, tmp_path):
    """Where pairs have a part for evaluations, training has all others, evaluated or not."""
    every = train(spec_of("plain", "bert", eval_every=1, save_every=2), "every")
    assert every.losses == train(spec_of("plain", "bert", eval_every=0), "never").losses
    for path in (tmp_path / "runs/every/checkpoints").glob("step-*4"):
        shutil.rmtree(path)
    again = train(spec_of("plain", "bert", eval_every=1, save_every=2), "every")
    told = [{**one, "seconds": 0} for one in again.evaluations]
    assert told == [{**one, "seconds": 0} for one in every.evaluations]
    assert [one["step"] for one in told] == [1, 2, 3, 4]
    assert not [*(tmp_path / "runs/every").glob(".evaluation*")]


def test_killed_while_evaluating(train, monkeypatch):
    """The command, given again, goes on from the last checkpoint and makes missing evaluations."""
    spec = spec_of("stronghold", "decoder", eval_every=1, save_every=1)
    whole, real, report = train(spec, "whole"), Units.losses, Silent()

    def losses(self, parts):
        if ("evaluating", {"next_step": 3}) in report.events:
            raise KeyboardInterrupt
        return real(self, parts)

    with monkeypatch.context() as patch:
        patch.setattr(Units, "losses", losses)
        with pytest.raises(KeyboardInterrupt):
            train(spec, report=report)
    again = train(spec)
    assert again.losses == whole.losses
    told = [{**one, "seconds": 0} for one in again.evaluations]
    assert told == [{**one, "seconds": 0} for one in whole.evaluations]


def test_what_is_held_out_is_not_trained_on():
    spec = spec_of("plain", "decoder", eval_share=0.25)
    model = make_model(spec.model)
    kept, held = load_part(spec, model), load_part(spec, model, held_out=True)
    whole = load_part(spec.with_(eval_every=0), model)
    assert [*kept.tokens, *held.tokens] == [*whole.tokens]
    assert len(held.tokens) == round(len(whole.tokens) / 4)
    assert spec.key() != spec.with_(eval_every=0).key()
    answers = spec_of("plain", "t5", eval_share=0.1)
    model = make_model(answers.model)
    kept, held = load_part(answers, model), load_part(answers, model, held_out=True)
    assert (len(kept), len(held)) == (54, 6)
    labels = [{*map(tuple, part.rows(range(len(part)))[-1].tolist())} for part in (kept, held)]
    assert len(labels[1]) == 6
    assert not labels[0] & labels[1]
    long = spec.with_(model=replace(spec.model, seq=len(whole.tokens) // 2))
    with pytest.raises(ValueError, match="too few to hold a sample of"):
        load_part(long, make_model(long.model))


def test_a_text_of_its_own_is_held_out_whole(tmp_path):
    """All of the run's own is trained on, and after the last step the other is evaluated."""
    (text := tmp_path / "held.txt").write_text("What nobody has trained on yet. " * 9)
    spec = spec_of("plain", "decoder", eval_every=0, eval_text=str(text))
    model, calm = make_model(spec.model), spec.with_(eval_text="")
    kept, held = load_part(spec, model), load_part(spec, model, held_out=True)
    assert [*kept.tokens] == [*load_part(calm, model).tokens]
    assert bytes(held.tokens) == text.read_bytes()
    assert [n for n in range(1, 5) if spec.evaluates_at(n, 10)] == [4]
    keys = [key_of(spec), key_of(calm)]
    text.write_text("Another one. " * 9)
    assert len({*keys, key_of(spec)}) == 3
    text.unlink()
    with pytest.raises(ValueError, match="there is no text at .*held.txt"):
        check_inputs([spec], Store(tmp_path / "results"))
    with pytest.raises(ValueError, match="of the data of bert a part is held out"):
        spec_of("plain", "bert", eval_text=str(text))
    with pytest.raises(ValueError, match="tokenizer is 'bpe:300', which learns its tokens"):
        spec.with_(tokenizer="bpe:300")


def test_epochs_say_when_to_evaluate():
    spec = spec_of("plain", "decoder", eval_every=0, eval_epochs=2, steps=20)
    assert [n for n in range(1, 21) if spec.evaluates_at(n, 10)] == [5, 10, 15, 20]
    assert [n for n in range(1, 21) if spec.evaluates_at(n, 13)] == [7, 13, 20]


def test_answers_are_compared_by_their_words():
    assert answered.exact("The cat's mat.", "cats mat") == 1
    assert answered.f1("a red hat", "the red coat") == 0.5
    assert answered.f1("", "the") == 1
    assert answered.f1("", "red") == 0
