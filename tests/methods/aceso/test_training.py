"""A plan trains as one process does, whatever it divides."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from baselines import plain as plain_method
from tests.exactness.trained import NEAR, Trained, assert_equals
from tests.forks.server import command
from tests.methods import double, plain
from tests.methods.aceso.plans import (
    KEYS,
    MODEL,
    OPERATORS,
    PICTURE_OPERATORS,
    PICTURES,
    T5,
    T5_OPERATORS,
    drawn,
    even,
    plan,
    some,
    spec_of,
    turns,
)
from tests.methods.harness import Silent, fork_ranks
from tests.methods.plain import made_up_profile
from tests.methods.test_parallel_baselines import children
from workbench.cli import main
from workbench.core import methods
from workbench.core.spec import RunSpec
from workbench.methods.aceso import planner as aceso
from workbench.methods.aceso.files import read_table
from workbench.methods.aceso.plan import Plan, read_plan
from workbench.ranks.failures import RankFailed
from workbench.ranks.launcher import RankLauncher
from workbench.runs.overrides import make_spec
from workbench.runs.resolve import resolve, settled
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.checkpoint import STATISTICS

END = OPERATORS
BF16 = {"dtype": "bf16", "steps": 6, "eps": 1e-6}
"""Biases of keys have no gradient but rounding, 1e-9, of which a smaller epsilon makes steps."""
LARGE = {"model": PICTURES, "micro": 8, "batch": 16}
later = partial(pytest.param, marks=pytest.mark.thorough)


@pytest.fixture
def ranks(monkeypatch):
    """Says how ranks are: words of rank_driver.py."""

    def ranks(what: str) -> None:
        how = command("tests.methods.aceso.rank_driver", what)
        forked = partial(RankLauncher, process=how)
        monkeypatch.setattr("workbench.training.trained_ranks.RankLauncher", forked)

    ranks("")
    return ranks


def trained(spec: RunSpec, folder: Path, method: ModuleType = aceso) -> Trained:
    """A run of a plan, and the weights of its last checkpoint."""
    found = method.train(spec.with_(save_every=spec.steps), Silent(), folder)
    newest = next(checkpoint.whole(folder / "checkpoints"))
    weights = {
        label.removeprefix("weight/"): value
        for file in newest.path.glob("*.safetensors")
        for label, value in load_file(file).items()
        if label.startswith("weight/") or file.name == STATISTICS
    }
    return Trained(found.losses, weights, found.grad_norms if spec.clip else [])


def judged(spec: RunSpec, precision: str = "fp32") -> Trained:
    """Torch's loop over the whole batch."""
    spec, norms = spec.with_(method="plain", ranks=1, microbatches=1), []
    with pytest.MonkeyPatch.context() as patch:
        if precision == "fp64":
            double.use(patch)
        dtype = {"fp64": torch.float64, "bf16": torch.bfloat16}.get(precision, torch.float32)
        return Trained(*plain.train(spec, dtype, norms), norms)


