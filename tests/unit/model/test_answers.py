"""Pairs of texts from a file and from Python's library, and the same rows for everyone."""

import pytest
import torch

from workbench.model.answers import MARKER, load_answers

PAD, END = 256, 257


def load(source="stdlib", tokenizer="bytes", **changes):
    given = {"vocab": 512, "seq": 16, "target_seq": 5, "seed": 1, **changes}
    return load_answers(source, tokenizer, **given)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("two and two\tfour\n\nis a source much too long\tno\n")
    return path


def test_rows_of_a_file(file):
    answers = load(file)
    ids, mask, before, labels = (part.tolist() for part in answers.rows(range(2)))
    row = 0 if ids[0][0] == ord("t") else 1
    assert ids[row] == [*b"two and two", END, *[PAD] * 4]
    assert mask[row] == [True] * 12 + [False] * 4
    assert labels[row] == [*b"four", END]
    assert before[row] == [PAD, *b"four"]
    assert ids[1 - row] == [*b"is a source muc", END]
    assert labels[1 - row] == [*b"no", END, -100, -100]
    assert before[1 - row] == [PAD, *b"no", END, PAD]


def test_pairs_of_pythons_library_are_the_same_in_every_process():
    answers, again = load(seq=64, target_seq=16), load(seq=64, target_seq=16)
    assert len(answers) > 1000
    assert answers.digest == again.digest
    for ours, theirs in zip(answers.rows(range(5, 9)), again.rows(range(5, 9)), strict=True):
        assert torch.equal(ours, theirs)
    whole = torch.cat([answers.rows([5])[0], answers.rows([6])[0]])
    assert torch.equal(whole, answers.rows([5, 6])[0])
    asked = bytes(answers.rows([0])[0][0][: len(MARKER)].tolist()).decode()
    assert asked == MARKER
    seen = {tuple(row.tolist()) for row in answers.rows(range(len(answers)))[0]}
    assert len(seen) > 0.9 * len(answers)  # each once an epoch; some docstrings begin alike
    other = load(seq=64, target_seq=16, seed=2).rows(range(4))[0]
    assert not torch.equal(other, answers.rows(range(4))[0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("one\ttwo\nalone\n", "pairs.tsv line 2 is not a source, a tab and its answer"),
        ("one\t\n", "line 1 is not a source, a tab and its answer, neither empty"),
        ("\n", "pairs.tsv has no pairs"),
    ],
)
def test_refuses_other_files(file, text, sentence):
    file.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load(file)


def test_refuses_what_cannot_be(file, tmp_path):
    with pytest.raises(ValueError, match="there is no file '.*none.tsv'; name one of lines"):
        load(tmp_path / "none.tsv")
    with pytest.raises(ValueError, match="vocabulary of 256 is smaller than the 258 tokens of"):
        load(file, vocab=256)
    with pytest.raises(ValueError, match="an answer of 1: each needs at least 2"):
        load(file, target_seq=1)
