"""One run as its owner polls it, wherever it is carried out."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.core.record import RESULTS, RunRecord, Status
from workbench.runs.events import Teller, make_event
from workbench.runs.store import Store


class Work(Teller):
    """A run in progress, or one whose record was there already."""

    where = ""
    """The devices it holds, in words; empty where it needs none."""

    def __init__(self, store: Store, key: str, accept: Iterable[Status] = RESULTS) -> None:
        """`accept`: statuses of an earlier record that are shown instead of run."""
        super().__init__()
        self.key = key
        self.record: RunRecord | None = None
        self.cached = False
        """Whether the record was there already."""
        self._store, self._accept = store, frozenset(accept)

    def poll(self) -> RunRecord | None:
        """Do what can be done without waiting; the record once there is one."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Ask it to end, and poll on for its record."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancel if it still runs, and wait until nothing of it is left."""
        raise NotImplementedError

    def take_cached(self) -> bool:
        """Whether there is a record to take instead of running; it is taken."""
        found = self._store.find(self.key)
        if found is None or found.status not in self._accept:
            return False
        self.record, self.cached = found, True
        self._tell("cached", started=found.started, status=found.status)
        return True

    def _tell(self, kind: str, **values: object) -> None:
        self._events.append(make_event(kind, **values))
