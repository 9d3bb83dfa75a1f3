"""Data in two parts: one that is trained on, and one that is held out for evaluations.

Where a run names a text for that, all of it is held out, and all of the other is trained on. Where
data has a part of its own (families.py), that is held out. Else it is the end of the data, which is
not trained on as soon as a run evaluates: of a text the last tokens, of pairs of texts the last
rows; of pictures and a user's own samples, which often lie in the order of their classes, the last
ones in a keyed order. Pictures that are trained on, and no others, may be moved and mirrored
(augmented.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.model.draws import Draws
from workbench.model.keys import permuted, place_of
from workbench.model.pairs import Pairs
from workbench.model.room import trained_on
from workbench.model.row_samples import read_samples
from workbench.model.text import Batches, load_text

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.model.families import Data


def load_part(
    spec: RunSpec, model: LayeredModel | None, cache: Path | None = None, *, held_out: bool = False
) -> Batches | Draws:
    """The data that a run trains on, or that it holds out. A family's own data needs no `model`.
    Raises ValueError as the loaders do, and for data too small to hold a sample out."""
    share = spec.eval_share if spec.evaluates and not spec.eval_text else 0.0
    spec = spec.held_out if held_out else spec
    if spec.model.rows:
        rows = read_samples(spec, model.vocab, cache)
        if isinstance(rows, Batches):
            return _of_text(rows, share, held_out) if share else rows
        return Draws(_divided(rows, share, held_out) if share else rows, spec.batch)
    if not spec.model.decomposed:
        text = load_text(
            spec.text, spec.tokenizer, vocab=model.vocab, seq=spec.model.seq, cache=cache
        )
        batches = Batches(text.tokens, spec.model.seq, spec.batch, spec.seed)
        return _of_text(batches, share, held_out) if share else batches
    from workbench.model.families import holds_out, load_data

    own = share and holds_out(spec.model, spec.text)
    data = load_data(
        spec.model, spec.text, spec.tokenizer, seed=spec.seed, cache=cache,
        classes=model and model.classes, held_out=bool(own and held_out),
    )  # fmt: skip
    if share and not own:
        data = _divided(data, share, held_out)
    if spec.augment != "none" and not held_out:
        from workbench.model.augmented import Augmented

        data = Augmented(data, spec.seed)
    return Draws(data, spec.batch)


class Rows:
    """Some rows of data, which are samples in a keyed order of their own, as `families.Data`."""

    def __init__(self, data: Data, places: Sequence[int], seed: int, part: str) -> None:
        self._data, self._places, self._seed = data, places, seed
        self.name = f"{data.name}, {part}"
        told = f"{data.digest} {part} {len(places)}"
        self.digest = sha256(told.encode()).hexdigest()
        for name in ("text", "padding", "note"):  # of answers, and of rows
            if hasattr(data, name):
                setattr(self, name, getattr(data, name))

    def __len__(self) -> int:
        """Samples in one epoch."""
        return len(self._places)

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """As `Data.rows`."""
        return self.at([place_of(sample, len(self), self._seed) for sample in samples], samples)

    def at(self, places: Sequence[int], samples: Sequence[int]) -> tuple[Tensor, ...]:
        """As `Data.at`."""
        return self._data.at([self._places[place] for place in places], samples)


def _divided(data: Data, share: float, held_out: bool) -> Data:
    if isinstance(data, Batches):  # a user's own model of the run's text
        return _of_text(data, share, held_out)
    count = len(data)
    if count < 2:
        raise ValueError(f"{data.name} has {count} sample, and an evaluation holds one out")
    if isinstance(data, Pairs) or hasattr(data, "text"):
        order: Sequence[int] = range(count)
    else:
        order = [permuted(place, count, "held out") for place in range(count)]
    kept = count - min(count - 1, max(1, round(share * count)))
    places, part = (order[kept:], "held out") if held_out else (order[:kept], "trained on")
    return Rows(data, places, getattr(data, "seed", 0), part)


def _of_text(batches: Batches, share: float, held_out: bool) -> Batches:
    """Raises ValueError where a part has no sample."""
    kept = trained_on(len(batches.tokens), batches.seq, share)
    return batches.part(slice(kept, None) if held_out else slice(kept))
