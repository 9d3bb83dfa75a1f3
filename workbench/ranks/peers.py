"""The other processes of a loop that torchrun started, as each of them sees them.

Each has a folder, in which it says why it fails. While one waits for the others, a thread looks at
these folders, and at the processes of its host. One that has failed, has ended, or has closed its
engine never comes; nor does one that stays stopped. One that is late is waited for: a loop may do
anything between two steps, and a rank may measure, compile or write for long. Libraries wait for
messages without end, so the connections through which these would come are cut. A wait that does
not end even then is in code of a library's, in which nothing can be raised: its process is ended.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch
import torch.distributed as dist

from workbench.core.parents import is_stopped, ticks_of
from workbench.ranks.alike import disagreement
from workbench.ranks.failures import (
    NOTICE_S,
    Failure,
    RankFailed,
    failure_of,
    lost_peer,
    precedence,
    raise_cause,
)
from workbench.runtime.executor.board import Failed
from workbench.runtime.executor.notes import leave
from workbench.runtime.transport import cut, meeting
from workbench.runtime.transport.groups import as_one, device_of, join, new_group

LOOK_S = 0.02
"""Between two looks at the others."""
STOPPED_S = 30.0
"""Until a process that a signal has stopped (SIGSTOP) is given up."""
DEAF_S = 10.0
"""Until a process is ended that waits in a library when its connections have been cut."""
LIBRARY = (f"{Path(dist.__file__).parent}/", meeting.__file__)
"""Beginnings of the names of files whose code waits for other processes."""
Place = tuple[FrameType, int, list[bytes]]
"""Where a thread is: its innermost frame, the instruction there, and its processor time."""
SAME_HOST = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid"))
"""Equal for processes that can open each other's files of memory."""
NOTE = "failure.json"
ENGINES = "engines"
"""Counts, in the store of a process that is alone, the engines that share what the first joined."""


@dataclass(kw_only=True)
class Other:
    """Another process of this host."""

    rank: int
    pid: int
    file: int
    """Can be read when the process has ended."""
    folder: Path
    said: Failure | None = None

    def lost(self) -> str | Failure | None:
        """Why it will never come: as it says itself, or what has become of it."""
        with suppress(OSError):
            self.said = json.loads((self.folder / NOTE).read_text())
        if self.said is not None:
            return self.said
        if select.select([self.file], (), (), 0)[0]:
            return "its process has ended"
        return None if self.folder.exists() else "it has closed its engine"