@pytest.mark.parametrize(
    ("made", "how", "changes"),
    [
        # Cuts inside attention and the MLP, residuals over three boundaries, a batch with a rest.
        (plan([(1, 4, some()), (1, 5, even()), (1, 12, some()), (1, END, even())]), "", {}),
        # tp to dp and back inside a stage, both dimensions; both copies of the tied table in it.
        (plan([(2, END, turns(2, 1))]), "", {}),
        # 2 x 1 to 1 x 2 over a boundary inside the MLP; three samples on two rows.
        (plan([(2, 11, some(2)), (2, END, some(1))], micro=2, batch=7), "fp64 late paired", {}),
        (plan([(1, 9, even(again=True)), (2, END, even(2))]), "bf16 compiled",
         BF16 | {"model": replace(MODEL, dropout=0.0)}),
        later(plan([(2, END, some(2))]), "bf16", BF16),
        later(plan([(2, END, turns(2, 1))]), "bf16", BF16),
        later(plan([(1, 7, some()), (1, END, even(again=True))], micro=3), "", {"clip": None}),
        later(plan([(1, END, some())]), "", {}),  # both copies of the tied table in one process
        later(plan([(2, END, even(2))]), "", {}),
        later(plan([(2, END, even(2, 1, again=True))]), "", {"fused": False}),
        later(plan([(2, END, some(1))], micro=2, batch=7), "", {}),
        later(plan([(4, END, turns(4, 2, 1))], micro=8, batch=11), "late", {}),
        later(plan([(4, 9, even(1)), (4, END, some(2))]), "fp64", {}),
        later(plan([(1, 3, some()), (2, 23, turns(2, 1)), (1, END, even())]), "fp64", {}),
        *[later(plan([(2, 1 + 9 * seed, drawn(seed, 2)), (2, END, drawn(seed + 5, 2))]),
                "fp64 late", {"model": replace(MODEL, tied=seed != 1)}) for seed in range(3)],
        *[later(plan([(4, END, drawn(seed, 4))]), "fp64 late", {"fused": seed > 7})
          for seed in (7, 8)],
    ],
)  # fmt: skip
def test_a_plan_trains_as_one_process_does(made, how, changes, ranks, tmp_path):
    """With dropout, clipping, decay and rates that change."""
    ranks(how)
    precision = next((each for each in ("fp64", "bf16") if each in how), "fp32")
    spec = spec_of(made, tmp_path, **({"steps": 8} | changes))
    found = trained(spec, tmp_path / "runs" / "run")
    assert_equals(found, judged(spec.with_(fused=True), precision), NEAR[precision])


def pairs(folder: Path) -> str:
    """Texts and their answers, of which some are longer than others."""
    file = folder / "pairs.tsv"
    rows = (f"d {n} a {n % 7}\t{'s' * (n % 5)}{n}\n" for n in range(40))
    file.write_text("".join(rows))
    return str(file)


def written(spec: RunSpec, folder: Path, micros: int = 1) -> Trained:
    """The module as it is written, in one process."""
    alone = spec.with_(method="plain", ranks=1, microbatches=micros, activations="keep")
    return trained(alone, folder, plain_method)


@pytest.mark.parametrize(
    "made",
    [
        # Cuts before the decoder, and inside the attention to what the encoder puts out.
        plan([(1, 28, some()), (2, 52, turns(2, 1)), (1, 73, even())], model=T5, algos=1),
        later(plan([(2, 16, drawn(1, 2)), (2, T5_OPERATORS, drawn(2, 2))], model=T5, algos=1)),
        later(plan([(4, T5_OPERATORS, drawn(3, 4))], model=T5, algos=1)),
    ],
)
def test_an_encoder_decoder_trains_as_one_process_does(made, ranks, tmp_path):
    """Its table of words is there three times, labels that count differ, sources are padded."""
    spec = spec_of(made, tmp_path, model=T5, text=pairs(tmp_path), steps=4)
    assert_equals(
        trained(spec, tmp_path / "runs" / "run"), written(spec, tmp_path / "runs" / "one"),
        NEAR["fp32"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        # Cuts inside blocks; channels in shards of outputs, and of inputs.
        plan([(1, 9, some()), (2, PICTURE_OPERATORS, turns(2, 1))], **LARGE),
        later(plan([(2, PICTURE_OPERATORS, even(2, 1))], **LARGE)),
        later(plan([(2, 13, some(1)), (2, PICTURE_OPERATORS, some(2))], **LARGE)),
        later(plan([(4, PICTURE_OPERATORS, drawn(4, 4))], **LARGE)),
    ],
)
def test_pictures_train_as_in_one_process(made, ranks, tmp_path):
    """BatchNorm's statistics are of whole micro-batches, and go into checkpoints. AdamW makes whole
    steps of gradients that are rounding, but for a large epsilon."""
    spec = spec_of(made, tmp_path, model=PICTURES, text="stdlib", steps=4, eps=1e-5)
    found = trained(spec, tmp_path / "runs" / "run")
    wanted = written(spec, tmp_path / "runs" / "one", micros=2)
    assert_equals(found, wanted, NEAR["fp32"])


