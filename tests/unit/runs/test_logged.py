"""Curves of a run as the libraries that draw them are given them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.runs.events import EventLog, EventReader
from workbench.runs.logged import Log, check_log, where_logged
from workbench.runs.worker import WorkerReporter

SPEC = RunSpec(method="plain", model=ModelSpec(seq=32), batch=4, steps=4, lr=1e-3)
PLAN = {"peak_bytes": {"device": 100, "host": 7, "disk": None}}


@pytest.fixture
def wandb(monkeypatch):
    """The package, which remembers; `fails` is what it raises."""
    fake = SimpleNamespace(inits=[], logged={}, finished=0, fails=None)

    def log(values, step):
        if fake.fails:
            raise fake.fails
        fake.logged.setdefault(step, {}).update(values)

    def finish():
        fake.finished += 1

    def init(**how):
        fake.inits.append(how)
        return SimpleNamespace(log=log, finish=finish)

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


@pytest.fixture
def reporter(tmp_path):
    """A worker's, which writes events, too."""
    (folder := tmp_path / "key").mkdir()
    return WorkerReporter(SPEC, EventLog(folder / "events.jsonl"), folder, "wandb")


def test_all_values_of_a_step_go_to_its_number(wandb, reporter, monkeypatch) -> None:
    reporter.event("plan", **PLAN)
    reporter.step(0, 3.0, 0.5, 1.25)
    reporter.event("evaluated", step=1, loss=2.5, perplexity=12.0, seconds=1.0, samples=8)
    reporter.step(1, 2.0, 0.25)
    reporter.curves.ended({"device": 90, "host": None})
    reporter.curves.close()
    assert wandb.logged == {
        1: {
            "planned_bytes/device": 100, "planned_bytes/host": 7, "train/loss": 3.0,
            "train/learning_rate": 1e-3, "train/gradient_norm": 1.25,
            "train/tokens_per_second": 256, "held_out/loss": 2.5, "held_out/perplexity": 12.0,
        },
        2: {
            "train/loss": 2.0, "train/learning_rate": SPEC.learning_rate(1),
            "train/tokens_per_second": 512, "peak_bytes/device": 90,
        },
    }  # fmt: skip
    assert (wandb.inits[0]["mode"], wandb.inits[0]["id"], wandb.finished) == ("offline", "key", 1)
    monkeypatch.setenv("WANDB_MODE", "online")
    WorkerReporter(SPEC, reporter._log, reporter.curves._folder, "wandb").step(2, 1.0, 0.5)
    assert wandb.inits[1]["mode"] is None, "the environment says it"


def test_a_library_that_fails_ends_its_log_alone(wandb, reporter) -> None:
    wandb.fails = OSError("no space left")
    reporter.step(0, 3.0, 0.5)
    reporter.step(1, 2.0, 0.5)
    events = EventReader(reporter.curves._folder / "events.jsonl").read()
    assert [e["event"] for e in events] == ["step", "phase", "step"]
    assert events[1]["text"] == "wandb ends here: OSError: no space left"


def test_what_cannot_be_logged_is_refused_with_the_line_that_installs_it(monkeypatch) -> None:
    monkeypatch.setattr("workbench.runs.logged.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed; pip install 'workbench\[finetune\]'"):
        check_log("tensorboard")
    with pytest.raises(ValueError, match="pip install wandb"):
        check_log("wandb")
    with pytest.raises(ValueError, match="log is 'mlflow'; it must be one of tensorboard, wandb"):
        check_log("mlflow")
    check_log("")


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
    assert where_logged("tensorboard", tmp_path).endswith(str(tmp_path / "tensorboard"))
    assert where_logged("wandb", tmp_path) == ""
