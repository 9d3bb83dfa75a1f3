"""Varuna's exhibits of schedules, jitter and scaling: what they show, and when they say no."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from itertools import product

import pandas as pd
import pytest

from tests.unit.figures import servers
from tests.unit.figures.records import out_of_memory, record
from tests.unit.schedule.made_up import Table
from workbench import cli
from workbench.core.model_spec import ModelSpec
from workbench.exhibits import open_exhibit
from workbench.exhibits.varuna import jitter, scaling, schedules
from workbench.figures.rows import MEASURED, REFERENCE, SIMULATED, pick
from workbench.figures.verdict import FAILS, HOLDS, MISSING, UNTESTED
from workbench.methods.pipeline import paced, quick
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.orders import B, F, R, in_flight
from workbench.methods.pipeline.policies import POLICIES, simulated, stashed
from workbench.published.hardware import machine
from workbench.published.tables import FOLDER
from workbench.runs.planning import answer
from workbench.schedule import validate
from workbench.schedule.simulate import Event, simulate

ASKED = {
    "varuna": "varuna --drain early", "varuna-list": "varuna --order list",
    "gpipe": "gpipe --order published", "1f1b-late": "1f1b --recompute",
    "1f1b-early": "1f1b --recompute --drain early",
}  # fmt: skip
"""Policy -> what asks ``workbench schedule`` for it."""


def judged(session, rows):
    return [*session.verdict(rows)["verdict"]]


def words_in(figure):
    """All text of a figure."""
    from matplotlib.text import Text

    return " ".join(found.get_text() for found in figure.findobj(Text))


def test_facts_are_those_of_the_reference(reference):
    folder = reference / "varuna"
    if not folder.is_dir():
        pytest.skip(f"Varuna's golden values are not there: {folder}")
    golden = json.loads((folder / "golden_lists.json").read_text())["lists"]
    kept = json.loads((FOLDER / "varuna_lists.json").read_text())["lists"]
    for ours, theirs in zip(kept, golden, strict=True):
        assert [*ours.values()] == [*(theirs | {"tasks": " ".join(theirs["tasks"])}).values()]
    told = pd.read_csv(folder / "configs.csv", dtype=str).set_index("model")
    for row in pd.read_csv(FOLDER / "varuna_configs.csv", dtype=str).itertuples():
        theirs = told.loc["GPT-2 345/355M" if "355M" in row.model else row.model]
        assert [*theirs[["layers", "hidden", "heads", "global_batch"]]] == [*row[2:6]]
        assert row.depth in re.findall(r"\d+", theirs["pipeline_depth_P"])
        assert row.micro in re.findall(r"\d+", theirs["micro_batch"])


@pytest.mark.parametrize("name", ["varuna-list", "gpipe", "1f1b-late", "1f1b-early"])
def test_a_fixed_order_stashes_what_is_in_flight(name):
    passes, links = POLICIES[name].passes(4, 16), quick.Links(seconds=[0.1] * 3)
    ran = quick.timeline(passes, [{F: 1.0, R: 1.0, B: 2.0}] * 4, links, POLICIES[name].rule)
    assert stashed(ran) == max(in_flight(own) for own in passes)


def run_of(folder, events):
    """A made-up run with these events, and the exhibit in whose store it is."""
    session = open_exhibit("varuna_schedules", "smoke", folder)
    made = record(session.exhibit.specs(session.size)[0])
    place = session.store.folder(made.key)
    place.mkdir(parents=True)
    plan = answer(session.exhibit.specs(session.size)[0], session.store).plan
    told = {"events": events, "predicted": plan.beside(events)}
    rows = {name: [asdict(event) for event in each] for name, each in told.items()}
    (place / "timeline.json").write_text(json.dumps(rows))
    return made, session


def listed(change=lambda rank, own: own):
    """Two units a pass, of two ranks that go through Varuna's list; after a step that is over."""
    events = [Event("F0.0", "F", 0, 0, 0, "compute", 4, 0.0, 9.0)]
    for rank, own in enumerate(POLICIES["varuna"].passes(2, 5)):
        for place, each in enumerate(change(rank, own)):
            for half in (0, 1):
                start = 10.0 + place + 0.4 * half
                about = (each.kind, 4 * rank + half, each.micro, rank, "compute", 5)
                events.append(Event("any", *about, start, start + 0.4))
    return events


