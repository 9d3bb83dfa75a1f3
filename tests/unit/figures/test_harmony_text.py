"""Figures 13 and 21 train on a text of the user's, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.figures.harmony_runs import nowhere, rows_of, runs
from tests.unit.figures.paper import flat
from tests.unit.figures.test_harmony_drawing import drawn
from workbench.cli import BAD_INPUT, main
from workbench.exhibits import HARMONY, find, open_exhibit, text_for
from workbench.exhibits.harmony import own_text, sizes
from workbench.exhibits.session import Session
from workbench.model.corpus import STDLIB
from workbench.report.outcomes import Outcome
from workbench.report.sections import shown_exhibits
from workbench.reproduce import reproduce
from workbench.runs.store import Store

TEXTS = {"harmony_13": "MRPC", "harmony_21": "WikiText"}
READS = {name: find(name).reads for name in TEXTS}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with one of MRPC's format and one of WikiText's."""
    lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    lines += [f"{n % 2}\t{n}\t{n + 1}\tA man went out.\tSomebody left." for n in range(8)]
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "msr_paraphrase_train.txt").write_text("\n".join(lines))
    (tmp_path / "WikiText").mkdir()
    (tmp_path / "WikiText" / "wiki.train.tokens").write_text(" \n = Title = \n \n" + "words " * 40)
    return tmp_path


@pytest.mark.parametrize("name", TEXTS)
def test_every_run_of_the_exhibit_trains_on_it(name: str, texts: Path) -> None:
    folder = texts / TEXTS[name]
    session = open_exhibit(name, "tiny", texts / "results", str(folder))
    specs = session.exhibit.specs(session.size)
    assert {spec.text for spec in specs} == {str(folder)}
    default = open_exhibit(name, "tiny", texts / "results")
    assert [spec.with_(text=STDLIB) for spec in specs] == default.exhibit.specs(default.size)


@pytest.mark.parametrize("size", ["smoke", "tiny", "small", "paper"])
@pytest.mark.parametrize("name", TEXTS)
def test_it_changes_that_exhibits_model_alone(name: str, size: str, texts: Path) -> None:
    before = sizes.named(size)
    after = find(name).sized(size, str(texts / TEXTS[name]))
    field = READS[name]
    assert getattr(after, field).changes["text"] == str(texts / TEXTS[name])
    other = next(each for each in READS.values() if each != field)
    assert getattr(after, other) == getattr(before, other)
    assert (after.four, after.moved) == (before.four, before.moved)
    steps = {spec.steps for spec in find(name).specs(after)}
    assert steps == {spec.steps for spec in find(name).specs(before)} == {before.curve_steps}


def test_a_vocabulary_beside_pairs_is_used_where_the_model_has_room(texts: Path) -> None:
    folder = texts / "MRPC"
    names = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "a",
        "man",
        "went",
        "out",
        "some",
        "##body",
        "left",
    ]
    (folder / "vocab.txt").write_text("\n".join([*names, ".", *map(str, range(300))]))
    for size, tokenizer in (("paper", "wordpiece"), ("small", "wordpiece"), ("tiny", None)):
        after = find("harmony_13").sized(size, str(folder))
        assert after.pairs.changes.get("tokenizer") == tokenizer, size
    assert text_for(find("harmony_13"), "paper", str(folder), texts) == str(folder)


