"""Checkpoints that several processes write and read, sharing a folder and nothing else.

The folder is that of checkpoint.py, so every method continues it, and any number of stages and
replicas what another saved (Varuna, EuroSys 2022). Nothing in it is a pickle, which whoever shares
the folder could have made, nor do processes send each other any.

A saving goes on beside training: tensors are copied to the host, then a thread writes. It ends in
one act of one process, the folder's renaming, after all files are on the disk and `may_commit` was
asked: a host that was cut off, whose work others do by now, commits nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from workbench.core.files import flush
from workbench.core.jsonfile import read_object
from workbench.core.reporter import Untold
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.checkpoint.manifest import (
    Manifest,
    Saved,
    publish,
    step_name,
    steps_in,
    sums,
    take_newest,
)
from workbench.runtime.passes.statistics import added
from workbench.runtime.transport.groups import as_one, tensors_of_all

Units = Mapping[int, Mapping[str, Tensor]]
"""unit -> label, such as ``weight/NAME`` or ``momentum_buffer/NAME`` -> tensor."""
STATE = "state.json"


class Fenced(ValueError):
    """Nothing was committed: others go on with this run by now."""


class Saving:
    """A checkpoint that a thread writes. Raises, on every process, OSError where a disk refuses or
    a process is gone, and Fenced; older checkpoints stay."""

    def __init__(self, future: Future[Path]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether it is committed."""
        return self._future.done() and bool(self.wait())

    def then(self, do: Callable[[], object]) -> None:
        """Call a function when it is committed, in the thread that writes."""
        self._future.add_done_callback(lambda ended: None if ended.exception() else do())

    def wait(self) -> Path:
        """The checkpoint's folder, once it is committed."""
        return self._future.result()


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A checkpoint, beside the tensors of the caller that it was read into."""

    saved: Saved
    data: dict[str, Any]
    numbers: dict[str, Any]
    """By name, of the parameters of all units."""
    statistics: dict[str, Tensor]
    tensors: dict[str, dict[str, Tensor]]
    """By name and kind, of the caller's units: those that it had none for."""


def save(
    folder: Path, units: Units, manifest: Manifest, *,
    numbers: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None,
    statistics: Mapping[str, Tensor] | None = None, group: dist.ProcessGroup | None = None,
    may_commit: Callable[[int], bool] = lambda step: True,
) -> Saving:  # fmt: skip
    """Begin to write ``folder/step-N``; returns when all that is given may change again.

    Every process of `group`, of gloo, calls it with the units that it holds, whole; one of those
    that hold a unit writes it. None is this process alone. Nobody else uses the group until the
    saving is done; its timeout ends the wait for a silent process. `manifest`, `data` (of JSON's
    values) and `may_commit`, which a thread asks, count on the first process; `numbers` of all are
    put together, `statistics` added up. Tensors are read after the work of the current stream.
    Raises ValueError for what no checkpoint holds, on every process.
    """

    def tell() -> tuple[Any, ...]:
        for label, tensor in _by_label(units).items():
            if label.startswith("weight/") and tensor.dtype in (torch.bfloat16, torch.float16):
                raise ValueError(f"{label} is {tensor.dtype}; checkpoints hold fp32 masters")
        told = json.loads(json.dumps(data or {}, default=repr, allow_nan=False))
        if wrong := [key for key, each in (data or {}).items() if told.get(key) != each]:
            raise ValueError(f"{wrong[0]} is none of JSON's values: {data[wrong[0]]!r:.200}")
        sizes = [(unit, sum(t.nbytes for t in labels.values())) for unit, labels in units.items()]
        return sizes, dict(numbers or {}), told, token_hex(4)

    sizes, counts, (told, *_), (token, *_) = zip(*as_one(tell, group), strict=True)
    parts = tensors_of_all(statistics or {}, group)
    whose, first = _dealt([dict(each) for each in sizes]), _rank(group) == 0
    own = [unit for unit in units if whose[unit] == _rank(group)]
    mine = {label: _on_host(t) for unit in own for label, t in units[unit].items()}
    files = {label: checkpoint.file_of(unit) for unit in own for label in units[unit]}
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
    if first:
        mine |= (totals := added(parts))
        files |= dict.fromkeys(totals, checkpoint.STATISTICS)
    name, manifest = step_name(manifest.next_step), deepcopy(manifest)
    state = {"data": told, "numbers": {key: n for part in counts for key, n in part.items()}}
    # No other attempt has this folder: a host that was cut off may still write to its own.
    temporary = folder / f".{name}-{token}"

    def ask() -> None:
        if not may_commit(manifest.next_step):
            raise Fenced(f"the checkpoint {name} was not committed: others go on with this run")

    def commit(written: dict[str, tuple[int, int]]) -> None:
        (temporary / STATE).write_text(json.dumps(state))
        publish(temporary, manifest, written, ask)
        checkpoint.remove_older(folder)

    def bring() -> dict[str, tuple[int, int]]:
        """This process's files to the disk; no other one writes to these."""
        by_file: dict[str, dict[str, Tensor]] = {name: {} for name in files.values()}
        for label, tensor in mine.items():
            by_file[files[label]][label] = tensor
        temporary.mkdir(parents=True, exist_ok=True)
        try:
            for name, tensors in by_file.items():
                save_file(tensors, temporary / name)
                flush(temporary / name)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        return sums(temporary, by_file)

    def write(*, again: bool = True) -> Path:
        try:
            written = {n: tuple(each) for of in as_one(bring, group) for n, each in of.items()}
            as_one(partial(commit, written) if first else int, group)
        except (OSError, RuntimeError) as error:  # of gloo, where a process is gone
            if again and checkpoint.FULL.search(str(error)):
                as_one(lambda: first and bool(checkpoint.make_room(folder)), group)
                return write(again=False)
            raise OSError(f"the checkpoint {name} was not written: {error}") from error
        finally:
            if first:
                shutil.rmtree(temporary, ignore_errors=True)
        return folder / name

    pool = ThreadPoolExecutor(1, "checkpoint")
    saving = Saving(pool.submit(write))
    pool.shutdown(wait=False)
    return saving


