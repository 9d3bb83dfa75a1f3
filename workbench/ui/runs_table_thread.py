"""One piece of work at a time beside the kernel's loop, which it does not hold up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Beside:
    """Work in a thread that ends with the process. Its result is fetched, never pushed: widgets are
    the loop's business."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._value: Any = None
        self._error: Exception | None = None

    @property
    def free(self) -> bool:
        """Whether there is nothing in work and no result to fetch."""
        return self._thread is None

    @property
    def ready(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def start(self, call: Callable[[], Any]) -> None:
        """Begin; only where it is free."""

        def work() -> None:
            try:
                self._value = call()
            except Exception as error:
                self._error = error

        self._value = self._error = None
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def fetch(self) -> Any:
        """The result once it is `ready`; raises what the work raised."""
        self._thread = None
        if self._error is not None:
            raise self._error
        return self._value