PUBLISHED = {
    "small_gpt_1_3B_4gpu_4stages": replace(MODEL, layers=24),
    "small_t5_770M_4gpu_4stages": replace(T5, layers=24),
    "small_resnet_1B_4gpu_2stages": replace(PICTURES, layers=16),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_plan_trains_narrower(name, ranks, root, tmp_path):
    """Stages, operators, grids, partitions and recomputation as they are; a batch of one
    micro-batch and a half. Norms of many layers magnify rounding: pictures are compared in fp64,
    with all of the model in one process."""
    table = read_table(root / "workbench" / "published" / "aceso_plans.csv.gz")
    told, model = json.loads(table[f"{name}.json"]), PUBLISHED[name]
    sizes = {key: getattr(model, field) for key, field in KEYS.items() if key in told}
    micro, more = told["micro_batch_size"], {"eps": 1e-5}
    batch = micro if "in_channels" in told else micro + micro // 2 + 1
    made = read_plan(json.dumps(told | sizes | {"global_batch_size": batch}), name)
    if "t5" in name:
        more["text"] = pairs(tmp_path)
    elif "resnet" in name:
        more["text"] = "stdlib"
    spec = spec_of(made, tmp_path, model=model, steps=4, **more)
    precision = "fp64" if "resnet" in name else "fp32"
    if precision == "fp64":
        ranks(precision)
        whole = plan([(1, made.starts[-1], even())], model=model, micro=micro, batch=batch)
        alone = spec_of(whole, tmp_path / "one", model=model, steps=4, **more)
        one = trained(alone, tmp_path / "runs" / "one")
    else:
        one = written(spec, tmp_path / "runs" / "one")
    assert_equals(trained(spec, tmp_path / "runs" / "run"), one, NEAR[precision])


def test_flags_make_a_published_plan_narrower(ranks, root, tmp_path):
    """Four stages of GPT 1.3B's operators, cut and recomputed as they are."""
    table = read_table(root / "workbench" / "published" / "aceso_plans.csv.gz")
    file = tmp_path / "plan.json"
    file.write_text(table["small_gpt_1_3B_4gpu_4stages.json"])
    narrow = {"hidden": 16, "heads": 4, "seq": 8, "vocab": 256, "batch": 3, "steps": 3}
    given = {"method": "aceso", "plan": str(file), "ranks": 4, "device": "cpu", **narrow}
    spec = resolve(make_spec(given), tmp_path)
    kept = json.loads((tmp_path / "plans" / f"{spec.options.plan}.json").read_text())
    told = json.loads(file.read_text())
    assert {key for key in told if told[key] != kept[key]} == {
        "hidden_size", "num_attention_heads", "seq_length", "global_batch_size",
    }  # fmt: skip
    assert (spec.model.layers, spec.microbatches) == (24, 3)
    found = trained(spec, tmp_path / "runs" / "run")
    assert_equals(found, written(spec, tmp_path / "runs" / "one"), NEAR["fp32"])
    files = sorted((tmp_path / "runs" / "run" / "stages").iterdir())
    assert [file.name for file in files] == [f"stage{n}_rank{n}.csv" for n in range(4)]
    for file in files:
        head, row = (line.split(",") for line in file.read_text().splitlines())
        told = dict(zip(head, row, strict=True))
        assert told["global_batch_size"] == "3"
        parts = ("forward-compute", "backward-compute", "optimizer")
        assert 0 < sum(float(told[name]) for name in parts) < float(told["time"])
        assert float(told["max_allocated"]) > 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"layers": 12}, "layers is 12; the plan deals the operators of 24"),
        ({"family": "bert"}, "family is 'bert'; the plan deals the operators of 'gpt'"),
        ({"microbatches": 4}, "microbatches is 4; the plan has micro-batches of"),
        ({"heads": 1}, "tp of operator 0 of stage 0 is 2; it must divide num_attention_heads"),
    ],
)
def test_what_a_plan_cannot_be_is_refused(given, told, root, tmp_path):
    table = read_table(root / "workbench" / "published" / "aceso_plans.csv.gz")
    file = tmp_path / "plan.json"
    file.write_text(table["small_gpt_1_3B_4gpu_2stages.json"])
    spec = make_spec({"method": "aceso", "plan": str(file), "ranks": 4, **given})
    with pytest.raises(ValueError, match=told):
        settled(spec, tmp_path)
    assert not (tmp_path / "plans").exists()