class Peers:
    """All processes of a loop; none, before they have met."""

    def __init__(self, folder: Path) -> None:
        """`folder` is this process's own, and goes when its engine is closed."""
        self.folders, self.device = [folder], torch.device("cpu")
        self.group: dist.ProcessGroup | None = None
        """Processes that have met, on CPUs."""
        self.stops: list[Callable[[], None]] = []
        """Called where there is no use in waiting any more."""
        self.rank, self.one_host = 0, True
        self._folder, self._others, self._ends = folder, list[Other](), ExitStack()
        self._where, self._thread = "", (0, 0)
        """The part of the loop that a thread does, and the numbers of this thread in Python and in
        the system."""
        self._over, self._failed, self._cut = threading.Event(), False, False
        self._given_up: dict[int, str | Failure] = {}

    def meet(self, kind: str) -> None:
        """Join the others, unless that is done; `kind` is the type of this process's device."""
        if self.group is not None:
            return
        local = os.environ.get("LOCAL_RANK")
        if local is None and kind == "cuda":
            local = torch.cuda.current_device()
        self.device = device_of(-1 if kind == "cuda" else kind, int(local or 0))
        made, store = join(self.device), dist.distributed_c10d._get_default_store()
        if made or store.check([ENGINES]):  # the last one leaves
            store.add(ENGINES, 1)
            self._ends.callback(lambda: store.add(ENGINES, -1) or dist.destroy_process_group())
        self.rank, group = dist.get_rank(), self.new_group("gloo")
        host = [SAME_HOST[0].read_text(), os.readlink(SAME_HOST[1])]
        told = as_one(lambda: (host, os.getpid(), str(self._folder)), group)
        self.folders = [Path(folder) for *_, folder in told]
        self.one_host = all(each == host for each, *_ in told)
        for rank, (there, pid, folder) in enumerate(told):
            if rank != self.rank and there == host:
                file = os.pidfd_open(pid)
                self._ends.callback(os.close, file)
                self._others.append(Other(rank=rank, pid=pid, file=file, folder=Path(folder)))
        self.group = group
        if self._others:
            watch = threading.Thread(target=self._watch, daemon=True)
            watch.start()
            self._ends.callback(watch.join)

    def new_group(self, backend: str) -> dist.ProcessGroup:
        """A process group of all, which none waits for in vain."""
        made = new_group(backend=backend)
        self._ends.callback(self._let_go, made)
        self.stops.append(made.abort if backend == "nccl" else partial(cut.give_up, made))
        return made

    def _let_go(self, group: dist.ProcessGroup) -> None:
        if self._cut and dist.get_backend(group) == "gloo":
            cut.keep(group)
        dist.destroy_process_group(group)

    @contextmanager
    def together(self, where: str, check: Callable[[], Mapping[str, Any]] = dict) -> Iterator[None]:
        """Do a part of the loop that all do; `where` is told of it. Raises, in all processes, the
        ValueError of one whose `check` raises it, or where checks have not found alike
        (alike.py), and what made one fail in this part."""
        with self.watched(where):
            calls, found = zip(*as_one(lambda: (where, check()), self.group), strict=True)
            why = ""
            if {*calls} == {where}:
                why = disagreement(found)
            else:
                other = next(rank for rank, call in enumerate(calls) if call != calls[0])
                why = (
                    f"rank 0 is {calls[0]} and rank {other} is {calls[other]}; all processes "
                    "take as many steps, and make as many calls"
                )
            if why:
                error = ValueError(why)
                error.of_all = True
                raise error
            yield
            if self.group is not None:
                cut.wait(dist.barrier(self.group, async_op=True), self.group)

    @contextmanager
    def watched(self, where: str) -> Iterator[None]:
        """Do a part of the loop in which processes wait for each other by messages of their own;
        `where` is told of it. Raises what made one fail in this part."""
        self._thread = threading.get_ident(), threading.get_native_id()
        self._where = where
        try:
            yield
        except BaseException as error:
            if self._others and (isinstance(error, Failed) or lost_peer(error)):
                self._raise_cause(error)
            if not getattr(error, "of_all", False):
                self.say(error)
                self._stop()
            raise
        finally:
            self._where = ""

    def say(self, error: BaseException) -> None:
        """Leave the others word why this process fails; of several failures the first counts."""
        path = self._folder / NOTE
        if self._others and not isinstance(error, Failed) and not path.exists():
            leave(path, failure_of(error))
            self._failed = True

    def close(self) -> None:
        """Where this process has failed, the others are left time to read why."""
        self._over.set()
        if self._failed:
            time.sleep(NOTICE_S)
        self._ends.close()

    def _watch(self) -> None:
        """Give up, while this process waits, whoever never comes; then end this process, should it
        wait on. Looks are counted, not seconds: this process may have been stopped as well.
        Whoever has just come may end at once."""
        looks = Counter[int]()
        while not self._over.wait(LOOK_S):
            for other in self._others:
                why, patience = other.lost(), NOTICE_S
                if why is None and is_stopped(other.pid):
                    why = f"it is stopped, and has not moved for {STOPPED_S:.0f} s"
                    patience = STOPPED_S
                looks[other.rank] = looks[other.rank] + 1 if self._where and why else 0
                if looks[other.rank] * LOOK_S > patience:
                    self._given_up[other.rank] = why
            if self._given_up:
                self._stop()
                break
        looks, before = 0, None
        while not self._over.wait(LOOK_S):
            now = self._waits()
            looks = looks + 1 if now is not None and now == before else 0
            before = now
            if looks * LOOK_S > DEAF_S:
                self._end_process(now)
                looks = 0

    def _waits(self) -> Place | None:
        """Where code waits for other processes in vain: equal twice where it has done nothing in
        between. None for all other code, which ends."""
        frame = sys._current_frames().get(self._thread[0])
        if not (self._where and self.one_host and frame):
            return None
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        return frame, frame.f_lasti, ticks_of(self._thread[1])

    def _end_process(self, place: Place) -> None:
        """End this process as an error would that nobody catches, unless it has left the place; the
        others are left time to read why."""
        try:
            self._raise_cause(Failed("its connections are cut"))
        except BaseException as error:
            told = f"{type(error).__name__}: {error}\n"
            with suppress(OSError):
                self.say(error)
        time.sleep(NOTICE_S)
        if self._waits() == place:
            code = place[0].f_code
            told += f"{code.co_name} of {code.co_filename} waits for it without end, so this "
            with suppress(Exception):  # nobody may read them any more
                sys.stderr.write(f"{told}process ends; start all processes again\n")
                for stream in (sys.stderr, sys.stdout):
                    stream.flush()
            shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(1)

    def _stop(self) -> None:
        self._cut = True
        for stop in self.stops:
            stop()
        cut_off(other.pid for other in self._others)

    def _raise_cause(self, error: BaseException) -> None:
        """Raise what made a process fail."""
        for _ in range(round(2 * NOTICE_S / LOOK_S)):
            lost = {o.rank: why for o in self._others if (why := o.lost()) is not None}
            lost = {**lost, **self._given_up}
            if lost:
                break
            time.sleep(LOOK_S)
        else:
            if not self.one_host:
                raise RankFailed(f"a rank of another host is gone, {self._where}") from error
            raise error
        if silent := [rank for rank, why in lost.items() if isinstance(why, str)]:
            cause = RankFailed(f"rank {min(silent)}: {lost[min(silent)]}, {self._where}")
            self.say(cause)
            raise cause from error
        rank = min(lost, key=lambda rank: precedence(lost[rank]))
        if lost[rank]["type"] == RankFailed.__name__:  # it speaks of another one
            raise RankFailed(lost[rank]["message"]) from error
        raise_cause(rank, lost[rank])


def cut_off(pids: Iterable[int]) -> None:
    """Shut this process's connections with others of its host, so that nobody waits in them."""
    ends = set[tuple[int, int]]()
    for pid in pids:
        with suppress(psutil.Error):  # it has ended, and so have they
            theirs = psutil.Process(pid).net_connections("tcp")
            ends |= {(one.raddr.port, one.laddr.port) for one in theirs if one.raddr}
    for own in psutil.Process().net_connections("tcp"):
        if own.raddr and (own.laddr.port, own.raddr.port) in ends:
            with suppress(OSError), socket.socket(fileno=os.dup(own.fd)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
