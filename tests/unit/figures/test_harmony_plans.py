"""The plans that are kept, and how they are made again where the published profiles are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.figures.rows import one, pick
from workbench.published import harmony, harmony_answers, harmony_plans
from workbench.published.harmony_plans import OURS, PUBLISHED, Question, Row

LARGE = next(
    q for q in harmony_plans.questions("stored")
    if (q.model, q.mode) == ("bert_large_seq512", "pp")
)  # fmt: skip
PLACE = {"figure": "stored", "model": LARGE.model, "method": "harmony-pp"}


@pytest.fixture(scope="module")
def profiles(reference: Path) -> Path:
    folder = reference / "harmony"
    if not (folder / "profile_bert_large_seq512.json").exists():
        pytest.skip(f"the artifact's profiles are not there: {folder}")
    return folder


def place_of(question: Question, planner: str) -> tuple:
    given = "{}/{}, packs of {}".format(*question.sizes, question.pack) if question.sizes else ""
    return (
        question.figure, question.model, f"harmony-{question.mode}", question.ranks,
        question.minibatch, planner, given if planner == PUBLISHED else "",
    )  # fmt: skip


def test_every_question_has_its_answers() -> None:
    kept = list(harmony_plans.kept()[[*harmony_plans.PLACE]].itertuples(index=False, name=None))
    asked = [place_of(q, planner) for q in harmony_plans.questions() for planner in q.planners]
    assert sorted(kept) == sorted(asked)


def test_our_plans_fit_the_card_and_a_missing_one_says_why() -> None:
    kept = harmony_plans.kept()
    ours = kept[(kept["planner"] == OURS) & (kept["note"] == "")]
    assert ours["fits"].all()
    assert (ours["device_bytes"] <= harmony_plans.CARD_BYTES).all()
    missing = kept[kept["seconds"].isna()]
    assert missing["note"].str.contains("are needed|not simulated").all()


def test_published_plans_are_estimated_as_the_reference_says() -> None:
    kept = harmony_plans.kept()
    for figure, quantity in (("17", "iteration_s"), ("8", "iteration_s")):
        told = harmony.estimates(figure)
        for row in kept[(kept["figure"] == figure) & (kept["planner"] == PUBLISHED)].itertuples():
            place = {
                "model": row.model, "method": row.method, "ranks": row.ranks, "setting": row.given,
                "quantity": quantity,
            }  # fmt: skip
            for prefetch, value in (("no", row.estimate_s), ("yes", row.estimate_prefetch_s)):
                expected = one(pick(told, **place, prefetch=prefetch))
                assert value == pytest.approx(expected, abs=0.056), (place, prefetch)


def test_only_the_row_of_the_same_question_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"

    def row(figure: str, seconds: float) -> Row:
        return Row(
            figure=figure, model="gpt2_xl", method="harmony-pp", ranks=4, minibatch=16,
            planner=OURS, seconds=seconds, planned="2026-11-22",
        )  # fmt: skip

    harmony_plans.write([row("8", 1.0), row("10", 2.0)], path)
    other = replace(row("10", 1.0), ranks=2, seconds=None, note="why")
    harmony_plans.write([row("10", 3.0), other], path)
    kept = harmony_plans.kept(path=path)
    assert kept["figure"].tolist() == ["8", "10", "10"]
    assert kept["seconds"].tolist()[:2] == [1.0, 3.0]
    assert kept["note"].tolist() == ["", "", "why"]
    assert harmony_plans.kept("8", path=path)["seconds"].tolist() == [1.0]


def test_bytes_are_kept_to_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "plans.csv"
    told = Row(
        figure="8", model="gpt2_xl", method="harmony-pp", ranks=4, minibatch=16, planner=OURS,
        seconds=1.0, weights_in=1669246984, planned="2026-11-22",
    )  # fmt: skip
    harmony_plans.write([told], path)
    harmony_plans.write([replace(told, ranks=2, weights_in=None)], path)
    assert path.read_text().count(",1669246984,") == 1


def test_profiles_are_looked_for_in_the_results_first(tmp_path: Path) -> None:
    folder = tmp_path / "reference" / "harmony"
    folder.mkdir(parents=True)
    assert harmony.profiles_folder(tmp_path) != folder
    (folder / "profile_gpt2_xl.json").write_text("{}")
    assert harmony.profiles_folder(tmp_path) == folder


def test_the_kept_answers_are_those_of_today(profiles: Path) -> None:
    """The published ones to the digits that are kept; our search may only get better."""
    kept = pick(harmony_plans.kept(), **PLACE)
    theirs, ours = harmony_answers.answers(LARGE, profiles)
    (told,) = pick(kept, planner=PUBLISHED).itertuples()
    assert theirs.seconds == pytest.approx(told.seconds, rel=1e-4)
    assert theirs.candidates == told.candidates == 121
    stored = one(harmony.estimates("stored"), model=LARGE.model, method="harmony-pp")
    assert theirs.estimate_s == pytest.approx(stored, abs=1e-3)
    assert theirs.weights_in == pytest.approx(told.weights_in, rel=1e-5)
    (told,) = pick(kept, planner=OURS).itertuples()
    assert ours.seconds <= told.seconds * 1.01
    assert ours.fits


def test_a_model_that_does_not_fit_is_told(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harmony_answers, "CARD_BYTES", 2**28)
    question = replace(LARGE, planners=(OURS,))
    (row,) = harmony_answers.answers(question, profiles)
    assert row.seconds is None
    assert "are needed" in row.note or "no layer" in row.note


def test_gpt2_of_30_billion_is_the_profile_of_10_repeated(profiles: Path) -> None:
    large = harmony_answers.profile_of("gpt2_30b", profiles)
    assert large.layers == harmony.MODELS["gpt2_30b"].layers == 154
    assert sum(large.weight_bytes) / 4 == pytest.approx(30_623e6, rel=1e-4)
    made = harmony_answers.with_blocks(harmony_answers.profile_of("gpt2_10b", profiles), 200)
    forty = harmony_answers.profile_of("gpt2_40b", profiles)
    for field in ("forward", "backward", "weight_bytes", "update_seconds"):
        assert getattr(made, field) == getattr(forty, field), field
