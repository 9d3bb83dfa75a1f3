"""The manager of a job: one process that knows who is there, as long as the job lasts.

It starts the agents, hears them, asks `Membership` what follows, and tells them. It listens on the
one address that reaches it, and so do the stores of rounds, which have no token: torch's own.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from workbench.core.files import FileLock, write_whole
from workbench.core.jsonfile import read_json
from workbench.core.paths import import_path
from workbench.core.schema import read_as
from workbench.elastic.membership import Membership, Morph
from workbench.elastic.messages import (
    LONGEST,
    Ask,
    Checkpoint,
    Ended,
    Hello,
    Message,
    Order,
    Progress,
    Sign,
    Start,
    Turn,
    pack,
    unpack,
)
from workbench.elastic.placement import Choose, read_list
from workbench.elastic.worker import LOSS_LOG

TICK_S, BEAT_S = 0.2, 1.0
ENDING_S = 15.0
"""For agents to end at the end of the job."""
EVENTS = 200
"""Newest events that the state holds."""
STATE, DOOR, SLOW = "state.json", "manager.json", "slow_machines.out"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is run, checked before anything is written."""

    machine_list: Path
    hosts: dict[str, int]
    per_host: int
    batch: int
    choose: Choose
    script: Path
    arguments: tuple[str, ...]
    code_dir: Path
    folder: Path
    variables: dict[str, str]
    address: str
    connect: tuple[str, ...]
    morph: Morph
    horizon_s: float | None


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where a manager is, for people who may read its folder."""

    pid: int
    address: str
    port: int
    token: str


@dataclass(frozen=True, kw_only=True)
class State:
    """The file that people read, and that a job is resumed from."""

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

    @classmethod
    def read(cls, folder: Path) -> State | None:
        """Of a job's folder; None where no job was. Raises ValueError."""
        try:
            return read_as(cls, read_json(folder / STATE, STATE), STATE)
        except FileNotFoundError:
            return None


def is_here(host: str) -> bool:
    """Whether a host is this machine, by a name of the loopback interface."""
    return host == "localhost" or host.startswith("127.")


def address_towards(hosts: Sequence[str]) -> str:
    """This machine's address on the interface by which it reaches the hosts. Raises ValueError for
    a host that cannot be resolved."""
    outside = [host for host in hosts if not is_here(host)]
    if not outside:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((outside[0], 9))  # sends nothing
        except OSError as error:
            raise ValueError(f"the host {outside[0]} is not reached: {error.strerror}") from None
        return probe.getsockname()[0]


