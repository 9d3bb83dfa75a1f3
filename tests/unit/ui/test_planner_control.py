"""The planner's page, without and with its widgets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.helpers import wait_for
from workbench.runs.store import Store
from workbench.ui.planner import PlannerControl, Question
from workbench.ui.planner_panel import PlannerPanel

pytestmark = pytest.mark.slow

V100 = "v100-32gb"


@pytest.fixture
def panel(tmp_path: Path) -> Iterator[PlannerPanel]:
    panel = PlannerPanel(Store(tmp_path / "results"))
    yield panel
    panel.close()


@pytest.fixture
def planner(tmp_path: Path) -> Iterator[PlannerControl]:
    planner = PlannerControl(Store(tmp_path / "results"))
    yield planner
    planner.close()


def test_which_method_and_the_largest_model(planner: PlannerControl) -> None:
    asked = Question.of(machine=V100, layers=8, hidden=2048, device_memory=24 << 30)
    reply = planner.answer(asked, full=True)
    assert reply.row is not None
    assert reply.row.fits
    fitting = [row.samples_per_second for row in reply.rows if row.fits]
    assert reply.row.samples_per_second == max(fitting)
    assert not reply.refining


def test_asking_does_not_wait_and_the_last_question_is_answered(
    planner: PlannerControl, answered
) -> None:
    """Nobody answers while they are asked."""
    planner.ask(Question.of(machine=V100, layers=3))
    planner._helper._process.send_signal(signal.SIGSTOP)
    with answered("planner's page: asking 20 questions, without the answers", 0.2, "thread"):
        for layers in range(4, 24):
            planner.ask(Question.of(machine=V100, layers=layers))
    planner._helper._process.send_signal(signal.SIGCONT)
    replies = []
    wait_for(lambda: replies.append(planner.poll()) or not planner.busy)
    last = [reply for reply in replies if reply is not None][-1]
    assert last.question.spec.model.layers == 23


def test_a_slider_is_answered_in_the_page(panel: PlannerPanel) -> None:
    panel.ask(machine=V100, layers=6)
    wait_for(lambda: (panel.tick(), panel.reply and panel.reply.done)[1])
    assert panel.reply.question.spec.model.layers == 6