@pytest.mark.parametrize(
    ("verb", "gpus", "more", "shapes"),
    [
        # Stages of equal depth, all recomputed; stages of one and two devices.
        ("megatron", 2, ["--memory-limit", "5500"], [(1, 1, True), (1, 1, True)]),
        later("alpa", 3, [], [(1, 1, False), (1, 2, False)]),
    ],
)
def test_plans_of_comparators_train_narrower(verb, gpus, more, shapes, ranks, tmp_path):
    """The file that their commands save, of two stages, is trained as another plan is."""
    words = ["--num-gpus-per-node", str(gpus), "--num-layers", "2", "--global-batch-size", "6",
             "--start-num-stages", "2", "--config-save-path", str(tmp_path / "plans")]  # fmt: skip
    assert main(["aceso", verb, *words, *more]) == 0
    (saved,) = (tmp_path / "plans").iterdir()
    sizes = {key: getattr(MODEL, field) for key, field in KEYS.items()}
    told = json.loads(saved.read_text())
    made = read_plan(json.dumps({k: sizes.get(k, v) for k, v in told.items()}), verb)
    assert [(s.tp[1], s.dp[1], s.recompute[1] == 1) for s in made.stages] == shapes
    spec = spec_of(made, tmp_path, steps=6)
    assert_equals(trained(spec, tmp_path / "runs" / "run"), judged(spec), NEAR["fp32"])


def test_checkpoints_go_on_under_plans_and_other_methods(ranks, monkeypatch, tmp_path):
    """A plan to 1F1B to another plan to Harmony to the first plan to plain training, a step each:
    all go on as one process would. Evaluations are one process's, too."""
    fork_ranks(monkeypatch)
    ranks("")
    monkeypatch.setattr("workbench.training.ranks.profile_for", lambda s, *_: made_up_profile(s))
    one = plan([(1, 6, some()), (1, END, even())])
    other = plan([(2, END, turns(1, 2))], micro=6)
    turn, runs = (one, "1f1b", other, "harmony-pp", one, "plain"), tmp_path / "runs"
    of = {"steps": 6, "eval_every": 3, "eval_samples": 8}
    whole = spec_of(one, tmp_path, **of).with_(method="plain", ranks=1)
    wanted = plain_method.train(whole, Silent(), runs / "whole")
    found, before = None, ""
    for end, made in enumerate(turn, 1):
        if isinstance(made, str):
            micros = 1 + (made == "1f1b")
            spec = whole.with_(method=made, ranks=1 + (made != "plain"), microbatches=micros)
        else:
            spec = spec_of(made, tmp_path / str(end), **of)
        spec = spec.with_(steps=end, lr_decay_steps=6, save_every=1, start_from=before)
        before = str(runs / str(end))
        found = methods.load(spec.method).train(spec, Silent(), Path(before))
    assert found.losses == pytest.approx(wanted.losses, rel=1e-6)
    told, theirs = (
        {one["step"]: one["loss"] for one in each.evaluations} for each in (found, wanted)
    )
    assert [told[step] for step in theirs] == pytest.approx([*theirs.values()], rel=1e-5)