def load(saved: Saved, units: Units, group: dist.ProcessGroup | None = None) -> Loaded:
    """Read a checkpoint into the tensors of this process's units, in place; every process of
    `group` calls it. Raises, on every process, OSError where a file is damaged that one of them
    reads, and ValueError where the checkpoint is of another model."""
    given, found, state, statistics = _by_label(units), {}, {}, {}

    def look() -> None:
        names = [checkpoint.file_of(unit) for unit in units if units[unit]]
        found.update(checkpoint.tensors_of(saved, names))
        for label, into in given.items():
            checkpoint.check_fits(saved.path, label, found.get(label), into)
        statistics.update(checkpoint.statistics(saved))
        if STATE in saved.manifest.files:
            saved.check([STATE])
            state.update(read_object(saved.path / STATE, f"{STATE} of the checkpoint {saved.path}"))

    as_one(look, group)
    for label, into in given.items():
        into.detach().copy_(found[label])
    tensors: dict[str, dict[str, Tensor]] = {}
    for label in found.keys() - given.keys():
        kind, _, name = label.partition("/")
        tensors.setdefault(name, {})[kind] = found[label].clone()
    told = {key: state.get(key, {}) for key in ("data", "numbers")}
    return Loaded(saved=saved, statistics=statistics, tensors=tensors, **told)


def load_newest(
    folder: Path, units: Units, group: dist.ProcessGroup | None = None,
    check: Callable[[Saved], None] = lambda saved: None, spare: Path | None = None,
    takes: Callable[[Path, int], bool] = lambda path, step: True,
) -> tuple[Loaded | None, list[str]]:  # fmt: skip
    """`load` the newest checkpoint of a folder, or of a `spare` one, of which all is sound that is
    read, on every process the same; None where there is none. Also returns notes on those that were
    passed over, and why. `takes` says which paths and steps are looked at; `check` is called before
    any tensor is read, and may raise ValueError.
    Raises ValueError as it and `load` do, and where all are damaged."""
    loaded: list[Loaded] = []

    def take(saved: Saved) -> None:
        check(saved)
        loaded.append(load(saved, units, group))

    folders = [folder, spare] if spare else [folder]
    found: list[Saved] = []

    def read(path: Path) -> Saved:
        as_one(lambda: found.append(Saved.read(path)), group)
        return found.pop()

    def there() -> list[tuple[int, str, int]]:
        every = ((k, p, n) for k, each in enumerate(folders) for p, n in steps_in(each).items())
        return sorted(((n, p.name, k) for k, p, n in every if takes(p, n)), reverse=True)

    _, notes = take_newest(
        [folders[k] / name for _, name, k in as_one(there, group)[0]],
        take,
        Untold(),
        read,
    )
    return (*loaded, None)[0], notes


def _dealt(sizes: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Unit -> the process that writes it; `sizes`: process -> unit that it holds -> bytes. Large
    ones first, each to whoever has least to write."""
    load, whose = [0] * len(sizes), {}
    for size, unit in sorted({(size, u) for held in sizes for u, size in held.items()})[::-1]:
        holders = [number for number, held in enumerate(sizes) if unit in held]
        whose[unit] = min(holders, key=load.__getitem__)
        load[whose[unit]] += size
    return whose


def _on_host(tensor: Tensor) -> Tensor:
    """A copy, of a host's tensor, too, since that changes meanwhile; a GPU's stream makes it."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor.detach(), non_blocking=True)


def _rank(group: dist.ProcessGroup | None) -> int:
    return dist.get_rank(group) if group else 0


def _by_label(units: Units) -> dict[str, Tensor]:
    return {label: tensor for labels in units.values() for label, tensor in labels.items()}
