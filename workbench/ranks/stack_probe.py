"""Which of several ranks hangs: asked of the ranks themselves.

Who waits in a collective is not the one who hangs, and the loopback interface tells them not apart.
So every rank writes where it is when it is sent SIGUSR1, also while a library has it; one that is
stopped does not.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

FRAME = re.compile(r'File "(?P<path>.+)", line (?P<line>\d+) in (?P<name>\S+)')
LOOKED_AT = 8
"""Innermost calls in which a wait for others shows."""
WAITS = ("torch/distributed", "deepspeed/comm")
MAY_WAIT = ("torch/autograd",)
"""A backward pass waits for gradients' sums where Python cannot see it."""
ANSWER_S = 5.0
"""Who has not answered by then is stopped, or as good as: a machine may be busy for a second."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is."""

    suspicion: int
    """3: it does not answer. 2: it waits for nobody; 1: it may; 0: it does."""
    words: str


UNBORN = Place(3, "is still importing")


def answer_from(folder: Path, rank: int) -> None:
    """Have this process write where it is when it is asked. Its file is there from then on."""
    path = _path(folder, rank)
    file = path.with_suffix(".part").open("w")  # faulthandler keeps it
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
    path.with_suffix(".part").rename(path)


def where(folder: Path, ranks: Sequence[Popen]) -> str:
    """A sentence on all that still run: the one that hangs rather than waits first."""
    running = [rank for rank, process in enumerate(ranks) if process.poll() is None]
    asked = [rank for rank in running if _path(folder, rank).exists()]
    for rank in asked:  # the signal would end one that has not come so far
        ranks[rank].send_signal(signal.SIGUSR1)
    answers = _answers(folder, asked)
    places = {rank: place_of(answers[rank]) if rank in asked else UNBORN for rank in running}
    order = sorted(places, key=lambda rank: -places[rank].suspicion)
    hangs, *others = order
    told = [f"rank {hangs} hangs: it {places[hangs].words}"]
    return "; ".join([*told, *(f"rank {rank} {places[rank].words}" for rank in others)])


def _answers(folder: Path, ranks: Sequence[int]) -> dict[int, str]:
    """What the ranks write, when all have and nobody writes any more, or when time is up."""
    deadline, before = time.monotonic() + ANSWER_S, {}
    while True:
        found = {rank: _path(folder, rank).read_text() for rank in ranks}
        settled = found == before and all(FRAME.search(text) for text in found.values())
        if settled or time.monotonic() > deadline:
            return found
        before = found
        time.sleep(0.05)


def place_of(answer: str) -> Place:
    """From the innermost call outwards, as faulthandler writes it."""
    frames = [match.groupdict() for match in FRAME.finditer(answer)]
    if not frames:
        return Place(3, "does not answer")
    near = " ".join(frame["path"].replace(os.sep, "/") for frame in frames[:LOOKED_AT])
    inner = frames[0]
    words = f"is in {inner['name']} ({Path(inner['path']).name}, line {inner['line']})"
    if any(part in near for part in WAITS):
        return Place(0, words.replace("is in", "waits in", 1))
    return Place(1 if any(part in near for part in MAY_WAIT) else 2, words)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"stack-{rank}.txt"
