"""Pairs of texts from a file and from Python's library, and the same rows for everyone."""

import pytest
import tokenizers
import torch
import transformers

from workbench.cli import make_parser
from workbench.cli.spec import specs_from
from workbench.model.answers import MARKER, load_answers
from workbench.runs.confines import confine
from workbench.runs.resolve import key_of

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


@pytest.fixture
def trained(tmp_path):
    """A folder with a tokenizer of six words, which pads and cuts by itself, and code."""
    words = ["<pad>", "</s>", "<unk>", "two", "and", "four"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(words[:3])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    made.enable_padding(length=99)
    made.enable_truncation(1)
    folder = tmp_path / "t5"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenization.py").write_text("raise SystemExit\n")
    return folder


def test_a_trained_tokenizer_of_a_folder_reads_texts(trained, file):
    """As T5 was trained: 0 pads and begins an answer, 1 ends a text."""
    answers = load(file, str(trained), vocab=6)
    ids, mask, before, labels = (part.tolist() for part in answers.rows(range(2)))
    row = 0 if ids[0][0] == 3 else 1
    assert ids[row] == [3, 4, 3, 1, *[0] * 12]
    assert mask[row] == [True] * 4 + [False] * 12
    assert labels[row] == [5, 1, -100, -100, -100]
    assert before[row] == [0, 5, 1, 0, 0]
    assert answers.text([5, 4, 1, 3]) == "four and"
    assert answers.text([-100]) == ""
    spelt = file.parent / "spelt.tsv"
    spelt.write_text("<pad> two\t</s>\n")
    assert load(spelt, str(trained)).rows([0])[1][0].tolist() == [True] * 3 + [False] * 13
    digest = load(file).digest
    assert len({digest, answers.digest, load(file, "bpe:300").digest}) == 2


def test_a_hugging_face_folder_brings_its_tokenizer(trained):
    """Its content is part of a run's key; a page may name none but in its results folder."""
    hugging_face = transformers.T5Config(
        vocab_size=6, d_model=8, num_layers=1, num_heads=1, d_kv=8, d_ff=8
    )
    hugging_face.save_pretrained(trained)
    words = ["run", "-m", "plain", "--hf-config", str(trained), "--seq", "16"]
    (spec,) = specs_from(make_parser().parse_args(words), window=4)
    assert spec.tokenizer == str(trained)
    key = key_of(spec)
    assert key_of(spec.with_(tokenizer="bytes")) != key
    (trained / "tokenizer.json").write_text((trained / "tokenizer.json").read_text() + "\n")
    assert key_of(spec) != key
    confine({"tokenizer": str(trained)}, trained.parent)
    with pytest.raises(ValueError, match="must lie in the results folder"):
        confine({"tokenizer": str(trained)}, trained / "elsewhere")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "there is no tokenizer.json in it"),
        ("{}", "tokenizer.json is no tokenizer: "),
        (tokenizers.Tokenizer(tokenizers.models.BPE()).to_str(), "has no token '<pad>'"),
    ],
)
def test_a_folder_without_one_is_refused(tmp_path, file, data, told):
    if data is not None:
        (tmp_path / "tokenizer.json").write_text(data)
    with pytest.raises(ValueError, match=told):
        load(file, str(tmp_path))
