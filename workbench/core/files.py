"""Files that are whole or not there, and locks that end with their holder.

A process may be killed at any instruction and a disk may be full at any byte. So a file is written
beside its place under a name of the writing thread's own, forced to the disk, and renamed; and a
lock is the kernel's (``flock``), which no killed process leaves behind. What people name may be a
pipe, which keeps a reader waiting, or larger than memory: `read_whole` looks before it reads.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, Self

from workbench.core.bytesize import format_bytes

MOST_BYTES = 1 << 26
"""Most bytes of a file that people write: more than any configuration, spec, sweep or list has."""
KINDS = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFDIR: "folder"}
"""By their type; all else that is no file is a device."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def open_file(path: Path, where: str) -> BinaryIO:
    """Open a file to be read. `where` names it in errors: ``the sweep a.json``. Raises
    FileNotFoundError, and ValueError for a pipe, a device, a folder, and what the system does not
    let be read."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:
            raise ValueError(f"{where} is a {KINDS.get(kind, 'device')}; it must be a file")
        # A pipe that takes its place meanwhile keeps nobody waiting either.
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error.strerror}") from None


def read_whole(path: Path, where: str, most: int = MOST_BYTES) -> bytes:
    """All bytes of a file. Raises as `open_file`, and ValueError for more than `most` bytes."""
    with open_file(path, where) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            told, limit = format_bytes(size), format_bytes(most)
            raise ValueError(f"{where} has {told}; it must have {limit} at most")
        return file.read(size or 1 << 16)  # a file of the kernel's own tells no size


def checksum(path: Path) -> tuple[int, int]:
    """Bytes and CRC-32 of a file. Raises OSError, and ValueError for what is none."""
    size = crc32 = 0
    with open_file(path, str(path)) as file:
        while block := file.read(1 << 24):
            size, crc32 = size + len(block), zlib.crc32(block, crc32)
    return size, crc32


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path to write a new file to, which takes the place of `path` at the end of the
    block. Where the block or the disk fails, `path` stays as it was. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.unlink(missing_ok=True)  # of a process of this number that was killed
        yield part
        flush(part)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Put a new file in its place, whole or not at all. `mode` 0o600 keeps it from other users,
    whatever stood there, and whoever may link to it. Raises OSError."""
    with replacing(path) as part:
        made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(made, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)


def private_folder(path: Path) -> None:
    """Make a folder one that no other user may enter. Raises OSError, also for somebody else's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user, or is a link")
    path.chmod(0o700)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileLock:
    """The exclusive right that a file stands for. The kernel ends it with the last process that
    shares it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """Pass it to a child to make the lock last as long as the child."""

    @classmethod
    def take(
        cls,
        path: Path,
        *,
        wait: bool = False,
        mode: int = 0o644,
        flags: int = os.O_RDWR | os.O_CREAT,
    ) -> FileLock | None:
        """The lock; without `wait`, None while another process has it. Whoever may not open a new
        file of this `mode` may not open one that stood there. Raises OSError where the file cannot
        be opened, or is a link."""
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            if not mode & 0o077 and os.fstat(fd).st_mode & 0o077:
                os.fchmod(fd, mode)
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return cls(fd)

    @staticmethod
    def is_taken(path: Path) -> bool:
        """Whether a process has the lock; makes no file."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def release(self) -> None:
        """Give up this process's share; does nothing the second time."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class TemporaryFolder:
    """A folder for as long as this object, or its process, is there. One that a killed process left
    goes when its user makes the next."""

    def __init__(self, kind: str) -> None:
        """`kind` begins the names of all that are swept together."""
        kind = f"{kind}-{os.getuid()}-"
        for left in Path(tempfile.gettempdir()).glob(f"{kind}*"):
            with suppress(OSError), FileLock.take(left, flags=FOLDER) or nullcontext() as lock:
                if lock and os.fstat(lock.fd).st_uid == os.getuid():
                    shutil.rmtree(left)
        made = Path(tempfile.mkdtemp(prefix=f".{kind}"))
        lock = FileLock.take(made, flags=FOLDER)
        self.path = made.rename(made.with_name(made.name[1:]))  # nobody sees it without its lock
        self.close = weakref.finalize(self, _remove, self.path, lock)
        """Removes it; does nothing the second time."""


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()
