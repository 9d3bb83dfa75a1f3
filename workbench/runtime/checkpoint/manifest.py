"""The manifest of a checkpoint: what it holds and continues, under a checksum over itself.

A manifest ends in the SHA-256 of all bytes before it, so no flipped bit goes unseen, and it lists
the size and the CRC-32 of every file. Nothing that it says decides whether it is checked: one with
no valid checksum is read by `workbench trust` alone, and a file that it does not list by nobody.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from workbench.core.busy_disk import brought
from workbench.core.files import checksum, flush, read_whole, write_whole
from workbench.core.record import Evaluation, strict
from workbench.core.reporter import Reporter, Untold
from workbench.core.schema import Measured, read_as
from workbench.core.sealed import parse_sealed, sealed

MANIFEST = "manifest.json"
KEEP = 2
"""The newest checkpoint, and the one before in case its reader finds a bad disk block."""
READERS = 8
"""Threads that make checksums."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """How far a run has come, and the files that it goes on from."""

    version: Literal[2] = 2
    next_step: int
    updates_done: int
    losses: list[Measured]
    step_seconds: list[float]
    grad_norms: list[Measured | None]
    skipped: list[int]
    continues: dict[str, Any]
    """Fields of a run's spec that decide its losses."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the optimizer in a user's own loop: its learning rate, and what schedulers keep there."""
    evaluations: list[Evaluation] = field(default_factory=list)
    """So far; not written where there are none, since older versions do not know them."""
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By their paths in the checkpoint's folder: bytes, and CRC-32."""

    def __post_init__(self) -> None:
        steps = (len(self.losses), len(self.grad_norms), self.updates_done + len(self.skipped))
        if steps != (self.next_step,) * 3:
            raise ValueError(
                f"next_step is {self.next_step}, beside {steps[0]} losses, {steps[1]} gradient "
                f"norms, and {steps[2]} updates and skipped steps; there must be as many of each"
            )

    def write(self, folder: Path) -> None:
        """Put it, sealed, in the place of the one that a checkpoint has, if any."""
        told = strict(asdict(self))
        if not self.evaluations:
            del told["evaluations"]
        write_whole(folder / MANIFEST, sealed(json.dumps(told, allow_nan=False)))
        flush(folder)


@dataclass(frozen=True)
class Saved:
    """A checkpoint whose manifest is sound, and whose files have their sizes."""

    path: Path
    manifest: Manifest

    @classmethod
    def read(cls, path: Path) -> Saved:
        """Raises OSError where the manifest is damaged, or a file is not all there, and ValueError
        where a sound manifest has fields or a version that are unknown here."""
        try:
            data = read_whole(path / MANIFEST, MANIFEST)
        except FileNotFoundError as error:
            raise unreadable(path, f"{MANIFEST}: {error.strerror}") from error
        except ValueError as error:
            raise unreadable(path, error) from error
        try:
            told = parse_sealed(data, MANIFEST, needed=True)
        except ValueError:
            raise unreadable(
                path,
                f"{MANIFEST} has no valid checksum, so it is damaged or of an older version; "
                f"`workbench trust {shlex.quote(str(path))}` rewrites one that you trust",
            ) from None
        manifest = read_as(Manifest, told, f"the manifest of the checkpoint {path}")
        if path.name != step_name(manifest.next_step):
            raise unreadable(path, f"its manifest is that of {step_name(manifest.next_step)}")
        for name, (size, _) in manifest.files.items():
            if not (path / name).is_file() or (path / name).stat().st_size != size:
                raise unreadable(path, f"{name} is missing, or has not all of its {size} bytes")
        return cls(path, manifest)

    def check(self, names: Iterable[str]) -> None:
        """Raise OSError where a file is not what was written."""
        for name, found in sums(self.path, names).items():
            if found != self.manifest.files[name]:
                why = f"{name} is damaged, its checksum is not the one that was written"
                raise unreadable(self.path, why)


class Damaged(ValueError):
    """No checkpoint can be read of those that are there, of which `path` is the newest."""

    path: Path


