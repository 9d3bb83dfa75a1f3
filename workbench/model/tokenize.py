"""Text to tokens with no download: bytes as they are, or a byte-level BPE trained on the text.

Both are lossless: every UTF-8 text has tokens. A BPE costs seconds to train, so what was trained,
and the tokens it gave, are kept in a cache folder under the digest of the text; files are renamed
into place, so that a run killed half-way leaves no half file, and are made anew where a checksum is
not theirs. A cache that grows too large loses what was used longest ago.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.files import checksum, replacing
from workbench.core.sealed import read_sealed, write_sealed
from workbench.model.corpus import Corpus
from workbench.model.room import BYTES, bpe_size
from workbench.model.tokenizer_folder import AS_BYTES

PIECE_BYTES = 1 << 16
"""A text is encoded in pieces of whole lines of about this size, in parallel."""
GROUP = 256
"""Pieces encoded at once: a library's encoding is many times its text."""
TRAINING_PIECES = 512
"""Merges are learnt from the first 32 MiB; more text hardly changes the frequent pairs."""


LONGEST_WORD = 1024
"""Characters. Merges are learnt from words no longer than this: a text without white space is one
word, and longer ones have no other frequent pairs than their parts."""
CACHE_BYTES = 8 << 30
"""Bytes of a cache beside what it has kept last."""


class Tokenizer(ABC):
    """Text and its tokens."""

    name: str
    vocab: int
    """Tokens are below this."""

    @property
    def words(self) -> int:
        """Tokens that a text is made of are below this."""
        return self.vocab

    @abstractmethod
    def encode(self, text: bytes) -> np.ndarray:
        """Tokens [n] of a UTF-8 text, in the smallest unsigned type that holds them."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens; what is no character is replaced."""


class Bytes(Tokenizer):
    """A token is a byte."""

    name = AS_BYTES
    vocab = BYTES

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class BPE(Tokenizer):
    """Byte-level byte-pair encoding with GPT-2's split into words (the tokenizers library)."""

    def __init__(self, name: str, inner: Any) -> None:
        self.name = name
        self.inner = inner
        self.vocab = inner.get_vocab_size()

    @classmethod
    def train(cls, name: str, vocab: int, text: bytes) -> BPE:
        """At most `vocab` tokens; fewer where the text has no more pairs to merge."""
        from tokenizers import Tokenizer as Inner
        from tokenizers import decoders, models, pre_tokenizers, trainers

        inner = Inner(models.BPE())
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        # The trainer's time grows with the square of a word's length.
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [words, pre_tokenizers.FixedLength(LONGEST_WORD)]
        )
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        inner.train_from_iterator(islice(_pieces(text), TRAINING_PIECES), trainer)
        inner.pre_tokenizer = words
        return cls(name, inner)

    def encode(self, text: bytes) -> np.ndarray:
        dtype = np.uint16 if self.vocab <= 1 << 16 else np.uint32
        parts = encoded_pieces(self.inner, text)
        return np.concatenate([np.asarray(ids, dtype=dtype) for ids in parts])

    def decode(self, tokens: Sequence[int]) -> str:
        return self.inner.decode([*tokens])


def encoded_pieces(inner: Any, text: bytes) -> Iterator[list[int]]:
    """Tokens of a text, without special ones, by a tokenizer of the library."""
    pieces = _pieces(text)
    while group := list(islice(pieces, GROUP)):
        for encoded in inner.encode_batch_fast(group, add_special_tokens=False):
            yield encoded.ids


def tokenize(corpus: Corpus, tokenizer: str, cache: Path | None) -> tuple[Tokenizer, np.ndarray]:
    """The tokenizer called ``bytes`` or ``bpe:N`` for a corpus, and the corpus's tokens [n].

    A cache that cannot be read or written costs time, not the run. Raises ValueError for another
    name, an N that is no number or below 257, or when the tokenizers library is not installed.
    """
    if tokenizer == Bytes.name:
        return Bytes(), Bytes().encode(corpus.data)
    size = bpe_size(tokenizer)
    try:
        import tokenizers
    except ImportError:
        raise ValueError(
            f"{tokenizer} needs the package tokenizers, which is not installed; use 'bytes'"
        ) from None

    def make() -> tuple[np.ndarray, dict[str, Any]]:
        bpe = BPE.train(tokenizer, size, corpus.data)
        return bpe.encode(corpus.data), {"merges": bpe.inner.to_str()}

    stem = f"bpe-{size}-{corpus.digest[:16]}-{tokenizers.__version__}"
    tokens, facts = kept(cache, stem, make, ("merges",))
    return BPE(tokenizer, tokenizers.Tokenizer.from_str(facts["merges"])), tokens


def kept(
    cache: Path | None,
    stem: str,
    make: Callable[[], tuple[np.ndarray, dict[str, Any]]],
    names: Collection[str] = (),
) -> tuple[np.ndarray, dict[str, Any]]:
    """An array, and facts of these names about it: from the cache, mapped, else as `make` gives
    them, and the cache keeps them then."""
    if cache is None:
        return make()
    about, array = cache / f"{stem}.json", cache / f"{stem}.npy"
    with suppress(OSError, ValueError, KeyError):
        facts = read_sealed(about, stem, needed=True)
        if [*checksum(array)] == facts["tokens"] and facts.keys() >= {*names}:
            found = np.load(array, mmap_mode="r")
            with suppress(OSError):  # of another user
                os.utime(about)
            return found, facts
    made, facts = make()
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        with replacing(array) as part, part.open("wb") as file:
            np.save(file, made)
        write_sealed(about, {**facts, "tokens": checksum(array)})
        _bound(cache, {about, array})
    return made, facts


def _bound(cache: Path, last: Collection[Path]) -> None:
    """Remove the files that were used longest ago, and are too many beside the `last` ones. A
    process that has mapped a file keeps it; one that is about to makes it anew. Raises OSError."""

    def used(path: Path) -> tuple[float, int]:
        about = path.with_suffix(".json")  # which tells it for both
        found = (about if about.exists() else path).stat().st_mtime
        return found, path.stat().st_size  # of the two the larger one decides

    left = CACHE_BYTES
    for path in sorted({*cache.iterdir()} - {*last}, key=used, reverse=True):
        left -= path.stat().st_size
        if left < 0:
            path.unlink()


def _pieces(text: bytes) -> Iterator[str]:
    """The text in whole lines, PIECE_BYTES or a little more at a time."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + PIECE_BYTES) + 1 or len(text)
        yield text[start:end].decode()
        start = end
