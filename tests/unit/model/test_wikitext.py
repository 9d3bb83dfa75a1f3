"""WikiText in both of its forms: the held-out parts speak the training part's tokens."""

import numpy as np
import pytest
import torch

from workbench.model.corpus import read_corpus
from workbench.model.text import Batches
from workbench.model.wikitext import load_wikitext, wikitext_files

TRAIN = " \n = Valkyria Chronicles III = \n \n Senj\u014d no Valkyria 3 : <unk> Chronicles \n" * 20
VALID = " \n = Homarus gammarus = \n \n = = Description = = \n \n The Valkyria Chronicles \n" * 3


@pytest.fixture(params=["tokens", "raw"])
def folder(request, tmp_path):
    for part, text in (("train", TRAIN), ("valid", VALID), ("test", VALID * 2)):
        (tmp_path / f"wiki.{part}.{request.param}").write_text(text, encoding="utf-8")
    return tmp_path


def load(folder, tokenizer="bytes", **changes):
    return load_wikitext(folder, tokenizer, **{"vocab": 512, "seq": 16, **changes})


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_each_part_is_read_whole(folder, tokenizer):
    for part, text in (("train", TRAIN), ("valid", VALID), ("test", VALID * 2)):
        loaded = load(folder, tokenizer, part=part)
        assert loaded.tokenizer.decode(loaded.tokens) == text
        assert loaded.nbytes == len(text.encode())
        assert loaded.name.startswith(f"wiki.{part}.")


def test_the_training_part_is_what_the_folder_is_read_as(folder):
    train, valid = (load(folder, part=part) for part in ("train", "valid"))
    assert train.digest == read_corpus(folder).digest != valid.digest


def test_held_out_text_has_the_training_parts_tokens(folder):
    train, valid = (load(folder, "bpe:300", part=part) for part in ("train", "valid"))
    words = [set(train.tokenizer.encode(text.encode())) for text in ("Valkyria", "Homarus")]
    assert len(words[0]) < len(words[1])  # merges were learnt where Valkyria is
    assert np.array_equal(valid.tokens, train.tokenizer.encode(VALID.encode()))


def test_parts_feed_batches(folder):
    tokens, targets = Batches(load(folder, part="valid").tokens, seq=16, batch=4, seed=1).batch(0)
    assert tokens.shape == targets.shape == (4, 16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_the_tokens_form_is_preferred(tmp_path):
    for form in ("raw", "tokens"):
        (tmp_path / f"wiki.train.{form}").write_text(TRAIN)
    assert wikitext_files(tmp_path) == {"train": tmp_path / "wiki.train.tokens"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\n \nOnce upon a time\n", "wiki.train.raw line 3 is not WikiText: its first text must"),
        (b" = = Section = = \n", "wiki.train.raw line 1 is not WikiText"),
        (b" = Title = \n caf\xe9 \n", "is not UTF-8 text: byte 16 is 0xe9"),
        (b"\xef\xbb\xbf = A = \n b \n", "has 12 tokens, too few for one sample of 16"),
        (b" = A = \n b \n", "has 12 tokens, too few for one sample of 16"),
    ],
)
def test_refuses_a_malformed_file(tmp_path, content, sentence):
    (tmp_path / "wiki.train.raw").write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_refuses_what_is_not_there_or_does_not_fit(folder, tmp_path):
    with pytest.raises(ValueError, match="no wiki.train.tokens or wiki.train.raw in"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no part 'dev' .* it has test, train, valid"):
        load(folder, part="dev")
    with pytest.raises(ValueError, match="too few for one sample of 300: it takes 301"):
        load(folder, part="valid", seq=300)
    next(folder.glob("wiki.valid.*")).write_text("no title\n")
    with pytest.raises(ValueError, match=r"wiki.valid.\w+ line 1 is not WikiText"):
        load(folder, part="valid")
