"""Tensors get from any spread over processes to any other, and gradients the way back."""

from __future__ import annotations

import json
import subprocess
from itertools import product

from tests.forks.server import command
from tests.methods.aceso.exchanges import RANKS
from workbench.runtime.transport.boxes import Spread, moves, overlap


def test_every_exchange_has_its_adjoint(tmp_path):
    """On four processes, from replicas, shards and terms of a sum, with shares that are empty."""
    crew = [
        subprocess.Popen(command("tests.methods.aceso.exchanges", str(tmp_path), str(rank)))
        for rank in range(RANKS)
    ]
    assert [process.wait(240) for process in crew] == [0] * RANKS
    for rank in range(RANKS):
        told = json.loads((tmp_path / str(rank)).read_text())
        assert told["wrong"] == []
        assert told["asked"] == 198


def test_on_the_wire_each_element_is_once_and_all_senders_have_a_share():
    """Between stages of any grids, and replicas on both sides."""
    shape = (3, 5, 8)
    for have, need in product([(4, 1), (2, 2), (1, 2), (1, 1)], repeat=2):
        front, behind = (Spread(*grid).once(len(shape)) for grid in (have, need))
        boxes = [[s.box(shape, p) for p in range(s.processes)] for s in (front, behind)]
        found = moves(*boxes)
        sizes = [[end - first for first, end in move.box] for move in found]
        assert sum(a * b * c for a, b, c in sizes) == 3 * 5 * 8
        assert not any(
            overlap(one.box, other.box)
            for number, one in enumerate(found)
            for other in found[:number]
        )
        assert {move.source for move in found} == {*range(front.processes)}
