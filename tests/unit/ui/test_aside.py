"""The process beside the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.runs.helpers import wait_for
from workbench.ui.aside import Aside

UNITS = "workbench.core.bytesize:parse_bytes"


@pytest.fixture
def aside() -> Iterator[Aside]:
    aside = Aside()
    yield aside
    aside.close()


def test_it_answers_in_another_process_and_keeps_it(aside: Aside, answered) -> None:
    first = aside.ask("os:getpid")
    wait_for(lambda: first.done)
    assert first.value != os.getpid()
    with answered("aside: 20 answers of the process beside a page", 2):
        later = [aside.ask("os:getpid") for _ in range(20)]
        wait_for(lambda: all(answer.done for answer in later))
    assert {answer.value for answer in later} == {first.value}


def test_asking_does_not_wait(aside: Aside, answered) -> None:
    """For an answer that never comes, and one that would come after it."""
    aside.ask("os:getpid")
    with answered("aside: asking it, without the answers", 0.05, "thread"):
        answers = [aside.ask("signal:pause"), aside.ask("os:getpid")]
    assert not any(answer.done for answer in answers)


def test_an_error_is_a_sentence(aside: Aside) -> None:
    bad, good = aside.ask(UNITS, amount="3 apples"), aside.ask(UNITS, amount="3GiB")
    wait_for(lambda: good.done)
    assert "3 apples" in bad.error
    assert bad.value is None
    assert (good.value, good.error) == (3 << 30, "")


def test_what_prints_does_not_disturb_the_answers(aside: Aside) -> None:
    answer, after = aside.ask("builtins:print", end="{broken"), aside.ask("os:getpid")
    wait_for(lambda: after.done)
    assert answer.done
    assert answer.error == ""


def test_killed_it_says_so_and_is_started_again(aside: Aside) -> None:
    pid = aside.ask("os:getpid")
    wait_for(lambda: pid.done)
    waiting = aside.ask("signal:pause")
    psutil.Process(pid.value).kill()
    wait_for(lambda: waiting.done)
    assert "ask again" in waiting.error
    again = aside.ask("os:getpid")
    wait_for(lambda: again.done)
    assert again.value not in (None, pid.value)


def test_left_at_something_long_it_is_started_again(aside: Aside) -> None:
    pid = aside.ask("os:getpid")
    wait_for(lambda: pid.done)
    left = aside.ask("signal:pause")
    aside.leave()
    again = aside.ask("os:getpid")
    wait_for(lambda: again.done)
    assert again.value not in (None, pid.value)
    assert not left.done
    wait_for(lambda: not psutil.pid_exists(pid.value))


def test_whatever_it_is_at_it_ends_with_who_started_it() -> None:
    code = (
        "import time; from workbench.ui.aside import Aside; aside = Aside(); pid = "
        "aside.ask('os:getpid')\n"
        "while not pid.done: time.sleep(0.01)\n"
        "aside.ask('signal:pause'); print(pid.value, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment
    ) as kernel:
        pid = int(kernel.stdout.readline())
        assert psutil.pid_exists(pid)
        kernel.kill()
    wait_for(lambda: not psutil.pid_exists(pid))


def test_closed_it_is_gone(aside: Aside) -> None:
    pid = aside.ask("os:getpid")
    wait_for(lambda: pid.done)
    aside.close()
    assert not psutil.pid_exists(pid.value)
