"""The report judges the plans of all runs that trained, the worst of them first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit.figures.records import SMOKE, out_of_memory, record
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.figures.verdict import BUSY, FAILS, HOLDS
from workbench.report import evidence
from workbench.report.proofs import plans_judged
from workbench.report.summary import worst_prediction
from workbench.runs.store import Store


def run(method: str, off: float, **changes) -> RunRecord:
    """A run whose plan is off by a share of what was measured."""
    made = record(RunSpec(method=method, model=SMOKE.timed("l2l").model, ranks=2), **changes)
    told = record(SMOKE.timed("l2l")).predicted | {"step_seconds": 0.5 * (1 + off)}
    return replace(made, key=f"{method}-{off}", step_seconds=[9.0, 0.5, 0.5], predicted=told)


def test_every_run_that_trained_is_there_and_the_worst_is_named(tmp_path: Path) -> None:
    """The table has runs of all methods, also one that diverged in the end."""
    store = Store(tmp_path)
    runs = [run("stronghold", 0.04), run("harmony-pp", 0.65), run("varuna", 0.1, status="diverged")]
    for each in (*runs, replace(out_of_memory(SMOKE.timed("l2l")), key="oom")):
        store.write(each)
    every = store.records()
    assert len(every) == 4
    told = evidence.prediction_summary(evidence.prediction_table(every))
    assert "3 runs: step time off by 10 % at the median and 65 % at most" in told
    step, device, host, moved = plans_judged(every).to_dict("records")
    assert (step["verdict"], device["verdict"], host["verdict"]) == (FAILS, HOLDS, HOLDS)
    assert step["why"] == "1 of 3 are off by more, Harmony-PP by 65 %"
    assert moved["verdict"] == FAILS, "the one that diverged has no bytes"


def test_times_of_a_busy_machine_judge_no_plan() -> None:
    far = run("harmony-pp", 0.65, others={"cores": 0.5})
    words = worst_prediction([far, run("l2l", -0.1)])
    assert words.startswith("a step 65% longer than measured, Harmony-PP")
    assert words.endswith("(of 2 runs that were predicted); others used 50% of the cores")
    assert plans_judged([far])["verdict"].tolist() == [BUSY, HOLDS, HOLDS, HOLDS]
    step = plans_judged([far, run("l2l", 0.1)]).iloc[0]
    assert (step["verdict"], step["why"]) == (HOLDS, "1 of 2 runs left out: the machine was busy")
