"""Varuna's lists and its rule: golden values, both loops, and what taking turns must keep."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
from itertools import groupby, pairwise

import pytest

from tests.methods.pipelines import schedule_for, spec_for
from tests.unit.schedule.made_up import Table
from tests.unit.schedule.mutate import swap
from workbench import cli
from workbench.methods.pipeline import ideal, orders, quick
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.orders import B, F, I, R, W, in_flight
from workbench.methods.pipeline.quick import Links, Rule, end_s, timeline
from workbench.methods.pipeline.stage_lines import stage_schedule
from workbench.schedule import event_loop, validate
from workbench.schedule.action import COMPUTE, LATER, MEETING, RECEIVES, SENDS, lane_kind
from workbench.schedule.graph import ScheduleError, unroll
from workbench.schedule.simulate import simulate

SENT = dict(zip(RECEIVES, SENDS, strict=True))
COLUMNS = {
    "varuna_us": ["varuna"],
    "gpipe_us": ["gpipe", "--order", "published"],
    "varuna_no_reordering_us": ["varuna", "--order", "list"],
    "varuna_early_recompute_in_drain_us": ["varuna", "--drain", "early"],
    "one_f_one_b_recompute_on_gradient_us": ["1f1b", "--recompute"],
    "one_f_one_b_no_recompute_us": ["1f1b"],
}
"""Golden column -> what asks for it."""
TIMED = ("varuna", "--us", "1,2,1,1")


@pytest.fixture
def golden(reference):
    """Lists and simulated steps of the published Varuna (reference/varuna)."""
    folder = reference / "varuna"
    if not folder.is_dir():
        pytest.skip(f"Varuna's golden values are not there: {folder}")
    return folder


def printed(capsys, *words):
    assert cli.main(["schedule", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_lists_are_the_published_ones(golden, capsys):
    lists = json.loads((golden / "golden_lists.json").read_text())["lists"]
    assert lists
    for one in lists:
        more = ["--order", "published"] if one["policy"] == "gpipe" else []
        lines = printed(capsys, one["policy"], "-P", one["P"], "-N", one["N"], *more)
        assert lines[one["stage"]].split()[1:] == one["tasks"]


def test_quanta_are_the_published_generators(golden):
    told = json.loads((golden / "golden_lists.json").read_text())["makespan_quanta"]["cases"]
    assert told
    for one in told:
        assert sum(1 for _ in orders.varuna_quanta(one["P"], one["N"])) == one["quanta"]


@pytest.mark.parametrize("column", COLUMNS)
def test_steps_are_the_published_simulators_to_the_microsecond(golden, capsys, column):
    with (golden / "golden_simulator.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert rows
    for row in rows:
        us = ",".join(row[name] for name in ("fwd_us", "bwd_us", "send_us", "long_send_us"))
        size = ["-P", row["stages"], "-N", row["microbatches"], "--per-host", row["gpus_per_vm"]]
        told = printed(capsys, *COLUMNS[column], *size, "--us", us)[-1]
        assert told.startswith(f"{row[column]} us a step")


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("micros", [1, 2, 5, 16, 40])
def test_inputs_in_flight_are_three_a_rank_that_follows(ranks, micros):
    found = [in_flight(own) for own in orders.lists("varuna", ranks, micros)]
    assert found == [min(micros, 3 * (ranks - 1 - rank)) for rank in range(ranks - 1)] + [1]


def test_messages_to_another_host_take_longer(capsys):
    sizes = ["-P", 2, "-N", 1, "--us", "10,20,1,9", "--per-host"]
    assert printed(capsys, "1f1b", *sizes, 2)[-1].startswith("62 us")  # two messages of 1
    assert printed(capsys, "1f1b", *sizes, 1)[-1].startswith("78 us")  # two of 9


def test_a_stage_that_holds_fewer_inputs_waits_longer(capsys):
    size = ["varuna", "-P", 4, "-N", 16, "--us", "50,100,5,20"]
    steps = [
        int(printed(capsys, *size, *more)[-1].split()[0])
        for more in ([], ["--stash", 16], ["--stash", 8], ["--stash", 4], ["--stash", 1])
    ]
    assert steps[0] == steps[1] == 3630 < steps[-1]
    assert steps == sorted(steps)


def drawn(rng):
    """A question with passes, seconds and messages of no pattern."""
    ranks, micros = rng.choice([2, 3, 4]), rng.choice([1, 3, 6, 20])
    name = rng.choice(["varuna", "1f1b"])
    passes = orders.lists(name, ranks, micros)
    if name == "1f1b":
        passes = ideal.with_recomputation(passes)
    times = [0.0, 1.0, 2.5, rng.random()]
    seconds = [{kind: rng.choice(times) for kind in (F, R, B, I, W)} for _ in range(ranks)]
    links = Links(
        seconds=[rng.choice(times) for _ in range(ranks - 1)],
        in_flight=rng.choice([1, 2, 4]),
        places=rng.random() < 0.5,
    )
    rule = Rule(
        turns=rng.random() < 0.7,
        early=rng.random() < 0.3,
        stash=rng.choice([None, 2, 4]) if name == "varuna" else None,
    )
    return passes, seconds, rng.choice([links, links, 0.3]), rule


def settled(question):
    """When its passes run; None where they wait for each other."""
    try:
        return timeline(*question)
    except ValueError:
        return None


def test_both_loops_give_the_same_turns(monkeypatch):
    rng = random.Random(11)
    questions = [drawn(rng) for _ in range(300)]
    quick = [settled(question) for question in questions]
    monkeypatch.setattr(event_loop, "_loop", lambda: None)
    assert [settled(question) for question in questions] == quick
    assert sum(one is None for one in quick) < 60  # only strict lists with small stashes


def test_turns_keep_what_they_must():
    """Kinds in their order, one pass at a time, gradients first, no more inputs than places; what
    takes turns never hangs."""
    rng = random.Random(12)
    overtaken = 0
    for _ in range(300):
        passes, seconds, messages, rule = drawn(rng)
        ran = settled((passes, seconds, messages, rule))
        if ran is None:
            assert not rule.turns
            continue
        ends = {(timed.position, timed.each): timed.end_s for timed in ran}
        for rank in range(len(passes)):
            own = sorted(
                (timed for timed in ran if timed.position == rank),
                key=lambda timed: (timed.start_s, timed.end_s),
            )
            busy_until = 0.0
            for timed in own:
                assert timed.start_s >= busy_until
                busy_until = timed.end_s
                micro = timed.each.micro
                if timed.each.kind is B and rank + 1 < len(passes):
                    gradient = next(p for p in passes[rank + 1] if (p.kind, p.micro) == (B, micro))
                    assert timed.start_s >= ends[rank + 1, gradient]
            for kinds in ((F,), (R, B)):
                mine = [t.start_s for t in ran if t.position == rank and t.each.kind in kinds]
                assert mine == sorted(mine)
            if rule.stash is not None:
                forward = [t.start_s for t in ran if (t.position, t.each.kind) == (rank, F)]
                back = [t.end_s for t in ran if (t.position, t.each.kind) == (rank, B)]
                assert all(f >= b for b, f in zip(back, forward[rule.stash :], strict=False))
            listed = [(each.kind, each.micro) for each in passes[rank]]
            overtaken += rule.turns and [(t.each.kind, t.each.micro) for t in own] != listed
    assert overtaken > 20


def test_schedules_have_the_arrays_model_of_messages():
    """Whatever is late: a place, a link's rate, and a latency that occupies nobody."""
    rng, later = random.Random(15), 0
    for seed in range(60):
        order = rng.choice(["varuna", "varuna", "1f1b", "gpipe"])
        ranks, micros = rng.choice([2, 3, 4]), rng.choice([3, 6, 20])
        passes, jitter = orders.lists(order, ranks, micros), Jitter(network_s=2.0, seed=seed)
        seconds = [{kind: rng.random() for kind in (F, R, B)} for _ in range(ranks)]
        links = Links(seconds=[1.0] * ranks, wire_s=[0.1] * ranks, places=True)
        rule, draws = Rule(turns=order == "varuna", early=True), jitter.draws(ranks, micros)
        step = end_s(timeline(passes, seconds, links, rule, draws))
        schedule, taken = stage_schedule(order, passes), {}
        for action in schedule.actions:
            at, sent = (action.unit - 1, action.microbatch), SENT.get(action.kind)
            taken[action.name] = seconds[action.unit].get(action.kind, 0.0)
            taken[action.name] += 0.1 * (action.kind in SENDS)
            taken[action.name] += 1.0 + draws[sent][at] if sent else 0.0
        ran = simulate(schedule, Table(taken), steps=1, in_flight=links.in_flight)
        assert max(event.end_s for event in ran.events) == pytest.approx(step)
        freely = timeline(passes, seconds, replace(links, places=False), rule, draws)
        later += step > end_s(freely)
    assert later > 20


