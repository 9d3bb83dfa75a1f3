"""Claims are rows of data: what a row may say, what it stands for, and how it is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from workbench.core.schema import read_as
from workbench.exhibits import EXHIBITS, find
from workbench.exhibits.base import Exhibit
from workbench.exhibits.claim_rows import Claim
from workbench.exhibits.claims import Goal, Judge
from workbench.exhibits.metrics import METRICS, Asked, Found, Undecided
from workbench.exhibits.words import read_words
from workbench.figures.verdict import BUSY, FAILS, HOLDS, MISSING, UNTESTED, Verdict

RAN = ("measured", "")


def rows(*values: tuple[str, float, float | None], **same: Any) -> pd.DataFrame:
    """Rows by method, x and value."""
    frame = pd.DataFrame(values, columns=["method", "x", "value"])
    same = {"source": "measured", "variant": "", "busy": "", "device": "cuda", **same}
    return frame.assign(label=frame["method"], **same)


def judged(frame: pd.DataFrame, row: dict[str, Any], **metrics: Any) -> list[Verdict | Goal]:
    row = {"words": "{method}", "judged": [*RAN], "least": 1.0} | row
    judge = Judge([read_as(Claim, row, "")], metrics, {"method": str.upper}, lambda asked: "")
    return judge.verdicts(frame)


TWO = rows(("a", 1, 4.0), ("a", 2, 3.0), ("b", 1, 2.0), ("b", 2, 6.0))


@pytest.mark.parametrize(
    ("row", "here", "verdict"),
    [
        ({"where": {"x": 1}}, 2.0, HOLDS),
        ({"where": {"x": 2}}, 0.5, FAILS),
        ({"where": {"x": 3}}, None, MISSING),
        ({"of": {"method": "a", "take": "sum"}}, 3.5, HOLDS),
        ({"of": {"method": "a", "take": "least"}, "over": {"method": "b"}}, 1.5, HOLDS),
        ({"over": {"method": "b", "take": "most"}}, 4 / 6, FAILS),
        ({"metric": "least ratio", "by": {"x": [1, 2]}}, 0.5, FAILS),
        ({"metric": "least ratio", "by": {"x": [1, 2, 3]}}, None, MISSING),
        ({"metric": "of ratios", "at": {"x": 1}, "beside": {"x": 2}}, 4.0, HOLDS),
        ({"metric": "limit over", "given": {"limit": 2}}, 0.5, FAILS),
        ({"metric": "first over last", "where": {"method": "b"}}, 1 / 3, FAILS),
    ],
)  # fmt: skip
def test_a_ratio_is_taken_of_the_rows_that_are_selected(
    row: dict, here: float | None, verdict: str
) -> None:
    row = {"words": "claim", "of": {"method": "a"}, "over": {"method": "b"}} | row
    (found,) = judged(TWO, row)
    assert (found.here, found.verdict) == (pytest.approx(here), verdict)


def test_a_row_stands_for_each_of_what_varies_and_its_parts_say_the_rest() -> None:
    every = {"each": [{"method": "b"}, {"method": "c", "more": True}], "over": {"method": "a"}}
    parts = [{"of": {"method": "{method}"}}, {"words": "{method} more", "when": "more"}]
    assert [v.claim for v in judged(TWO, every | {"parts": parts})] == ["B", "C", "C more"]
    found = {
        "found": ["method"],
        "but": {"method": "a"},
        "where": {"x": 2},
        "over": {"method": "a"},
    }
    (one,) = judged(TWO, found | {"of": {"method": "{method}"}})
    assert (one.claim, one.here) == ("B", 2.0)
    assert judged(TWO[:0], found) == []


def test_reasons_not_to_judge() -> None:
    row = {"words": "claim", "where": {"x": 1}, "of": {"method": "b"}, "over": {"method": "a"}}
    busy = TWO.assign(busy="others used 50% of the cores")
    assert judged(busy, row)[0].verdict == FAILS, "bytes do not mind"
    assert judged(busy, row | {"timed": ["a"]})[0].verdict == BUSY
    assert judged(busy, row | {"timed": ["c"]})[0].verdict == FAILS
    (open_,) = judged(busy, {"words": "claim", "told": 18.0, "untested": "why"})
    assert (open_.verdict, open_.published, open_.why) == (UNTESTED, 18.0, "why")
    assert judged(TWO[:0], row | {"optional": True}) == []


def test_a_goal_has_its_unit_and_is_open_across_rounds() -> None:
    def measure(asked: Asked) -> Found:
        if asked.given["broke"]:
            raise Undecided("it broke", "nothing", FAILS)
        return Found(2.0, "since", rounds=("one", asked.given["round"]))

    def goal(**given: Any) -> tuple[str, ...]:
        row = {"words": "at most {most:g}", "metric": "own", "most": 2.0, "form": "{:.1f} s"}
        (found,) = judged(
            TWO, row | {"given": {"broke": False, "round": "one"} | given}, own=measure
        )
        return found.goal, found.measured, found.verdict, found.why

    assert goal() == ("at most 2", "2.0 s", HOLDS, "since")
    assert goal(round="two")[2] == MISSING
    assert goal(broke=True) == ("at most 2", "nothing", FAILS, "it broke")


@pytest.mark.parametrize("name", EXHIBITS)
def test_every_claim_names_a_metric_that_there_is(name: str) -> None:
    exhibit = find(name)
    assert exhibit.claims or name == "here_lanes"
    known = {*METRICS, *exhibit.metrics}
    for claim in exhibit.claims:
        assert {claim.metric, *(part.get("metric", claim.metric) for part in claim.parts)} <= known
        assert claim.words or all(part.get("words") for part in claim.parts)


def test_a_file_of_words_is_checked(tmp_path: Path) -> None:
    file, words = tmp_path / "made_up.toml", 'figure = "1"\ntitle = "t"\nclaim = "c"\ntested = "t"'
    file.write_text(f'{words}\nverdict = "holds"')
    with pytest.raises(ValueError, match=r"^made_up.toml: unknown field 'verdict'; known: about"):
        read_words(file, Exhibit)
    file.write_text(f'{words}\n[[claims]]\nleast = "1"')
    with pytest.raises(ValueError, match=r"claims\[0\].least is '1'; it must be a number"):
        read_words(file, Exhibit)
