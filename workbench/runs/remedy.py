"""The smallest change that makes a method fit where none does: what `plan` answers last.

Of each method the tier that lacks decides: more of it, as far as the machine may have that, or
smaller micro-batches. What is suggested has been planned; after some seconds no more is asked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from math import ceil, inf, log

from workbench.core.bytesize import parse_bytes
from workbench.published import machines
from workbench.runs.answer import Answer
from workbench.runs.planning import answer
from workbench.runs.store import Store
from workbench.schedule.schedule import DEVICE, HOST_TIER

LONGEST_S = 15.0
SMALLER, MORE = (2, 4, 8, 16), (1.0, 1.1, 1.2, 1.35, 1.6, 2.0)
"""Times as many micro-batches, and as many bytes as a refusal names, in this order."""


def remedy(
    answers: list[Answer], store: Store, machine: str | None
) -> tuple[float, str, str, str] | None:
    """The smallest change of those that let one of these methods fit: its cost (of memory the
    logarithm of how many times as much it is, else less), method, flag and value; None for none."""
    until, found = time.monotonic() + LONGEST_S, []
    for refused in answers:
        if time.monotonic() < until:
            found += _changes(refused, store, machine)
    return min(found, default=None)


def _changes(refused: Answer, store: Store, machine: str | None) -> Iterator[tuple]:
    spec, tier = refused.spec, refused.plan.lacking
    find = machines.find if machine else machines.here
    there = find(machine or spec.device, store.root).hardware

    def fits(**changes: int) -> bool:
        with suppress(ValueError):
            return answer(spec.with_(**changes), store, machine=machine, soon=True).plan.fits
        return False

    for times in SMALLER if tier == DEVICE else ():
        count = times * spec.microbatches
        if spec.batch % count == 0 and fits(microbatches=count):
            yield log(times) / 10, spec.method, "--microbatches", f"{count}"
            break
    has = {DEVICE: there.device_bytes, HOST_TIER: there.host_bytes if there.here else inf}
    said = re.search(r"[\d.]+ [KMGT]iB", refused.plan.binding)
    if tier not in has or not said:
        return
    name, needs = f"{tier}_memory", parse_bytes(said[0])
    budget = getattr(spec, name) or getattr(there, f"{tier}_bytes")
    unit, word = (1 << 30, "GiB") if budget > 4 << 30 else (1 << 20, "MiB")
    for count in (ceil(more * needs / unit) for more in MORE):
        if budget < count * unit <= has[tier] and fits(**{name: count * unit}):
            yield log(count * unit / budget), spec.method, f"--{tier}-memory", f"{count}{word}"
            break
