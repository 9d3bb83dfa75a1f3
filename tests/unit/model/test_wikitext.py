"""WikiText in both of its forms."""

import pytest

from workbench.model.corpus import read_corpus
from workbench.model.wikitext import load_wikitext

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
def test_the_training_part_is_read_whole(folder, tokenizer):
    train = load(folder, tokenizer)
    assert train.nbytes == len(TRAIN.encode())
    assert train.name.startswith("wiki.train.")
    assert train.digest == read_corpus(folder).digest


def test_the_tokens_form_is_preferred(tmp_path):
    for form in ("raw", "tokens"):
        (tmp_path / f"wiki.train.{form}").write_text(TRAIN)
    assert load(tmp_path).name == "wiki.train.tokens"


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
    with pytest.raises(ValueError, match="too few for one sample of 5000: it takes 5001"):
        load(folder, seq=5000)