@pytest.mark.parametrize(
    ("name", "folder", "sentence"),
    [
        ("harmony_13", "absent", "there is no folder .*absent'; Harmony, figure 13 reads .* MRPC"),
        ("harmony_13", "WikiText", "no msr_paraphrase_train.txt or train.tsv .*in .*WikiText'"),
        ("harmony_21", "MRPC", "no wiki.train.tokens or wiki.train.raw .* the format of WikiText"),
        ("harmony_12", "WikiText", "Harmony, figure 12 trains on no text of your own; harmony_13"),
        ("8a", "WikiText", "figure 8a trains on no text of your own"),
    ],
)
def test_a_wrong_folder_is_one_sentence(name: str, folder: str, sentence: str, texts: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        open_exhibit(name, "tiny", texts / "results", str(texts / folder))


def test_a_malformed_text_is_told_with_its_line(texts: Path) -> None:
    file = texts / "MRPC" / "msr_paraphrase_train.txt"
    file.write_text(file.read_text() + "\n1\ttwo fields")
    with pytest.raises(ValueError, match=r"line 10 has 2 tab-separated fields.*format of MRPC"):
        open_exhibit("harmony_13", "tiny", texts / "results", str(texts / "MRPC"))
    short = texts / "WikiText" / "wiki.train.tokens"
    short.write_text(" = T = ")
    with pytest.raises(ValueError, match="too few for one sample of 16"):
        open_exhibit("harmony_21", "tiny", texts / "results", str(short.parent))


@pytest.mark.parametrize(
    ("exhibit", "text"), [("harmony_13", "nowhere"), ("harmony_21", "MRPC"), ("harmony_12", "MRPC")]
)
def test_the_command_line_refuses_before_anything_runs(
    exhibit: str, text: str, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = texts / "results"
    order = ["figure", exhibit, "--size", "tiny", "--results", str(results)]
    assert main([*order, "-p", f"text={texts / text}"]) == BAD_INPUT
    told = capsys.readouterr()
    wanted = "unknown parameter 'text'" if exhibit == "harmony_12" else "reads a folder"
    assert wanted in told.err
    assert told.out == ""
    assert not results.exists()


def test_a_relative_folder_is_found_from_where_the_command_is_given(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = []
    monkeypatch.setattr(
        "workbench.reproduce.run_notebook",
        lambda notebook, figure, folder, values, *_: (
            passed.append(values)
            or Outcome(
                ok=True, message="", seconds=1.0, started="", notebook="n", text=values["text"]
            )
        ),
    )
    monkeypatch.setattr("workbench.reproduce.write_report", lambda size, results, echo: texts)
    monkeypatch.chdir(texts)
    made = reproduce(
        "tiny", texts / "results", only=["harmony_21"], parameters={"text": "WikiText"}, echo=print
    )
    assert [values["text"] for values in passed] == [str(texts / "WikiText")]
    assert made.outcomes["harmony_21"].text == str(texts / "WikiText")


@pytest.mark.parametrize("name", TEXTS)
def test_the_figure_and_its_provenance_name_the_text(name: str, texts: Path) -> None:
    session = Session(find(name), "tiny", Store(texts / "results"), str(texts / TEXTS[name]))
    facts = session.provenance().set_index("what")["is"]
    assert str(texts / TEXTS[name]) in facts["text"]
    assert "SHA-256" in facts["text"]
    rows = rows_of(name, runs(name, session.size), nowhere(texts), session.size)
    assert set(rows["text"]) == {str(texts / TEXTS[name])}
    own = flat(drawn(name, rows))
    assert f"Trained on '{TEXTS[name]}', a text of the user's." in own
    assert str(texts) not in own
    default = rows_of(name, runs(name), nowhere(texts))
    assert f"Trained on {own_text.DEFAULT_TEXT}." in flat(drawn(name, default))
    (texts / TEXTS[name]).rename(texts / "gone")
    assert "cannot be read now" in session.provenance().to_string()


def test_the_report_shows_the_runs_on_that_text(texts: Path) -> None:
    asked = []
    session = Session.rows

    def rows(self: Session, records: list | None = None):
        asked.append((self.exhibit.figure, self.at.text))
        return session(self, records)

    outcome = Outcome(ok=True, message="", seconds=1.0, started="2026", notebook="n", text="/mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "rows", rows)
        shown_exhibits(HARMONY, "tiny", Store(texts / "results"), {"harmony_13": outcome})
    assert {figure for figure, text in asked if text == "/mine"} == {"harmony_13"}
    assert {text for figure, text in asked if figure != "harmony_13"} == {STDLIB}
