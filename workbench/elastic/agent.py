"""The agent of a host: starts the workers of each round, watches them, and ends them.

Workers are forked by a process of the round (entry.py), which has imported torch. All else is here,
in a process without it: that a worker stands still is seen, and one may end in peace when the
manager is gone.

A manager whose port refuses connections has died: workers save and end. One that is only silent may
have given this host up, so there workers are ended and nothing is committed.

Run as ``python -m workbench.elastic.agent``, its order being the first line of standard input.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from statistics import median

import psutil

from workbench.core.parents import die_with_parent, is_ending, is_stopped
from workbench.elastic.entry import PLACE, run_round
from workbench.elastic.messages import LONGEST, Message, Order, pack, unpack

FORKSERVER = multiprocessing.get_context("forkserver")
LOOK_S = 0.5
"""Between two looks at the workers, and two beats."""
CUT_OFF_S, ORPHANED_S = 25.0, 120.0
"""A manager that is silent for so long has given this host up; for workers to save when it died."""
GRACE_S, STOPPED_S = 2.0, 2.0
"""Between SIGTERM and SIGKILL; a worker that is stopped for so long stands still."""
GUARD_S = 2.0
"""Between two looks of the agent's guard."""
STEPS, SLACK_S = 10, 10.0
"""A worker does not get on after so many median steps and so many seconds; before its first step of
a round, after Order.start_limit_s: only the user knows how long a start may take."""


@dataclass(eq=False, kw_only=True)
class Seat:
    """A worker."""

    rank: int
    pid: int
    line: socket.socket
    death: int
    """Descriptor that is readable when the process has ended."""
    told_s: float
    stopped_s: float | None = None
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=31))
    asked: Message | None = None
    """A question that nobody has answered yet."""
    left: bool = False

    def tell(self, message: Message) -> None:
        """Send it something; one that has ended needs nothing."""
        if message.kind in ("yes", "no"):
            self.asked = None
        with suppress(OSError):
            self.line.send(pack(message))


