"""The disk tier: one scratch file that holds a slab per unit, read and written whole or in pieces.

STRONGHOLD's third tier (SC'22) holds states that host memory has no room for; the
published artifact leaves it out, so the design is ours:

* Room is allocated before training starts, so a disk that is too small says so then and not at
  step 900.
* Transfers go past the page cache (O_DIRECT) where the file system can: the cache would take the
  very host memory that the tier is there to save, and its write-back would hide what a write costs
  until it stalls one.
* The file loses its name as soon as it is open. The system then frees it with its last user,
  however that one ends; the instant between opening and unlinking leaves at most an empty file,
  which the next start removes.

Slabs read as zeros until they are written, which is how optimizer moments start.
"""

import contextlib
import errno
import fcntl
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from workbench.runtime.memory.tiers import OutOfMemory, Tier
from workbench.runtime.passes.staging import ALIGNMENT, StagingPool, round_up

PREFIX, SUFFIX = "workbench-", ".scratch"

# No room left: on the disk, in the user's quota, or under the process's limit on file sizes.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """Where a slab lies in the scratch file."""

    offset: int
    """Bytes from the start of the file, a multiple of ALIGNMENT."""
    nbytes: int
    """Bytes asked for; the file has them rounded up to ALIGNMENT."""


class DiskStore:
    """Slabs by name in a scratch file under ``folder``, ``budget`` bytes in all. Thread-safe.

    Any number of threads may read and write at once; ordering two transfers of one slab is up to
    them. Calls hold no interpreter lock while the disk works. ``host`` is the tier that the
    small staging buffers are entered in: they serve memory that is not aligned, and the ends of
    slabs that are no multiple of ALIGNMENT.

    Raises ValueError if ``folder`` cannot hold a file.
    """

    def __init__(
        self,
        folder: Path,
        budget: int | None = None,
        *,
        host: Tier | None = None,
        direct: bool = True,
        staging_count: int = 2,
        staging_nbytes: int = 1 << 20,
    ) -> None:
        self.tier = Tier("disk", budget)
        """Bytes ``in_use``, their ``peak``, and the slabs that hold them."""
        self.bytes_read = 0
        """Bytes handed to callers so far, without padding."""
        self.bytes_written = 0
        """Bytes taken from callers so far, without padding."""
        self._extents: dict[str, Extent] = {}
        self._end = 0
        self._lock = threading.Lock()
        self._staging = StagingPool(
            host or Tier("host"),
            f"disk staging of {folder}",
            count=staging_count,
            nbytes=staging_nbytes,
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            self._fd, path = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=folder)
        except OSError as error:
            self._staging.close()
            raise ValueError(f"{folder} cannot hold a scratch file: {error.strerror}") from error
        self.path = Path(path)
        """Name under which the file was made; it has no name any more where the system allows
        that."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._direct = direct and _set_direct(self._fd)

    @property
    def direct(self) -> bool:
        """Whether transfers bypass the page cache; else they take host memory no tier shows."""
        return self._direct

    def allocate(self, name: str, nbytes: int) -> None:
        """Make room for a slab that reads as zeros; the tier counts it rounded up to ALIGNMENT.

        Raises OutOfMemory if the budget or the disk has no room.
        """
        with self._lock:
            padded = round_up(nbytes)
            self.tier.reserve(name, padded)
            try:
                self._extend(name, padded)
            except BaseException:
                self.tier.release(name)
                os.ftruncate(
                    self._fd, self._end
                )  # a disk that ran full half-way keeps what it had given
                raise
            self._extents[name] = Extent(offset=self._end, nbytes=nbytes)
            self._end += padded

    def read(self, name: str, into: Tensor, offset: int = 0) -> None:
        """Fill ``into``, a contiguous CPU tensor of any type, from byte ``offset`` of slab
        ``name``.

        A piece starts at a multiple of ALIGNMENT, and ends at one or where the slab ends;
        ValueError if not. OSError, naming file and offset, if the disk fails.
        """
        data, position = self._piece(name, into, offset)
        aligned = self._aligned_prefix(data)
        self._move(os.preadv, name, data[:aligned], position)
        for begin in range(aligned, data.numel(), self._staging.nbytes):
            rest = data[begin : begin + self._staging.nbytes]
            with self._staging.lease() as buffer:
                self._move(os.preadv, name, buffer[: round_up(rest.numel())], position + begin)
                rest.copy_(buffer[: rest.numel()])
        with self._lock:
            self.bytes_read += data.numel()

    def write(self, name: str, source: Tensor, offset: int = 0) -> None:
        """Store ``source`` at byte ``offset`` of slab ``name``; the rules are those of ``read``.

        Also raises OutOfMemory where a file system that could not promise room beforehand runs
        full.
        """
        data, position = self._piece(name, source, offset)
        aligned = self._aligned_prefix(data)
        self._move(os.pwritev, name, data[:aligned], position)
        for begin in range(aligned, data.numel(), self._staging.nbytes):
            rest = data[begin : begin + self._staging.nbytes]
            with self._staging.lease() as buffer:
                padded = buffer[: round_up(rest.numel())]
                padded[: rest.numel()].copy_(rest)
                padded[rest.numel() :].zero_()
                self._move(os.pwritev, name, padded, position + begin)
        with self._lock:
            self.bytes_written += data.numel()

    def close(self) -> None:
        """Drop the file; no transfer may be under way. Does nothing the second time."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self._staging.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _extend(self, name: str, nbytes: int) -> None:
        if nbytes == 0:
            return
        try:
            os.posix_fallocate(self._fd, self._end, nbytes)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise self._explained(error, name, nbytes, self._end) from error
            # No promise of room to be had here: a full disk will show when a slab is written.
            os.ftruncate(self._fd, self._end + nbytes)

    def _piece(self, name: str, tensor: Tensor, offset: int) -> tuple[Tensor, int]:
        """``tensor`` as flat bytes, and their place in the file."""
        extent = self._extents.get(name)
        if extent is None:
            raise ValueError(
                f"there is no slab {name!r} on disk; there are {sorted(self._extents)}"
            )
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError(
                f"slab {name!r} moves to and from contiguous CPU tensors, not {tensor.device} ones"
            )
        end = offset + tensor.nbytes
        if (
            offset % ALIGNMENT
            or offset < 0
            or end > extent.nbytes
            or (end % ALIGNMENT and end != extent.nbytes)
        ):
            raise ValueError(
                f"bytes {offset} to {end} of slab {name!r}, which has {extent.nbytes}: a piece "
                f"must start at a multiple of {ALIGNMENT} and end at one, or where the slab ends"
            )
        return tensor.detach().view(-1).view(torch.uint8), extent.offset + offset  # [bytes]

    def _aligned_prefix(self, data: Tensor) -> int:
        """How many of these bytes the disk can move without staging."""
        if not self._direct:
            return data.numel()
        return 0 if data.data_ptr() % ALIGNMENT else data.numel() // ALIGNMENT * ALIGNMENT

    def _move(self, call: Callable[..., int], name: str, data: Tensor, position: int) -> None:
        """preadv or pwritev until all of ``data`` has moved, since either may stop short."""
        view = memoryview(data.numpy())
        done = 0
        while done < len(view):
            try:
                moved = call(self._fd, [view[done:]], position + done)
            except OSError as error:
                raise self._explained(error, name, len(view) - done, position + done) from error
            if self._direct:
                moved -= moved % ALIGNMENT  # the next try must start at a block again
            if moved == 0:
                error = OSError(errno.EIO, "no progress")
                raise self._explained(error, name, len(view) - done, position + done)
            done += moved

    def _explained(self, error: OSError, name: str, nbytes: int, position: int) -> Exception:
        """``error`` with what was being done, as OutOfMemory if the disk is full."""
        where = f"slab {name!r}, {nbytes} bytes at offset {position} of {self.path}"
        if error.errno in FULL:
            in_use = self.tier.in_use - self.tier.held().get(name, 0)
            return OutOfMemory(
                tier="disk",
                what=name,
                asked=nbytes,
                in_use=in_use,
                budget=None,
                why=f"{error.strerror}: {where}",
            )
        return OSError(error.errno, f"{error.strerror}: {where}")


def _sweep(folder: Path) -> None:
    """Remove scratch files whose process died before it could unlink them.

    One that is in use may be among them; its process has it open and needs its name no more, so
    nothing is lost.
    """
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with contextlib.suppress(OSError):
            path.unlink()


def _set_direct(fd: int) -> bool:
    """Switch the page cache off for ``fd`` if its file system lets one, and say whether it did.

    Asked with a real transfer, since some file systems take the flag and then refuse every read
    and write.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
        with (
            StagingPool(Tier("host"), "probe", count=1, nbytes=ALIGNMENT) as pool,
            pool.lease() as block,
        ):
            os.pwritev(fd, [memoryview(block.numpy())], 0)
            os.preadv(fd, [memoryview(block.numpy())], 0)
    except OSError:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return False
    finally:
        os.ftruncate(fd, 0)
    return True
