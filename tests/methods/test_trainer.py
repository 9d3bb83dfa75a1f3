"""Trainer of Hugging Face's, over a method: its losses, norms, rates, checkpoints and weights."""

from __future__ import annotations

import copy
import sys
from importlib import import_module

import pytest
import torch


def test_without_accelerate_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delitem(sys.modules, "workbench.hf", raising=False)
    with pytest.raises(ImportError, match="accelerate is not .*; pip install accelerate"):
        import_module("workbench.hf")


@pytest.fixture(scope="module")
def trainers(tmp_path_factory, engine):
    """Makes Trainer, or with a method ours, of a small decoder, rows that count unequally, and a
    step at the end of each epoch of fewer batches."""
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    from workbench.hf import EngineTrainer

    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 20}
    config = transformers.LlamaConfig(**sizes, intermediate_size=64, use_cache=False)
    torch.manual_seed(0)
    model, rows = transformers.LlamaForCausalLM(config), []
    for number, ids in enumerate(torch.randint(20, (22, 8))):
        labels = ids.where(torch.arange(8) >= number % 5, -100)
        rows.append({"input_ids": ids, "labels": labels})

    def make(name, method=None, kind=EngineTrainer, engine_of=None, own=None, of=None, **how):
        every = {"logging_steps": 1, "save_steps": 4, "eval_steps": 2, "eval_strategy": "steps"}
        args = transformers.TrainingArguments(
            str(tmp_path_factory.getbasetemp() / name), gradient_accumulation_steps=3,
            num_train_epochs=2, learning_rate=1e-3, use_cpu=True, report_to=[], disable_tqdm=True,
            **{"per_device_train_batch_size": 2} | every | how,
        )  # fmt: skip
        kind, given = (transformers.Trainer, {}) if method is None else (kind, {"engine": {}})
        if method is not None:
            results = engine.args[0]
            found = {"method": method, "device": "cpu", "results": results, "quiet": True}
            given = {"engine": found | (engine_of or {})}
        given |= {"train_dataset": rows, "eval_dataset": rows[:5]} | (own or {})
        return kind(of or copy.deepcopy(model), args, **given)

    return make


DATA = ("train_dataset", "eval_dataset")


def told(trainer) -> list[float]:
    """All losses, held-out losses, norms and rates of a training."""
    names = ("loss", "eval_loss", "grad_norm", "learning_rate")
    return [row[name] for row in trainer.state.log_history for name in names if name in row]


@pytest.mark.parametrize("norm", [0.7, 0.0])
def test_a_training_is_trainers_and_goes_on_from_a_checkpoint(trainers, norm, tmp_path) -> None:
    theirs = trainers("theirs", max_grad_norm=norm)
    theirs.train()
    wanted, held = told(theirs), theirs.evaluate()["eval_loss"]
    for resume in (None, "checkpoint-4", "checkpoint-8"):
        ours = trainers(f"ours {norm}", "stronghold", max_grad_norm=norm)
        ours.train(resume_from_checkpoint=resume and f"{ours.args.output_dir}/{resume}")
        assert told(ours) == pytest.approx(wanted, rel=1e-5)
        assert ours.evaluate()["eval_loss"] == pytest.approx(held, rel=1e-6)
        ours.save_model(tmp_path)
        saved = type(theirs.model).from_pretrained(tmp_path).state_dict()
        for name, value in theirs.model.state_dict().items():
            torch.testing.assert_close(saved[name], value, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "BertForSequenceClassification"])
def test_losses_are_divided_as_trainers_are(trainers, name) -> None:
    """By labels of which GPT-2's loss leaves out each row's first, and in some batches no label
    counts; of BERT's classifier by nothing, since its loss takes no number of labels."""
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    kind, generator = getattr(transformers, name), torch.manual_seed(0)
    drop = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    drop |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = kind(kind.config_class(**sizes, **drop, vocab_size=20, intermediate_size=32))
    rows = []
    for number, ids in enumerate(torch.randint(20, (12, 8), generator=generator)):
        labels = ids.where(torch.tensor(number % 3 > 0), -100)
        rows.append({"input_ids": ids, "labels": labels if "LM" in name else ids[0] % 2})
    told_by = []
    for method in (None, "stronghold"):
        made = trainers(
            "divided", method, of=copy.deepcopy(model), own=dict.fromkeys(DATA, rows),
            per_device_train_batch_size=1, save_strategy="no",
        )  # fmt: skip
        made.train()
        told_by.append(told(made))
    assert told_by[1] == pytest.approx(told_by[0], rel=1e-4)


def test_a_model_without_values_has_trained_ones_after_training(trainers, tmp_path) -> None:
    how = {"max_steps": 2, "save_strategy": "no", "eval_on_start": True}
    theirs = trainers("theirs", **how)
    theirs.save_model(tmp_path)
    theirs.train()
    with torch.device("meta"):
        hollow = type(theirs.model)(theirs.model.config)
    ours = trainers("hollow", "l2l", of=hollow, engine_of={"weights": tmp_path}, **how)
    with pytest.raises(ValueError, match="no values before train.*eval_on_start"):
        ours.evaluate()
    ours.train()
    assert told(ours) == pytest.approx(told(theirs), rel=1e-5)
    found = ours.model.state_dict()
    for name, value in theirs.model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-5)


def test_what_it_cannot_follow_is_refused_before_a_step(trainers) -> None:
    from workbench.hf import EngineTrainer

    class Own(EngineTrainer):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    for words, how in {
        "label_smoothing_factor=0.1; leave it out": {"label_smoothing_factor": 0.1},
        "the own compute_loss of Own": {"kind": Own},
        "compute_loss_func": {"own": {"compute_loss_func": lambda *given: given}},
        "engine has clip; give Trainer's max_grad_norm": {"engine_of": {"clip": 1.0}},
    }.items():
        with pytest.raises(ValueError, match=words):
            trainers("refused", "plain", **how)
