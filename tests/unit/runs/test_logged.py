"""Curves of a run as the libraries that draw them are given them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.runs.events import EventLog, EventReader
from workbench.runs.logged import Log, check_log
from workbench.runs.worker import WorkerReporter

SPEC = RunSpec(method="plain", model=ModelSpec(seq=32), batch=4, steps=4, lr=1e-3)


@pytest.fixture
def wandb(monkeypatch):
    """The package, which remembers."""
    fake = SimpleNamespace(inits=[], logged={}, ends=[])

    def init(**how):
        fake.inits.append(how)
        return SimpleNamespace(log=log, finish=lambda: fake.ends.append(1))

    def log(values, step):
        fake.logged.setdefault(step, {}).update(values)

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def test_a_worker_gives_all_values_of_a_step_under_its_number(wandb, tmp_path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    reporter = WorkerReporter(SPEC, log, tmp_path, "wandb")
    reporter.event("plan", peak_bytes={"device": 100, "host": 7, "disk": None})
    reporter.step(0, 3.0, 0.5, 1.25)
    reporter.event("evaluated", step=1, loss=2.5, perplexity=12.0, seconds=1.0, samples=8)
    reporter.step(1, 2.0, 0.25)
    reporter.curves.ended({"device": 90, "host": None})
    reporter.curves.close()
    first = {"train/loss": 3.0, "train/learning_rate": 1e-3, "train/gradient_norm": 1.25}
    first |= {"planned_bytes/device": 100, "planned_bytes/host": 7, "train/tokens_per_second": 256}
    second = {"train/loss": 2.0, "train/learning_rate": SPEC.learning_rate(1)}
    second |= {"train/tokens_per_second": 512, "peak_bytes/device": 90}
    held = {"held_out/loss": 2.5, "held_out/perplexity": 12.0}
    assert wandb.logged == {1: first | held, 2: second}
    assert ([one["mode"] for one in wandb.inits], len(wandb.ends)) == (["offline"], 1)
    wandb.init = lambda **_: 1 / 0
    WorkerReporter(SPEC, log, tmp_path, "wandb").step(2, 1.0, 0.5)
    *_, step, why = EventReader(tmp_path / "events.jsonl").read()
    assert (step["step"], why["text"]) == (
        2,
        "wandb ends here: ZeroDivisionError: division by zero",
    )


def test_what_cannot_be_logged_is_refused_with_the_line_that_installs_it(monkeypatch) -> None:
    monkeypatch.setattr("workbench.runs.logged.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed; pip install tensorboard"):
        check_log("tensorboard")
    with pytest.raises(ValueError, match="log is 'mlflow'; it must be one of tensorboard, wandb"):
        check_log("mlflow")


def test_tensorboard_reads_what_a_run_wrote_and_wrote_again(tmp_path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'finetune' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, loss in ((0, 9.0), (2, 5.0)):  # the second goes on from a checkpoint of step 2
        log = Log("tensorboard", SPEC, tmp_path, pytest.fail)
        for step in range(first, 4):
            log.step(step, loss - step, 0.5, None)
        log.close()
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    assert [(e.step, e.value) for e in found] == [(1, 9), (2, 8), (3, 3), (4, 2)]