def test_masters_of_bf16_weights_go_on_under_another_plan(ranks, tmp_path):
    ranks("")
    first, then = plan([(1, 6, some()), (1, END, even())]), plan([(2, END, even(2))])
    begun, runs = spec_of(first, tmp_path / "1", **BF16), tmp_path / "runs"
    trained(begun.with_(steps=3, lr_decay_steps=6), runs / "1")
    spec = spec_of(then, tmp_path / "2", **BF16, lr_decay_steps=6, start_from=str(runs / "1"))
    found = trained(spec, runs / "2")
    assert_equals(found, judged(spec.with_(start_from="", fused=True), "bf16"), NEAR["bf16"])


@pytest.mark.parametrize(
    ("how", "told"),
    [
        later("SIGKILL", "rank 1 was killed by SIGKILL"),
        ("SIGSTOP", "hangs: it is stopped"),
    ],
)
def test_a_process_that_ends_in_a_collective_is_named_and_the_run_goes_on(
    how, told, ranks, monkeypatch, tmp_path
):
    """With the operator in whose sum the other one waits for it. Afterwards the run equals one that
    nobody disturbed."""
    before, made = children(), plan([(2, END, even(2))])
    spec, folder = spec_of(made, tmp_path, steps=8, save_every=2), tmp_path / "runs" / "run"
    with monkeypatch.context() as patch:
        begun = (sys.executable, "-m", "tests.methods.aceso.rank_driver", how)  # itself has the pid
        launched = partial(RankLauncher, process=begun)
        patch.setattr("workbench.training.trained_ranks.RankLauncher", launched)
        with pytest.raises(RankFailed, match=told) as raised:
            aceso.train(spec, Silent(), folder)
    where = r"the backward pass of operator \d+ of stage 0 \(\w+(-\w+)*\)"
    assert re.search(f"the last that it began is {where}", str(raised.value))
    assert children() <= before
    saved = next(checkpoint.whole(folder / "checkpoints")).manifest.next_step
    assert 0 < saved < spec.steps
    report = Silent()
    found = aceso.train(spec, report, folder)
    assert [kind for kind, _ in report.events].count("step") == spec.steps - saved
    assert found.losses == pytest.approx(judged(spec.with_(save_every=0)).losses, rel=1e-6)


@pytest.mark.parametrize(
    ("ranks_given", "change", "told"),
    [
        (2, {}, "ranks is 2; the plan is for 3 devices: give --ranks 3"),
        (3, {"num_attention_heads": 3, "hidden_size": 16}, "tp of operator 0 of stage 1 is 2"),
        (3, {"hidden_size": 18}, "4 heads do not divide a hidden size of 18"),
        (3, {"num_layers": 3}, "adds up to 29; gpt of 3 layers has 42 operators"),
        (3, None, "there is no such file"),
    ],
)
def test_a_plan_that_cannot_be_trained_is_refused(ranks_given, change, told, tmp_path):
    """In one sentence, and nothing is written."""
    made: Plan = plan([(1, 6, some()), (2, END, even(2))])
    if change is not None:
        (tmp_path / "plan.json").write_text(json.dumps(made.to_dict() | change))
    given = {"method": "aceso", "plan": str(tmp_path / "plan.json"), "ranks": ranks_given}
    with pytest.raises(ValueError, match=told) as refused:
        settled(make_spec(given), tmp_path / "results")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "results").exists()


def test_the_plan_says_the_model_and_its_digest_the_run(tmp_path):
    """Whichever file it is in, and where it lies."""
    made, results = plan([(1, 6, some()), (1, END, even())], batch=12), tmp_path / "results"
    other = plan([(1, 7, some()), (1, END, even())])
    files = {name: tmp_path / name for name in "abc"}
    for file, each in zip(files.values(), (made, made, other), strict=True):
        file.write_text(each.to_json())
    found = [
        settled(make_spec({"method": "aceso", "ranks": 2, "plan": str(file)}), results)
        for file in files.values()
    ]
    wanted = replace(MODEL, vocab=51200, dropout=0.0)
    assert (found[0].model, found[0].batch, found[0].microbatches) == (wanted, 12, 3)
    assert found[0].key() == found[1].key() != found[2].key()
    assert found[0].options.settled(found[0], results)["plan"] == found[0].options.plan
