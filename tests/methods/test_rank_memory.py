"""A server holds one copy of weights, masters, moments and gradients, however many ranks there are.

What the kernel says of each process while it trains: memory that all map is that one copy, and what
a rank has for itself does not grow with the model.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.methods import plain, test_ranks
from tests.methods.harness import Silent
from workbench.core.division import packs_of
from workbench.core.model_spec import ModelSpec
from workbench.methods.harmony.packs import Packs
from workbench.runtime.memory.shared import host_layout
from workbench.runtime.passes.first_weights import WRITERS
from workbench.training.rank_processes import RankTraining

RANKS, BATCH, SIZE = 2, 4, 2
SHALLOW, DEEP = 6, 24
"""Blocks of 1.8 million parameters: 11 and 43 million in all."""
STATE_BYTES = 16
"""Of a parameter in fp32, which is its own master: weight, both moments, gradient."""
STAGING = 0.01
"""Stashes and statistics, as a share of that."""
LOOK_S = 0.15

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/PID/smaps_rollup here"
    ),
]


def told_of(pid: int) -> dict[str, int]:
    """Bytes of a process by what they are; nothing of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split()[0]: 1024 * int(line.split()[1]) for line in lines}


@dataclass
class Seen:
    """The most of a run, in bytes."""

    shared: int = 0
    """Shared memory of all processes, each page once: of moments in which nobody mapped more."""
    private: dict[int, int] = field(default_factory=dict)
    """Anonymous memory by process."""

    def look(self, pids: list[int]) -> None:
        """Take what there is now."""
        first, again = ({pid: told_of(pid) for pid in pids} for _ in range(2))
        for pid, told in first.items():
            self.private[pid] = max(self.private.get(pid, 0), told.get("Anonymous:", 0))
        shared, same = ([told.get("Pss_Shmem:", 0) for told in each.values()]
                        for each in (first, again))  # fmt: skip
        if shared == same:
            self.shared = max(self.shared, sum(shared))


@contextmanager
def watched(crew: RankTraining) -> Iterator[Seen]:
    """Looks at this process and the ranks again and again."""
    seen, done = Seen(), threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_S):
            seen.look([os.getpid(), *(process.pid for process in crew._launcher.processes)])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


@dataclass
class Measured:
    """Bytes of one run."""

    weights: int
    own: int
    """What the run's own process took while it ran."""
    ranks: list[int]
    """What each rank had for itself at most."""


def trained(mode: str, layers: int, folder: Path) -> Measured:
    """In a process a rank, as a run starts them; the shared memory is judged here."""
    model = ModelSpec(layers=layers, hidden=384, heads=6, seq=16, vocab=256, dropout=0.0)
    spec = plain.spec_for(model=model, batch=BATCH, steps=2, ranks=RANKS, clip=1.0)
    packs = Packs(
        mode=mode, ranks=RANKS, minibatch=BATCH, forward_size=SIZE, backward_size=SIZE,
        forward=packs_of([1] * layers), backward=packs_of([1] * layers + [2]),
    )  # fmt: skip
    schedule = test_ranks.schedule_for(packs, spec)
    with closing(RankTraining(spec, schedule, folder, device="cpu")) as crew:
        before = Seen()
        before.look([os.getpid()])
        with watched(crew) as seen:
            crew.run(Silent())
        held = os.stat(crew._host.paths[0])
        parameters = crew.model.parameters_count()
    states = STATE_BYTES * parameters
    assert held.st_size == 512 * held.st_blocks == host_layout(schedule)[1]
    assert states <= held.st_size <= (1 + STAGING) * states
    assert states < seen.shared < (1 + 3 * STAGING) * states
    own = seen.private.pop(os.getpid()) - before.private[os.getpid()]
    assert len(seen.private) == RANKS
    return Measured(weights=4 * parameters, own=own, ranks=list(seen.private.values()))


@pytest.mark.parametrize("mode", ["pp", pytest.param("dp", marks=pytest.mark.thorough)])
def test_ranks_share_one_copy_and_keep_nothing_of_their_own_that_grows(mode, tmp_path):
    """Not the eighth part of one copy of the weights that a deeper model has more. The run's own
    process makes the first weights, a few layers at a time."""
    shallow = trained(mode, SHALLOW, tmp_path / "shallow")
    deep = trained(mode, DEEP, tmp_path / "deep")
    more = deep.weights - shallow.weights
    assert max(deep.ranks) - min(shallow.ranks) < more / 8
    layer = more / (DEEP - SHALLOW)
    assert deep.own < 2 * (WRITERS + 4) * layer < deep.weights
