"""Runs of FTPipe train as plain training where nothing is stale, else on the declared weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from baselines import plain
from tests.methods.harness import Silent, fork_ranks, made_up_profile
from tests.methods.test_parallel_baselines import Disturbing, children, kill
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods import ftpipe
from workbench.methods.ftpipe.planner import pipeline_of
from workbench.methods.ftpipe.run import stages_in
from workbench.methods.ftpipe.stage_sizes import StageSizes
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.model import make_model
from workbench.model.base import Context
from workbench.ranks.failures import RankFailed
from workbench.schedule.action import Kind
from workbench.training.run import load_batches

MODEL = ModelSpec(layers=4, hidden=16, heads=2, seq=8, vocab=256, tied=False)


@pytest.fixture(autouse=True)
def _forked(monkeypatch):
    fork_ranks(monkeypatch)
    made_up = "workbench.methods.ftpipe.run.profile_for"
    monkeypatch.setattr(made_up, lambda spec, *_: made_up_profile(spec))


def spec_of(**kw) -> RunSpec:
    values = {"method": "ftpipe", "model": MODEL, "batch": 4, "steps": 7, "ranks": 2, "clip": None}
    return RunSpec.of(**{**values, "microbatches": 2, "device": "cpu", **kw})


class Reference:
    """One process that knows which weights each pass reads, and nothing of pipelines. After each
    saving nothing is stale."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self._spec, self._model = spec, make_model(spec.model, spec.seed)
        model = self._model
        self._batches = load_batches(spec, model, folder / "cache")
        stages = stages_in(model, spec)
        made = schedule(pipeline_of(spec, stages, StageSizes(IdealSizes(), stages)))
        self._stale = {(a.kind, a.unit, a.microbatch): a.stale for a in made.actions}
        self._now = [{unit: model.build(unit, seed=spec.seed) for unit in own} for own in stages]
        self._kept = [{0: copy.deepcopy(modules)} for modules in self._now]
        self._optimizers = [adamw(spec, model, modules) for modules in self._now]

    def step(self, step: int) -> float:
        """A step's mean loss."""
        total = sum(self._micro_batch(step, micro) for micro in range(self._spec.microbatches))
        for stage, optimizer in enumerate(self._optimizers):
            for group in optimizer.param_groups:
                group["lr"] = self._spec.learning_rate(step)
            optimizer.step()
            optimizer.zero_grad()
            self._kept[stage][step + 1] = copy.deepcopy(self._now[stage])
        return total / self._spec.microbatches

    def _micro_batch(self, step: int, micro: int) -> float:
        """The loss of a micro-batch, whose gradients are added to those of the newest weights."""
        size = self._spec.microbatch
        samples = tuple(self._batches.samples(step)[micro * size :][:size])
        tokens, targets = self._batches.rows(samples)

        def passed(kind: Kind, stage: int, x: torch.Tensor) -> tuple[dict, torch.Tensor]:
            """The weights that a pass of a stage reads, and what comes out."""
            since = step - step % (self._spec.save_every or self._spec.steps)
            modules = self._kept[stage][max(since, step - self._stale[kind, stage, micro])]
            for unit, module in modules.items():
                ctx = Context(seed=self._spec.seed, step=step, unit=unit, samples=samples)
                last = targets if unit == self._model.head else None
                x = self._model.forward(unit, module, x, ctx, last)
            return modules, x

        crossing, last = [tokens], len(self._now) - 1
        for stage in range(last):
            out = passed(Kind.FORWARD, stage, crossing[-1])[1]
            crossing.append(out.detach().requires_grad_())
        above, loss = None, 0.0
        for stage in reversed(range(last + 1)):
            modules, out = passed(Kind.BACKWARD, stage, crossing[stage])
            loss = out.item() if stage == last else loss
            end = out / self._spec.microbatches if stage == last else out
            end.backward(above)
            above = crossing[stage].grad
            for unit, module in modules.items():
                newest = self._now[stage][unit].parameters()
                for own, used in zip(newest, module.parameters(), strict=True):
                    own.grad = used.grad.clone() if own.grad is None else own.grad + used.grad
                    used.grad = None
        return loss


def adamw(spec, model, modules) -> torch.optim.Optimizer:
    named = [
        (model.decays(unit, name), parameter)
        for unit, module in modules.items()
        for name, parameter in module.named_parameters()
    ]
    groups = [
        {
            "params": [parameter for decays, parameter in named if decays == wanted],
            "weight_decay": spec.weight_decay if wanted else 0.0,
        }
        for wanted in (True, False)
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], betas=(spec.beta1, spec.beta2), eps=spec.eps
    )


@pytest.mark.parametrize(
    "case",
    [
        {"map": "0 1 0 1", "cut": "2 1 1 2"},
        {"microbatches": 1, "cut": "2 2 1 1", "map": "0 1 1 0"},
        {"cut": "2 2 2", "map": "0 1 0", "stage_order": "virtual-stages-1f1b", "supremum": 3},
    ],
)
def test_losses_are_those_of_the_declared_versions(case, tmp_path):
    spec = spec_of(**case)
    found = ftpipe.train(spec, Silent(), tmp_path / "run")
    reference = Reference(spec, tmp_path)
    wanted = [reference.step(step) for step in range(spec.steps)]
    assert found.losses == pytest.approx(wanted, rel=1e-5)
    assert "asynchronous" in found.notes[0]


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
    reference = Reference(spec, tmp_path)
    wanted = [reference.step(step) for step in range(spec.steps)]
    assert found.losses == pytest.approx(wanted, rel=1e-5)


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


def test_the_partitioner_finds_stages_that_train(tmp_path):
    """FTPipe's own, three blocks for two ranks: two of them on one."""
    spec = spec_of()
    found = ftpipe.train(spec, Silent(), tmp_path / "run")
    settings = found.predicted["settings"]
    chosen = spec.with_(cut=settings["cut"], map=settings["map"])
    reference = Reference(chosen, tmp_path)
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
        ({"batch": 5}, "a batch of 5 does not divide into 2 micro-batches"),
        (
            {"model": ModelSpec(layers=4, hidden=16, heads=2, seq=8, vocab=256)},
            "unit 5 has a weight of unit 0, in stages 1 and 0",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(case, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        ftpipe.train(spec_of(**case), Silent(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