class Agent:
    """One connection to the manager, and the workers of one round at a time."""

    def __init__(self, order: Order, place: str) -> None:
        self._order, self._place = order, place
        self._loop = asyncio.get_running_loop()
        self._round: int | None = None
        self._save: Message | None = None
        """Of this round, for workers that are not there yet."""
        self._came = 0
        """Workers of this round that have said that they are there."""
        self._starter: BaseProcess | None = None
        self._seats: dict[int, Seat] = {}
        self._heard_s = self._loop.time()
        self._orphaned_s: float | None = None
        self._ended = asyncio.Event()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(f"{place}/agent")
        self._door.listen(64)

    async def run(self) -> None:
        """Serve until the manager says so, or is gone."""
        order = self._order
        reader, self._writer = await asyncio.open_connection(order.address, order.port)
        self._tell(Message(kind="hello", token=order.token, host=order.host))
        name = interface_of(self._writer.get_extra_info("sockname")[0])
        interface = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}
        os.environ.update({"OMP_NUM_THREADS": "1", **interface, **order.variables})
        self._loop.add_reader(self._door, self._meet)
        self._loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        self._loop.add_signal_handler(signal.SIGUSR1, self._tell, Message(kind="notice"))
        listening, watching = map(asyncio.create_task, (self._listen(reader), self._watch()))
        forkserver.ensure_running()  # by this thread, with which the forkserver ends
        del os.environ[PLACE]
        await asyncio.to_thread(self._prepare)
        self._tell(Message(kind="ready"))
        await self._ended.wait()
        listening.cancel()
        watching.cancel()
        await self._end_round()

    def _prepare(self) -> None:
        """Wait until the forkserver has imported torch."""
        first = FORKSERVER.Process(target=int)
        first.start()
        first.join()

    # -- manager -------------------------------------------------------------------------------
    def _tell(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                self._heard_s = self._loop.time()
                await self._obey(unpack(line))
        self._writer.close()
        if self._seats and not self._ended.is_set() and await self._manager_is_gone():
            self._orphaned_s = self._loop.time()
            await self._obey(Message(kind="save"))
            for seat in [seat for seat in self._seats.values() if seat.asked is not None]:
                await self._answer_for_manager(seat)
        else:
            self._ended.set()

    async def _manager_is_gone(self) -> bool:
        """Whether its port refuses us, in place of an answer. One that is dying may still take a
        connection, and drops it."""
        for _ in range(20):
            try:
                address = self._order.address, self._order.port
                reader, writer = await asyncio.wait_for(asyncio.open_connection(*address), 5.0)
                writer.write(pack(Message(kind="ask", token=self._order.token)))
                answer = await asyncio.wait_for(reader.readline(), 5.0)
                writer.close()
                if answer:
                    return False
            except ConnectionRefusedError:
                return True
            except ConnectionError:
                pass
            except (OSError, TimeoutError):
                return False
            await asyncio.sleep(0.05)
        return False

    async def _answer_for_manager(self, seat: Seat) -> None:
        gone = await self._manager_is_gone()  # still: another may have taken its place
        seat.tell(replace(seat.asked, kind="yes" if gone else "no"))

    async def _obey(self, message: Message) -> None:
        if message.kind == "start":
            self._begin(message)
        elif message.kind == "save":
            self._save = message
            for seat in self._seats.values():
                seat.tell(message)
        elif message.kind == "end":
            await self._end_round()
            if not self._seats:
                self._tell(Message(kind="over", round=message.round))
        elif message.kind in ("yes", "no") and message.rank in self._seats:
            self._seats[message.rank].tell(message)
        elif message.kind == "bye":
            self._ended.set()

    # -- rounds --------------------------------------------------------------------------------
    def _begin(self, message: Message) -> None:
        self._round, self._save, self._came = message.round, None, 0
        own = self._order, message, self._place
        self._starter = starter = FORKSERVER.Process(target=run_round, args=own)
        starter.start()
        self._loop.add_reader(starter.sentinel, self._started, starter, message)

    def _started(self, starter: BaseProcess, begun: Message) -> None:
        """The process that forks workers has ended, since all of them have, or one failed."""
        self._loop.remove_reader(starter.sentinel)
        starter.join()
        if self._round == begun.round and self._came < begun.start.count:
            why = "or another one there was not started: see the log of its agent"
            self._tell(
                replace(begun, kind="ended", start=None, rank=begun.start.first, failure=why)
            )

    async def _end_round(self) -> None:
        """End the round's process groups, and wait until none of them is left."""
        self._round = None
        if all(seat.left for seat in self._seats.values()):
            await self._empty(GRACE_S)  # they are about to end
        for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 10.0)):
            for seat in self._seats.values():
                seat.left = True
                end_group(seat.pid, number)
                end_group(seat.pid, signal.SIGCONT)  # a stopped one would not hear it
            await self._empty(patience_s)
        if self._starter is not None:  # it may wait for hosts, or for workers that were ended
            self._starter.kill()
            self._starter.join()

    async def _empty(self, patience_s: float) -> None:
        deadline = self._loop.time() + patience_s
        while self._seats and self._loop.time() < deadline:
            await asyncio.sleep(0.02)

    # -- workers -------------------------------------------------------------------------------
    def _meet(self) -> None:
        """A worker says that it is there."""
        line, _ = self._door.accept()
        line.settimeout(LOOK_S)
        try:
            here = unpack(line.recv(LONGEST))
            death = os.pidfd_open(here.pid)
        except (OSError, ValueError):  # it has ended already
            line.close()
            return
        line.setblocking(False)
        told_s = self._loop.time()
        seat = Seat(rank=here.rank, pid=here.pid, line=line, death=death, told_s=told_s)
        if here.round != self._round:  # it came up too late
            seat.left = True
            self._gone(seat)
            return
        self._seats[seat.rank] = seat
        self._came += 1
        if self._save is not None:
            seat.tell(self._save)
        self._loop.add_reader(line, self._hear, seat)
        self._loop.add_reader(seat.death, self._gone, seat)

    def _hear(self, seat: Seat) -> bool:
        """Take in what a worker tells; False where there is nothing."""
        try:
            message = unpack(seat.line.recv(LONGEST))
        except (OSError, ValueError) as error:
            if not isinstance(error, BlockingIOError):
                self._loop.remove_reader(seat.line)
            return False
        seat.told_s = self._loop.time()
        if message.kind == "ended" and seat.left or message.kind == "working":
            return True
        if message.kind == "ended":
            seat.left = True
        elif message.kind == "step":
            seat.seconds.append(message.seconds)
        elif message.kind == "ask":
            seat.asked = message
            if self._orphaned_s is not None:
                asyncio.ensure_future(self._answer_for_manager(seat))
        self._tell(message)
        return True

    def _gone(self, seat: Seat) -> None:
        """A worker's process has ended."""
        self._died(seat)
        for descriptor in (seat.death, seat.line):
            self._loop.remove_reader(descriptor)
        os.close(seat.death)
        seat.line.close()
        end_group(seat.pid, signal.SIGKILL)  # whatever it started
        if self._seats.get(seat.rank) is seat:
            del self._seats[seat.rank]

    def _died(self, seat: Seat) -> None:
        while self._hear(seat):  # it may have said why
            pass
        self._fail(seat, "died")

    def _fail(self, seat: Seat, how: str) -> None:
        if not seat.left:
            seat.left = True
            self._tell(Message(kind="ended", round=self._round, rank=seat.rank, failure=how))

    async def _watch(self) -> None:
        while True:
            self._tell(Message(kind="beat"))
            self._look(self._loop.time())
            await asyncio.sleep(LOOK_S)

    def _look(self, now: float) -> None:
        if self._orphaned_s is not None:
            if not self._seats or now - self._orphaned_s > ORPHANED_S:
                self._ended.set()
        elif now - self._heard_s > CUT_OFF_S:
            self._ended.set()
        for seat in self._seats.values():
            if not seat.left and is_ending(seat.pid):
                self._died(seat)
            stopped = is_stopped(seat.pid)
            seat.stopped_s = (seat.stopped_s or now) if stopped else None
            if stopped and now - seat.stopped_s >= STOPPED_S:
                self._fail(seat, "is stopped")
            most_s, first = self._order.start_limit_s, " before its first step; see --start_limit"
            if seat.seconds:
                most_s, first = STEPS * median(seat.seconds) + SLACK_S, ""
            if (silent_s := now - seat.told_s) > most_s:
                self._fail(seat, f"has not got on for {silent_s:.0f} s{first}")


def end_group(leader: int, number: int) -> None:
    """Send a signal to a process group of ours."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def interface_of(address: str) -> str | None:
    """Network interface that has an address, where one has."""
    if address.startswith("127."):
        return "lo"
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None


def guard(order: Order, agent: int) -> None:
    """Have a process below the agent let it go on where it was stopped (SIGSTOP) and its manager is
    gone: it ends then, with all that is below it."""
    if os.fork():
        return
    die_with_parent(agent)
    while True:
        time.sleep(GUARD_S)
        if is_stopped(agent):
            try:
                socket.create_connection((order.address, order.port), CUT_OFF_S).close()
            except OSError:
                os.kill(agent, signal.SIGCONT)


def main() -> None:
    """Read the order, and serve."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # until there is more to end
    order = unpack(sys.stdin.buffer.readline(), Order)
    guard(order, os.getpid())
    place = get_temp_dir()  # removed when this process ends
    os.environ[PLACE] = place
    multiprocessing.set_forkserver_preload(["workbench.elastic.entry", *order.preload])

    async def serve() -> None:
        await Agent(order, place).run()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
