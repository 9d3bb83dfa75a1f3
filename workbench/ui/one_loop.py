"""Messages of widgets, handled in the kernel's own loop, where timers and cells are.

JupyterLab has a thread of its own in the kernel for them (a subshell), so that a page is answered
while a cell runs. But ipywidgets is not made for two threads, nor is a panel, which a timer in the
kernel's loop changes too: with Start pressed in the moment of a tick, the tick ended while a list
was being filled, whose first entry, "a new sweep", then counted as chosen by hand, and the page
went empty.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from IPython import get_ipython

KINDS = {"comm_open", "comm_msg", "comm_close"}


def handle_messages_here() -> None:
    """Have messages of widgets, by whatever thread they come, handled by the loop that runs here.
    Does nothing the second time, or where there is no kernel or no loop."""
    kernel = getattr(get_ipython(), "kernel", None)
    handlers = getattr(kernel, "shell_handlers", {})
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    for kind in handlers.keys() & KINDS:
        if not isinstance(handlers[kind], _Here):
            handlers[kind] = _Here(handlers[kind], loop)


class _Here:
    """A handler of messages of one kind, for all threads in turn."""

    def __init__(self, handler: Callable[..., Any], loop: asyncio.AbstractEventLoop) -> None:
        self._handler, self._loop, self._thread = handler, loop, threading.get_ident()

    async def __call__(self, *message: Any) -> None:
        """Ends when the message has been handled, so that the kernel counts as busy until then."""
        if threading.get_ident() == self._thread:
            await self._handle(message)
            return
        there = asyncio.run_coroutine_threadsafe(self._handle(message), self._loop)
        await asyncio.wrap_future(there)

    async def _handle(self, message: tuple[Any, ...]) -> None:
        answer = self._handler(*message)
        if inspect.isawaitable(answer):
            await answer
