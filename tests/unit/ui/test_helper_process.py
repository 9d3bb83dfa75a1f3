"""The process beside the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.runs.helpers import wait_for
from workbench.ui.helper_process import HelperProcess

UNITS = "workbench.core.bytesize:parse_bytes"


@pytest.fixture
def helper() -> Iterator[HelperProcess]:
    helper = HelperProcess()
    yield helper
    helper.close()


def test_it_answers_in_another_process_and_keeps_it(helper: HelperProcess, answered) -> None:
    first = helper.ask("os:getpid")
    wait_for(lambda: first.done)
    assert first.value != os.getpid()
    with answered("helper process: 20 answers", 2):
        later = [helper.ask("os:getpid") for _ in range(20)]
        wait_for(lambda: all(answer.done for answer in later))
    assert {answer.value for answer in later} == {first.value}


def test_asking_does_not_wait(helper: HelperProcess, answered) -> None:
    """For an answer that never comes, and one that would come after it."""
    helper.ask("os:getpid")
    with answered("helper process: asking it, without the answers", 0.05, "thread"):
        answers = [helper.ask("signal:pause"), helper.ask("os:getpid")]
    assert not any(answer.done for answer in answers)


def test_an_error_is_a_sentence(helper: HelperProcess) -> None:
    bad, good = helper.ask(UNITS, amount="3 apples"), helper.ask(UNITS, amount="3GiB")
    wait_for(lambda: good.done)
    assert "3 apples" in bad.error
    assert bad.value is None
    assert (good.value, good.error) == (3 << 30, "")


def test_what_prints_does_not_disturb_the_answers(helper: HelperProcess) -> None:
    answer, after = helper.ask("builtins:print", end="{broken"), helper.ask("os:getpid")
    wait_for(lambda: after.done)
    assert answer.done
    assert answer.error == ""


def test_killed_it_says_so_and_is_started_again(helper: HelperProcess) -> None:
    pid = helper.ask("os:getpid")
    wait_for(lambda: pid.done)
    waiting = helper.ask("signal:pause")
    psutil.Process(pid.value).kill()
    wait_for(lambda: waiting.done)
    assert "ask again" in waiting.error
    again = helper.ask("os:getpid")
    wait_for(lambda: again.done)
    assert again.value not in (None, pid.value)


def test_left_at_something_long_it_is_started_again(helper: HelperProcess) -> None:
    pid = helper.ask("os:getpid")
    wait_for(lambda: pid.done)
    left = helper.ask("signal:pause")
    helper.leave()
    again = helper.ask("os:getpid")
    wait_for(lambda: again.done)
    assert again.value not in (None, pid.value)
    assert not left.done
    wait_for(lambda: not psutil.pid_exists(pid.value))


def test_whatever_it_is_at_it_ends_with_who_started_it() -> None:
    code = (
        "import time; from workbench.ui.helper_process import HelperProcess\n"
        "helper = HelperProcess(); pid = helper.ask('os:getpid')\n"
        "while not pid.done: time.sleep(0.01)\n"
        "helper.ask('signal:pause'); print(pid.value, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment
    ) as kernel:
        pid = int(kernel.stdout.readline())
        assert psutil.pid_exists(pid)
        kernel.kill()
    wait_for(lambda: not psutil.pid_exists(pid))


def test_closed_it_is_gone(helper: HelperProcess) -> None:
    pid = helper.ask("os:getpid")
    wait_for(lambda: pid.done)
    helper.close()
    assert not psutil.pid_exists(pid.value)
