"""An agent that a test drives by hand: what it sees in its workers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.runs.helpers import wait_for
from workbench.core.parents import is_ending, is_stopped
from workbench.elastic.agent import CUT_OFF_S, STOPPED_S, Agent, Seat
from workbench.elastic.messages import Message, Order
from workbench.elastic.worker import Worker


class Driven(Agent):
    """Keeps what it would tell its manager."""

    def __init__(self, place: Path, *, gone: bool = False) -> None:
        empty = dict.fromkeys(("address", "token", "host", "folder", "code_dir", "script"), "")
        order = Order(**empty, port=1, arguments=(), variables={}, preload=(), batch=1)
        super().__init__(order, str(place))
        self.told, self.gone, self._round = [], gone, 1

    def _tell(self, message: Message) -> None:
        self.told.append(message)

    async def _manager_is_gone(self) -> bool:
        return self.gone

    def seat(self, pid: int) -> tuple[Seat, Worker]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        seat = Seat(rank=0, pid=pid, line=ours, death=-1, told_s=self._heard_s)
        self._seats[0] = seat
        return seat, Worker(theirs, round=1, rank=0, batch=1, folder=Path())


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a")


def test_a_worker_that_beats_but_does_not_get_on_is_seen(place: Path) -> None:
    async def drive() -> None:
        agent = Driven(place)
        seat, worker = agent.seat(os.getpid())
        for step in range(3):
            worker.progress(step, 2.0)
            agent._hear(seat)
        agent.told.clear()
        agent._heard_s = seat.told_s + 100
        agent._look(seat.told_s + 29)
        assert agent.told == []
        worker.working()
        agent._hear(seat)
        agent._look(seat.told_s + 31)
        agent._look(seat.told_s + 32)
        assert [m.failure for m in agent.told] == ["has not got on for 31 s"]

    asyncio.run(drive())


def test_a_worker_that_is_silent_before_its_first_step_is_seen(place: Path) -> None:
    async def drive() -> None:
        agent = Driven(place)
        seat, worker = agent.seat(os.getpid())
        limit_s = agent._order.start_limit_s
        agent._heard_s = seat.told_s + 2 * limit_s
        agent._look(seat.told_s + limit_s - 1)
        worker.working()
        agent._hear(seat)
        agent._look(seat.told_s + limit_s - 1)
        assert agent.told == [], "it makes its model, or waits for its turn"
        agent._look(seat.told_s + limit_s + 1)
        (told,) = agent.told
        assert told.failure == "has not got on for 1801 s before its first step; see --start_limit"

    asyncio.run(drive())


def test_a_stopped_worker_is_seen_before_its_first_step_too(place: Path) -> None:
    async def drive(pid: int) -> None:
        agent = Driven(place)
        seat, _ = agent.seat(pid)
        agent._look(now := agent._heard_s)
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(pid))
        agent._look(now)
        assert agent.told == [], "it may go on at once"
        agent._look(now + STOPPED_S)
        assert [m.failure for m in agent.told] == ["is stopped"]

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        asyncio.run(drive(child.pid))
        child.kill()


def test_a_killed_worker_is_seen_before_the_kernel_has_freed_what_it_held(place: Path) -> None:
    async def drive(child: subprocess.Popen) -> None:
        agent = Driven(place)
        agent.seat(child.pid)
        agent._look(agent._heard_s)
        assert agent.told == []
        child.kill()  # and it stays in the table, as its parent does not ask for it
        wait_for(lambda: is_ending(child.pid))
        agent._look(agent._heard_s)
        agent._look(agent._heard_s)
        assert [m.failure for m in agent.told] == ["died"]

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        asyncio.run(drive(child))


@pytest.mark.parametrize("gone", [True, False])
def test_only_a_manager_that_is_gone_lets_workers_commit(place: Path, gone: bool) -> None:
    async def drive() -> None:
        agent = Driven(place, gone=gone)
        seat, worker = agent.seat(os.getpid())
        agent._orphaned_s = 0.0
        asked = asyncio.create_task(asyncio.to_thread(worker.may_commit, 7))
        while not asked.done():
            agent._hear(seat)
            await asyncio.sleep(0)
        assert asked.result() == gone
        agent._orphaned_s = None
        agent._look(agent._heard_s + CUT_OFF_S + 1)
        assert agent._ended.is_set(), "a silent manager has given this host up"

    asyncio.run(drive())


def test_a_worker_hears_that_saving_is_wanted() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(theirs, round=1, rank=0, batch=1, folder=Path())
    assert not worker.save_wanted()
    worker.on_signal(signal.SIGUSR1, None)
    assert worker.save_wanted()
    assert b'"wanted"' in ours.recv(1000)
    ours.close()
    assert worker.save_wanted(), "it stays so"
    assert not worker.may_commit(1), "its agent is gone"
    assert Worker.join() is None, "no worker of the launcher"


def test_an_agent_that_is_stopped_goes_on_when_its_manager_is_gone() -> None:
    """So it ends, with all that is below it."""
    with socket.create_server(("127.0.0.1", 0)) as manager:
        port = manager.getsockname()[1]
        code = (
            "import os; from unittest.mock import Mock; from workbench.elastic import agent\n"
            f"agent.GUARD_S = 0.02; order = Mock(address='127.0.0.1', port={port})\n"
            "agent.guard(order, os.getpid()); print(flush=True); input()"
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
            child.stdout.readline()
            (guard,) = psutil.Process(child.pid).children()
            child.send_signal(signal.SIGSTOP)
            for _ in range(2):
                manager.accept()
            assert is_stopped(child.pid), "its manager is there"
            manager.close()
            wait_for(lambda: not is_stopped(child.pid))
            child.kill()
        wait_for(lambda: not guard.is_running())
