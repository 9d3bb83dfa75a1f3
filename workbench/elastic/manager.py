"""The manager of a job: one process that knows who is there, for as long as the job lasts.

It starts the agents, hears them, asks `Membership` what follows, and tells them. It listens on the
one address that reaches it, and so do the stores of the rounds, which are torch's and ask for no
token.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from workbench.core.files import FileLock, write_whole
from workbench.core.jsonfile import read_json
from workbench.core.paths import import_path
from workbench.core.schema import read_as
from workbench.elastic.membership import Membership
from workbench.elastic.messages import LONGEST, Message, Order, pack, unpack
from workbench.elastic.placement import Choose, is_here, read_list
from workbench.elastic.rounds import Morph
from workbench.elastic.worker import LOSS_LOG

TICK_S = 0.2
ENDING_S, EVENTS = 15.0, 200
"""For agents to end at the end of the job; newest ones that the state holds."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is run, checked before anything is written."""

    machine_list: Path
    hosts: dict[str, int]
    per_host: int
    choose: Choose | None
    """None where the job is over when it has profiled."""
    connect: tuple[str, ...]
    morph: Morph
    horizon_s: float | None
    order: Order
    """For all agents; the manager adds the host, its port and the token."""
    profiling: str = ""
    """Folder into which the script profiles before shapes are chosen, where they are by that."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """``manager.json``: where a manager is, for those who may read its folder."""

    pid: int
    address: str
    port: int
    token: str


@dataclass(frozen=True, kw_only=True)
class State:
    """``state.json``: what people read, and a job is resumed from."""

    round: int
    phase: str
    shape: str | None
    step: int | None
    committed: int | None
    hosts: dict[str, str]
    ranks: dict[str, list[int]]
    spare: dict[str, int]
    events: list[tuple[float, str]]
    port: int
    job: str = ""
    """Id that the job's checkpoints name; those of a state without one name none."""
    began: int | None = None
    """Step that its first round went on from."""


def read_file(kind: type, folder: Path) -> Any:
    """A `State` or `Door` of a job's folder, None where there is none. Raises ValueError."""
    name = {State: "state.json", Door: "manager.json"}[kind]
    try:
        return read_as(kind, read_json(folder / name, name), name)
    except FileNotFoundError:
        return None


