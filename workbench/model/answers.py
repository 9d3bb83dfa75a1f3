"""Pairs of texts, a source and its answer, as an encoder-decoder reads and writes them.

Read from a file of lines, each a source, a tab and its answer, or from SuperGLUE's or SQuAD's files
(glue.py). Where there is no such file there is
still real text: functions of the standard library that have a docstring, and the question what a
function that does this is called. The source is a marker, as every task of T5's begins with one,
and the docstring; the answer is the function's name. Names of Python's own are not read.

A source or an answer that is too long loses its end, and ends with a token of its own all the same.
The decoder reads the answer moved on by one, and begins with padding, as T5's does. A sample is
found by its number alone, in a fresh keyed order each epoch, as in `text.Batches`. Padding and the
end are tokens of a trained tokenizer's own, else the two after the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.core.paths import user_path
from workbench.model.corpus import STDLIB, Corpus, numbered_lines, read_corpus
from workbench.model.glue import examples_at, read_asked
from workbench.model.keys import permuted, place_of
from workbench.model.pairs import HELD_OUT
from workbench.model.text import IGNORED
from workbench.model.tokenize import Bytes, Tokenizer, tokenize
from workbench.model.tokenizer_file import OfT5
from workbench.model.tokenizer_folder import is_folder

if TYPE_CHECKING:
    from torch import Tensor

MARKER = "name: "
"""Begins the source of each pair of the standard library's."""
FUNCTION = re.compile(
    r'^[ \t]*def ([a-z]\w*)\([^)]*\)[^\n:]*:\n[ \t]+[rR]?"""((?:(?!""")[^\\]){10,2000})"""',
    re.MULTILINE,
)
"""A function that is no private one, and its docstring."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """Tokenized pairs; sample g of a run is one of them, by the run's seed and g alone."""

    name: str
    """A description of what was read, for people."""
    digest: str
    """SHA-256 of the texts; equal digests and tokenizers mean comparable losses."""
    seed: int
    """The run's seed."""
    ids: np.ndarray
    """[n, seq] int32: tokens of the sources, and padding."""
    mask: np.ndarray
    """[n, seq] bool: False where there is padding."""
    labels: np.ndarray
    """[n, target_seq] int32: tokens of the answers, and -100 after their end."""
    tokenizer: Tokenizer
    padding: int
    """The token that the decoder begins with, and that stands for what is ignored."""
    end: int
    """The token that ends a text."""

    def __len__(self) -> int:
        """Samples in one epoch."""
        return len(self.labels)

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ids [len(samples), seq] int64, the mask alike bool, ids for the decoder and labels
        [len(samples), target_seq] int64, on the CPU: what `T5` takes, the targets last."""
        return self.at([place_of(sample, len(self), self.seed) for sample in samples], samples)

    def text(self, ids: Sequence[int]) -> str:
        """An answer's tokens as text, up to the end of it."""
        own = range(self.tokenizer.vocab)
        ends = (t not in own or t in (self.padding, self.end) for t in ids)
        return self.tokenizer.decode(ids[: next((at for at, t in enumerate(ends) if t), None)])

    def at(
        self, places: Sequence[int], samples: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `rows`, of the pairs at some places."""
        import torch

        at = [*places]
        labels = self.labels[at].astype(np.int64)
        before = np.full_like(labels, self.padding)
        before[:, 1:] = np.where(labels == IGNORED, self.padding, labels)[:, :-1]
        return (
            torch.from_numpy(self.ids[at].astype(np.int64)),
            torch.from_numpy(self.mask[at]),
            torch.from_numpy(before),
            torch.from_numpy(labels),
        )


def load_answers(
    source: str | Path = STDLIB,
    tokenizer: str = "",
    *,
    vocab: int,
    seq: int,
    target_seq: int,
    seed: int,
    cache: Path | None = None,
    held_out: bool = False,
) -> Answers:
    """Pairs of ``stdlib`` or of a file of lines, tokenized for sources of `seq` tokens and answers
    of `target_seq`; those that are `held_out` are of the library's tenth that is not trained on, or
    of the folder's file for that.

    `tokenizer` is ``bytes``, ``bpe:N`` or the folder of a trained one (tokenizer_file.py). Raises
    ValueError, one sentence with file and line, for what is missing or malformed, and when the
    tokens are more than the model's `vocab`.
    """
    if min(seq, target_seq) < 2:
        raise ValueError(
            f"a source of {seq} tokens and an answer of {target_seq}: each needs at least 2, since "
            "one is for its end"
        )
    if source == STDLIB:
        corpus = read_corpus(STDLIB)
        name, (pairs, held) = corpus.name, _stdlib_pairs(corpus)
    else:
        name, pairs, path = Path(source).name, _read_lines(user_path(source)), user_path(source)
        held = read_asked(examples_at(path, True)) if held_out else []
    told = _told(name, pairs)
    if trained := is_folder(tokenizer):
        made: Tokenizer = OfT5(tokenizer)
    else:
        made = Bytes() if tokenizer in ("", Bytes.name) else tokenize(told, tokenizer, cache)[0]
    if held_out:
        pairs, told = held, _told(name, held)
    padding, end = (made.padding, made.end) if trained else (made.vocab, made.vocab + 1)
    if (total := max(made.vocab, padding + 1, end + 1)) > vocab:
        raise ValueError(
            f"the model's vocabulary of {vocab} is smaller than the {total} tokens of "
            f"{made.name!r}, padding and the end of a text; use a vocabulary of at least {total}"
        )
    ids = np.full((len(pairs), seq), padding, dtype=np.int32)
    mask = np.zeros(ids.shape, dtype=bool)
    labels = np.full((len(pairs), target_seq), IGNORED, dtype=np.int32)
    for row, (asked, answer) in enumerate(pairs):
        for table, text in ((ids, asked), (labels, answer)):
            tokens = made.encode(text.encode())[: table.shape[1] - 1]
            table[row, : len(tokens)] = tokens  # as an array: a list of SQuAD's takes seconds
            table[row, len(tokens)] = end
            if table is ids:
                mask[row, : len(tokens) + 1] = True
    return Answers(
        name=f"{name}, answers",
        digest=sha256((told.digest + made.digest).encode()).hexdigest() if trained else told.digest,
        seed=seed,
        ids=ids,
        mask=mask,
        labels=labels,
        tokenizer=made,
        padding=padding,
        end=end,
    )


def holds_out(source: str | Path) -> bool:
    """Whether a source has a part for evaluations."""
    return source == STDLIB or examples_at(user_path(source), True) is not None


def _told(name: str, pairs: Sequence[tuple[str, str]]) -> Corpus:
    data = "".join(f"{asked}\t{answer}\n" for asked, answer in pairs).encode()
    return Corpus(name=name, data=data, digest=sha256(data).hexdigest())


def _read_lines(path: Path) -> list[tuple[str, str]]:
    if examples := examples_at(path):
        return read_asked(examples)
    if not path.is_file():
        raise ValueError(
            f"there is no file {str(path)!r}; name one of lines, each a source, a tab and its "
            "answer, a folder or file of SuperGLUE or SQuAD, or 'stdlib'"
        )
    pairs = []
    for number, line in numbered_lines(path):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != 2 or not all(fields):
            raise ValueError(
                f"{path.name} line {number} is not a source, a tab and its answer, neither empty"
            )
        pairs.append((fields[0], fields[1]))
    if not pairs:
        raise ValueError(f"{path.name} has no pairs")
    return pairs


def _stdlib_pairs(corpus: Corpus) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Each pair once, in an order of their own, without a tenth; and that tenth."""
    found = FUNCTION.findall(corpus.data.decode())
    pairs = [*dict.fromkeys((MARKER + " ".join(told.split()), name) for name, told in found)]
    order = [permuted(i, len(pairs), "answers", "order") for i in range(len(pairs))]
    ordered, tenth = [pairs[i] for i in order], len(order) // HELD_OUT
    return ordered[tenth:], ordered[:tenth]
