"""Runs whose number of micro-batches nobody names."""

from __future__ import annotations

import json
import os
import shutil
import signal
from types import SimpleNamespace

import pytest

from tests.methods.harness import LOSS_TOLERANCE
from tests.methods.plain import MODEL, spec_for, train
from workbench import api
from workbench.cli import main
from workbench.core.model_spec import ModelSpec
from workbench.runs.chosen import KIND, with_parts
from workbench.runs.events import EventLog
from workbench.runs.jobfile import JobFile
from workbench.runs.store import Store

WIDE = ModelSpec(**{**MODEL.to_dict(), "seq": 64, "dropout": 0.0})

JOB = JobFile(
    key="run", module="workbench.methods.stronghold", started="2026-01-01T00:00:00+00:00", mark="",
    timeout_s=None, resume=True, provenance={},
)  # fmt: skip


def asked(method: str, results, **changes) -> dict:
    """Fields of a run that names no number of micro-batches."""
    fields = spec_for(method=method, model=WIDE, batch=8, steps=4, save_every=2).to_dict()
    del fields["microbatches"]
    return {**fields, **changes, "results": results}


def whole(answer) -> int:
    """Bytes of the device in a plan, or in the smallest layout."""
    return answer.plan.peak_bytes["device"]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "method", ["stronghold", pytest.param("plain", marks=pytest.mark.thorough)]
)
def test_what_does_not_fit_whole_is_divided_planned_trained_and_resumed(
    method, tmp_path, measured, capsys
) -> None:
    results = tmp_path / "results"
    shutil.copytree(measured, results / "profiles")
    tight = {"device_memory": "1KiB"}
    one, two = (
        whole(api.plan(**asked(method, results, **tight, microbatches=count))) for count in (1, 2)
    )
    assert two < one
    told = asked(method, results, device_memory=(one + two) // 2)

    def kill(event: dict) -> None:
        if event["event"] == "started":
            told_pid.append(event["pid"])
        elif event["event"] == "saved":
            os.kill(told_pid[-1], signal.SIGKILL)

    told_pid: list[int] = []
    killed = api.run(**told, on_event=kill)
    assert (killed.status, killed.microbatches, killed.spec["microbatches"]) == ("error", 2, "auto")
    record = api.run(**told)
    assert (record.status, record.key, record.microbatches) == ("ok", killed.key, 2)
    expected, _ = train(spec_for(model=WIDE, batch=8, steps=4))
    assert record.losses == pytest.approx(expected, rel=LOSS_TOLERANCE)
    assert record.peak_bytes["device"] <= told["device_memory"]

    planned = api.plan(**told)
    assert (planned.spec.microbatches, planned.chosen, planned.plan.fits) == (2, True, True)
    assert [*api.records(results)["microbatches"]] == [2]
    (tmp_path / "spec.json").write_text(json.dumps(record.spec))
    words = ["--spec", str(tmp_path / "spec.json"), "--results", str(results)]
    assert main(["plan", *words]) == 0
    assert "in 2 micro-batches of 4, chosen" in capsys.readouterr().out
    assert main(["run", *words]) == 0, "it is the run that there is"
    assert "cached from" in capsys.readouterr().err

    named = api.run(**told, microbatches=4)
    assert named.key != record.key
    assert (named.status, named.microbatches, named.spec["microbatches"]) == ("ok", None, 4)


def test_a_size_that_cannot_win_is_not_measured(tmp_path, measured) -> None:
    """L2L has one layout whatever the budget, here one that leaves little free."""
    results = tmp_path / "results"
    shutil.copytree(measured, results / "profiles")
    tight = whole(api.plan(**asked("l2l", results, device_memory="1KiB", microbatches=1)))
    spec = spec_for(method="l2l", model=WIDE, batch=8, device_memory=tight * 6 // 5)
    spec = spec.with_(microbatches="auto")
    told = []
    report = SimpleNamespace(
        phase=lambda text: None, event=lambda kind, **values: told.append(values["text"])
    )
    folder = Store(results).prepare("run")
    assert with_parts(spec, folder, JOB, report).microbatches == 1
    sizes = [line.split()[-1] for line in told if line.startswith("measuring the layers")]
    assert sizes == ["8"]


def test_a_resumed_run_keeps_the_number_of_the_attempt_before(tmp_path) -> None:
    spec = spec_for(batch=8).with_(microbatches="auto")
    folder = Store(tmp_path).prepare("run")
    EventLog(folder / "events.jsonl").write(KIND, microbatches=8, text="")
    told = []
    report = type("Report", (), {"event": lambda self, kind, **values: told.append(values)})()
    assert with_parts(spec, folder, JOB, report).microbatches == 8
    assert [one["text"] for one in told] == ["in 8 micro-batches of 1, chosen"]
