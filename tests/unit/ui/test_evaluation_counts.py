"""A claim's section tells of its runs as the results folder has them, and busy runs are made
again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.in_process import InProcess
from tests.unit.figures.records import record
from workbench.core.record import RunRecord
from workbench.exhibits import open_exhibit
from workbench.runs.campaign import Campaign, Status
from workbench.runs.resolve import key_of
from workbench.ui.evaluation import control as evaluation
from workbench.ui.evaluation.panel import EvaluationPanel


@pytest.fixture
def panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "HelperProcess", InProcess)
    monkeypatch.setattr(evaluation, "EXHIBITS", ("9",))
    monkeypatch.setattr("workbench.core.host.resolve_device", lambda device: "cpu")
    panel = EvaluationPanel("tiny", tmp_path)
    yield panel
    panel.close()


def test_one_count_of_a_claims_runs_and_busy_ones_are_repeated(panel, monkeypatch) -> None:
    (section,) = panel.sections
    store, claim = panel.evaluation.store, section.claim
    (stage,) = open_exhibit("9", "tiny", store.root).stages()
    first, *others = [point.spec for point in stage.points]
    store.write(busy := record(first, key=key_of(first), others={"cores": 0.34}))
    panel.claims.selected_index = 0
    panel.tick()
    assert "1 finished, 1 to run" in section.preview.value
    assert (section.progress.value, section.progress.max) == (1, 2), "no empty bar beside it"
    assert "1 finished, 1 to run" in section.state.value

    for spec in others:
        store.write(record(spec, key=key_of(spec)))
    monkeypatch.setattr(Campaign, "status", lambda _: Status(state="done", counts={"done": 1}))
    for _ in range(2):  # its runs have ended: looked at anew
        panel.tick()
    assert "2 finished, 0 to run" in section.preview.value
    assert (section.progress.value, section.progress.max) == (2, 2)
    assert "cannot be told: the machine was busy" in section.verdict.value
    started = []
    monkeypatch.setattr(Campaign, "start", lambda campaign, **_: started.append(campaign.name))
    section.repeat.click()
    assert started == [claim.campaign.name]
    assert [each.key for each in store.records()] == [key_of(spec) for spec in others]
    (aside,) = store.folder(busy.key).glob("record.json.busy-*")
    assert RunRecord.from_json(aside.read_bytes()) == busy, "nothing is lost"
    store.write(replace(busy, others={"cores": 0.02}))
    claim.stale = True
    panel.tick(), panel.tick()
    assert "busy" not in section.verdict.value
    assert section.repeat.disabled
