"""Stand-ins for Harmony's published values: estimates of its authors' own model.

The plotted values of Harmony (VLDB'22) were not available, and its repository holds no measured
throughput. ``harmony.csv`` has what its published scheduler says of the published settings, each
number with its source and status; none of them is a measurement. ``harmony_plans.csv`` has what our
own planner makes of the same published profiles (`harmony_plans.py`). The profiles themselves are
bulk data and lie outside the repository.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).resolve().parent
GIB = 2**30
PROFILES = "reference/harmony"
"""Where the profiles lie, below a results folder."""
BESIDE = FOLDER.parents[2] / "shared" / PROFILES
"""Where they may lie beside a checkout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedModel:
    """A model of the paper, under the name of its profile."""

    label: str
    layers: int
    """With the loss, as the authors count."""
    cap_bytes: float
    """Bytes that a pack may take in the authors' searches."""
    minibatches: tuple[int, ...]
    """Minibatches of figure 10."""


MODELS = {
    "bert_96_seq512": PublishedModel(
        label="BERT-96", layers=100, cap_bytes=9e9, minibatches=(16, 64, 256)
    ),
    "gpt2_xl": PublishedModel(label="GPT2-XL", layers=52, cap_bytes=9e9, minibatches=(16, 64, 256)),
    "vgg416": PublishedModel(
        label="VGG416", layers=417, cap_bytes=10 * GIB, minibatches=(16, 64, 256)
    ),
    "resnet1026": PublishedModel(
        label="ResNet1026", layers=515, cap_bytes=10 * GIB, minibatches=(64, 256, 1024)
    ),
    "bert_large_seq512": PublishedModel(
        label="BERT-Large", layers=28, cap_bytes=10 * GIB, minibatches=()
    ),
    **{
        f"gpt2_{billions}b": PublishedModel(
            label=f"GPT2-{billions}B", layers=5 * billions + 4, cap_bytes=10 * GIB, minibatches=()
        )
        for billions in (10, 20, 30, 40)
    },
}
FOUR = tuple(name for name, model in MODELS.items() if model.minibatches)
"""The models of figure 10 and table 1."""


def estimates(figure: str) -> pd.DataFrame:
    """The reference estimates of a figure (``8``, ``10``, ``12``, ``17``), of ``table1``, or of the
    ``stored`` results of the authors' search for minibatches of 32 on 2 GPUs.

    Columns: ``figure``, ``model`` (a key of `MODELS`), ``method``, ``ranks``, ``minibatch``,
    ``setting`` (micro-batch sizes forward/backward, and packs), ``prefetch`` (``yes`` where
    transfers overlap in the estimate, ``no`` where they do not, empty where it does not matter),
    ``quantity``, ``value``, ``low``, ``high`` (a range, where there is one), ``unit``, ``source``,
    ``status``. Figure 18 shows figure 17's numbers. Raises ValueError for an unknown figure.
    """
    table = pd.read_csv(
        FOLDER / "harmony.csv",
        dtype={"figure": str, "prefetch": str, "setting": str},
        keep_default_na=False,
        na_values={"low": [""], "high": [""]},
    )
    known = list(dict.fromkeys(table["figure"]))
    if figure not in known:
        raise ValueError(f"no reference estimates of {figure!r}; there are some of {known}")
    return table[table["figure"] == figure].reset_index(drop=True)


def profiles_folder(results: Path) -> Path | None:
    """Where the published profiles are: below a results folder, or beside the checkout; None where
    they are not."""
    places: Iterable[Path] = (results / PROFILES, BESIDE)
    return next((place for place in places if any(place.glob("profile_*.json"))), None)
