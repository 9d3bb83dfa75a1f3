"""Work of a sweep's preview in the helper process (helper_process.py).

Planning a point takes up to seconds of pure Python, so it happens there, in questions of a limited
length each, the cheap ones first: which runs there are and which are done, which fit, and only then
memory and time. Everything goes in and comes out as plain data.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from workbench.core.jsonfile import parse_json
from workbench.core.record import state_of
from workbench.core.spec import RunSpec
from workbench.runs.expected import expected
from workbench.runs.index import Index
from workbench.runs.planning import answer
from workbench.runs.planning import fits as fits_quickly
from workbench.runs.resolve import Keys
from workbench.runs.store import Store
from workbench.runs.sweep import SweepFile
from workbench.ui.points import in_words, varied

GENTLE = 10
"""Niceness: a run that is measured meanwhile comes first."""

Line = dict[str, Any]


def listed(data: Line, root: str) -> list[Line]:
    """The runs of a sweep: what, key, state (done, failed, pending) in the results folder, and the
    facts of records, as `watch.WatchedPoint` has them.

    Raises ValueError for a sweep that is malformed, or a method or device that is not there.
    """
    os.setpriority(os.PRIO_PROCESS, 0, GENTLE)
    _specs.cache_clear()  # the methods' code may have changed, and the keys with it
    index = index_of(root)
    index.refresh()
    rows = {row["key"]: row for row in index.rows()}
    problems = {path.parent.name: why for path, why in index.problems.items()}
    specs, found = _specs(json.dumps(data)), []
    for (key, _), changes in zip(specs, varied(spec for _, spec in specs), strict=True):
        row = rows.get(key, {"status": ""})
        found.append(
            {
                "what": in_words(changes),
                "key": key,
                "state": state_of(row["status"]),
                "status": row["status"],
                "message": row.get("message", "") or problems.get(key, ""),
                "loss": row.get("final_loss"),
                "seconds": row.get("seconds"),
                "samples_per_second": row.get("samples_per_second"),
            }
        )
    return found


def fits(data: Line, root: str, indices: list[int], limit_seconds: float) -> list[Line]:
    """Whether the runs `indices` fit, and why not, for the first of them that the time allows.

    `fits` is None where the planner has no answer.
    """
    store = Store(root)

    def one(spec: RunSpec) -> Line:
        try:
            if fits_quickly(spec, store):
                return {"fits": True}
            return {"fits": False, "why": answer(spec, store).plan.binding}
        except ValueError as error:
            seconds, how = expected(spec, None, index_of(root).rows())
            return {"fits": None, "why": str(error), "seconds": seconds, "how": how}

    return _in_time(one, data, indices, limit_seconds)


def plans(data: Line, root: str, indices: list[int], limit_seconds: float) -> list[Line]:
    """Peak bytes, expected seconds and how these were obtained; which of `indices` as in `fits`.

    Seconds are None where neither this machine's layers nor runs like these were timed.
    """
    store, rows = Store(root), index_of(root).rows()

    def one(spec: RunSpec) -> Line:
        try:
            planned = answer(spec, store)
        except ValueError as error:
            return {"fits": None, "why": str(error)}
        if not planned.plan.fits:  # the quick answer looks at the smallest layout alone
            return {"fits": False, "why": planned.plan.binding}
        seconds, how = expected(spec, planned, rows)
        return {"peak": planned.plan.peak_bytes, "seconds": seconds, "how": how}

    return _in_time(one, data, indices, limit_seconds)


def _in_time(
    one: Callable[[RunSpec], Line], data: Line, indices: list[int], limit_seconds: float
) -> list[Line]:
    """At least one answer, and no more after the time is over."""
    specs, until, found = _specs(json.dumps(data)), time.monotonic() + limit_seconds, []
    for index in indices:
        found.append({"index": index, **one(specs[index][1])})
        if time.monotonic() >= until:
            break
    return found


@lru_cache(maxsize=2)
def _specs(text: str) -> list[tuple[str, RunSpec]]:
    """Keys and specs of a sweep, equal ones once."""
    keys = Keys()
    specs = SweepFile.parse(parse_json(text, "this sweep"), "this sweep").specs
    return list({keys.of(spec): spec for spec in specs}.items())


@lru_cache(maxsize=1)
def index_of(root: str) -> Index:
    """The records of a results folder; refresh it."""
    return Index(Store(root))
