"""Ranks meet although strangers send bytes to their ports, and tell each other no pickles."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.runs.helpers import ROOT
from tests.unit.runtime.test_distributed_checkpoint import processes
from workbench.runtime.checkpoint.distributed_checkpoint import Fenced
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.transport import groups, meeting

COLLECTIVES = r"(gather|scatter|broadcast|send|recv)_object"
OBJECTS = re.compile(
    COLLECTIVES + r"|^ *import pickle|distributed\.(elastic|checkpoint)|\bdcp\.", re.M
)


@pytest.mark.parametrize("bad", [1, meeting.ATTEMPTS])
def test_ranks_meet_again_where_a_connection_is_not_a_ranks(tmp_path, monkeypatch, bad) -> None:
    """A connection that a stranger has is one by which a rank's number does not come."""
    real, seen = meeting._prove, []

    def prove(group: Any, own: int, *told: Any) -> None:
        seen.append(group)
        if own == 0 and len(seen) % (bad + 1):
            raise RuntimeError("a stranger")
        real(group, own, *told)

    def sums(rank: int, world: Any) -> Any:
        monkeypatch.setattr(meeting, "_prove", prove)
        try:
            dist.all_reduce(total := torch.tensor(rank + 1), group=groups.new_group(backend="gloo"))
        except OSError as error:
            return str(error)
        return int(total), len(seen)

    found = processes(2, tmp_path, sums)
    if bad == 1:
        assert found == [(3, 2)] * 2
    else:
        assert all(
            "has sent bytes to their ports, 5 times (rank 0: a stranger)" in w for w in found
        )


def test_what_ranks_tell_each_other_is_json_and_tensors(tmp_path) -> None:
    full = {"tier": "host", "what": "a slab", "asked": 9, "in_use": 1, "budget": 4}
    errors = Fenced("late"), OutOfMemory(**full), FileNotFoundError(2, "gone")

    def tell(rank: int, world: Any) -> Any:
        found = [groups.as_one(lambda: {"of": [rank, None, 0.1]}, world)]
        found.append(groups.of_first("a" * (1 - rank), None))
        rows = {"a": torch.ones(rank, 2), "b": torch.tensor(rank, dtype=torch.bfloat16)}
        every = groups.tensors_of_all(rows if rank else {}, world)
        found.append([{n: (t.shape, t.dtype, t.sum().item()) for n, t in e.items()} for e in every])
        for error in errors:

            def fails(error: Exception = error) -> None:
                if rank:
                    raise error

            try:
                groups.as_one(fails, world)
            except (ValueError, OSError, OutOfMemory) as raised:
                found.append((type(raised).__name__, str(raised), vars(raised)))
        return found

    one, other = processes(2, tmp_path, tell)
    assert one == other
    assert one[:2] == [[{"of": [0, None, 0.1]}, {"of": [1, None, 0.1]}], "a"]
    assert one[2] == [{}, {"a": ((1, 2), torch.float32, 2.0), "b": ((), torch.bfloat16, 1.0)}]
    ours = {"of_all": True}
    told = {**vars(errors[1]), **ours}
    assert one[3:5] == [("Fenced", "late", ours), ("OutOfMemory", str(errors[1]), told)]
    assert one[5] == ("OSError", "[Errno 2] gone", ours)


def test_no_module_has_torch_unpickle_from_others() -> None:
    """Collectives of objects, checkpoints and agents of torch's do."""
    sources = [*ROOT.glob("workbench/**/*.py"), *ROOT.glob("baselines/**/*.py")]
    assert len(sources) > 100
    assert [path.name for path in sources if OBJECTS.search(path.read_text())] == []
    unproved = [path.name for path in sources if "dist.new_group(" in path.read_text()]
    assert unproved == ["groups.py"], "all others are made by its new_group"
