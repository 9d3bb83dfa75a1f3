"""Work that may wait for a disk, a name server or a screen, beside the loop of a process.

Its threads are daemons: a file server that never answers keeps no process from ending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

FINISH_S = 5.0
"""For last words to be written."""
Found = TypeVar("Found")


def aside(do: Callable[[], Found]) -> asyncio.Future[Found]:
    """Begin to do something in a thread of its own; a future of the running loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Found] = loop.create_future()

    def settle(tell: Callable[[Any], None], found: Any) -> None:
        if not future.done():  # nobody has given it up
            tell(found)

    def run() -> None:
        try:
            ended = future.set_result, do()
        except Exception as error:
            ended = future.set_exception, error
        with suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(settle, *ended)

    Thread(target=run, daemon=True).start()
    return future


class InTurn:
    """Does one thing after the other in a thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        Thread(target=self._serve, daemon=True).start()

    def do(self, work: Callable[[], object]) -> None:
        """Have something done after all that was asked before. An OSError of it is nobody's."""
        self._queue.put(work)

    def finish(self) -> None:
        """Wait until all is done, for a while."""
        done = Event()
        self.do(done.set)
        done.wait(FINISH_S)

    def _serve(self) -> None:
        while True:
            with suppress(OSError):  # a full disk ends no training
                self._queue.get()()
