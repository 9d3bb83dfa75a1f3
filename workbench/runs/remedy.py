"""The smallest change that makes a method fit where none does: what `plan` answers last.

Of each method the tier that lacks decides: more host memory, more of the device where a budget
keeps it from that, or smaller micro-batches. What is suggested has been planned, with the memory
that it names and no more. Methods that would be asked after some seconds are not asked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import ceil, log
from typing import NamedTuple

from workbench.core.bytesize import parse_bytes
from workbench.core.spec import RunSpec
from workbench.profile.profile import Hardware
from workbench.published import machines
from workbench.runs.planning import Answer, answer
from workbench.runs.store import Store
from workbench.schedule.schedule import DEVICE, HOST_TIER

LONGEST_S = 15.0
"""Seconds after which no more methods are asked."""
ANY_HOST = 1 << 50
"""More than any host has."""
SMALLER = (2, 4, 8, 16)
"""Times as many micro-batches."""


class Remedy(NamedTuple):
    """A change with which a method fits."""

    cost: float
    """Of more memory the logarithm of how many times as much it is; less for micro-batches."""
    method: str
    flag: str
    value: str


def remedy(answers: list[Answer], store: Store, machine: str | None) -> Remedy | None:
    """The smallest change of those that let one of these methods fit; None where none is found."""
    until, found = time.monotonic() + LONGEST_S, []
    for refused in answers:
        if time.monotonic() > until:
            break
        hardware = _hardware(refused.spec, store, machine)
        found += _changes(refused, hardware, lambda spec: _fitting(spec, store, machine))
    return min(found, default=None)


def _hardware(spec: RunSpec, store: Store, machine: str | None) -> Hardware:
    known = (
        machines.find(machine, store.root) if machine else machines.here(spec.device, store.root)
    )
    return known.hardware


def _fitting(spec: RunSpec, store: Store, machine: str | None) -> Answer | None:
    """The method's answer where it fits."""
    with suppress(ValueError):
        found = answer(spec, store, machine=machine, soon=True)
        return found if found.plan.fits else None
    return None


def _changes(
    refused: Answer, hardware: Hardware, fitting: Callable[[RunSpec], Answer | None]
) -> Iterator[Remedy]:
    """Changes of the spec that let its method fit, each planned with what it names and no more."""
    spec, tier = refused.spec, refused.plan.lacking
    for times in SMALLER if tier == DEVICE else ():
        count = times * spec.microbatches
        if spec.batch % count == 0 and fitting(spec.with_(microbatches=count)):
            yield Remedy(log(times) / 10, spec.method, "--microbatches", f"{count}")
            break
    has = {DEVICE: hardware.device_bytes, HOST_TIER: hardware.host_bytes}
    if tier not in has:
        return
    most = has[tier] if hardware.here or tier == DEVICE else ANY_HOST
    name, budget = f"{tier}_memory", getattr(spec, f"{tier}_memory") or has[tier]
    unit, word = (1 << 30, "GiB") if budget > 4 << 30 else (1 << 20, "MiB")
    for needs in _needs(refused, lambda: fitting(spec.with_(**{name: most})), tier):
        count = ceil(max(needs, budget + 1) / unit)
        if count * unit <= most and fitting(spec.with_(**{name: count * unit})):
            yield Remedy(
                log(count * unit / budget), spec.method, f"--{tier}-memory", f"{count}{word}"
            )
            break


def _needs(refused: Answer, roomy: Callable[[], Answer | None], tier: str) -> Iterator[int]:
    """Bytes of a tier with which the method may fit: those that its refusal names, which may be the
    least of several needs, then those of its plan without a budget."""
    if said := re.search(r"[\d.]+ [KMGT]iB", refused.plan.binding):
        yield parse_bytes(said[0])
    if found := roomy():
        yield found.plan.peak_bytes[tier]
