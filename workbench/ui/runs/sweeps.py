"""Which runs belong to which named sweep, and which are in work.

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
from workbench.ui.helper_process import HelperAnswer, HelperProcess
from workbench.ui.sweeps.html import SIGNS


class Sweeps:
    """All named sweeps of a store. `look` reads what was appended since the last look."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.keys: dict[str, set[str]] = {}
        """Name -> keys of its runs."""
        self._written: dict[str, float] = {}
        self._readers: dict[str, EventReader] = {}
        self._listed: dict[str, HelperAnswer | None] = {}

    def look(self) -> bool:
        """Look once; returns whether a sweep came or went, or has further runs."""
        before = {name: len(keys) for name, keys in self.keys.items()}
        found = {}
        for campaign in Campaign.all(self.store):
            name = campaign.name
            try:
                written = os.path.getmtime(campaign.folder / "sweep.json")
            except FileNotFoundError:  # removed meanwhile
                continue
            kept = self.keys.get(name, set())
            if self._written.get(name) != written:  # it is new, or another one of that name
                self._written[name], kept = written, set()
                for known in (self._readers, self._listed):
                    known.pop(name, None)
            reader = self._readers.setdefault(name, EventReader(campaign.folder / "events.jsonl"))
            told = self._listed.get(name)
            keys = {line["key"] for line in (told.value if told and told.done else None) or ()}
            keys |= {event["key"] for event in reader.read() if "key" in event}
            found[name] = kept | keys
        self.keys = found
        return before != {name: len(keys) for name, keys in found.items()}

    def ask(self, helper: HelperProcess) -> None:
        """Have a sweep listed that was not, one at a time."""
        rest = self.keys.keys() - self._listed.keys()
        if rest and all(answer is None or answer.done for answer in self._listed.values()):
            name = min(rest)
            self._listed[name] = None
            with suppress(OSError, ValueError):  # the page of sweeps says what is wrong with it
                data = read_object(Campaign(self.store, name).folder / "sweep.json", "sweep")
                words = {"data": data, "root": str(self.store.root)}
                self._listed[name] = helper.ask("workbench.ui.previewer:listed", **words)

    def swept(self, name: str) -> list[str]:
        """Fields that the sweep's grid has several values of, the first ones first."""
        with suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
            grid = read_object(Campaign(self.store, name).folder / "sweep.json", "sweep")["grid"]
            return [field for field, values in grid.items() if len(values) > 1]
        return []

    def running(self, names: Iterable[str]) -> list[str]:
        """Keys of the runs that these sweeps have in work."""
        found = [Campaign(self.store, name).status() for name in names]
        return [told["key"] for status in found if status.state in LIVE for told in status.running]

    def words(self, name: str) -> str:
        """One line on a sweep."""
        status = Campaign(self.store, name).status()
        counts = ", ".join(f"{n} {s}" for s in SIGNS if (n := status.counts.get(s)))
        return "; ".join(filter(None, [f"{name}: {status.state}", counts, status.text])) + "."
