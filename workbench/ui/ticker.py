"""A timer in the kernel's own loop, so that widgets follow what other processes do.

Nothing here blocks and nothing is a thread: between two ticks the kernel does what people ask of
it. Where no loop runs (a script, a test) nothing ticks by itself, and `tick` may be called by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Ticker:
    """Calls a function every so often until it is stopped, or the function says it is done."""

    def __init__(
        self,
        seconds: float,
        call: Callable[[], bool | None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """`call` returns False when there is nothing more to do. What it raises goes to `failed`
        and ends the ticking; without `failed`, to the loop, as any callback's error does."""
        self.seconds = seconds
        self._call, self._failed = call, failed
        self._handle: asyncio.TimerHandle | None = None
        self.ticking = False

    def start(self) -> None:
        """Tick from now on; does nothing where it does already, or where no loop runs."""
        if self.ticking:
            return
        with suppress(RuntimeError):  # no loop: a script or a test ticks by hand
            loop = asyncio.get_running_loop()
            self.ticking = True
            self._handle = loop.call_later(0, self._again, loop)

    def stop(self) -> None:
        """Tick no more."""
        self.ticking = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def tick(self) -> bool:
        """Call once; returns whether there is more to do."""
        try:
            return self._call() is not False
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(error)
            return False

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.tick():
            self.stop()
        elif self.ticking:
            self._handle = loop.call_later(self.seconds, self._again, loop)
