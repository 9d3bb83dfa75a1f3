"""The evaluation of the claims with real, tiny runs, driven without a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.runs.helpers import processes_of, wait_for
from tests.runs.in_process import InProcess
from workbench.runs.store import Store
from workbench.ui.evaluation import control as evaluation
from workbench.ui.evaluation.control import Evaluation
from workbench.ui.evaluation.panel import EvaluationPanel
from workbench.ui.tires import TIRES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch, answered) -> None:
    """It is not asked what the process beside the page does, which this one plays."""
    if not answered.asked:
        monkeypatch.setattr(evaluation, "HelperProcess", InProcess)
        monkeypatch.setattr("workbench.report.EXHIBITS", ("7a", "8a", "8b", "9"))


@pytest.fixture
def panel(store: Store, answered) -> Iterator[EvaluationPanel]:
    panel = EvaluationPanel("tiny", store.root)
    tick = panel.tick

    def look() -> None:
        with answered("evaluation: a look at everything", 0.03, "thread"):
            tick()

    panel.tick = look
    yield panel
    for campaign in (panel.evaluation.tires, *(c.campaign for c in panel.evaluation.claims)):
        if campaign.alive:
            campaign.cancel()
            wait_for(lambda campaign=campaign: not campaign.alive)
    panel.close()


def until(panel: EvaluationPanel, condition: Callable[[], object]) -> None:
    """Tick until it is so."""
    wait_for(lambda: (panel.tick(), condition())[1])


def section(panel: EvaluationPanel, name: str):
    """The section of an exhibit, opened."""
    (index,) = (i for i, s in enumerate(panel.sections) if s.claim.name == name)
    panel.claims.selected_index = index
    return panel.sections[index]


def test_a_claim_from_preview_to_verdict(panel: EvaluationPanel, store: Store) -> None:
    shown = section(panel, "fig8b")
    until(panel, lambda: shown.preview.value and shown.verdict.value)
    assert "Claim (VI.B" in shown.about.value
    assert "2 to run" in shown.preview.value
    assert "not run" in shown.verdict.value
    assert (shown.run.disabled, shown.cancel.disabled) == (False, True)
    before = shown.picture.value

    shown.run.click()
    until(panel, lambda: shown.claim.live)
    assert (shown.run.disabled, shown.cancel.disabled) == (True, False)
    until(panel, lambda: shown.claim.status.running)
    assert "on the processors" in shown.state.value
    until(panel, lambda: shown.claim.status.counts.get("done"))
    shown.cancel.click()
    until(panel, lambda: shown.claim.status.state == "cancelled")
    assert not processes_of(store.root)
    first = {record.key: record.started for record in store.records() if record.status == "ok"}
    assert len(first) == 1

    shown.run.click()
    until(panel, lambda: shown.claim.status.state == "done")
    assert [record.status for record in store.records()] == ["ok", "ok"]
    until(panel, lambda: (shown.progress.value, shown.progress.max) == (2, 2))
    until(panel, lambda: not shown.claim.stale and shown.claim.shown.done)
    until(panel, lambda: shown.picture.value != before)
    (note,) = (head.note for head in panel.claims.heads if head.note)
    assert note.startswith("finished; "), note
    assert "measured" in shown.verdict.value
    assert 'alt="fig8b: ' in shown.picture.value

    started = {record.key: record.started for record in store.records()}
    assert first.items() <= started.items(), "what was finished stayed finished"
    shown.run.click()
    until(panel, lambda: shown.claim.status.state == "done")
    now = {record.key: record.started for record in store.records()}
    assert now == started, "nothing is run again"


@pytest.mark.usefixtures("beside")
def test_the_tires(panel: EvaluationPanel, monkeypatch: pytest.MonkeyPatch, answered) -> None:
    if not answered.asked:
        small = {"hidden": 32, "heads": 2, "seq": 16, "steps": 4}
        monkeypatch.setitem(TIRES, "base", TIRES["base"] | small)
    panel.kick.click()
    until(panel, lambda: "running" in panel.kicked.value)
    until(panel, lambda: "the losses agree" in panel.kicked.value)


@pytest.mark.usefixtures("beside")
def test_another_page_finds_what_runs(panel: EvaluationPanel, store: Store) -> None:
    mine = panel.evaluation.claim("8b")
    panel.evaluation.start(mine)
    other = Evaluation("tiny", store.root)
    try:
        theirs = other.claim("fig8b")
        assert theirs in list(other.poll())
        assert theirs.live
        other.start(theirs)
        assert theirs.campaign.status().pid == mine.campaign.status().pid
    finally:
        other.close()


@pytest.mark.usefixtures("beside")
def test_committed_measurements_are_shown_and_nothing_runs(panel: EvaluationPanel) -> None:
    shown = section(panel, "here_offload")
    until(panel, lambda: shown.verdict.value)
    assert "Nothing runs for this" in shown.about.value
    assert shown.controls.layout.display == "none"
    assert shown.claim.shown.value["png"] in shown.picture.value


@pytest.mark.usefixtures("beside")
def test_one_button_makes_the_report(panel: EvaluationPanel, store: Store) -> None:
    panel.report.click()
    until(panel, lambda: "opens offline" in panel.reported.value)
    assert (store.root / "reports" / "tiny" / "report.html").stat().st_size > 10_000


@pytest.mark.usefixtures("beside")
def test_what_goes_wrong_is_a_sentence(panel: EvaluationPanel, store: Store) -> None:
    shown = section(panel, "fig8b")
    (store.root / "sweeps").parent.mkdir(parents=True, exist_ok=True)
    (store.root / "sweeps").write_text("a file in the way")
    shown.run.click()
    assert "cannot be written" in shown.state.value
    assert "Traceback" not in shown.state.value
    with pytest.raises(ValueError, match="unknown size 'huge'"):
        Evaluation("huge", store.root)
