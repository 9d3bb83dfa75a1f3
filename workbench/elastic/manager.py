"""The manager of a job: one process that knows who is there, for as long as the job lasts.

It starts the agents, hears them, asks `Membership` what follows, and tells them. It listens on the
one address that reaches it, and so do the stores of the rounds, which are torch's and ask for no
token.

Its loop waits for no disk, name server or screen: agents take a silent manager for dead. The folder
of checkpoints says which one is the newest, before each round: a worker or a manager may have died
before it told.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from workbench.core.files import FileLock
from workbench.core.paths import import_path
from workbench.elastic.aside import InTurn, aside
from workbench.elastic.folder import SLOW, STATE, Door, Folder, Newest, State, read_file
from workbench.elastic.membership import Membership
from workbench.elastic.messages import LONGEST, Message, Order, pack, unpack
from workbench.elastic.placement import Ready, is_here, read_list
from workbench.elastic.rounds import Terms

TICK_S, SHOWN_S, SILENT_S = 0.2, 1.0, 10.0
"""Between two looks at what is due, and between losses that are printed; until a disk that does not
answer is named."""
ENDING_S, EVENTS = 15.0, 200
"""For agents to end at the end of the job; newest ones that the state holds."""
LONGEST_LIST = 2**20
"""Characters of a machine list that are read."""


@dataclass(frozen=True, kw_only=True)
class HostsJob:
    """What is run, checked before anything is written."""

    machine_list: Path
    terms: Terms
    connect: tuple[str, ...]
    order: Order
    """For all agents; the manager adds the host, its port and the token."""
    newest: Newest


class Manager:
    """Serves one job until it is done, fails or is stopped."""

    def __init__(self, job: HostsJob, before: State | None, listener: socket.socket) -> None:
        """`before` is the state of a job that goes on."""
        self._job, self._folder, self._listener = job, Folder(Path(job.order.folder)), listener
        self._token, self._port = secrets.token_hex(16), listener.getsockname()[1]
        self._events = [*before.events] if before else []
        self._id = before.job if before else secrets.token_hex(8)
        self._lines: dict[str, asyncio.StreamWriter] = {}
        self._agents: dict[str, subprocess.Popen] = {}
        self._tasks: set[asyncio.Task] = set()
        self._store: Any = None
        """Store of the newest round."""
        self._ready: tuple[int | None, float, asyncio.Future[Ready]] | None = None
        """A round, since when is looked for what it needs, and that."""
        self._screen = InTurn()
        self._listing: asyncio.Future[str] | None = None
        self._list, self._listed_s = "", 0.0
        self._shown: tuple[Message | None, float] = None, 0.0
        """The newest step that is not printed yet, and when one was."""
        self._members = Membership(
            job.terms, now=time.monotonic(), say=self._say, before=before, prepare=self._prepare
        )

    async def run(self) -> str:
        """Returns how the job ended: ``done``, ``stopped``, or why it failed. Raises ValueError
        where a user gave what cannot be trained."""
        members, loop = self._members, asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        server = await asyncio.start_server(self._serve, sock=self._listener, limit=LONGEST)
        address = self._job.order.address
        door = Door(pid=os.getpid(), address=address, port=self._port, token=self._token)
        self._folder.open_door(door)
        try:
            aside(partial(import_module, "torch.distributed"))  # a round needs it
            while members.outcome is None or members.round is not None:
                self._read_list()
                members.tick(time.monotonic())
                self._act()
                self._show_step()
                for line in self._lines.values():
                    line.write(pack(Message(kind="beat")))
                await asyncio.sleep(TICK_S)
            self._show_step(last=True)
            self._say(f"the job ends: {members.outcome}; logs are in {self._folder.path}/ssh_logs")
            if members.refused:
                raise ValueError(members.outcome)
            return members.outcome
        finally:
            server.close()
            await self._end_agents()
            self._write_state()
            self._folder.close()
            self._screen.finish()

    def _stop(self, *, at_once: bool = False) -> None:
        self._members.stop(time.monotonic(), at_once=at_once)

    def _say(self, text: str) -> None:
        self._events.append((time.time(), text))
        self._print(text)
        if ": resumed to config" in text:
            self._folder.log(text.partition(": ")[2].partition(" on ")[0])

    def _print(self, text: str) -> None:
        self._screen.do(partial(print, f"{time.strftime('%H:%M:%S')} {text}", flush=True))

    def _show_step(self, *, last: bool = False) -> None:
        """Print the newest loss that is told, once in a while."""
        (told, shown_s), now = self._shown, time.monotonic()
        if told is not None and (last or now - shown_s >= SHOWN_S):
            self._print(f"step {told.step}: loss {told.loss}, {told.seconds:.3f} s")
            self._shown = None, now

    def _say_once(self, text: str) -> None:
        if not self._events or self._events[-1][1] != text:
            self._say(text)

    def _read_list(self) -> None:
        """Follow the machine list, as soon as it answers."""
        listing, why, now = self._listing, "", time.monotonic()
        if listing is not None and not listing.done():
            why = "it does not answer" if now - self._listed_s > SILENT_S else ""
        else:
            self._listing = aside(partial(_text_of, self._job.machine_list))
            self._listed_s = now
            try:
                if listing is not None and (text := listing.result()) != self._list:
                    self._list = text
                    self._members.listed(read_list(text, self._job.terms.per_host), now)
            except (OSError, ValueError) as error:
                why = str(error)
        if why:
            self._say_once(f"the machine list stays as it was: {why}")

    def _write_state(self) -> None:
        members, ours = self._members, self._members.round
        state = State(
            round=max(0, members.number),
            phase=members.outcome or (ours.phase if ours else "waiting"),
            shape=str(ours.shape) if ours else None, step=ours.step if ours else None,
            committed=members.newest, events=self._events[-EVENTS:], port=self._port,
            job=self._id, began=members.began,
            hosts={name: host.phase for name, host in members.hosts.items()},
            ranks={name: [*ranks] for name, ranks in ours.seats.items()} if ours else {},
            spare=members.spare() if ours else {},
        )  # fmt: skip
        slow = "".join(f"{who}: {over:.2f}\n" for who, over in members.slow.items())
        self._folder.put(STATE, json.dumps(asdict(state), indent=1))
        self._folder.put(SLOW, slow)

    # -- agents --------------------------------------------------------------------------------
    def _act(self) -> None:
        """Tell hosts what the members' state asks for."""
        while self._members.out:
            host, message = self._members.out.pop(0)
            line = self._lines.get(host)
            if message is None:
                self._spawn(self._call(host))
            elif line is not None:
                line.write(pack(message))
                if message.kind == "bye":
                    self._lines.pop(host).close()
        self._write_state()

    def _prepare(self, number: int) -> Ready | None:
        """Needs of a round, which a thread finds."""
        members, now = self._members, time.monotonic()
        if self._ready is None or self._ready[0] != number:
            look = partial(self._look, members.newest, members.began)
            self._ready = number, now, aside(look)
        _, since_s, found = self._ready
        if found.done():
            return found.result()
        if now - since_s > SILENT_S:
            self._say_once(f"waiting for {self._folder.path} or its checkpoints to answer")
        return None

    def _look(self, known: int | None, began: int | None) -> Ready:
        """Make the store of a round, and look for the newest checkpoint; the one that is `known`
        counts where the folder cannot be seen from here."""
        from torch.distributed import TCPStore

        try:
            newest = self._folder.newest(self._job.newest, self._id, known, began)
        except ValueError as error:
            return Ready(lacking=str(error))
        address = self._listener.getsockname()[0]  # no name server is asked for it
        listener = socket.create_server((address, 0), backlog=1024)
        self._store = TCPStore(
            address, listener.getsockname()[1], is_master=True, wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
        return Ready(port=self._store.port, newest=newest)

    def _spawn(self, work: Coroutine) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, host: str) -> None:
        """Start a host's agent, and wait for its end."""
        if host in self._agents:  # one that was given up: it may be stopped, and hold devices
            _end(self._agents.pop(host), signal.SIGKILL)
        command = [sys.executable, "-m", "workbench.elastic.agent"]
        if not is_here(host):
            words = [word.replace("{host}", host) for word in self._job.connect]
            at = words.index("{command}")
            command = [*words[:at], *command, *words[at + 1 :]]
        logs = self._folder.path / "ssh_logs"

        def start() -> subprocess.Popen:
            logs.mkdir(exist_ok=True)
            out, err = ((logs / f"agent-{host}.{kind}").open("ab") for kind in ("out", "err"))
            with out, err:
                return subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=out, stderr=err,
                    start_new_session=True, env={**os.environ, **import_path()},
                )  # fmt: skip

        own = {"host": host, "port": self._port, "token": self._token, "job": self._id}
        order = pack(replace(self._job.order, **own))

        def serve(agent: subprocess.Popen) -> int:
            with suppress(BrokenPipeError):
                agent.stdin.write(order)
                agent.stdin.flush()
            return agent.wait()

        try:
            agent = self._agents[host] = await aside(start)
        except OSError as error:
            self._members.lost(host, time.monotonic(), f"{command[0]}: {error.strerror}")
            return
        status = await aside(partial(serve, agent))
        if self._agents.get(host) is agent:
            del self._agents[host]
            why = f"its agent ended with status {status}, see {logs}/agent-{host}.err"
            self._members.lost(host, time.monotonic(), why)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: an agent's, or a person's."""
        host = None
        with suppress(OSError, ValueError, TimeoutError):  # nobody of ours, or one that is gone
            first = unpack(await asyncio.wait_for(reader.readline(), 10.0))
            if not secrets.compare_digest(first.token.encode(), self._token.encode()):
                pass
            elif first.kind != "hello":
                writer.write(self._answer(first).encode())
                await writer.drain()
            elif self._members.connected(first.host, time.monotonic()):
                host = first.host
                self._lines[host] = writer
                while (line := await reader.readline()) and self._lines.get(host) is writer:
                    told = unpack(line)
                    self._members.take(host, told, time.monotonic())
                    if told.kind == "step" and told.loss and told.rank == 0:
                        self._shown = told, self._shown[1]
                    self._act()
        writer.close()
        if host is not None and self._lines.get(host) is writer:
            del self._lines[host]
            self._members.lost(host, time.monotonic(), "its agent is gone")
            self._act()

    def _answer(self, asked: Message) -> str:
        """What is wrong with what a person wants; to an agent that asks, that this is alive."""
        if asked.kind in ("stop", "end"):
            self._stop(at_once=asked.kind == "end")
        elif asked.kind == "notice":
            now = time.monotonic()
            try:
                self._members.notice(asked.host, now + asked.at - time.time(), now)
            except ValueError as error:
                return str(error)
        return "" if asked.kind != "ask" else "alive\n"

    async def _end_agents(self) -> None:
        """Leave no agent, nor anything below one on this machine."""
        for line in self._lines.values():
            line.write(pack(Message(kind="bye")))
        self._lines.clear()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for agent in self._agents.values():
                _end(agent, number)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=ENDING_S)


def _end(agent: subprocess.Popen, number: int) -> None:
    """What is below one on this machine ends with it, and cleans up; stopped, it could not."""
    if agent.poll() is None:
        with suppress(ProcessLookupError):
            agent.send_signal(number)
            os.killpg(agent.pid, signal.SIGCONT)


def _text_of(path: Path) -> str:
    """A machine list. Raises OSError and ValueError for what is none."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    with path.open() as file:
        return file.read(LONGEST_LIST)


def serve(job: HostsJob, *, resume: bool) -> str:
    """Run a job to its end in this process. Raises ValueError where its folder or its address does
    not fit, before anything is written, and where workers refuse what they are given."""
    folder, address = Path(job.order.folder), job.order.address
    before = read_file(State, folder)
    if before is not None and not resume:
        raise ValueError(f"{folder} holds a job: give --resume, or another --folder")
    if before is None and resume:
        raise ValueError(f"{folder} holds no job that could be resumed")
    with _listener(address, before.port if before else 0) as listener:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock.take(folder / "manager.lock")
        if lock is None:
            raise ValueError(f"a manager serves {folder} already; stop it, or wait for it")
        with lock:
            return asyncio.run(Manager(job, before, listener).run())


def _listener(address: str, before: int) -> socket.socket:
    """At the port of before, where agents that are left of then learn that they are; or another."""
    for port in dict.fromkeys((before, 0)):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            return listener
        except OSError as error:
            listener.close()
            why = error.strerror
    raise ValueError(f"the manager cannot listen at {address}: {why}; give another --manager_ip")
