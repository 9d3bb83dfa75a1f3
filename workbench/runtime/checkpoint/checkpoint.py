"""Checkpoints that any method can read: weights and moments by the model's own parameter names.

A checkpoint is a folder with one safetensors file per unit and a manifest (manifest.py) that knows
their sizes and checksums: what a disk has lost or changed since is not taken for weights.
It is written under a temporary name, brought to the disk, and renamed into place, so a run killed
while saving, or one whose disk is full, keeps the checkpoints it had. It says nothing of windows,
slots or tiers: what was saved under one plan resumes under another.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from workbench.core.busy_disk import ahead, brought
from workbench.model.base import LayeredModel
from workbench.runtime.checkpoint.manifest import (
    KEEP,
    Manifest,
    Saved,
    publish,
    step_name,
    steps_in,
    unreadable,
)
from workbench.runtime.memory.memory import Memory
from workbench.runtime.memory.storage import Flat, States

KINDS = ("weight", "exp_avg", "exp_avg_sq")
WEIGHTS = KINDS[:1]
STATISTICS = "statistics.safetensors"
FULL = re.compile(rf"(?:Errno|os error) (?:{errno.ENOSPC}|{errno.EDQUOT})\b")
"""In the words of an error of Python's, or of safetensors', whichever rank met it."""
UNIT = re.compile(r"unit-\d{5}\.safetensors")
MADE_ROOM = "the disk was full: older checkpoints were removed to make room for newer ones"


class Read(Protocol):
    """Interface of a function that gives weights by their names."""

    def __call__(
        self, names: Sequence[str], *, exact: bool = True, dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        """fp32 tensors on the CPU, which may be memory that is trained. Not `exact` ones are of the
        type that passes take them in, and where they lie, if they are somewhere in that type. Exact
        ones that are made for this are made in a `dtype`; the others are fp32 all the same."""
        ...


ByUnit = tuple[list[list[str]], Read]
"""Names of weights in the whole model, those of a unit together, and who gives them."""


class Holder(Protocol):
    """Interface of a holder of a run's weights and moments, wherever they lie."""

    def weights(self) -> ByUnit | None:
        """The weights, where this process has them all; None where files are the way to them."""
        ...

    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """Make all files in a new folder; of `WEIGHTS` alone `write_unit`'s, whatever form the
        holder's own have. Raises OSError or SafetensorError if the disk refuses."""
        ...

    def restore(self, saved: Saved) -> None:
        """Take up what the files say. Raises as `reader` does."""
        ...


class MemoryHolder:
    """A runtime's memory, with its layouts of the units."""

    def __init__(self, model: LayeredModel, memory: Memory, flats: list[Flat]) -> None:
        self._model, self._memory, self._flats = model, memory, flats

    def weights(self) -> ByUnit:
        """As `Holder.weights`. All lanes must be drained."""
        return by_unit(self._model, self._memory, self._flats)

    def write(self, folder: Path, kinds: Sequence[str] = KINDS) -> None:
        """As `Holder.write`. All lanes must be drained."""
        reads = [partial(self._tensors, unit, flat, kinds) for unit, flat in enumerate(self._flats)]
        for unit, tensors in enumerate(ahead(reads)):
            write_unit(folder, unit, tensors)

    def restore(self, saved: Saved) -> None:
        """As `Holder.restore`."""
        for unit, flat in enumerate(self._flats):
            states = self._memory.states(unit)
            narrow = states.rest is not None
            master = torch.empty(flat.numel) if narrow else states.weights
            with reader(saved, unit) as read:
                for label, view in self._views(unit, flat, (master, *_moments(states))):
                    read(label, view)
            if narrow:
                states.set_master(master)
            if self._memory.on_disk(unit):
                self._memory.write_states(unit)

    def _tensors(self, unit: int, flat: Flat, kinds: Sequence[str]) -> list[tuple[str, Tensor]]:
        """A unit's tensors on the host, by their labels."""
        if loaded := self._memory.on_disk(unit):
            self._memory.read_states(unit)
        states = self._memory.states(unit)
        slabs = (states.master(), *_moments(states))[: len(kinds)]
        # The staging of a unit on the disk is the next one's, too.
        kept = tuple(slab.clone() if loaded else slab.cpu() for slab in slabs)
        return [*self._views(unit, flat, kept)]

    def _views(
        self, unit: int, flat: Flat, slabs: tuple[Tensor, ...]
    ) -> Iterator[tuple[str, Tensor]]:
        for kind, slab in zip(KINDS, slabs, strict=False):
            for local, view in flat.views(slab):
                yield label_of(kind, self._model, unit, local), view


