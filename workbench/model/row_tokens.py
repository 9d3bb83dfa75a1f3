"""Rows as token ids and labels: what of a row is trained on, and what is only read.

A row is ``{"text"}``, all of which is trained on; ``{"prompt", "completion"}``, of which the
completion is; ``{"messages"}``, of which the assistant's turns are (chat.py); or ``{"input_ids",
"labels"}``, which say so themselves. The label of a token is the token, or -100 where nothing is
learned of it; the first token of a row follows nothing, and has none that counts.

A row's text is tokenized whole, as the model will see it, and a token is trained where its first
letter is. Text begins with the tokenizer's first token and ends with its end of a text; a chat
template writes its own. Neither is ever there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workbench.core.paths import user_path
from workbench.core.sources import file_digest
from workbench.model.chat import Chat, Span, settings_of, special_tokens
from workbench.model.room import check_room
from workbench.model.row_files import Row, read_rows
from workbench.model.text import IGNORED
from workbench.model.tokenize import Bytes, kept
from workbench.model.tokenizer_file import FromFile
from workbench.model.tokenizer_folder import FILE, files_of, is_folder

FORMS = "text, prompt and completion, messages, or input_ids and labels"
GROUP = 256
"""Rows tokenized at once, in parallel."""
MOST_ID = 1 << 31
"""Ids and labels are kept in 32 bits."""
ANSWERS, ALL = "answers", "all"
NOTHING = (IGNORED, "labels")
MADE = "rows-2-"
"""Begins the names of kept tokens; those that were made otherwise have another one."""


class Tokens(NamedTuple):
    """A row, [n] int32 each."""

    ids: np.ndarray
    labels: np.ndarray


class _Piece(NamedTuple):
    text: str
    spans: list[Span]
    """What of it is trained on."""
    bare: bool
    """Whether it has its special tokens already."""


class RowTokenizer:
    """Makes rows tokens, by a folder's tokenizer or as bytes."""

    def __init__(self, tokenizer: str, train_on: str = ANSWERS) -> None:
        """Raises ValueError, one sentence, for a folder without a tokenizer, and for a tokenizer
        that would have to be trained."""
        self.all, self.folder = train_on == ALL, None
        self._chat: Chat | None = None
        if not is_folder(tokenizer):
            if tokenizer not in ("", Bytes.name):
                raise ValueError(
                    f"tokenizer is {tokenizer!r}; rows take 'bytes', or a folder with a {FILE}"
                )
            self.made, self.digest = Bytes(), Bytes.name
            self.begin = self.end = None
            return
        self.made, self.folder = FromFile(tokenizer), user_path(tokenizer)
        self.digest = sha256(" ".join(map(file_digest, files_of(tokenizer))).encode()).hexdigest()
        self.made.inner.encode_special_tokens = False  # rows may spell them
        self._settings = settings_of(self.folder)
        named = special_tokens(self._settings)
        self.begin, self.end = (
            self.made.inner.token_to_id(named[name]) if name in named else None
            for name in ("bos_token", "eos_token")
        )

    def tokens(self, rows: Iterable[tuple[str, Row]]) -> Iterator[Tokens]:
        """Ids and labels of each row, of which the first counts nowhere. Raises ValueError, naming
        where it stands, for a row that is none."""
        rows = iter(rows)
        while group := [*islice(rows, GROUP)]:
            made = [(_given if "input_ids" in row else self._piece)(at, row) for at, row in group]
            encoded = self._encoded([each for each in made if isinstance(each, _Piece)])
            for each in made:
                found = next(encoded) if isinstance(each, _Piece) else each
                found.labels[:1] = IGNORED
                yield found

    def word(self, token: int) -> str:
        """A token as people read it."""
        if isinstance(self.made, FromFile):
            return self.made.inner.decode([token], skip_special_tokens=False)
        return self.made.decode([token])

    def _piece(self, where: str, row: Row) -> _Piece:
        if "messages" in row:
            text, spans = self._conversation(where, row)
        elif "text" in row:
            text = _text(where, row, "text")
            spans = [(0, len(text))]
        elif row.keys() >= {"prompt", "completion"}:
            prompt, completion = (_text(where, row, name) for name in ("prompt", "completion"))
            text = prompt + completion
            spans = [(len(prompt), len(text))]
        else:
            raise ValueError(f"{where} has {', '.join(row) or 'nothing'}; a row has {FORMS}")
        return _Piece(text, [(0, len(text))] if self.all else spans, "messages" in row)

    def _conversation(self, where: str, row: Row) -> tuple[str, list[Span]]:
        if self.folder is None:
            raise ValueError(
                f"{where} has messages, which a chat template writes: give a tokenizer's folder"
            )
        if self._chat is None:
            self._chat = Chat(self.folder, self._settings)
        return self._chat.render(row, where)

    def _encoded(self, pieces: list[_Piece]) -> Iterator[Tokens]:
        if not isinstance(self.made, FromFile):
            for piece in pieces:
                starts = np.repeat(
                    np.arange(len(piece.text)), [len(letter.encode()) for letter in piece.text]
                )
                ids = self.made.encode(piece.text.encode()).astype(np.int32)
                yield Tokens(ids, _labels(ids, starts, piece.spans))
            return
        for bare, run in groupby(pieces, lambda piece: piece.bare):
            each = [*run]
            texts = [piece.text for piece in each]
            every = self.made.inner.encode_batch(texts, add_special_tokens=not bare)
            for piece, encoding in zip(each, every, strict=True):
                yield self._ended(piece, encoding)

    def _ended(self, piece: _Piece, encoding: Any) -> Tokens:
        """The tokens of a piece, with the special ones once."""
        ids = np.array(encoding.ids, dtype=np.int32)
        starts = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 0]
        if piece.bare:
            return Tokens(ids, _labels(ids, starts, piece.spans))
        first, last = 0, len(ids)
        while last - first > 1 and ids[first] == ids[first + 1] == self.begin:
            first += 1
        while last > first and ids[last - 1] == self.end:
            last -= 1
        labels = _labels(ids, starts, piece.spans)
        ends = [] if self.end is None else [self.end]  # of an answer, which is trained on
        return Tokens(*(np.append(of[first:last], ends).astype(np.int32) for of in (ids, labels)))


