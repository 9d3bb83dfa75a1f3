"""A claim is judged by ratios, and not judged where it cannot be."""

from __future__ import annotations

import pytest

from tests.unit.figures.paper import words
from tests.unit.figures.records import SMOKE, out_of_memory, paper_rows, record, specs_of
from workbench.exhibits import STRONGHOLD, find, open_exhibit
from workbench.exhibits.stronghold.fig9 import Window
from workbench.figures import rows as tidy
from workbench.figures.verdict import (
    BUSY,
    FAILS,
    HOLDS,
    MISSING,
    NO_OVERLAP,
    UNTESTED,
    as_table,
    at_least,
    series_to_judge,
)

MEASURED = ("measured", "")
STEP_S = {"stronghold": 1.0, "megatron-lm": 0.9, "l2l": 3.0, "zero-offload": 2, "zero-infinity": 2}


def eight_a(**changes: dict) -> list:
    rows = find("8a").rows(
        [record(s, STEP_S[s.method], **changes.get(s.method, {})) for s in find("8a").specs(SMOKE)]
    )
    whole = tidy.join(tidy.published("8a"), rows)
    return {v.claim.split()[-1]: v for v in find("8a").verdicts(whole, *MEASURED)}


def test_at_least() -> None:
    def verdict(here: float | None, **reasons: str) -> str:
        return at_least("claim", 2.0, here, 1.0, MEASURED, **reasons).verdict

    assert [verdict(v) for v in (1.0, 0.99, None)] == [HOLDS, FAILS, MISSING]
    assert verdict(5.0, cannot="no GPU") == UNTESTED
    assert verdict(None, cannot="no GPU") == MISSING
    failed = at_least("claim", 2.0, 0.5, 1.0, MEASURED, why="a", why_not="b")
    assert (failed.why, failed.ratio) == ("b", 0.25)
    assert at_least("claim", None, 0.5, 1.0, MEASURED).ratio is None


def test_a_busy_machine_tells_nothing_and_an_idle_one_that_a_claim_fails() -> None:
    """A claim with a busy run cannot be told, whatever its numbers are; other claims can."""
    slow = {"step_seconds": [9.0, 4.0, 4.0]}
    idle = eight_a(l2l={"others": {"cores": 0.1}}, stronghold=slow)
    assert idle["L2L"].verdict == FAILS, "a point that is far off on an idle machine stays"
    for share in ({"cores": 0.34, "gpu": 0.0}, {"cores": 0.0, "gpu": 0.34}):
        busy = eight_a(l2l={"others": share}, stronghold=slow)
        assert busy["L2L"].verdict == BUSY
        what = "the GPU" if share["gpu"] else "the cores"
        assert busy["L2L"].why == f"L2L: others used 34% of {what}"
        assert busy["throughput"].verdict == FAILS
    assert {v.verdict for v in eight_a(stronghold=slow | {"others": {"cores": 0.5}}).values()} == {
        BUSY, UNTESTED
    }  # fmt: skip


def test_a_busy_run_is_marked_in_its_figure(tmp_path) -> None:
    session = open_exhibit("9", "smoke", tmp_path)
    first, *others = Window().specs(session.size)
    runs = [record(first, others={"cores": 0.34}), *map(record, others)]
    told = words(session.draw(session.rows(runs)))
    assert "\u00a7 The machine was busy: STRONGHOLD: others used 34% of the cores." in " ".join(
        told.split()
    )
    assert "\u00a7" not in words(session.draw(session.rows([*map(record, (first, *others))])))


def test_without_a_gpu_deepspeed_is_shown_but_not_judged() -> None:
    verdicts = eight_a()
    offload = verdicts["ZeRO-Offload"]
    assert (offload.verdict, offload.why) == (UNTESTED, NO_OVERLAP)
    assert offload.here == pytest.approx(2.0)
    assert offload.published == pytest.approx(0.6677 / 0.3724, rel=1e-3)
    assert verdicts["L2L"].verdict == HOLDS
    assert verdicts["throughput"].verdict == HOLDS  # 0.9 of Megatron-LM's