def test_charts_are_the_textbooks_and_the_run(tmp_path):
    made, session = run_of(tmp_path, listed())
    rows = session.rows([made])
    assert judged(session, rows) == [HOLDS] * 3
    steps = pick(rows, quantity=schedules.STEP)
    assert steps["value"].tolist()[:3] == [26, 31, 29]  # workbench schedule prints these
    assert [*steps["source"]] == [SIMULATED] * 4 + [MEASURED]
    assert steps["value"].iloc[-1] == pytest.approx(14_800)  # 15 passes, the last ends early
    passes = pick(rows, quantity=schedules.PASS)
    for _, own in passes.sort_values("start").groupby(["chart", "source", "rank"]):
        assert (own["start"].to_numpy()[1:] >= own["end"].to_numpy()[:-1] - 1e-6).all()
    assert len(pick(passes, source=MEASURED)) == 15 + 10  # the last rank recomputes nothing
    assert len(session.draw(rows).axes) == 5
    assert set(session.exhibit.listed(rows)["quantity"]) == {"list", "step"}


def test_what_is_not_the_published_list_fails(tmp_path, monkeypatch):
    monkeypatch.setitem(POLICIES, "varuna", POLICIES["1f1b-late"])
    session = open_exhibit("varuna_schedules", "smoke", tmp_path)
    rows = session.rows([])
    assert judged(session, rows) == [FAILS, FAILS, MISSING]
    assert "not run yet" in words_in(session.draw(rows))


def test_a_step_that_was_not_listed_so_fails(tmp_path):
    swapped = listed(lambda rank, own: [own[1], own[0], *own[2:]] if rank == 0 else own)
    made, session = run_of(tmp_path, swapped)
    assert judged(session, session.rows([made]))[-1] == FAILS


@pytest.mark.parametrize("torn", [True, False])
def test_a_run_without_a_step_says_why(tmp_path, torn):
    made, session = run_of(tmp_path, listed())
    if torn:
        (session.store.folder(made.key) / "timeline.json").write_text("{")
    else:
        made = out_of_memory(session.exhibit.specs(session.size)[0], "device")
    rows = session.rows([made])
    assert judged(session, rows)[-1] == MISSING
    why = ("out of device memory", "its timeline is not usable")[torn]
    assert why in words_in(session.draw(rows))


@pytest.mark.slow
@pytest.mark.thorough
def test_a_run_is_shown_beside_its_simulation(tmp_path, measured):
    shutil.copytree(measured, tmp_path / "profiles")
    session = open_exhibit("varuna_schedules", "tiny", tmp_path)
    rows = session.run()
    assert judged(session, rows) == [HOLDS] * 3
    assert pick(rows, quantity=schedules.STEP)["source"].tolist()[-2:] == [SIMULATED, MEASURED]


@pytest.fixture(scope="module")
def under_jitter(tmp_path_factory):
    session = open_exhibit("varuna_jitter", "smoke", tmp_path_factory.mktemp("jitter"))
    return session, session.rows([paced_run(session, 1.01)])


def paced_run(session, longer):
    """A made-up run whose steps take so many times as long as they are simulated."""
    (spec,) = session.exhibit.specs(session.size)
    (draws,), scale = spec.options.draws(1), spec.options.scale
    steps = [longer * simulated(policy, draws, scale) for policy in POLICIES.values()]
    return record(spec, step_seconds=steps)


def test_policies_keep_the_references_order_under_jitter(under_jitter, capsys):
    session, rows = under_jitter
    assert judged(session, rows) == [HOLDS] * 8
    told = pick(rows, quantity=jitter.EFFICIENCY)
    both = told.pivot(index=["label", "pair"], columns="source", values="value")
    assert [*both[SIMULATED]] == pytest.approx([*both[REFERENCE]], abs=0.02)
    calm = both.xs("0/0", level="pair")  # nothing is drawn
    assert [*calm[SIMULATED]] == pytest.approx([*calm[REFERENCE]], abs=5e-4)
    ours = pick(told, source=SIMULATED, pair="5/40").set_index("label")["value"]
    for name, words in ASKED.items():
        us = "--us 50000,100000,5000,20000 --jitter 5000,40000"
        assert cli.main(f"schedule {words} -P 4 -N 16 {us}".split()) == 0
        assert f" {ours[POLICIES[name].label]:.3f}, the mean of 8" in capsys.readouterr().out
    session.draw(rows)


