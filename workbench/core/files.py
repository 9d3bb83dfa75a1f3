"""Files that are whole or not there, and locks that end with their holder.

A process may be killed at any instruction and a disk may be full at any byte. So a file is written
beside its place under a name of the writing thread's own, forced to the disk, and renamed; and a
lock is the kernel's (``flock``), which no killed process leaves behind.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Self

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path to write a new file to, which takes the place of `path` at the end of the
    block. Where the block or the disk fails, `path` stays as it was. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        yield part
        flush(part)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Put a file in its place, whole or not at all, with `mode` less the umask whatever was there
    before; a link there is replaced, not followed. Raises OSError."""
    with replacing(path) as part:
        part.unlink(missing_ok=True)
        new = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(new, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)


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
        """The lock; without `wait`, None while another process has it. Raises OSError where the
        file cannot be opened."""
        fd = os.open(path, flags | os.O_CLOEXEC, mode)
        try:
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
