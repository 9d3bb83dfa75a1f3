"""MRPC in both of its forms, real pairs without a download, and the same rows for everyone."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from workbench.model.bert import Bert, BertShape
from workbench.model.keys import place_of
from workbench.model.pairs import MRPC_FILES, WordPiece, load_pairs

ROOT = Path(__file__).resolve().parents[3]
HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
PAIRS = [
    (1, "Amrozi paid.", 'He paid "them".'),
    (0, "It rose.", "Caf\u00e9 fell\u2028away."),
    (1, "a", "b"),
]
PAD, CLS, SEP = 256, 257, 258  # what bytes leave free


def lines(pairs=PAIRS):
    return [HEADER, *(f"{q}\t70{i}\t80{i}\t{a}\t{b}" for i, (q, a, b) in enumerate(pairs))]


@pytest.fixture
def mrpc(tmp_path):
    """A folder as Microsoft ships it: byte order mark, DOS line ends."""
    text = "\ufeff" + "\r\n".join(lines()) + "\r\n"
    (tmp_path / "msr_paraphrase_train.txt").write_bytes(text.encode())
    return tmp_path


def load(source, tokenizer="", **changes):
    return load_pairs(source, tokenizer, **{"vocab": 512, "seq": 48, "seed": 1, **changes})


def texts(pairs):
    """Label, first and second of every pair in the order of the file, taken out of its tokens."""
    found = []
    for ids, segments, mask, label in zip(
        pairs.ids, pairs.segments, pairs.mask, pairs.labels, strict=True
    ):
        assert ids[0] == CLS
        assert (ids[~mask] == PAD).all()
        first = ids[mask & (segments == 0)]
        second = ids[segments == 1]
        assert first[-1] == second[-1] == SEP
        decoded = (bytes(part.tolist()).decode() for part in (first[1:-1], second[:-1]))
        found.append((int(label), *decoded))
    return found


def test_microsofts_files(mrpc):
    train = load(mrpc)
    assert texts(train) == PAIRS
    assert len(train) == 3
    assert train.name == f"{mrpc.name}, train"


def test_glues_files(mrpc, tmp_path):
    glue = tmp_path / "glue"
    glue.mkdir()
    (glue / "train.tsv").write_text("\n".join(lines()), encoding="utf-8")
    assert texts(load(glue)) == PAIRS
    assert torch.equal(load(glue).rows([0])[0], load(mrpc).rows([0])[0])


def test_rows_are_what_bert_takes(mrpc):
    pairs = load(mrpc, seq=8)
    at = [place_of(sample, len(pairs), pairs.seed) for sample in range(3)]
    ids, segments, mask, labels = (value[at.index(2)] for value in pairs.rows(range(3)))
    assert ids.tolist() == [CLS, ord("a"), SEP, ord("b"), SEP, PAD, PAD, PAD]
    assert segments.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert mask.tolist() == [True] * 5 + [False] * 3
    assert labels.item() == 1
    assert [value.dtype for value in pairs.rows([0])] == [torch.int64] * 2 + [
        torch.bool,
        torch.int64,
    ]
    model = Bert(BertShape(layers=1, hidden=16, heads=2, vocab=pairs.vocab, positions=8))
    *given, labels = pairs.rows(range(5))
    assert F.cross_entropy(model(*given), labels).isfinite()


@pytest.mark.parametrize("sizes", [(3, 30), (30, 3), (20, 21), (21, 20), (9, 9), (8, 9), (9, 8)])
@pytest.mark.parametrize("seq", [5, 20, 21])
def test_the_longer_sentence_loses_its_end_first(tmp_path, sizes, seq):
    letters = "abcdefghijklmnopqrstuvwxyzabcd"
    first, second = letters[: sizes[0]], letters.upper()[: sizes[1]]
    (tmp_path / "train.tsv").write_text("\n".join(lines([(0, first, second)])))
    while len(first) + len(second) > seq - 3:
        if len(first) > len(second):
            first = first[:-1]
        else:
            second = second[:-1]
    assert texts(load(tmp_path, seq=seq)) == [(0, first, second)]


def test_an_epoch_visits_every_pair_once_in_a_new_order(tmp_path):
    many = [(i % 2, f"first {i}", f"second {i}") for i in range(50)]
    (tmp_path / "train.tsv").write_text("\n".join(lines(many)))
    pairs = load(tmp_path)
    epochs = [
        [place_of(50 * epoch + place, len(pairs), pairs.seed) for place in range(50)]
        for epoch in (0, 1)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 2
    assert epochs[0] != epochs[1]
    other = load(tmp_path, seed=2)
    assert epochs[0] != [place_of(place, len(other), other.seed) for place in range(50)]


def fingerprint(rows):
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in rows)).hexdigest()


def test_a_sample_is_the_same_in_any_order_and_process():
    pairs = load("stdlib", seq=64)
    samples = [7, 4000, 3, 123_456]
    whole = pairs.rows(samples)
    for place, sample in reversed(list(enumerate(samples))):
        for value, row in zip(whole, pairs.rows([sample]), strict=True):
            assert torch.equal(value[place], row[0])
    code = (
        "import hashlib; from workbench.model.pairs import load_pairs;"
        "pairs = load_pairs(vocab=512, seq=64, seed=1);"
        f"rows = pairs.rows({samples});"
        "joined = b''.join(value.numpy().tobytes() for value in rows);"
        "print(pairs.digest, hashlib.sha256(joined).hexdigest())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [pairs.digest, fingerprint(whole)]


def test_the_standard_librarys_pairs_are_balanced():
    train = texts(load("stdlib", seq=600))
    assert len(train) > 2000
    straight = {(a, b) for label, a, b in train if label}
    assert {(b, a) for label, a, b in train if not label} == straight
    assert len(train) == 2 * len(straight)
    assert all(a[0].isupper() and a[-1] in ".!?" and "\n" not in a for a, _ in straight)
    assert len({sentence for _, *both in train for sentence in both}) == len(train)


def test_wordpiece_from_the_folders_vocabulary(mrpc):
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = [*special, "it", "rose", "pai", "##d", ".", "a", "b", "cafe"]
    (mrpc / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    pairs = load(mrpc, vocab=13, seq=16)
    assert pairs.vocab == 13
    found = [
        [vocabulary[token] for token in ids[mask]]
        for ids, mask in zip(pairs.ids, pairs.mask, strict=True)
    ]
    assert found[0][:6] == ["[CLS]", "[UNK]", "pai", "##d", ".", "[SEP]"]
    assert found[1][:7] == ["[CLS]", "it", "rose", ".", "[SEP]", "cafe", "[UNK]"]
    assert found[2] == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]
    words = WordPiece.read(mrpc / "vocab.txt").encode(b"It paid.")
    assert [vocabulary[token] for token in words] == ["it", "pai", "##d", "."]
    (mrpc / "vocab.txt").write_text("\n".join([*vocabulary, "It"]))
    assert load(mrpc, vocab=14, seq=16).ids[1, 1] == 13  # a vocabulary with capitals keeps them
    assert load(mrpc, "bytes").vocab == 259


@pytest.mark.parametrize("name", ["msr_paraphrase_train.txt", "train.tsv"])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "line 1 is not MRPC's header: Quality, #1 ID"),
        (b"1\t2\t3\ta\tb\n", "line 1 is not MRPC's header"),
        (f"{HEADER}\n".encode(), "has no pairs"),
        (
            f"{HEADER}\n1\t2\t3\ta\tb\n1\t2\t3\ta\n".encode(),
            "line 3 has 4 tab-separated fields; MRPC has 5",
        ),
        (f"{HEADER}\n1\t2\t3\ta\tb\tc\n".encode(), "line 2 has 6 tab-separated fields"),
        (f"{HEADER}\n2\t2\t3\ta\tb\n".encode(), "line 2 has the quality '2'; use 0 or 1"),
        (f"{HEADER}\n1\t2\t3\ta\t \n".encode(), "line 2 has an empty sentence"),
        (
            f"{HEADER}\n1\t2\t3\t".encode() + b"caf\xe9\tb\n",
            "line 2 is not UTF-8: its byte 9 is 0xe9",
        ),
    ],
)
def test_refuses_a_malformed_file(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as error:
        load(tmp_path)
    assert str(error.value).startswith(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("vocabulary", "sentence"),
    [
        ("[PAD]\n[UNK]\n[CLS]\n", r"vocab.txt has 3 tokens and no \[SEP\] among them"),
        ("[PAD]\n[UNK]\na\n[CLS]\na\n", "vocab.txt line 5 repeats the token 'a'"),
        ("[PAD]\n[UNK]\n\n[CLS]\n", "vocab.txt line 3 is empty"),
    ],
)
def test_refuses_a_malformed_vocabulary(mrpc, vocabulary, sentence):
    (mrpc / "vocab.txt").write_text(vocabulary)
    with pytest.raises(ValueError, match=sentence):
        load(mrpc)


def test_refuses_what_is_not_there_or_does_not_fit(mrpc, tmp_path):
    with pytest.raises(ValueError, match="there is no folder '.*nowhere'; name a folder in"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    names = " or ".join(MRPC_FILES)
    with pytest.raises(ValueError, match=f"there is no {names} or .* in '.*empty'"):
        load(tmp_path / "empty")
    with pytest.raises(ValueError, match="samples of 4 tokens have no room for two sentences"):
        load(mrpc, seq=4)
    with pytest.raises(ValueError, match="vocabulary of 258 is smaller than the 259 tokens"):
        load(mrpc, vocab=258)
    with pytest.raises(ValueError, match="'wordpiece' needs a folder with vocab.txt"):
        load("stdlib", "wordpiece")
    with pytest.raises(ValueError, match="vocab.txt cannot be read"):
        load(mrpc, "wordpiece")
    with pytest.raises(ValueError, match="unknown tokenizer 'words'"):
        load(mrpc, "words")
