"""Samples of a text, in an order that only the seed decides.

The text is cut into windows of `seq` tokens, each with its successor as targets. Sample number g
is the window that the (g mod windows)-th place of a permutation names, a fresh permutation each
epoch, and the permutation is a keyed function, not a shuffled list. So any process finds any
sample by its number alone: methods, micro-batch splits, ranks and resumed runs cannot disagree on
the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.core.paths import user_path
from workbench.model.corpus import STDLIB, read_corpus
from workbench.model.keys import place_of
from workbench.model.room import IDS, check_room, windows
from workbench.model.tokenize import Tokenizer, tokenize
from workbench.model.tokenizer_file import FromFile
from workbench.model.tokenizer_folder import is_folder

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label that torch's cross entropy leaves out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A tokenized corpus."""

    name: str
    """Name of the source, for people."""
    digest: str
    """SHA-256 of the text; equal digests and tokenizers mean comparable losses."""
    nbytes: int
    """Size of the text."""
    tokenizer: Tokenizer
    tokens: np.ndarray
    """[n], unsigned; may be mapped from a file."""


def load_text(
    source: str | Path = STDLIB,
    tokenizer: str = "bytes",
    *,
    vocab: int,
    seq: int,
    cache: Path | None = None,
) -> Text:
    """Read and tokenize a corpus for a model of `vocab` words and samples of `seq` tokens.

    Raises ValueError, one sentence, when the source is missing, empty or not text, when the
    tokenizer is unknown or has more tokens than the model's vocabulary, and when the text is
    shorter than one sample.
    """
    if str(source).lower().endswith(IDS):
        return _read_ids(user_path(source), vocab, seq)
    corpus = read_corpus(source)
    if is_folder(tokenizer):
        made: Tokenizer = FromFile(tokenizer)
        tokens = made.encode_whole(corpus, cache)
    else:
        made, tokens = tokenize(corpus, tokenizer, cache)
    check_room(made.words, tokenizer, vocab)
    windows(len(tokens), seq)
    return Text(
        name=corpus.name,
        digest=corpus.digest,
        nbytes=len(corpus.data),
        tokenizer=made,
        tokens=tokens,
    )


class Ids(Tokenizer):
    """Token ids that nobody tells the text of."""

    name = "ids"

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def encode(self, text: bytes) -> np.ndarray:
        raise ValueError("a file of token ids has no tokenizer")

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


def _read_ids(path: Path, vocab: int, seq: int) -> Text:
    """A file of numpy's, mapped. Raises ValueError for another one, and for an id that the model's
    vocabulary has not."""
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is no array that numpy reads: {error}") from None
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ValueError(
            f"{path} holds {tokens.dtype} of shape {tokens.shape}; token ids are whole numbers in "
            "one dimension, one after another"
        )
    windows(len(tokens), seq)
    for worst in (int(tokens.min()), int(tokens.max())):
        if not 0 <= worst < vocab:
            raise ValueError(
                f"{path} has the id {worst}; the model's vocabulary of {vocab} has 0 to {vocab - 1}"
            )
    digest = hashlib.sha256(tokens).hexdigest()
    return Text(
        name=path.name, digest=digest, nbytes=tokens.nbytes, tokenizer=Ids(vocab), tokens=tokens
    )


class Batches:
    """Batches of a run: step t has samples t B to (t + 1) B - 1."""

    def __init__(self, tokens: np.ndarray, seq: int, batch: int, seed: int) -> None:
        """Raises ValueError when the tokens are fewer than one sample and its last target need."""
        if batch < 1:
            raise ValueError(f"a batch of {batch} samples is none; it must be at least 1")
        self.tokens, self.seq, self.batch_size, self.seed = tokens, seq, batch, seed
        self.windows = windows(len(tokens), seq)
        """Samples in one epoch."""

    def __len__(self) -> int:
        """Samples in one epoch."""
        return self.windows

    def part(self, tokens: slice) -> Batches:
        """Batches of some of the tokens alone. Raises ValueError for fewer than a sample needs."""
        found = copy(self)
        found.tokens = self.tokens[tokens]
        found.windows = windows(len(found.tokens), self.seq)
        return found

    @property
    def digest(self) -> str:
        """SHA-256 of the tokens."""
        return hashlib.sha256(self.tokens).hexdigest()

    def samples(self, step: int) -> tuple[int, ...]:
        """Global numbers of the samples of a step."""
        return tuple(range(step * self.batch_size, (step + 1) * self.batch_size))

    def position(self, sample: int) -> int:
        """Index in the corpus of a sample's first token."""
        return self.seq * place_of(sample, self.windows, self.seed)

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and targets [len(samples), seq], int64 on the CPU; targets are one token later.

        By numpy's one thread: torch would wake one of every core for this, in each of a server's
        ranks, and steps waited 20 to 80 ms for their samples (four ranks, 64 cores).
        """
        import torch

        starts = [self.position(sample) for sample in samples]
        rows = np.stack([self.tokens[start : start + self.seq + 1] for start in starts])
        tokens, targets = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
        return torch.from_numpy(tokens), torch.from_numpy(targets)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets [B, seq] of a step."""
        return self.rows(self.samples(step))