def test_on_a_gpu_deepspeed_is_judged() -> None:
    specs = {s.method: s.to_dict() | {"device": "cuda"} for s in find("8a").specs(SMOKE)}
    verdicts = eight_a(**{method: {"spec": spec} for method, spec in specs.items()})
    assert verdicts["ZeRO-Offload"].verdict == HOLDS


def test_a_run_without_a_value_leaves_its_claim_open() -> None:
    specs = {s.method: s for s in find("8a").specs(SMOKE)}
    rows = find("8a").rows([out_of_memory(specs["l2l"]), record(specs["stronghold"])])
    verdicts = find("8a").verdicts(tidy.join(tidy.published("8a"), rows), *MEASURED)
    assert [v.verdict for v in verdicts] == [MISSING] * 4


@pytest.mark.parametrize(("power", "verdict"), [(1, HOLDS), (3, FAILS)])
def test_8b_holds_for_a_line_and_not_for_a_curve(power: int, verdict: str) -> None:
    specs = find("8b").specs(SMOKE)
    rows = find("8b").rows([record(s, s.model.layers**power) for s in specs])
    assert find("8b").verdicts(rows, *MEASURED)[0].verdict == verdict
    assert find("8b").verdicts(rows.head(2), *MEASURED)[0].verdict == MISSING


def test_9_tells_no_loss_from_a_gain() -> None:
    def judge(*seconds: float) -> list[str]:
        specs = find("9").specs(SMOKE)[: len(seconds)]
        rows = find("9").rows([record(s, t) for s, t in zip(specs, seconds, strict=True)])
        return [v.verdict for v in find("9").verdicts(rows, *MEASURED)]

    assert judge(1.3, 1.1, 1.0) == [HOLDS, HOLDS]
    assert judge(1.0, 1.0, 1.0) == [HOLDS, FAILS]
    assert judge(1.0, 1.1, 1.2) == [FAILS, FAILS]


@pytest.mark.parametrize("figure", STRONGHOLD)
def test_the_simulated_paper_holds_as_published_and_ours_but_for_the_window(figure: str) -> None:
    rows = paper_rows(figure)
    series = series_to_judge(rows)
    assert series == [("simulated", "as published"), ("simulated", "as this code runs it")]
    for each in series:
        for verdict in find(figure).verdicts(rows, *each):
            window = "window takes at least" in verdict.claim
            ours = each[1] == "as this code runs it"
            assert verdict.verdict == (FAILS if window and ours else HOLDS)
            assert bool(verdict.why) == (window and ours)


def test_measured_values_are_judged_before_simulated_ones() -> None:
    own = tidy.table(tidy.both(record(SMOKE.timed("stronghold", window=4)), "ms", x=4))
    assert series_to_judge(tidy.join(own, paper_rows("9"))) == [MEASURED]
    assert series_to_judge(tidy.published("9")) == [MEASURED]


def test_the_table_has_a_row_a_verdict() -> None:
    table = as_table([at_least("claim", 2.0, 1.0, 0.5, MEASURED, why="since")])
    assert table.iloc[0].tolist() == ["claim", 2.0, 1.0, 0.5, "measured", HOLDS, "since"]


@pytest.mark.usefixtures("nothing_committed")
@pytest.mark.parametrize("figure", ["7a", "8a", "8b", "9", "harmony_17", "varuna_accuracy"])
def test_claims_that_times_decide_ask_whether_the_machine_was_busy(figure, tmp_path) -> None:
    """Claims whose ratio or reason changes with the seconds of the runs are not judged by runs
    beside which others used the machine."""
    session = open_exhibit(figure, "smoke", tmp_path)
    specs = specs_of(figure, session.size)

    def judged(power: int, **changes) -> dict[str, tuple]:
        made = [record(s, n**power, key=f"{n}", **changes) for n, s in enumerate(specs, start=1)]
        found = session.verdict(session.rows(made)).to_dict("records")
        return {row["claim"]: (row["verdict"], row["ratio here"], row["why"]) for row in found}

    up, down, busy = judged(1), judged(-1), judged(1, others={"cores": 0.5})
    told = {busy[claim][0] for claim in up if up[claim] != down[claim]}
    assert told in ({BUSY}, {UNTESTED}, {BUSY, UNTESTED})