class Manager:
    """Serves one job until it is done, fails or is stopped."""

    def __init__(self, job: Job, before: State | None, listener: socket.socket) -> None:
        """`before` is the state of a job that goes on."""
        self._job, self._folder, self._listener = job, Path(job.order.folder), listener
        self._token, self._port = secrets.token_hex(16), listener.getsockname()[1]
        self._events = [*before.events] if before else []
        self._id = before.job if before else secrets.token_hex(8)
        self._lines: dict[str, asyncio.StreamWriter] = {}
        self._agents: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: set[asyncio.Task] = set()
        self._store: tuple[int | None, Any] = (None, None)
        self._written: dict[str, str] = {}
        self._list = ""
        newest, began = (before.committed, before.began) if before else (None, None)
        if began == 0 or before and not self._id:
            newest, began = newest or 0, 0  # workers may have saved since
        self._members = Membership(
            job.hosts, job.choose, batch=job.order.batch, per_host=job.per_host, morph=job.morph,
            horizon_s=job.horizon_s, now=time.monotonic(), say=self._say,
            number=before.round if before else -bool(job.profiling), profiling=job.profiling,
            newest=newest, began=began,
        )  # fmt: skip

    async def run(self) -> str:
        """Returns how the job ended: ``done``, ``stopped``, or why it failed. Raises ValueError
        where a user gave what cannot be trained."""
        members, loop = self._members, asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        server = await asyncio.start_server(self._serve, sock=self._listener, limit=LONGEST)
        address = self._job.order.address
        door = Door(pid=os.getpid(), address=address, port=self._port, token=self._token)
        path = self._folder / "manager.json"
        write_whole(path, json.dumps(asdict(door)), mode=0o600)
        try:
            torch = asyncio.create_task(asyncio.to_thread(__import__, "torch.distributed"))
            while members.outcome is None or members.round is not None:
                self._read_list()
                members.tick(time.monotonic(), may_begin=torch.done())
                self._act()
                for line in self._lines.values():
                    line.write(pack(Message(kind="beat")))
                await asyncio.sleep(TICK_S)
            self._say(f"the job ends: {members.outcome}; logs are in {self._folder}/ssh_logs")
            if members.refused:
                raise ValueError(members.outcome)
            return members.outcome
        finally:
            server.close()
            await self._end_agents()
            self._write_state()
            path.unlink(missing_ok=True)

    def _stop(self, *, at_once: bool = False) -> None:
        self._members.stop(time.monotonic(), at_once=at_once)

    def _say(self, text: str) -> None:
        self._events.append((time.time(), text))
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
        if ": resumed to config" in text:
            with suppress(OSError), (self._folder / LOSS_LOG).open("a") as file:
                file.write(text.partition(": ")[2].partition(" on ")[0] + "\n")

    def _read_list(self) -> None:
        try:
            text = self._job.machine_list.read_text()
            if text != self._list:
                self._list = text
                self._members.listed(read_list(text, self._job.per_host), time.monotonic())
        except (OSError, ValueError) as error:
            if (why := f"the machine list stays as it was: {error}") != self._events[-1][1]:
                self._say(why)

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
        self._put("state.json", json.dumps(asdict(state), indent=1))
        self._put("slow_machines.out", slow)

    def _put(self, name: str, text: str) -> None:
        """Write a file where it changes, and do not wait for the disk: it may be busy for longer
        than agents wait for a beat."""
        if text != self._written.get(name, ""):
            self._written[name] = text
            part = self._folder / f"{name}.part"
            with suppress(OSError):  # a full disk ends no training
                part.write_text(text)
                part.replace(self._folder / name)

    # -- agents --------------------------------------------------------------------------------
    def _act(self) -> None:
        """Tell hosts what the members' state asks for."""
        while self._members.out:
            host, message = self._members.out.pop(0)
            line = self._lines.get(host)
            if message is None:
                self._spawn(self._call(host))
            elif line is not None:
                if message.kind == "start":
                    port = self._store_of(message.round)
                    message = replace(message, start=replace(message.start, port=port))
                line.write(pack(message))
                if message.kind == "bye":
                    self._lines.pop(host).close()
        self._write_state()

    def _store_of(self, round: int) -> int:
        """Port of a round's store, which is made when it is first asked for."""
        from torch.distributed import TCPStore

        if self._store[0] != round:
            address = self._job.order.address
            listener = socket.create_server((address, 0), backlog=1024)
            store = TCPStore(
                address, listener.getsockname()[1], is_master=True, wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )  # fmt: skip
            self._store = (round, store)
        return self._store[1].port

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
        logs = self._folder / "ssh_logs"
        logs.mkdir(exist_ok=True)
        out, err = ((logs / f"agent-{host}.{kind}").open("ab") for kind in ("out", "err"))
        with out, err:
            try:
                agent = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=err,
                    start_new_session=True, env={**os.environ, **import_path()},
                )  # fmt: skip
            except OSError as error:
                self._members.lost(host, time.monotonic(), f"{command[0]}: {error.strerror}")
                return
        self._agents[host] = agent
        own = {"host": host, "port": self._port, "token": self._token, "job": self._id}
        order = replace(self._job.order, **own)
        with suppress(ConnectionError):
            agent.stdin.write(pack(order))
            await agent.stdin.drain()
        status = await agent.wait()
        if self._agents.get(host) is agent:
            del self._agents[host]
            why = f"its agent ended with status {status}, see {logs}/agent-{host}.err"
            self._members.lost(host, time.monotonic(), why)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: an agent's, or a person's."""
        host = None
        with suppress(OSError, ValueError, TimeoutError):  # nobody of ours, or one that is gone
            first = unpack(await asyncio.wait_for(reader.readline(), 10.0))
            if not secrets.compare_digest(first.token, self._token):
                pass
            elif first.kind != "hello":
                writer.write(self._answer(first).encode())
                await writer.drain()
            elif self._members.connected(first.host, time.monotonic()):
                host = first.host
                self._lines[host] = writer
                while (line := await reader.readline()) and self._lines.get(host) is writer:
                    self._members.take(host, unpack(line), time.monotonic())
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


def _end(agent: asyncio.subprocess.Process, number: int) -> None:
    """What is below one on this machine ends with it, and cleans up; stopped, it could not."""
    with suppress(ProcessLookupError):
        os.kill(agent.pid, number)
        os.killpg(agent.pid, signal.SIGCONT)


def serve(job: Job, *, resume: bool) -> str:
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
