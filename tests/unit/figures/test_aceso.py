"""Exhibits of Aceso: published values beside plans that are searched for and rated here."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.unit.figures.test_varuna_exhibits import judged, words_in
from workbench.exhibits import ACESO, find, open_exhibit
from workbench.exhibits.aceso import ablations, base, cases
from workbench.figures.rows import MEASURED, PUBLISHED, SIMULATED, pick
from workbench.figures.verdict import FAILS, HOLDS, UNTESTED
from workbench.published import aceso
from workbench.published.aceso_answers import KINDS, questions, row


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Opens an exhibit at the size tiny: its session and its rows."""
    shown = {}

    def open_one(figure: str):
        if figure not in shown:
            session = open_exhibit(figure, "tiny", tmp_path_factory.mktemp("results"))
            shown[figure] = session, session.rows()
        return shown[figure]

    return open_one


@pytest.mark.parametrize("figure", [f for f in ACESO if f != "aceso_small"])
def test_every_exhibit_is_drawn_and_says_where_its_numbers_are_from(figure, opened):
    session, rows = opened(figure)
    assert set(rows["source"]) <= {PUBLISHED, SIMULATED, MEASURED}
    assert set(rows["how"]) - {""}
    assert find(figure).system == "Aceso"
    words = words_in(session.draw(rows))
    if figure != "aceso_cases":  # its drawing has one source, and says it below
        assert all(source in words for source in set(rows["source"]))
    assert SIMULATED in words or MEASURED in words
    assert MEASURED not in set(rows[rows["unit"] != "s"]["source"]), "no plan trains"


def test_what_is_missing_names_its_database(opened):
    session, rows = opened("aceso_7")
    words = words_in(session.draw(rows))
    assert "resnet_*" in words
    assert "t5_*" in words
    assert set(pick(rows, source=SIMULATED)["label"]) == {"gpt"}
    assert judged(session, rows)[-1] == UNTESTED
    assert judged(*opened("aceso_cases"))[-1] == UNTESTED


def test_a_slower_plan_fails_its_claim(opened):
    session, rows = opened("aceso_7")
    ours = (rows["method"] == base.ACESO) & (rows["source"] == SIMULATED)
    slower = rows.assign(value=rows["value"].where(~ours, rows["value"] / 1.5))
    assert judged(session, rows)[:4] == [HOLDS] * 4
    assert judged(session, slower)[:4] == [FAILS] * 4


def test_published_plans_cost_here_what_was_published(opened):
    for figure in ("aceso_15", "aceso_16"):
        session, rows = opened(figure)
        assert judged(session, rows)[0] == HOLDS
        off = (rows["source"] == SIMULATED) & (rows["setting"] == "small")
        wrong = rows.assign(value=rows["value"].where(~off, rows["value"] * 1.01))
        assert judged(session, wrong)[0] == FAILS
    told = base.published("15")
    both = told.pivot(index=["model", "size"], columns="series", values="value")
    errors = (both["predict"] / both["actual"] - 1).abs().groupby("model").mean()
    assert errors.to_dict() == pytest.approx({"gpt": 0.027, "resnet": 0.073}, abs=5e-4)


def test_a_plan_is_drawn_from_its_rows_alone(opened):
    _, rows = opened("aceso_cases")
    for model, kind in cases.CASES:
        part = pick(rows, model=model, method=base.KINDS[kind], source=SIMULATED)
        plan, cost = cases._read(part)
        best, known = base.search_small(kind, model).best
        written = best.to_dict()
        assert plan == {name: written[name] for name in plan}
        assert set(cases.LISTS.values()) < set(plan)
        assert cost["iteration_ms"] == known.time


def test_a_search_ends_elsewhere_by_another_order(opened):
    _, rows = opened("aceso_search")
    curves = pick(rows, quantity=ablations.ORDER).groupby("pair")["value"].apply(list)
    assert len({*map(tuple, curves)}) == len(curves) > 1
    assert all(each == sorted(each, reverse=True) for each in curves)


def test_kept_searches_are_made_again(reference):
    """One of each kind that is quick, where the large profiles are."""
    folder = reference / "aceso" / "eurosys"
    kept = pd.concat([aceso.searches(setting) for setting in ("large", "scale")])
    every = {(s, q.size, q.layers, way) for s in ("large", "scale")
             for q in questions(s) for way in q.ways}  # fmt: skip
    assert len(kept) == len(every)
    if not folder.exists():
        pytest.skip(f"the large profiles are not there: {folder}")
    question = next(questions("large"))
    for way in question.ways:
        told = pick(kept, size=question.size, search=KINDS[way]).iloc[0].to_dict()
        made = row(question, way, folder)
        assert made | {"cpu_seconds": 0, "hardware": ""} == told | {
            "cpu_seconds": 0,
            "hardware": "",
        }
