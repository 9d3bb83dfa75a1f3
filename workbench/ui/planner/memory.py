"""Memory of a plan by kind: weights, optimizer states, gradients, activations, libraries."""

from __future__ import annotations

import re
from collections import defaultdict

from workbench.schedule.schedule import Schedule

PASSING = "activations and scratch"
WORDS = {
    "w": "weights",
    "hw": "weights",
    "g": "gradients",
    "hg": "gradients",
    "o": "optimizer states",
    "ho": "optimizer states",
    "do": "optimizer states",
    "hx": PASSING,
    "x": PASSING,
}
"""By the letters that the name of a buffer begins with (schedule/buffers.py)."""
OTHER = "libraries and tokens"
ORDER = ("weights", "optimizer states", "gradients", PASSING, OTHER)


def parts_of(schedule: Schedule, tier: str, peak: int) -> dict[str, int]:
    """Kind of buffers -> bytes of a tier's peak.

    Buffers of a slot count once, the largest. The parts add up to the peak.
    """
    slots: dict[str, tuple[int, str]] = {}
    parts: dict[str, int] = defaultdict(int)
    for name, buffer in schedule.buffers.items():
        if buffer.tier != tier or (buffer.slot is None and not buffer.permanent):
            continue
        found = re.match(r"[a-z]+(?=\d)", name)
        words = WORDS.get(found[0], OTHER) if found else OTHER
        if buffer.slot is None:
            parts[words] += buffer.nbytes
        else:
            slots[buffer.slot] = max(slots.get(buffer.slot, (0, words)), (buffer.nbytes, words))
    for nbytes, words in slots.values():
        parts[words] += nbytes
    parts[PASSING] += max(0, peak - sum(parts.values()))
    return {words: parts[words] for words in ORDER if parts.get(words)}