def load_rows(
    source: str | Path, tokenizer: str, train_on: str, *, vocab: int, cache: Path | None = None,
    fits: Callable[[np.ndarray], object] = lambda rows: None,
) -> tuple[np.ndarray, str]:  # fmt: skip
    """Ids, labels and places of all rows, [3, n] int32, and their digest; a row begins at place 0.

    Raises ValueError, one sentence, for a file, a row or a tokenizer that cannot be, for a
    tokenizer of more tokens than the model's vocabulary, for an id beyond it, and as `fits` does:
    of rows that are refused the cache keeps nothing.
    """
    path, rows = user_path(source), RowTokenizer(tokenizer, train_on)
    check_room(rows.made.words, tokenizer, vocab)
    table = read_rows(path)

    def tokenized() -> np.ndarray:
        parts = [
            np.stack([ids, labels, np.arange(len(ids), dtype=np.int32)])
            for ids, labels in rows.tokens(table)
            if len(ids)
        ]
        if not parts:
            raise ValueError(f"the rows of {path.name} have no tokens")
        return np.concatenate(parts, axis=1)

    def check(found: np.ndarray) -> None:
        worst = int(found[:2].max())
        if worst >= vocab:
            row = int((found[2, : int((found[:2] == worst).any(0).argmax()) + 1] == 0).sum())
            raise ValueError(
                f"row {row} of {path.name} has the id {worst}; the model's vocabulary of {vocab} "
                f"has 0 to {vocab - 1}"
            )
        fits(found)

    def make() -> tuple[np.ndarray, dict[str, Any]]:
        check(found := tokenized())
        return found, {}

    digest = sha256(f"{file_digest(path)} {rows.digest} {train_on}".encode()).hexdigest()
    found, _ = kept(cache, f"{MADE}{digest[:32]}", make)
    if isinstance(found, np.memmap):
        check(found)
    return found, digest


def _given(where: str, row: Row) -> Tokens:
    """A row of ids. Raises ValueError where it is none."""
    ids, labels = row["input_ids"], row.get("labels", row["input_ids"])
    for name, values in (("input_ids", ids), ("labels", labels)):
        if not isinstance(values, list) or not values:
            raise ValueError(f"{where} has the {name} {values!r:.40}; they are a list of numbers")
        for value in values:
            fits = type(value) is int and (0 <= value < MOST_ID or (value, name) == NOTHING)
            if not fits:
                raise ValueError(f"{where} has {value!r:.40} among its {name}")
    if len(ids) != len(labels):
        raise ValueError(
            f"{where} has {len(ids)} input_ids and {len(labels)} labels; each id has a label"
        )
    return Tokens(np.array(ids, dtype=np.int32), np.array(labels, dtype=np.int32))


def _text(where: str, row: Row, name: str) -> str:
    if not isinstance(row[name], str):
        raise ValueError(f"{where} has the {name} {row[name]!r:.40}; it must be text")
    return row[name]


def _labels(ids: np.ndarray, starts: np.ndarray, spans: list[Span]) -> np.ndarray:
    """The ids whose first letter is in a span; -100 for the others."""
    trained = np.zeros(len(ids), dtype=bool)
    for first, end in spans:
        trained |= (starts >= first) & (starts < end)
    return np.where(trained, ids, IGNORED).astype(np.int32)
