"""Pairs of sentences with a label, as BERT reads them: [CLS] first [SEP] second [SEP].

Read from a folder in the format of MRPC (Dolan and Brockett, "Automatically Constructing a Corpus
of Sentential Paraphrases", IWP 2005): tab-separated lines of Quality, #1 ID, #2 ID, #1 String, #2
String, in Microsoft's files or in GLUE's; or from SuperGLUE's or SQuAD's files (glue.py). Where
there is no such folder there is still real text: neighbouring sentences of the standard library's
comments and docstrings, and the question of ALBERT (Lan et al., ICLR 2020): are they in the text's
order (1) or swapped (0)? Each pair comes in both ways, so labels are balanced, and no sentence is
in both parts. A small BERT without pre-training finds part of the answer within a few epochs;
whether the second sentence follows or is from elsewhere, BERT's own question, it does not find.

A sample is found by its number alone, in a fresh keyed order each epoch, as in `text.Batches`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.model.corpus import STDLIB, Corpus, numbered_lines, read_corpus
from workbench.model.glue import EXAMPLES, examples_at, read_labelled
from workbench.model.keys import permuted, place_of
from workbench.model.tokenize import Bytes, Tokenizer, tokenize

if TYPE_CHECKING:
    from torch import Tensor

MRPC_FILES = ("msr_paraphrase_train.txt", "train.tsv")
"""The first that is there is read."""
MRPC_HELD_OUT = ("msr_paraphrase_test.txt", "dev.tsv")
"""For evaluations, alike."""
COLUMNS = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
WORDPIECE = "wordpiece"
WORDPIECE_FILE = "vocab.txt"

SENTENCE = re.compile(
    r"[A-Z](?:[\w ,;:'\"()`/*<>+-]|[.](?=\w)|\n[ \t]*(?:#[ \t]*)?(?=[\w(`'\"])){20,250}[.!?](?=\s)",
    re.ASCII,
)
"""A capital to a full stop, over the ends of lines but not over an empty one."""
BETWEEN = re.compile(r"[ \t]*(?:\n[ \t]*(?:#[ \t]*)?)?")
"""Characters between two sentences of one paragraph."""
HELD_OUT = 10
"""One in so many of the standard library's pairs is not trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two sentences and their label."""

    label: int
    first: str
    second: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Tokenized pairs; sample g of a run is one of them, by the run's seed and g alone."""

    name: str
    """A description of the file that was read, for people."""
    digest: str
    """SHA-256 of labels and sentences; equal digests and tokenizers mean comparable losses."""
    vocab: int
    """Token ids are below this, the special ones included."""
    seed: int
    """The run's seed."""
    ids: np.ndarray
    """[n, seq] int32."""
    segments: np.ndarray
    """[n, seq] uint8: 1 from after the first [SEP] to the second, else 0."""
    mask: np.ndarray
    """[n, seq] bool: False where there is padding."""
    labels: np.ndarray
    """[n] int64, 0 or 1."""

    def __len__(self) -> int:
        """Samples in one epoch."""
        return len(self.labels)

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids and segments [len(samples), seq] int64, the mask alike bool, and labels
        [len(samples)] int64, on the CPU: what `Bert` takes, the targets last."""
        return self.at([place_of(sample, len(self), self.seed) for sample in samples], samples)

    def at(
        self, places: Sequence[int], samples: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `rows`, of the pairs at some places."""
        import torch

        at = [*places]
        return (
            torch.from_numpy(self.ids[at].astype(np.int64)),
            torch.from_numpy(self.segments[at].astype(np.int64)),
            torch.from_numpy(self.mask[at]),
            torch.from_numpy(self.labels[at]),
        )