def test_schedules_take_turns_over_steps_in_both_loops_alike():
    """With units that pass one after the other, and seconds of no pattern."""
    rng = random.Random(13)
    for ranks, micros in ((2, 3), (3, 6), (4, 6)):
        schedule = schedule_for("varuna", spec_for(ranks=ranks), ranks, micros)
        graph = unroll(schedule, 3)
        slowdowns = event_loop.Slowdowns(graph, quick.Undisturbed())
        for _ in range(10):
            late = rng.choice([0.1, 1.0, 20.0])
            alone = [
                rng.random() * (late if action.kind in MEETING else 1.0)
                for action in schedule.actions
            ]
            ran = event_loop.in_python(graph, alone, slowdowns)
            assert event_loop.compiled(graph, alone, slowdowns) in (ran, None)
            assert ran[2] == graph.num_nodes
            for rank in range(ranks):
                assert_in_turn(graph, ran[0], ran[1], rank)


def test_no_choice_of_a_device_holds_more_than_was_proved():
    rng = random.Random(14)
    schedule = schedule_for("varuna", spec_for(ranks=3), 3, 6)
    proved = validate(schedule).peak_bytes
    for _ in range(10):
        seconds = {a.name: rng.random() * rng.choice([1, 10]) for a in schedule.actions}
        for rank, peaks in simulate(schedule, Table(seconds), steps=2).peak_bytes.items():
            assert all(peaks[tier] <= proved[rank][tier] for tier in peaks)


