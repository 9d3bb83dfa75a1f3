"""Asks ranks for their stacks, to tell which of them hangs.

A rank that waits in a collective is not the one that hangs, and the loopback interface tells them
not apart. So every rank writes its innermost calls when it is sent SIGUSR1, also inside a library;
a rank that is stopped does not.
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
"""Seconds after which a rank without an answer is taken for stopped: a machine may be busy for
one."""


@dataclass(frozen=True, slots=True)
class RankState:
    """The call in which a rank is, and how likely it hangs."""

    suspicion: int
    """3: it does not answer. 2: it waits for nobody; 1: it may; 0: it does."""
    words: str


IMPORTING = RankState(3, "is still importing")


def answer_from(folder: Path, rank: int) -> None:
    """Have this process write its calls when it is asked. Its file is there from then on."""
    path = _path(folder, rank)
    file = path.with_suffix(".part").open("w")  # faulthandler keeps it
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
    path.with_suffix(".part").rename(path)


def where(folder: Path, ranks: Sequence[Popen]) -> str:
    """A sentence on all ranks that still run; the one that hangs rather than waits is first."""
    running = [rank for rank, process in enumerate(ranks) if process.poll() is None]
    asked = [rank for rank in running if _path(folder, rank).exists()]
    for rank in asked:  # the signal would end one that has not come so far
        ranks[rank].send_signal(signal.SIGUSR1)
    answers = _answers(folder, asked)
    states = {rank: state_of(answers[rank]) if rank in asked else IMPORTING for rank in running}
    order = sorted(states, key=lambda rank: -states[rank].suspicion)
    hangs, *others = order
    told = [f"rank {hangs} hangs: it {states[hangs].words}"]
    return "; ".join([*told, *(f"rank {rank} {states[rank].words}" for rank in others)])


def _answers(folder: Path, ranks: Sequence[int]) -> dict[int, str]:
    """Text of each rank, when all have written and none writes any more, or when time is up."""
    deadline, before = time.monotonic() + ANSWER_S, {}
    while True:
        found = {rank: _path(folder, rank).read_text() for rank in ranks}
        settled = found == before and all(FRAME.search(text) for text in found.values())
        if settled or time.monotonic() > deadline:
            return found
        before = found
        time.sleep(0.05)


def state_of(answer: str) -> RankState:
    """The state of a rank with this stack, innermost call first, as faulthandler writes it."""
    frames = [match.groupdict() for match in FRAME.finditer(answer)]
    if not frames:
        return RankState(3, "does not answer")
    near = " ".join(frame["path"].replace(os.sep, "/") for frame in frames[:LOOKED_AT])
    inner = frames[0]
    words = f"is in {inner['name']} ({Path(inner['path']).name}, line {inner['line']})"
    if any(part in near for part in WAITS):
        return RankState(0, words.replace("is in", "waits in", 1))
    return RankState(1 if any(part in near for part in MAY_WAIT) else 2, words)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"stack-{rank}.txt"