def load_pairs(
    source: str | Path = STDLIB,
    tokenizer: str = "",
    *,
    vocab: int,
    seq: int,
    seed: int,
    cache: Path | None = None,
    held_out: bool = False,
) -> Pairs:
    """Pairs of ``stdlib`` or of a folder, tokenized for samples of `seq` tokens; those that are
    `held_out` are of the tenth that is not trained on, or of the folder's file for evaluations.

    `tokenizer` is ``bytes``, ``bpe:N``, or ``wordpiece``, which
    needs a ``vocab.txt`` in the folder and is the default where there is one, else ``bytes`` is.
    A pair that is too long loses tokens from the end of its longer sentence, as in BERT's own
    preparation. Raises ValueError, one sentence with file and line, for what is missing or
    malformed, and when the tokens are more than the model's `vocab`.
    """
    if seq < 5:
        raise ValueError(f"samples of {seq} tokens have no room for two sentences; use at least 5")
    if source == STDLIB:
        corpus = read_corpus(STDLIB)
        name, pairs = corpus.name, _stdlib_pairs(corpus, held_out)
    else:
        name, pairs = Path(source).name, _read(Path(source), held_out)
    made = _tokenizer(source, tokenizer, cache)
    special = made.special if isinstance(made, WordPiece) else range(made.vocab, made.vocab + 3)
    total = max(made.vocab, special[-1] + 1)
    if total > vocab:
        raise ValueError(
            f"the model's vocabulary of {vocab} is smaller than the {total} tokens of "
            f"{made.name!r} and [PAD], [CLS], [SEP]; use a vocabulary of at least {total}"
        )
    ids, segments, mask = _tokenized(pairs, made, tuple(special), seq)
    labels = np.array([pair.label for pair in pairs], dtype=np.int64)
    return Pairs(
        name=f"{name}, {'held out' if held_out else 'train'}",
        digest=_sentences(name, pairs).digest,
        vocab=total,
        seed=seed,
        ids=ids,
        segments=segments,
        mask=mask,
        labels=labels,
    )


def holds_out(source: str | Path) -> bool:
    """Whether pairs have a part for evaluations."""
    known = any((Path(source) / name).is_file() for name in MRPC_HELD_OUT)
    return source == STDLIB or known or examples_at(Path(source), True) is not None


class WordPiece(Tokenizer):
    """BERT's tokenizer from its ``vocab.txt``: one token a line, ``##`` inside words."""

    name = WORDPIECE

    def __init__(self, inner: Any, special: tuple[int, int, int]) -> None:
        self.inner = inner
        self.vocab = inner.get_vocab_size()
        self.special = special
        """[PAD], [CLS], [SEP]."""

    @classmethod
    def read(cls, path: Path) -> WordPiece:
        """Raises ValueError for a file that is missing, repeats a token or lacks a special one.

        Text is lower-cased and loses its accents unless the vocabulary has capitals.
        """
        from tokenizers import Tokenizer as Inner
        from tokenizers import models, normalizers, pre_tokenizers

        ids: dict[str, int] = {}
        for number, token in numbered_lines(path):
            if number != len(ids) + 1:
                raise ValueError(f"{path.name} line {len(ids) + 1} is empty; a line is a token")
            if token in ids:
                raise ValueError(f"{path.name} line {number} repeats the token {token!r}")
            ids[token] = len(ids)
        for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]"):
            if token not in ids:
                raise ValueError(f"{path.name} has {len(ids)} tokens and no {token} among them")
        cased = any(token != token.lower() for token in ids if not token.startswith("["))
        inner = Inner(models.WordPiece(ids, unk_token="[UNK]"))
        inner.normalizer = normalizers.BertNormalizer(lowercase=not cased)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return cls(inner, (ids["[PAD]"], ids["[CLS]"], ids["[SEP]"]))

    def encode(self, text: bytes) -> np.ndarray:
        return np.asarray(self.inner.encode(text.decode()).ids, dtype=np.uint32)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.inner.decode([*tokens])


def _tokenizer(source: str | Path, name: str, cache: Path | None) -> Tokenizer:
    words = None if source == STDLIB else Path(source) / WORDPIECE_FILE
    if name == WORDPIECE and words is None:
        raise ValueError(
            f"'wordpiece' needs a folder with {WORDPIECE_FILE}; use 'bytes' or 'bpe:N'"
        )
    if words and (name == WORDPIECE or (not name and words.is_file())):
        return WordPiece.read(words)
    if name in ("", Bytes.name):
        return Bytes()
    if source == STDLIB:
        return tokenize(read_corpus(STDLIB), name, cache)[0]
    folder = Path(source)
    return tokenize(_sentences(folder.name, _read(folder)), name, cache)[0]


