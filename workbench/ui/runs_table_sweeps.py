"""Which runs belong to which named sweep, and what a sweep has in work.

A sweep's events name the runs that it started. Runs that had a record before are not among them;
they are known once the helper process has listed the sweep (`ask`), which hashes its specs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from workbench.runs.campaign import LIVE, Campaign
from workbench.runs.events import EventReader
from workbench.runs.overrides import read_object
from workbench.runs.store import Store
from workbench.ui.helper_process import Answer, HelperProcess
from workbench.ui.sweep_html import SIGNS

LIST = "workbench.ui.previewer:listed"


class Sweeps:
    """All named sweeps of a store. `look` reads what was appended since the last look."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._readers: dict[str, EventReader] = {}
        self._keys: dict[str, set[str]] = {}
        self._listed: dict[str, float] = {}
        """Name -> when the file was written that was listed."""
        self._asked: tuple[str, Answer] | None = None

    @property
    def names(self) -> list[str]:
        return sorted(list(self._keys))  # a look in a thread may add some

    def look(self) -> bool:
        """Look once; returns whether a sweep came or went, or has further runs."""
        there = {campaign.name: campaign for campaign in Campaign.all(self.store)}
        changed = there.keys() != self._keys.keys()
        for name in self._keys.keys() - there.keys():
            for known in (self._keys, self._readers, self._listed):
                known.pop(name, None)
        for name, campaign in there.items():
            keys = self._keys.setdefault(name, set())
            reader = self._readers.setdefault(name, EventReader(campaign.folder / "events.jsonl"))
            before = len(keys)
            keys |= {event["key"] for event in reader.read() if "key" in event}
            changed |= len(keys) != before
        return changed

    def ask(self, helper: HelperProcess) -> bool:
        """Have one sweep listed that is new or written anew; returns whether that told of runs."""
        if self._asked is not None:
            name, answer = self._asked
            if not answer.done:
                return False
            self._asked = None
            found = {line["key"] for line in answer.value or ()} - self._keys.get(name, set())
            self._keys.setdefault(name, set()).update(found)
            return bool(found)
        for name in self.names:
            path = Campaign(self.store, name).folder / "sweep.json"
            with suppress(OSError, ValueError):  # the page of sweeps says what is wrong with it
                when = os.path.getmtime(path)
                if self._listed.get(name) != when:
                    self._listed[name] = when
                    data = read_object(path, "sweep")
                    self._asked = name, helper.ask(LIST, data=data, root=str(self.store.root))
                    break
        return False

    def names_of_keys(self) -> dict[str, list[str]]:
        """Key -> the sweeps that it belongs to."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            for key in self._keys[name]:
                found.setdefault(key, []).append(name)
        return found

    def running(self, names: Iterable[str]) -> list[str]:
        """Keys of the runs that these sweeps have in work."""
        found = [Campaign(self.store, name).status() for name in names]
        return [told["key"] for status in found if status.state in LIVE for told in status.running]

    def words(self, name: str) -> str:
        """One line on a sweep."""
        status = Campaign(self.store, name).status()
        counts = ", ".join(f"{n} {s}" for s in SIGNS if (n := status.counts.get(s)))
        return "; ".join(filter(None, [f"{name}: {status.state}", counts, status.text])) + "."
