"""Real text without a download, the same samples for everyone, one sentence when it fails."""

import os

import numpy as np
import pytest
import torch

from workbench.model import tokenize
from workbench.model.corpus import STDLIB_BYTES, read_corpus
from workbench.model.text import Batches, load_text

STORY = "Once, in a land of na\u00efve \U0001f388, there was code:\n\n    if x:\n\treturn x\n"


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(STORY * 50, encoding="utf-8")
    return path


def test_standard_library_is_there_and_fixed():
    first, second = read_corpus(), read_corpus("stdlib")
    assert first == second
    assert 1 << 20 < len(first.data) <= STDLIB_BYTES
    assert b"import" in first.data


def test_wikitext_folder_gives_its_training_part(tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"wiki.{part}.tokens").write_text(f" = {part} = \n")
    assert read_corpus(tmp_path).data == b" = train = \n"


def test_folder_of_texts_is_read_in_order(tmp_path):
    for name in "bca":
        (tmp_path / f"{name}.txt").write_text(name)
    assert read_corpus(tmp_path).data == b"abc"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no text at"),
        (b"", r"is empty \(0 bytes\)"),
        (b" \n ", r"is empty \(3 bytes\)"),
        (b"ELF\0\1", "is not text: byte 3 is NUL"),
        (b"caf\xe9 au lait", "is not UTF-8 text: byte 3 is 0xe9"),
        (b'\xef\xbb\xbf\n {"text": "a b"}\n{"text": "c"}\n', r"holds rows \(JSON\), and the"),
        (b"PAR1\0\0", r"holds rows \(PAR1\)"),
        (b"short", "has 5 tokens, too few for one sample of 16: it takes 17"),
    ],
)
def test_refuses_what_is_not_a_text(tmp_path, content, sentence):
    path = tmp_path / "a text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as error:
        load_text(path, vocab=256, seq=16)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", ["jsonl", "json", "PARQUET", "arrow", "csv"])
def test_rows_are_known_by_their_names_and_braces_alone_are_text(story, ending, tmp_path):
    with pytest.raises(ValueError, match=rf"holds rows \({ending}\)"):
        read_corpus(story.rename(tmp_path / f"rows.{ending}"))
    for told in ("{ x: the set }", "[1]", "{", '{"a": 1} is JSON'):
        (tmp_path / "text").write_text(f"{told}\n{STORY}")
        assert read_corpus(tmp_path / "text").data.startswith(told.encode())


def test_refuses_an_empty_folder_and_an_unreadable_file(tmp_path, story):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="holds no text"):
        load_text(empty, vocab=256, seq=16)
    if os.geteuid():  # root reads everything
        story.chmod(0)
        with pytest.raises(ValueError, match="cannot be read: Permission denied"):
            load_text(story, vocab=256, seq=16)