def _read(source: Path, held_out: bool = False) -> list[Pair]:
    files = MRPC_HELD_OUT if held_out else MRPC_FILES
    path = next((source / name for name in files if (source / name).is_file()), None)
    if path is not None:
        return _read_mrpc(path)
    if examples := examples_at(source, held_out):
        labelled = read_labelled(examples)
        return [Pair(label=label, first=first, second=second) for label, first, second in labelled]
    what = f"folder {str(source)!r}"
    if source.is_dir():
        what = f"{' or '.join((*files, *EXAMPLES[held_out]))} in {str(source)!r}"
    raise ValueError(
        f"there is no {what}; name a folder in the format of MRPC, SuperGLUE or SQuAD, or 'stdlib'"
    )


def _read_mrpc(path: Path) -> list[Pair]:
    lines = numbered_lines(path)
    number, header = next(lines, (1, ""))
    if header.split("\t") != COLUMNS:
        raise ValueError(
            f"{path.name} line {number} is not MRPC's header: {', '.join(COLUMNS)}, tab-separated"
        )
    pairs = []
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(COLUMNS):
            raise ValueError(
                f"{path.name} line {number} has {len(fields)} tab-separated fields; "
                f"MRPC has {len(COLUMNS)}: {', '.join(COLUMNS)}"
            )
        quality, _, _, first, second = (field.strip() for field in fields)
        if quality not in ("0", "1"):
            raise ValueError(f"{path.name} line {number} has the quality {quality!r}; use 0 or 1")
        if not first or not second:
            raise ValueError(f"{path.name} line {number} has an empty sentence")
        pairs.append(Pair(label=int(quality), first=first, second=second))
    if not pairs:
        raise ValueError(f"{path.name} has no pairs")
    return pairs


def _stdlib_pairs(corpus: Corpus, held_out: bool) -> list[Pair]:
    """The pairs of neighbours but for a tenth, or that tenth, each in both orders."""
    text = corpus.data.decode()
    neighbours: list[tuple[str, str]] = []
    used: set[str] = set()
    before: re.Match[str] | None = None
    for match in SENTENCE.finditer(text):
        if before and BETWEEN.fullmatch(text, before.end(), match.start()):
            pair = _prose(before), _prose(match)
            if all(pair) and not used & set(pair):
                neighbours.append(pair)
                used.update(pair)
                before = None  # a sentence is in one pair only
                continue
        before = match
    order = [permuted(i, len(neighbours), "pairs", "order") for i in range(len(neighbours))]
    pairs = []
    tenth = len(order) // HELD_OUT
    for first, second in (neighbours[i] for i in (order[:tenth] if held_out else order[tenth:])):
        pairs.append(Pair(label=1, first=first, second=second))
        pairs.append(Pair(label=0, first=second, second=first))
    return pairs


def _prose(match: re.Match[str]) -> str:
    """The sentence on one line; nothing where it looks like code."""
    sentence = " ".join(match[0].replace("#", " ").split())
    letters = sum(character.isalpha() or character == " " for character in sentence)
    return sentence if letters >= 0.9 * len(sentence) and sentence.count(" ") >= 3 else ""


def _sentences(name: str, pairs: list[Pair]) -> Corpus:
    lines = (f"{pair.label}\t{pair.first}\t{pair.second}\n" for pair in pairs)
    data = "".join(lines).encode()
    return Corpus(name=name, data=data, digest=sha256(data).hexdigest())


def _tokenized(
    pairs: list[Pair], tokenizer: Tokenizer, special: tuple[int, ...], seq: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pad, cls, sep = special
    ids = np.full((len(pairs), seq), pad, dtype=np.int32)
    segments = np.zeros((len(pairs), seq), dtype=np.uint8)
    mask = np.zeros((len(pairs), seq), dtype=bool)
    for row, pair in enumerate(pairs):
        first = tokenizer.encode(pair.first.encode())
        second = tokenizer.encode(pair.second.encode())
        kept_first, kept_second = _kept(len(first), len(second), seq - 3)
        middle, end = kept_first + 1, kept_first + kept_second + 2
        ids[row, 0], ids[row, middle], ids[row, end] = cls, sep, sep
        ids[row, 1:middle], ids[row, middle + 1 : end] = first[:kept_first], second[:kept_second]
        segments[row, middle + 1 : end + 1] = 1
        mask[row, : end + 1] = True
    return ids, segments, mask


def _kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths after the longer one lost tokens, one at a time, until both fit."""
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= room - half:
        return first, room - first
    if second <= half:
        return room - second, second
    return room - half, half
