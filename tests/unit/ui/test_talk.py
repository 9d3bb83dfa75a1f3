"""The conversation with the planner, without and with its widgets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.helpers import wait_for
from workbench.runs.store import Store
from workbench.ui.talk import Conversation, Question
from workbench.ui.talk_panel import TalkPanel

pytestmark = pytest.mark.slow

V100 = "v100-32gb"


@pytest.fixture
def panel(tmp_path: Path) -> Iterator[TalkPanel]:
    panel = TalkPanel(Store(tmp_path / "results"))
    yield panel
    panel.close()


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    talk = Conversation(Store(tmp_path / "results"))
    yield talk
    talk.close()


def test_which_method_and_the_largest_model(talk: Conversation) -> None:
    asked = Question.of(machine=V100, layers=8, hidden=2048, device_memory=24 << 30)
    reply = talk.answer(asked, full=True)
    assert reply.row is not None
    assert reply.row.fits
    fitting = [row.samples_per_second for row in reply.rows if row.fits]
    assert reply.row.samples_per_second == max(fitting)
    assert not reply.refining


def test_asking_does_not_wait_and_the_last_question_is_answered(
    talk: Conversation, answered
) -> None:
    """Nobody answers while they are asked."""
    talk.ask(Question.of(machine=V100, layers=3))
    talk._aside._process.send_signal(signal.SIGSTOP)
    with answered("planner's page: asking 20 questions, without the answers", 0.2, "thread"):
        for layers in range(4, 24):
            talk.ask(Question.of(machine=V100, layers=layers))
    talk._aside._process.send_signal(signal.SIGCONT)
    replies = []
    wait_for(lambda: replies.append(talk.poll()) or not talk.busy)
    last = [reply for reply in replies if reply is not None][-1]
    assert last.question.spec.model.layers == 23


def test_a_slider_is_answered_in_the_page(panel: TalkPanel) -> None:
    panel.ask(machine=V100, layers=6)
    wait_for(lambda: (panel.tick(), panel.reply and panel.reply.done)[1])
    assert panel.reply.question.spec.model.layers == 6
