"""The planner's page without its widgets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.helpers import wait_for
from workbench.runs.best import fastest
from workbench.runs.store import Store
from workbench.ui.planner.control import PlannerControl, Question

pytestmark = pytest.mark.slow

V100 = "v100-32gb"


@pytest.fixture
def planner(tmp_path: Path) -> Iterator[PlannerControl]:
    planner = PlannerControl(Store(tmp_path / "results"))
    yield planner
    planner.close()


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
    wait_for(lambda: (reply := planner.poll()) and reply.question.spec.model.layers == 23)


def test_pipelines_are_asked_with_several_micro_batches_as_at_the_command_line(
    planner: PlannerControl,
) -> None:
    shape = {"layers": 8, "hidden": 1024, "heads": 16, "batch": 16, "ranks": 2, "device": "cuda"}
    question = Question.of(machine="h100-80gb", method="1f1b", **shape)
    reply = planner.answer(question)
    best = fastest(question.spec, planner.store, "h100-80gb")
    assert reply.row.microbatches == best.spec.microbatches > 1
    assert reply.row.step_seconds == pytest.approx(best.plan.step_seconds)
    assert reply.row.label.endswith(f"{best.spec.microbatches} micro-batches")
    assert reply.run_spec().microbatches == best.spec.microbatches