class Manager:
    """Serves one job until it is done, fails or is stopped."""

    def __init__(self, job: Job, before: State | None) -> None:
        """`before` is the state of the job that goes on."""
        self._job, self._token = job, secrets.token_hex(16)
        self._events = [*before.events] if before else []
        self._lines: dict[str, asyncio.StreamWriter] = {}
        self._agents: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: set[asyncio.Task] = set()
        self._store: tuple[int, Any] = (0, None)
        self._listed = (0, "")
        self._written: dict[str, Any] = {}
        self._port = before.port if before else 0
        self._members = Membership(
            job.hosts, job.choose, batch=job.batch, per_host=job.per_host, morph=job.morph,
            horizon_s=job.horizon_s, number=before.round if before else 0,
            committed=before.committed if before else None, now=time.monotonic(),
        )  # fmt: skip
        self._members.say = self._say

    async def run(self) -> str:
        """Returns how the job ended: ``done``, ``stopped``, or why it failed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        listener = self._listen()  # at the old port: agents that are left see that they are of old
        self._port = listener.getsockname()[1]
        server = await asyncio.start_server(self._serve, sock=listener, limit=LONGEST)
        door = Door(
            pid=os.getpid(), address=self._job.address, port=self._port, token=self._token
        )
        path = self._job.folder / DOOR
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(door)))
        beating = asyncio.create_task(self._beat())
        try:
            ready = asyncio.create_task(asyncio.to_thread(_import_torch))
            while self._members.outcome is None or self._members.round is not None:
                self._read_list()
                self._members.tick(time.monotonic(), may_begin=ready.done())
                self._act()
                await asyncio.sleep(TICK_S)
            self._say(f"the job ends: {self._members.outcome}")
            return self._members.outcome
        finally:
            server.close()
            beating.cancel()
            await self._end_agents()
            self._write_state()
            path.unlink()

    def _listen(self) -> socket.socket:
        for port in dict.fromkeys((self._port, 0)):
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self._job.address, port))
                return listener
            except OSError as error:
                listener.close()
                why = error.strerror
        raise ValueError(f"the address {self._job.address} is none of this machine's: {why}")

    def _say(self, text: str) -> None:
        self._events.append((time.time(), text))
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
        if "resumed to config" in text:
            with (self._job.folder / LOSS_LOG).open("a") as file:
                file.write(text.partition(" on ")[0].partition(": ")[2] + "\n")

    def _stop(self) -> None:
        self._members.stop(time.monotonic())

    def _read_list(self) -> None:
        try:
            text = self._job.machine_list.read_text()
            if text == self._listed[1]:
                return
            self._listed = (0, text)
            self._members.listed(read_list(text, self._job.per_host), time.monotonic())
        except (OSError, ValueError) as error:
            self._say(f"the machine list stays as it was: {error}")

    def _write_state(self) -> None:
        told = {**self._members.described(), "port": self._port}
        state = {**told, "events": self._events[-EVENTS:]}
        if state != self._written:
            write_whole(self._job.folder / STATE, json.dumps(state, indent=1))
            slow = self._members.slow
            lines = [f"{self._members.host_of(r)} rank {r}: {x:.2f}\n" for r, x in slow.items()]
            if lines:
                write_whole(self._job.folder / SLOW, "".join(lines))
            self._written = state

    # -- agents --------------------------------------------------------------------------------
    def _act(self) -> None:
        """Do what the members' state asks for."""
        while self._members.out:
            host, message = self._members.out.pop(0)
            if message is None:
                self._spawn(self._call(host))
                continue
            if isinstance(message, Start):
                message = replace(message, port=self._store_of(message.round))
            line = self._lines.get(host)
            if line is not None:
                line.write(pack(message))
                if message == Sign(sign="bye"):
                    line.close()
                    del self._lines[host]
        self._write_state()

    def _store_of(self, round: int) -> int:
        """Port of the store of a round, made when it is first asked for."""
        from torch.distributed import TCPStore

        if self._store[0] != round:
            listener = socket.create_server((self._job.address, 0), backlog=1024)
            port = listener.getsockname()[1]
            store = TCPStore(
                self._job.address, port, is_master=True, wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )  # fmt: skip
            self._store = (round, store)
        return self._store[1].port

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, host: str) -> None:
        """Start a host's agent and wait for its end."""
        job = self._job
        if host in self._agents:  # one that was given up: it may be stopped, and holds the devices
            os.killpg(self._agents.pop(host).pid, signal.SIGKILL)
        command = [sys.executable, "-m", "workbench.elastic.agent"]
        if not is_here(host):
            words = (word.replace("{host}", host) for word in job.connect)
            command = [each for word in words for each in (command if word == "{command}" else [word])]
        order = Order(
            address=job.address, port=self._port, token=self._token, host=host,
            folder=str(job.folder), code_dir=str(job.code_dir), script=str(job.script),
            arguments=job.arguments, variables=job.variables, batch=job.batch,
        )  # fmt: skip
        logs = job.folder / "ssh_logs"
        logs.mkdir(parents=True, exist_ok=True)
        out, err = ((logs / f"agent-{host}.{kind}").open("ab") for kind in ("out", "err"))
        try:
            with out, err:
                agent = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=err,
                    start_new_session=True, env={**os.environ, **import_path()},
                )  # fmt: skip
        except OSError as error:
            self._members.lost(host, time.monotonic(), f"{command[0]}: {error.strerror}")
            return
        self._agents[host] = agent
        with suppress(ConnectionError):
            agent.stdin.write(pack(order))
            await agent.stdin.drain()
        status = await agent.wait()
        if self._agents.get(host) is agent:
            del self._agents[host]
            why = f"its agent ended with status {status}, see {logs.name}/agent-{host}.err"
            self._members.lost(host, time.monotonic(), why)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: an agent's, or a person's."""
        host = None
        try:
            first = unpack(await asyncio.wait_for(reader.readline(), 10.0))
            if not secrets.compare_digest(getattr(first, "token", ""), self._token):
                return
            if isinstance(first, Ask):
                writer.write(self._answer(first).encode())
                await writer.drain()
            elif not isinstance(first, Hello):
                return
            elif not self._members.connected(first.host, time.monotonic()):
                writer.write(pack(Sign(sign="bye")))  # one that was given up, or that was not called
                await writer.drain()
            else:
                host = first.host
                self._lines[host] = writer
                while line := await reader.readline():
                    if self._lines.get(host) is not writer:
                        return
                    self._members.heard(host, time.monotonic())
                    self._take(host, unpack(line), writer)
                    self._act()
        except (OSError, ValueError, TimeoutError):
            pass  # nobody of ours, or somebody who is gone
        finally:
            writer.close()
            if host is not None and self._lines.get(host) is writer:
                del self._lines[host]
                self._members.lost(host, time.monotonic(), "its agent is gone")
                self._act()

    async def _beat(self) -> None:
        while True:
            for line in self._lines.values():
                line.write(pack(Sign(sign="beat")))
            await asyncio.sleep(BEAT_S)

    def _take(self, host: str, message: Message, writer: asyncio.StreamWriter) -> None:
        """What an agent tells."""
        members, now = self._members, time.monotonic()
        if isinstance(message, Progress):
            members.progress(message, now)
        elif isinstance(message, Ended):
            members.ended(host, message, now)
        elif isinstance(message, Checkpoint) and message.is_it == "asked":
            answer = "granted" if members.may_commit(host, message) else "refused"
            writer.write(pack(replace(message, is_it=answer)))
        elif isinstance(message, Checkpoint):
            members.committed(message)
        elif isinstance(message, Turn) and message.turn == "over":
            members.over(host, message.round, now)
        elif isinstance(message, Turn):
            members.wanted(message.round, now)
        elif message == Sign(sign="ready"):
            members.ready(host, now)
        elif message == Sign(sign="notice"):
            members.notice(host, now, now)

    def _answer(self, asked: Ask) -> str:
        if asked.what == "stop":
            self._stop()
            return ""
        try:
            now = time.monotonic()
            self._members.notice(asked.host, now + asked.at - time.time(), now)
        except ValueError as error:
            return str(error)
        return ""

    async def _end_agents(self) -> None:
        """No agent is left, nor anything below one on this machine."""
        for line in self._lines.values():
            line.write(pack(Sign(sign="bye")))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDING_S)
        for agent in self._agents.values():
            with suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDING_S)


def _import_torch() -> None:
    import torch.distributed  # noqa: F401


def serve(job: Job, *, resume: bool) -> str:
    """Run a job to its end in this process. Raises ValueError where its folder holds another."""
    before = State.read(job.folder)
    if before is not None and not resume:
        raise ValueError(
            f"{job.folder} holds a job: go on with it by --resume, or name another --folder"
        )
    if before is None and resume:
        raise ValueError(f"{job.folder} holds no job that could be resumed")
    job.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock.take(job.folder / "manager.lock")
    if lock is None:
        raise ValueError(f"a manager serves {job.folder} already; stop it, or wait for it")
    with lock:
        async def run() -> str:
            return await Manager(job, before).run()

        return asyncio.run(run())