def assert_in_turn(graph, starts, ends, rank):
    """Nothing comes between the units of a pass, nor between the passes of a step."""
    nodes = [
        node
        for node in range(graph.num_nodes)
        if (a := graph.action(node)).rank == rank and lane_kind(a.lane) == COMPUTE
    ]
    nodes.sort(key=lambda node: starts[node])
    assert all(starts[b] >= ends[a] for a, b in pairwise(nodes))
    assert [node // graph.num_actions for node in nodes] == sorted(
        node // graph.num_actions for node in nodes
    )
    passes = [(graph.action(node).kind, graph.action(node).microbatch) for node in nodes]
    blocks = [key for key, _ in groupby(passes)]
    assert len(blocks) == len(set(blocks)) * graph.steps


@pytest.mark.parametrize(
    ("name", "lane", "sentence"),
    [
        ("F0.0", LATER, r"F0.0 queues on lane compute.1, .* it belongs on lane compute"),
        ("B0.0", COMPUTE, "B0.0 queues on lane compute of rank 0, .* has forward passes only"),
        ("R0.1", COMPUTE, "R0.1 queues on lane compute of rank 0, .* has forward passes only"),
        ("U0", LATER, "U0 queues on lane compute.1, which has recomputations and backward"),
    ],
)
def test_lanes_that_take_turns_have_passes_of_their_own(name, lane, sentence):
    right = ideal.schedule_of("varuna", 3, 4)
    validate(right)
    wrong = [replace(a, lane=lane) if a.name == name else a for a in right.actions]
    with pytest.raises(ScheduleError, match=sentence):
        validate(replace(right, actions=tuple(wrong)))


def test_a_recomputation_comes_before_its_backward_pass():
    wrong = swap(ideal.schedule_of("varuna", 2, 2), "R1.0", "B1.0")
    with pytest.raises(ScheduleError, match="its recomputed activations may be missing"):
        validate(wrong)


def test_a_late_gradient_lets_a_forward_pass_go_first():
    passes = orders.lists("varuna", 3, 6)
    seconds = [{F: 1.0, R: 1.0, B: 2.0}] * 3
    late = Links(seconds=[0.1, 30.0])
    ran = timeline(passes, seconds, late, Rule(turns=True))
    second = sorted((t for t in ran if t.position == 1), key=lambda t: t.start_s)
    assert [str(t.each) for t in second][:6] == ["f0", "f1", "f2", "f3", "f4", "f5"]
    assert [str(each) for each in passes[1]][:4] == ["f0", "f1", "f2", "r0"]
    assert end_s(ran) < end_s(timeline(passes, seconds, late))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["varuna", "--us", "1,2"], "--us is '1,2'; it must be four numbers: FWD,"),
        (["varuna", "--us", "1/2,1,1,1"], "FWD of --us is '1/2'; it must be one number"),
        (["varuna", "--us", "1,nan,1,1"], "BWD of --us is 'nan'"),
        (["gpipe", "--us", "1e308,1,1,1"], "it must be one number of microseconds, or 4 with"),
        (["gpipe", "--us", "0,0,0,0"], "passes must take longer than 0 microseconds"),
        (["varuna", "--us", "1/2,1/0,1,1", "-P", "2"], "passes must take longer than 0 microse"),
        (["varuna", "--us", "1,1,1,-3"], "LONG of --us is '-3'; it must be one number"),
        (["varuna", "--per-host", "0"], "per-host is 0; it must be 1 to"),
        (["varuna", "--stash", "0"], "stash is 0; it must be 1 to"),
        (["gpipe", "--stash", "2"], "the order deadlocks: its passes wait for each other"),
        (["varuna", "--order", "published"], "--order published is for gpipe"),
        (["1f1b", "--order", "list"], "--order list is for varuna; 1f1b is never left"),
        (["1f1b", "--keep"], "--keep is for varuna"),
        (["1f1b", "--drain", "early"], "give --recompute, too"),
        (["varuna", "--jitter", "1,2"], "must be COMPUTE,NETWORK in microseconds, beside --us"),
        ([*TIMED, "--jitter", "1"], "--jitter is '1'; it must be COMPUTE,NETWORK"),
        ([*TIMED, "--jitter", "1,-1"], "NETWORK of --jitter is '-1'; it must be one"),
        ([*TIMED, "--jitter", "1,1", "--seed", "-1"], "seed is -1; it must not be"),
        ([*TIMED, "--jitter", "1,1", "--seeds", "0"], "seeds is 0; it must be 1 to"),
    ],
)
def test_what_has_no_meaning_is_one_sentence(words, sentence, capsys):
    assert cli.main(["schedule", *words]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_torchs_csv_leaves_recomputations_out(capsys, tmp_path):
    file = tmp_path / "varuna.csv"
    lines = printed(capsys, "varuna", "-P", "2", "-N", "2", "--csv", file)
    assert file.read_text() == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert "the CSV leaves it out" in lines[-1]
