"""Harmony's settings planned twice on the published profiles: by the published rules, and by ours.

Both answers are told by one simulator, ours, with overlap, on the published server as
`methods.harmony.published.sizes.published_server` describes it; the published estimate stands
beside it. ``harmony_plans.csv`` keeps what came out, since the profiles are bulk data that lie
outside the repository; `harmony_answers.py` makes it again where they are.

The published search keeps packs below a cap and only reports memory, so its plans may exceed the
card. Ours have to fit on it with everything they hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from workbench.core.files import replacing
from workbench.published.harmony import FOLDER, FOUR, GIB, MODELS

KEPT = FOLDER / "harmony_plans.csv"
CARD_BYTES = 11 * GIB
"""Bytes of a GTX 1080Ti."""
ORDER = ("8", "10", "17", "stored")
"""Order of the figures in the file."""
PUBLISHED, OURS = PLANNERS = ("published", "ours")
DP = "dp"
PLACE = ("figure", "model", "method", "ranks", "minibatch", "planner", "given")
"""Columns that say what a row answers."""
VOLUMES = ("weights_in", "gradients_out", "activations_in", "activations_out", "p2p", "all_reduced")
COUNTS = ("candidates", "device_bytes", *VOLUMES)
"""Columns of whole numbers, which may be missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question to the planners."""

    figure: str
    model: str
    """A key of `MODELS`."""
    mode: str
    """``pp`` or ``dp``."""
    ranks: int
    minibatch: int
    sizes: tuple[int, int] | None = None
    """Forward and backward micro-batch of a published setting; None: searched for."""
    pack: int | None = None
    """Layers of its packs."""
    planners: tuple[str, ...] = PLANNERS

    @property
    def words(self) -> str:
        """The question as a reader sees it."""
        label = MODELS[self.model].label
        return f"{label}, {self.mode}, {self.ranks} GPUs, minibatch {self.minibatch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One answer. Volumes are bytes a step over all GPUs."""

    figure: str
    model: str
    method: str
    ranks: int
    minibatch: int
    planner: str
    given: str = ""
    """A published setting; empty where the planner searched."""
    setting: str = ""
    """Micro-batch sizes forward/backward, and packs."""
    seconds: float | None = None
    """Seconds of a step, by our simulator; None where the planner found no plan."""
    estimate_s: float | None = None
    """By the published estimator without overlap."""
    estimate_prefetch_s: float | None = None
    search_s: float | None = None
    """Processor time of the search."""
    candidates: int | None = None
    """Candidates that the published search found, or that ours simulated."""
    device_bytes: int | None = None
    """The most any GPU needs, proved."""
    fits: bool = False
    """Whether that is a card's."""
    busy: str = ""
    """Share of a step in which each GPU computes, by our simulator."""
    weights_in: int | None = None
    gradients_out: int | None = None
    activations_in: int | None = None
    activations_out: int | None = None
    p2p: int | None = None
    all_reduced: int | None = None
    planned: str
    """The day, ISO 8601."""
    note: str = ""
    """Why there is no plan."""
    machine: str = ""
    """Where the search was timed; empty of rows from before this was kept."""


def questions(figure: str | None = None) -> list[Question]:
    """All that is kept, or a figure's: ``8``, ``10`` (also of 12 and table 1), ``17`` (also of 18)
    and ``stored``, the authors' own stored searches."""
    modes = ("pp", "dp")
    eight = {"figure": "8", "model": "bert_large_seq512", "mode": "pp", "minibatch": 600}
    given = [((30, 15), 4, 4), ((20, 10), 7, 4), ((10, 5), 14, 4), ((50, 25), 2, 4)]
    given += [((30, 15), 4, 2), ((20, 10), 7, 2)]
    found = [
        Question(**eight, ranks=ranks, sizes=sizes, pack=pack, planners=(PUBLISHED,))
        for sizes, pack, ranks in given
    ]
    found += [Question(**eight, ranks=ranks, planners=(OURS,)) for ranks in (4, 2)]
    found += [
        Question(figure="10", model=name, mode=mode, ranks=4, minibatch=minibatch)
        for name in FOUR
        for minibatch in MODELS[name].minibatches
        for mode in modes
    ]
    found += [
        Question(
            figure="17", model=f"gpt2_{billions}b", mode=mode, ranks=ranks, minibatch=32,
            sizes=(1, 1), pack=2,
        )
        for billions in (10, 20, 30, 40)
        for ranks in (1, 2, 4, 8)
        for mode in modes
        if ranks > 1 or mode == DP
    ]  # fmt: skip
    found += [
        Question(figure="stored", model=name, mode=mode, ranks=2, minibatch=32)
        for name in ("bert_large_seq512", "bert_96_seq512", "gpt2_xl")
        for mode in modes
    ]
    return [question for question in found if figure in (None, question.figure)]


def kept(figure: str | None = None, path: Path = KEPT) -> pd.DataFrame:
    """The answers there are, or those of a figure, with `Row`'s columns."""
    texts = ("figure", "given", "setting", "busy", "note", "planned", "machine")
    table = pd.read_csv(path, dtype=dict.fromkeys(texts, str))
    table[[*texts]] = table.reindex(columns=[*texts]).astype(object).fillna("")
    return table if figure is None else table[table["figure"] == figure].reset_index(drop=True)


def write(rows: Iterable[Row], path: Path = KEPT) -> None:
    """As CSV, with few enough digits to be read. A row takes the place of the one that answered the
    same question; all others stay as they are."""
    frame = pd.DataFrame(list(rows), columns=[field.name for field in fields(Row)])
    if path.exists():
        frame = pd.concat([kept(path=path), frame])
    frame = frame.drop_duplicates(list(PLACE), keep="last").astype(dict.fromkeys(COUNTS, "Int64"))
    frame = frame.sort_values("figure", kind="stable", key=lambda column: column.map(ORDER.index))
    with replacing(path) as part:
        frame.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
