"""Orders of pipelines: theory's step times and memory, what users see, and torch's own runtime."""

from __future__ import annotations

import os
import random
import re
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tests.forks.server import command
from workbench import cli
from workbench.core import methods
from workbench.methods.pipeline import ideal, orders
from workbench.methods.pipeline.orders import in_flight
from workbench.methods.pipeline.quick import STRICT, Rule, end_s, timeline
from workbench.partition.stages import min_max_stages
from workbench.schedule import Kind, validate
from workbench.schedule.action import MEETING
from workbench.schedule.graph import ScheduleError
from workbench.schedule.simulate import simulate

README = Path(__file__).resolve().parents[3] / "README.md"
ALONE = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    ("order", "chunks", "quanta", "flights"),
    [
        ("gpipe", 1, 33, [8, 8, 8, 8]),
        ("1f1b", 1, 33, [4, 3, 2, 1]),
        ("zb-h1", 1, 27, [4, 4, 4, 4]),
        ("interleaved", 2, 28.5, None),
    ],
)
def test_steps_and_activations_are_those_of_theory(order, chunks, quanta, flights):
    """Four ranks and eight micro-batches, backward twice as long as forward."""
    schedule = ideal.schedule_of(order, 4, 8, chunks=chunks)
    validate(schedule)
    assert ideal.simulated(schedule, chunks).step_seconds == quanta
    if flights is not None:
        assert [in_flight(passes) for passes in orders.lists(order, 4, 8)] == flights


@pytest.mark.parametrize(
    ("order", "ranks", "micros"), [*product(orders.ORDERS, (1, 2, 3), (1, 2, 6))]
)
def test_every_order_is_proved(order, ranks, micros):
    chunked = orders.ORDERS[order].chunked
    if chunked and (micros % ranks or ranks == 1):
        return
    for recompute in (False, True):
        chunks = 3 if chunked else 1
        validate(ideal.schedule_of(order, ranks, micros, chunks=chunks, recompute=recompute))


def test_replicas_that_add_nothing_up_are_refused():
    """Each replica would train on its own rows."""
    one = ideal.schedule_of("1f1b", 2, 2)
    with pytest.raises(ScheduleError, match="before the gradients of all ranks are added up"):
        validate(replace(one, replicas=2))


def test_a_line_a_rank_is_printed(capsys):
    assert cli.main(["schedule", "zb-h1", "-P", "2", "-N", "3"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["0  f0 f1 i0 w0 f2 i1 w1 i2 w2", "1  f0 i0 f1 i1 w0 f2 i2 w1 w2"]
    assert printed[2].startswith("10 quanta a step (1 forward, 2 backward)")
    assert cli.main(["schedule", "interleaved", "-P", "2", "-N", "2", "--recompute"]) == 0
    assert "1:r0 1:b0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["1f2b"], "unknown order '1f2b'; known: gpipe, 1f1b, interleaved, zb-h1, varuna"),
        (["1f1b", "--chunks", "2"], "chunks is 2; with 1f1b a rank has one stage"),
        (["interleaved", "-P", "3", "-N", "4"], "on 3 ranks it must be a multiple of 3"),
        (["gpipe", "-P", "0"], "ranks is 0; it must be 1 to"),
    ],
)
def test_what_cannot_be_is_one_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["schedule", *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_picture_is_drawn(tmp_path):
    file = tmp_path / "zb.png"
    assert cli.main(["schedule", "zb-h1", "--gantt", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_torchs_runtime_loads_and_runs_what_is_exported(tmp_path):
    """Two processes of torch's own runtime train under each order, exactly."""
    for name, order in orders.ORDERS.items():
        chunks = 2 if order.chunked else 1
        file = tmp_path / f"{name}-{chunks}.csv"
        assert cli.main(["schedule", name, "-P", "2", "-N", "4", "--csv", str(file)]) == 0
    module = "tests.unit.pipeline.torch_rank"
    ranks = [
        subprocess.Popen(command(module, str(tmp_path), str(rank), "2"), env=os.environ | ALONE)
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=100) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()


def test_the_order_of_the_readme_is_all_that_a_new_one_takes(monkeypatch, capsys):
    monkeypatch.setattr(orders, "ORDERS", dict(orders.ORDERS))
    (code,) = re.findall(r"```python\n(def one_by_one.*?)```", README.read_text(), re.DOTALL)
    exec(code, vars(orders))
    monkeypatch.setattr(ideal, "lists", orders.lists)
    assert cli.main(["schedule", "one-by-one", "-P", "2", "-N", "2"]) == 0
    assert capsys.readouterr().out.startswith("0  f0 b0 f1 b1\n1  f0 b0 f1 b1\n")
    assert methods.find("one-by-one").label == "one by one"
    del orders.one_by_one


def test_stages_are_as_fast_as_memory_allows():
    free = min_max_stages([1, 1, 1, 1, 4], 2, lambda stage, units: True)
    assert free == (range(4), range(4, 5))
    tight = min_max_stages([1.0] * 8, 2, lambda stage, units: len(units) <= (3, 5)[stage])
    assert tight == (range(3), range(3, 8))
    assert min_max_stages([1.0] * 8, 2, lambda stage, units: len(units) <= 3) is None
    with pytest.raises(ValueError, match="3 stages need a unit each, and the model has 2"):
        min_max_stages([1, 1], 3, lambda stage, units: True)


def test_a_message_waits_for_the_pass_that_frees_its_place():
    """Few places serve many micro-batches; in GPipe each has its own."""
    one, all_first = (ideal.schedule_of(name, 3, 9) for name in ("1f1b", "gpipe"))
    places = [
        {s.buffers[a.takes[0]].offset for a in s.actions if a.kind is Kind.RECV and a.rank == 1}
        for s in (one, all_first)
    ]
    assert len(places[0]) <= len(places[1])


def test_arrays_say_what_the_simulator_says():
    """Drawn orders, sizes and seconds; messages meet, and places for them are few."""
    rng = random.Random(5)
    for _ in range(40):
        order, chunks = rng.choice([*((name, 1 + o.chunked) for name, o in orders.ORDERS.items())])
        ranks = rng.choice([2, 3, 4])
        micros = ranks * rng.choice([1, 2, 3])
        seconds = [{kind: rng.random() for kind in "FRBIW"} for _ in range(ranks * chunks)]
        message = rng.choice([0.0, 0.05, 0.4])
        rule = Rule(turns=True, early=True) if orders.ORDERS[order].recomputes else STRICT
        passes = orders.lists(order, ranks, micros, chunks)
        quick = end_s(timeline(passes, seconds, message, rule))
        schedule = ideal.schedule_of(order, ranks, micros, chunks=chunks)
        events = simulate(schedule, Drawn(seconds, message), steps=1).events
        assert quick == pytest.approx(max(event.end_s for event in events), rel=1e-12)


class Drawn:
    """Seconds by stage and kind."""

    def __init__(self, seconds, message) -> None:
        self._seconds, self._message = seconds, message

    def seconds(self, action) -> float:
        if action.kind in MEETING:
            return self._message
        return self._seconds[action.unit - 1].get(action.kind, 0.0) if action.unit else 0.0

    def slowdown(self, lane, busy) -> float:
        return 1.0