def test_another_order_than_the_references_fails(under_jitter):
    session, rows = under_jitter
    loud = pick(rows, pair="5/40", source=SIMULATED, label="Varuna", quantity=jitter.EFFICIENCY)
    wrong = rows.assign(value=rows["value"].mask(rows.index.isin(loud.index), 0.6))
    assert judged(session, wrong) == [*[HOLDS] * 3, *[FAILS] * 3, HOLDS, HOLDS]


def test_paced_steps_that_are_off_fail_and_those_that_are_missing_say_why(under_jitter):
    session, _ = under_jitter
    assert judged(session, session.rows([paced_run(session, 1.03)]))[-1] == FAILS
    assert judged(session, rows := session.rows([]))[-1] == MISSING
    assert "not run yet" in words_in(session.draw(rows))
    assert session.preview()["state"].tolist() == ["to run"]


def test_ranks_go_through_all_policies_at_a_pace():
    assert len(paced.paced([Jitter(), Jitter(network_s=1e-3)], 0.01)) == 2 * len(POLICIES)


def test_a_paced_schedule_is_simulated_as_its_policy():
    for draws, policy in product(paced.Options(jitter="5/40").draws(2), POLICIES.values()):
        made, pace = paced.schedule(policy), paced.Jittered(draws, 1.0)
        validate(made)
        costs = Table({action.name: pace.seconds(action) for action in made.actions})
        ran = simulate(made, costs, steps=1, in_flight=quick.IN_FLIGHT)
        step = max(event.end_s for event in ran.events)
        assert step == pytest.approx(simulated(policy, draws, 1.0))


def test_a_sample_takes_as_many_operations_as_are_told():
    told = {(24, 1024, 16): 3.2, (48, 1600, 16): 13.9, (72, 3072, 32): 71.5, (96, 4200, 42): 174.5}
    for (layers, hidden, heads), tera in told.items():  # with recomputation, a third more
        model = ModelSpec(layers=layers, hidden=hidden, heads=heads, seq=1024, vocab=50304)
        assert scaling.tera_operations(model) / 0.75 == pytest.approx(tera, abs=0.05)


def test_measured_speeds_stand_beside_simulated_ones(tmp_path, nothing_committed):
    ran = [
        ("torch-1f1b (keep)", 4, 100.0, None), ("torch-1f1b", 4, 80.0, None),
        ("varuna", 4, 105.0, None), ("varuna", 4, 200.0, 11), ("varuna", 2, None, None),
        ("data-parallel", 2, 90.0, None),
    ]  # fmt: skip
    servers.write(tmp_path, [servers.line(m, n, cap=cap, speed=v) for m, n, v, cap in ran])
    session = open_exhibit("varuna_scaling", "smoke", tmp_path)
    rows, none = session.run(), open_exhibit("varuna_scaling", "smoke", tmp_path / "none")
    assert judged(none, none.run())[0] == MISSING
    assert "nothing was measured" in words_in(none.draw(none.run()))
    assert judged(session, rows) == [HOLDS, UNTESTED, UNTESTED, UNTESTED]
    assert session.verdict(rows)["ratio here"].iloc[0] == pytest.approx(1.05)
    assert {(r.method, r.x): r.value for r in pick(rows, source=MEASURED).itertuples()} == {
        ("torch-1f1b", 4): 100, ("varuna", 4): 105, ("data-parallel", 2): 90,
    }  # fmt: skip
    beyond = pick(rows, source=SIMULATED)
    assert beyond["x"].min() > 4
    assert beyond["value"].lt(machine().matmul_flops_per_s / 1e12).all()
    for _, model in beyond.groupby("label"):
        assert model["value"].is_monotonic_decreasing
    assert "Varuna on 1, 2 GPUs;" in words_in(session.draw(rows))
