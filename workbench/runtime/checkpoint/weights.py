"""Weights of a checkpoint by their names in the whole model, read a few at a time.

Moments stay where they are. A file's checksum is asked for before the first tensor of it is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from torch import Tensor

from workbench.model.weights.headers import Entry
from workbench.model.weights.mapped import DTYPES, mapped
from workbench.model.weights.outgoing import Weights
from workbench.model.weights.stored import WEIGHT, find
from workbench.runtime.checkpoint.checkpoint import STATISTICS
from workbench.runtime.checkpoint.manifest import Saved


def weights_of(saved: Saved, prefix: str = "") -> Weights:
    """Those of a checkpoint of our own form, by names without a prefix. Raises OSError or
    ValueError where there are none."""
    found = find(saved.path).entries.values()
    entries = {entry.label.removeprefix(WEIGHT).removeprefix(prefix): entry for entry in found}
    by_file: dict[str, list[str]] = {}
    for name, entry in entries.items():
        by_file.setdefault(entry.file.name, []).append(name)
    trained = (entry for entry in entries.values() if entry.file.name != STATISTICS)
    return Weights(
        shapes={name: entry.shape for name, entry in entries.items()},
        parameters=sum(entry.numel for entry in trained),
        groups=[*by_file.values()],
        read=partial(_read, saved, entries, set()),
        types={name: DTYPES[entry.dtype] for name, entry in entries.items()},
    )


def _read(
    saved: Saved, entries: Mapping[str, Entry], sound: set[str], names: Collection[str]
) -> dict[str, Tensor]:
    """Tensors by their names; `sound` are files whose checksums were asked for."""
    for file in {entries[name].file.name for name in names} - sound:
        saved.check([file])
        sound.add(file)
    return {name: mapped(entries[name]) for name in names}