def take_newest(
    paths: Iterable[Path],
    take: Callable[[Saved], None],
    report: Reporter,
    read: Callable[[Path], Saved] = Saved.read,
) -> tuple[Saved | None, list[str]]:
    """Give `take` the checkpoints in turn until one is sound; returns that, None where there is no
    checkpoint at all, and notes on those that were passed over, and why.

    `read` and `take` raise OSError for a damaged one. Raises Damaged where all are, since nobody
    asked to begin anew.
    """
    damaged = {}
    for path in paths:
        try:
            saved = read(path)
            take(saved)
        except OSError as error:
            damaged[path] = str(error)
            report.event("damaged", path=path.name, reason=str(error))
            continue
        return saved, [f"{why}; the run went on from {path.name}" for why in damaged.values()]
    for path, why in damaged.items():
        error = Damaged(f"{why}; remove {path.parent} to begin anew")
        error.path = path
        raise error
    return None, []


def newest(folder: Path) -> tuple[Saved | None, list[str]]:
    """As `take_newest`, by what manifests and sizes tell: flipped bits are seen by readers."""
    return take_newest(steps_in(folder), lambda saved: None, Untold())


def belongs(path: Path, step: int | None, job: str, began: int | None) -> bool:
    """Whether a launcher's job may go on from a checkpoint: its own, or the one of the step that it
    began from; before its first step (None) any. Raises OSError for a damaged one."""
    if not job or began in (None, step):
        return True
    return Saved.read(path).manifest.continues.get("job") == job


def newest_of_job(folders: Iterable[Path], job: str, began: int | None) -> int | None:
    """Step of the newest checkpoint in some folders that a job may go on from and that is sound, as
    far as manifests tell; None where there is none."""
    there = {path: step for folder in folders for path, step in steps_in(folder).items()}
    for path, step in sorted(there.items(), key=lambda item: -item[1]):
        with suppress(OSError, ValueError):
            if Saved.read(path) and belongs(path, step, job, began):
                return step
    return None


def set_aside(path: Path) -> None:
    """Have nobody take a damaged checkpoint for one any more. Raises OSError."""
    path.rename(path.with_name(f"damaged-{path.name}-{token_hex(4)}"))


def step_name(next_step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{next_step:08d}"


def steps_in(folder: Path) -> dict[Path, int]:
    """Checkpoints of a run, newest first, and their steps, as their names say."""
    found = {p: int(p.name[5:]) for p in folder.glob("step-*") if re.fullmatch(r"\d+", p.name[5:])}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def publish(
    temporary: Path,
    manifest: Manifest,
    written: Mapping[str, tuple[int, int]] | None = None,
    ask: Callable[[], None] = lambda: None,
) -> Path:
    """Bring all files that are there to the disk under their manifest, and the checkpoint to its
    name; returns that. `written` are sums of files that other processes have brought to the disk;
    `ask` may forbid the last act by raising. Raises OSError if the disk refuses."""
    target, written = temporary.parent / step_name(manifest.next_step), dict(written or {})
    paths = (path for path in sorted(temporary.rglob("*")) if path.is_file())
    names = {path.relative_to(temporary).as_posix() for path in paths}
    with brought(temporary):
        found = sums(temporary, sorted(names - written.keys()))
    for name in found:
        flush(temporary / name)
    if lacking := written.keys() - names:
        raise OSError(f"{min(lacking)} is not there, which another process has written")
    replace(manifest, files=found | written).write(temporary)
    ask()
    shutil.rmtree(target, ignore_errors=True)  # damaged, or this run would have begun after it
    temporary.rename(target)
    flush(target.parent)
    return target


def sums(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Bytes and CRC-32 of files."""
    names = list(names)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(names, pool.map(lambda name: checksum(folder / name), names), strict=True))


def unreadable(path: Path, why: object) -> OSError:
    """The error of a checkpoint that is damaged."""
    return OSError(f"the checkpoint {path.name} cannot be read: {why}")
