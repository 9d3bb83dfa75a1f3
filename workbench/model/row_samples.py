"""Samples of rows: several documents each, one padded row each, or windows of all rows in order.

Documents are put together so that samples are full: the longest row first, each into the sample
where the least room stays. Their positions begin anew, by which a decoder keeps them apart
(hf_layers.py). What stays empty at the end of a sample goes on with the last row's positions and
has no labels; a causal decoder's tokens see nothing behind them, so padding needs no mask.

The target of a token is the label of the next one in its row; the last one has none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from copy import copy
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.core.model_spec import DOCUMENTS, STREAM
from workbench.core.paths import user_path
from workbench.core.spec import RunSpec
from workbench.model.keys import place_of
from workbench.model.room import windows
from workbench.model.row_tokens import load_rows
from workbench.model.text import IGNORED, Batches

if TYPE_CHECKING:
    from torch import Tensor


class Table:
    """Rows, tokenized, one after another."""

    def __init__(self, rows: np.ndarray, name: str) -> None:
        """`rows` as `load_rows` gives them."""
        self.ids, self.labels, places = rows
        self.name = name
        self.starts = np.flatnonzero(places == 0)
        self.lengths = np.diff(self.starts, append=len(places))

    def fitting(self, seq: int, *, cut: bool) -> np.ndarray:
        """Rows with a label that counts, of at most `seq` tokens. Raises ValueError for longer
        ones, unless they are `cut`, and where no row has such a label."""
        long = self.lengths > seq
        if long.any() and not cut:
            raise ValueError(
                f"seq is {seq}, and {long.sum():,} of the {len(long):,} rows of {self.name} are "
                f"longer, the longest {self.lengths.max():,} tokens; give a larger one, or "
                "cut_rows"
            )
        self.lengths = np.minimum(self.lengths, seq)
        counts = np.concatenate([[0], np.cumsum(self.labels != IGNORED)])
        some = np.flatnonzero(counts[self.starts + self.lengths] > counts[self.starts])
        if not len(some):
            raise ValueError(
                f"none of the {len(long):,} rows of {self.name} has a label that counts"
                f"{f' in its first {seq} tokens' * bool(long.any())}"
            )
        return some

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and targets of a row."""
        part = slice(self.starts[row], self.starts[row] + self.lengths[row])
        return self.ids[part], np.append(self.labels[part][1:], IGNORED)


class RowSamples:
    """Rows as samples of one length, found by their numbers alone; a `Data`."""

    def __init__(self, table: Table, how: str, *, seq: int, cut: bool, seed: int) -> None:
        """Raises ValueError as `Table.fitting` does."""
        rows = table.fitting(seq, cut=cut)
        self._table, self._seq, self._seed, self._places = table, seq, seed, how == DOCUMENTS
        lengths = table.lengths[rows]
        packs = packed(lengths, seq) if self._places else [[n] for n in range(len(rows))]
        self._packs = [rows[pack] for pack in packs]
        self.name, self.digest = table.name, ""
        self.note = (
            f"{len(rows):,} rows of {table.name} make {len(packs):,} samples of {seq} tokens"
        )
        """Words about them."""
        if left_out := len(table.lengths) - len(rows):
            self.note += f"; {left_out:,} without a label that counts are left out"

    def __len__(self) -> int:
        """Samples in one epoch."""
        return len(self._packs)

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """Ids, positions where samples are documents, and targets, [len(samples), seq] int64 each,
        on the CPU."""
        return self.at([place_of(sample, len(self), self._seed) for sample in samples], samples)

    def at(self, places: Sequence[int], samples: Sequence[int]) -> tuple[Tensor, ...]:
        """As `rows`, of the samples at some places."""
        import torch

        ids = np.zeros((len(places), self._seq), dtype=np.int64)
        positions, targets = np.zeros_like(ids), np.full_like(ids, IGNORED)
        for at, place in enumerate(places):
            start = 0
            for row in self._packs[place]:
                tokens, wanted = self._table.row(row)
                part = slice(start, start := start + len(tokens))
                ids[at, part], targets[at, part] = tokens, wanted
                positions[at, part.start :] = np.arange(self._seq - part.start)
        parts = (ids, positions, targets) if self._places else (ids, targets)
        return tuple(map(torch.from_numpy, parts))


class RowStream(Batches):
    """Windows of all rows one after another."""

    def __init__(self, table: Table, seq: int, batch: int, seed: int) -> None:
        """Raises ValueError for fewer tokens than a window has."""
        super().__init__(table.ids, seq, batch, seed)
        self.labels = table.labels

    def part(self, tokens: slice) -> RowStream:
        found = copy(super().part(tokens))
        found.labels = self.labels[tokens]
        return found

    @property
    def digest(self) -> str:
        return sha256(super().digest.encode() + self.labels.tobytes()).hexdigest()

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        import torch

        starts = [self.position(sample) for sample in samples]
        labels = np.stack([self.labels[start + 1 : start + self.seq + 1] for start in starts])
        return super().rows(samples)[0], torch.from_numpy(labels.astype(np.int64))


def read_samples(spec: RunSpec, vocab: int, cache: Path | None = None) -> RowSamples | RowStream:
    """The rows of a run as its samples. Raises ValueError, one sentence, for all that is wrong with
    them."""
    name, seq = user_path(spec.text).name, spec.model.seq
    stream = spec.model.rows == STREAM

    def fits(rows: np.ndarray) -> object:
        table = Table(rows, name)
        return windows(len(table.ids), seq) if stream else table.fitting(seq, cut=spec.cut_rows)

    how = {"vocab": vocab, "cache": cache, "fits": fits}
    found, digest = load_rows(spec.text, spec.tokenizer, spec.train_on, **how)
    table = Table(found, name)
    if stream:
        return RowStream(table, seq, spec.batch, spec.seed)
    made = RowSamples(table, spec.model.rows, seq=seq, cut=spec.cut_rows, seed=spec.seed)
    made.digest = sha256(f"{digest} {spec.model.rows} {seq}".encode()).hexdigest()
    return made


def packed(lengths: np.ndarray, seq: int) -> list[list[int]]:
    """Places of lengths in packs of at most `seq` in all, few of them: the longest first, each into
    the pack where the least room stays."""
    packs: list[list[int]] = []
    rooms: list[int] = []  # in order, of packs with any
    by_room: dict[int, list[int]] = {}
    for place in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[place])
        at = bisect_left(rooms, length)
        if at < len(rooms):
            room = rooms[at]
            pack = by_room[room].pop()
            if not by_room[room]:
                rooms.pop(at)
        else:
            room, pack = seq, len(packs)
            packs.append([])
        packs[pack].append(place)
        if left := room - length:
            if not by_room.setdefault(left, []):
                insort(rooms, left)
            by_room[left].append(pack)
    return packs