def _moments(states: States) -> tuple[Tensor, Tensor]:
    return states.exp_avg, states.exp_avg_sq


def save(
    folder: Path,
    holder: Holder,
    manifest: Manifest,
    statistics: dict[str, Tensor] | None,
    notes: list[str],
) -> Path:
    """Write ``folder/step-N`` where N is the manifest's next step; where the disk is full, all but
    the newest whole checkpoint make room, which is noted.
    `statistics` are running ones, by their names in the whole model's `state_dict`.

    Raises OSError, one sentence, if the disk refuses; a whole checkpoint stays.
    """
    temporary = folder / f".{step_name(manifest.next_step)}"
    for left in folder.glob(".step-*"):  # of a process that was killed while it saved
        shutil.rmtree(left, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        with brought(temporary):
            holder.write(temporary)
            if statistics:
                save_file(statistics, temporary / STATISTICS)
        target = publish(temporary, manifest)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if FULL.search(str(error)) and make_room(folder):  # the next try has none to give
            notes += [MADE_ROOM] if MADE_ROOM not in notes else []
            return save(folder, holder, manifest, statistics, notes)
        raise OSError(f"the checkpoint {temporary.name[1:]} was not written: {error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    remove_older(folder)
    return target


def remove_older(folder: Path) -> None:
    """Remove all but the newest `KEEP` whole checkpoints, unfinished ones too."""
    _remove_all_but([saved.path for saved in whole(folder)][:KEEP], folder)


def make_room(folder: Path) -> bool:
    """Whether there were checkpoints beside the newest whole one, of which every byte is looked at
    before they are removed."""
    for saved in whole(folder):
        with suppress(OSError):
            saved.check(saved.manifest.files)
            return _remove_all_but([saved.path], folder)
    return False


def _remove_all_but(kept: list[Path], folder: Path) -> bool:
    others = [path for path in steps_in(folder) if path not in kept]
    for path in (*others, *folder.glob(".step-*")):
        shutil.rmtree(path, ignore_errors=True)
    return bool(others)


def label_of(kind: str, model: LayeredModel, unit: int, local: str) -> str:
    """Name of a tensor in a file: one of `KINDS`, and its parameter."""
    return f"{kind}/{model.state_name(unit, local)}"


def write_unit(folder: Path, unit: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """A unit's file, from tensors by their labels."""
    named = {label: tensor.cpu().contiguous() for label, tensor in tensors}
    save_file(named, folder / file_of(unit))


def write_weights(folder: Path, model: LayeredModel, named: Mapping[str, Tensor]) -> None:
    """Files of weights alone, by their names in the whole model, of the units that have some."""
    for unit in range(model.num_units):
        names = {local: model.state_name(unit, local) for local in model.shapes(unit)}
        found = [
            (label_of(WEIGHTS[0], model, unit, local), named[name])
            for local, name in names.items()
            if name in named
        ]
        if found:
            write_unit(folder, unit, found)


@contextmanager
def reader(saved: Saved, unit: int) -> Iterator[Callable[[str, Tensor], None]]:
    """Copies a unit's tensor, by its label, into another one. The file of a unit that owns nothing
    may be lacking; a tensor may be in another unit's, of a model that was cut otherwise.

    Raises ValueError when the checkpoint is of another model, OSError when it cannot be read.
    """
    name, folder = file_of(unit), saved.path
    others: dict[str, Tensor] = {}

    def elsewhere(label: str, into: Tensor) -> None:
        if not others:
            others.update(tensors_with(saved, unit, [label]))
        check_fits(folder, label, others.get(label), into)
        into.copy_(others[label])

    if name not in saved.manifest.files:
        yield elsewhere
        return
    saved.check([name])
    try:
        with safe_open(folder / name, framework="pt") as file:
            names = set(file.keys())

            def read(label: str, into: Tensor) -> None:
                if label not in names:
                    elsewhere(label, into)
                    return
                found = file.get_tensor(label)
                check_fits(folder, label, found, into)
                into.copy_(found)

            yield read
    except (OSError, SafetensorError) as error:
        raise unreadable(folder, error) from error


def check_fits(folder: Path, label: str, found: Tensor | None, into: Tensor) -> None:
    """Raise ValueError where a checkpoint's tensor is none of the model's; None is one that it
    lacks."""
    if found is None:
        raise ValueError(f"the checkpoint {folder} has no {label}, which the model has")
    theirs, ours = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (found, into))
    if theirs != ours:
        raise ValueError(f"{label} in the checkpoint {folder} is {theirs}, the model's is {ours}")


def file_of(unit: int) -> str:
    """Name of a unit's file."""
    return f"unit-{unit:05d}.safetensors"


def whole(folder: Path) -> Iterator[Saved]:
    """The checkpoints of a run that have all their bytes, newest first."""
    for path in steps_in(folder):
        with suppress(OSError, ValueError):
            yield Saved.read(path)


def statistics(saved: Saved) -> dict[str, Tensor]:
    """The running statistics of a checkpoint; none where its model has none. Raises OSError where
    they cannot be read."""
    return tensors_of(saved, [STATISTICS] if STATISTICS in saved.manifest.files else [])


def tensors_of(saved: Saved, names: Collection[str]) -> dict[str, Tensor]:
    """All tensors of some files by their labels, which lie in the files until they are copied.
    Raises OSError where they cannot be read."""
    if lacking := {*names} - saved.manifest.files.keys():
        raise unreadable(saved.path, f"it has no {min(lacking)}")
    saved.check(names)
    try:
        files = [load_file(saved.path / name) for name in names]
    except SafetensorError as error:
        raise unreadable(saved.path, error) from error
    return {label: tensor for file in files for label, tensor in file.items()}


def tensors_with(saved: Saved, unit: int, labels: Collection[str]) -> dict[str, Tensor]:
    """Tensors by their labels, those among them that the checkpoint has: of a unit's file, or of
    all units' where a model was cut otherwise. Raises OSError where they cannot be read."""
    own = file_of(unit)
    found = tensors_of(saved, [own] if own in saved.manifest.files and labels else [])
    if found.keys() >= {*labels}:
        return found
    every = tensors_of(saved, [name for name in saved.manifest.files if UNIT.fullmatch(name)])
    if own not in saved.manifest.files and not every.keys() >= {*labels}:
        raise unreadable(saved.path, f"it has no {own}")
    return every


def parameters(model: LayeredModel, memory: Memory, flats: list[Flat]) -> dict[str, Tensor]:
    """Copies of all fp32 weights by their names in the whole model's `state_dict`."""
    groups, read = by_unit(model, memory, flats)
    return {name: tensor.clone() for group in groups for name, tensor in read(group).items()}


def by_unit(model: LayeredModel, memory: Memory, flats: list[Flat]) -> ByUnit:
    """Weights of a runtime whose lanes are drained, where they lie if that is the host."""
    groups = names_by_unit(model)

    def read(
        names: Sequence[str], *, exact: bool = True, dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        asked, found = {*names}, {}
        for unit, group in enumerate(groups):
            if not asked.intersection(group):
                continue
            loaded = exact and memory.on_disk(unit)
            if loaded:
                memory.read_states(unit)
            states = memory.states(unit)
            slab = states.rounded(dtype) if exact else states.weights
            for local, view in flats[unit].views(slab):
                if (name := model.state_name(unit, local)) in asked:
                    found[name] = view.clone() if loaded else view.cpu() if exact else view
        return found

    return groups, read


def in_files(model: LayeredModel, folder: Path) -> ByUnit:
    """Weights in the units' files of a folder, as `Holder.write` makes them, which lie there until
    they are copied. Reading raises OSError or SafetensorError."""
    groups = names_by_unit(model)
    units = {name: unit for unit, group in enumerate(groups) for name in group}

    def read(
        names: Sequence[str], *, exact: bool = True, dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for unit in {units[name] for name in names}:
            with safe_open(folder / file_of(unit), framework="pt") as file:
                own = (name for name in names if units[name] == unit)
                found |= {name: file.get_tensor(f"{WEIGHTS[0]}/{name}") for name in own}
        return found

    return groups, read


def in_memory(tensors: Mapping[str, Tensor], others: ByUnit = ([], lambda _, **__: {})) -> ByUnit:
    """Tensors by their names, as a unit behind the others."""
    groups, further = others

    def read(
        names: Sequence[str], *, exact: bool = True, dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        own = {name: tensors[name].detach() for name in names if name in tensors}
        found = {name: tensor.cpu() for name, tensor in own.items()} if exact else own
        others = [name for name in names if name not in tensors]
        return found | further(others, exact=exact, dtype=dtype)

    return [*groups, [*tensors]], read


def names_by_unit(model: LayeredModel) -> list[list[str]]:
    """Names in the whole model of the parameters that each unit owns."""
    units = range(model.num_units)
    return [[model.state_name(unit, local) for local in model.shapes(unit)] for unit in units]