@pytest.mark.parametrize(
    ("tokenizer", "vocab", "sentence"),
    [
        ("bytes", 255, "vocabulary of 255 is smaller than the 256 tokens of 'bytes'"),
        ("bpe:300", 299, "vocabulary of 299 is smaller than the 300 tokens of 'bpe:300'"),
        ("words", 300, "unknown tokenizer 'words'"),
        ("bpe:many", 300, "unknown tokenizer 'bpe:many'"),
        ("bpe:256", 300, "no room for merges"),
        ("bpe:999999999999", 300, "use an N of at most 1048576"),
    ],
)
def test_refuses_tokenizers_that_do_not_fit(story, tokenizer, vocab, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_text(story, tokenizer, vocab=vocab, seq=16)


def decoded(tokenizer, tokens):
    if isinstance(tokenizer, tokenize.Bytes):
        return bytes(tokens).decode()
    return tokenizer.inner.decode(tokens.tolist())


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_tokens_give_the_text_back(story, tokenizer):
    text = load_text(story, tokenizer, vocab=300, seq=16)
    assert decoded(text.tokenizer, text.tokens) == STORY * 50
    assert text.tokens.max() < text.tokenizer.vocab <= 300


def test_bpe_encodes_text_it_was_not_trained_on(story):
    tokenizer = load_text(story, "bpe:300", vocab=300, seq=16).tokenizer
    other = "\u03b1\u03b2 \u2014 \u6f22\u5b57\n\x7f" * 9000  # more than one piece
    assert decoded(tokenizer, tokenizer.encode(other.encode())) == other


def test_bpe_is_trained_once_and_mends_a_broken_cache(story, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = load_text(story, "bpe:300", vocab=300, seq=16, cache=cache)
    assert sorted(p.suffix for p in cache.iterdir()) == [".json", ".npy"]
    real = tokenize.BPE.train
    monkeypatch.setattr(tokenize.BPE, "train", _never)
    second = load_text(story, "bpe:300", vocab=300, seq=16, cache=cache)
    assert isinstance(second.tokens, np.memmap)
    assert np.array_equal(first.tokens, second.tokens)
    monkeypatch.setattr(tokenize.BPE, "train", real)
    for broken in (".npy", ".json"):
        file = next(p for p in cache.iterdir() if p.suffix == broken)
        file.write_bytes(file.read_bytes()[:100])
        third = load_text(story, "bpe:300", vocab=300, seq=16, cache=cache)
        assert np.array_equal(first.tokens, third.tokens)


def test_a_cache_loses_what_was_used_longest_ago(tmp_path, monkeypatch):
    """Also what a killed run has left half; who reads a file goes on with it."""
    many = np.arange(1000, dtype=np.int64)
    monkeypatch.setattr(tokenize, "CACHE_BYTES", many.nbytes + 2000)

    def take(stem, at):
        found, _ = tokenize.kept(tmp_path, stem, lambda: (many, {}))
        for path in tmp_path.glob(f"{stem}.*"):
            os.utime(path, (at, at))
        return found

    take("first", 1), take("second", 2)
    (tmp_path / ".left.npy.1-1.part").write_bytes(b"half")
    os.utime(tmp_path / ".left.npy.1-1.part", (3, 3))
    read = take("first", 4)
    assert isinstance(read, np.memmap)
    take("third", 5)
    assert {path.name.strip(".").partition(".")[0] for path in tmp_path.iterdir()} == {
        "first", "third", "left"
    }  # fmt: skip
    monkeypatch.setattr(tokenize, "CACHE_BYTES", 0)
    take("last", 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.json", "last.npy"]
    assert np.array_equal(read, many)


def test_a_cache_that_cannot_be_written_costs_no_run(story):
    text = load_text(story, "bpe:300", vocab=300, seq=16, cache=story / "not a folder")
    assert text.tokenizer.vocab == 300


def test_a_byte_order_mark_is_no_text(story, tmp_path):
    marked = tmp_path / "marked.txt"
    marked.write_bytes(b"\xef\xbb\xbf" + story.read_bytes())
    assert read_corpus(marked).digest == read_corpus(story).digest


def test_a_text_without_white_space_is_learnt_in_parts():
    bpe = tokenize.BPE.train("bpe:280", 280, b"a" * 8192)
    assert max(map(len, bpe.inner.get_vocab())) == tokenize.LONGEST_WORD
    assert decoded(bpe, bpe.encode(b"a" * 5000)) == "a" * 5000


def test_targets_are_the_next_tokens():
    batches = Batches(np.arange(1000, dtype=np.uint16), seq=10, batch=3, seed=1)
    tokens, targets = batches.batch(4)
    assert tokens.shape == targets.shape == (3, 10)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens + 1, targets)


def test_samples_follow_the_seed_and_their_number_alone():
    tokens = np.arange(1000, dtype=np.uint16)
    large, small = (Batches(tokens, seq=10, batch=b, seed=1) for b in (6, 2))
    assert large.samples(2) == (12, 13, 14, 15, 16, 17)
    whole = large.batch(2)[0]
    parts = [small.batch(step)[0] for step in (6, 7, 8)]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(large.rows((13, 17))[0], whole[[1, 5]])
    other = Batches(tokens, seq=10, batch=6, seed=2)
    assert not torch.equal(whole, other.batch(2)[0])


@pytest.mark.parametrize("windows", [1, 2, 3, 64, 99])
def test_an_epoch_visits_every_window_once_in_a_new_order(windows):
    batches = Batches(np.zeros(windows * 10 + 1, dtype=np.uint8), seq=10, batch=1, seed=1)
    assert batches.windows == windows
    epochs = [
        [batches.position(epoch * windows + i) // 10 for i in range(windows)] for epoch in (0, 1)
    ]
    for epoch in epochs:
        assert sorted(epoch) == list(range(windows))
    if windows > 3:
        assert epochs[0] != epochs[1]
        assert epochs[0] != sorted(epochs[0])


def test_a_window_needs_the_target_of_its_last_token():
    tokens = np.arange(31, dtype=np.uint8)
    assert Batches(tokens, seq=10, batch=1, seed=1).windows == 3
    short = Batches(tokens[:30], seq=10, batch=1, seed=1)
    assert short.windows == 2
    assert short.rows(range(2))[1].max() == 20


def test_a_batch_has_at_least_one_sample():
    with pytest.raises(ValueError, match="a batch of 0 samples"):
        Batches(np.zeros(100, dtype=np.uint8), seq=10, batch=0, seed=1)


def _never(*_):
    raise AssertionError("trained again")
