"""Ranks meet although strangers send bytes to their ports, and tell each other no pickles."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.runs.helpers import ROOT
from tests.unit.runtime.test_distributed_checkpoint import processes
from workbench.methods.pipeline.orders import lists
from workbench.methods.pipeline.stage_lines import stage_schedule
from workbench.runtime.checkpoint.distributed_checkpoint import Fenced
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.transport import groups, meeting, neighbours
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.updates.stage_loans import StageLoans
from workbench.schedule.action import Kind

COLLECTIVES = r"(gather|scatter|broadcast|send|recv)_object"
LATE_S = 1.5
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


@pytest.mark.parametrize("late", ["send", "place", "loan"])
def test_a_message_may_come_later_than_a_group_may_take_to_be_made(
    tmp_path, monkeypatch, late
) -> None:
    """As where a stage compiles: by what carries messages of stages, and weights that are lent."""
    host, plan = torch.device("cpu"), stage_schedule("1f1b", lists("1f1b", 2, 1))
    acts = {action.kind: action for action in plan.actions}
    monkeypatch.setattr(groups, "MAKING", timedelta(seconds=1))

    def come(rank: int, world: Any) -> list[float]:
        group, value = groups.new_group(backend="gloo"), torch.full((2,), rank + 0.5)
        transport = GroupTransport(
            neighbours.linked([(0, 1)], rank, "gloo", group, host), group, process=int,
            forms=lambda *_: [((2,), torch.float32, False)], device=host,
        )  # fmt: skip
        transport.use(plan)
        time.sleep(LATE_S if rank == (late == "place") else 0.0)
        if late == "loan":
            held = {(0, 1): [nn.Parameter(value)]}
            loans = StageLoans(*((held, {}) if rank == 0 else ({}, held)))
            loans.spread({(0, 1): (0, 1)}, group)
        elif rank == 0:
            transport.send(acts[Kind.SEND], (value,), 0)
        else:
            transport.announce(acts[Kind.RECV], 0)
            (value,) = transport.receive(acts[Kind.RECV], 0)
        return value.tolist()

    assert processes(2, tmp_path, come) == [[0.5, 0.5]] * 2


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
