"""Compile one small C++ file on this machine and load it, once per environment.

The host optimizer is bound by memory bandwidth and gains from this machine's widest vectors, so it
is built here with ``-march=native`` rather than shipped. ctypes needs no Python or torch headers,
so a build takes about a second and does not depend on their versions.

A build that is killed must leave nothing that a later run can trip over (a stale lock of the usual
extension builders hangs every later run, silently). Hence: the lock is an ``flock``, which the
kernel drops with its holder; the compiler writes to a ``.partial`` file of its own, which the next
build removes; and the finished library is renamed into place, so a file under its final name is
always whole. That name is a hash of everything that shapes the result: source, flags, compiler
version and the processor's features.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.core.files import FileLock

FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"),
    "-ffp-contract=off",  # results may not depend on which operations a compiler fuses
    *("-fno-math-errno", "-fno-trapping-math"),  # vectorise roots and selects; change no value
    # Compilers halve the widest vectors of many processors, against a slower clock that newer ones
    # no longer have.
    *(("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()),
)

BUILD_TIMEOUT_S = 120


class CannotBuild(RuntimeError):
    """This machine cannot compile the file; the message says why in one sentence."""


def load(
    source: Path,
    echo: Callable[[str], None] = lambda line: None,
    flags: tuple[str, ...] = (),
) -> ctypes.CDLL:
    """The shared library built from ``source``; ``echo`` hears what takes time.

    ``flags`` go to the compiler after the usual ones; each combination is a library of its own.

    Raises CannotBuild if there is no compiler, it fails, or no folder can be written.
    """
    compiler, version = _compiler()
    key = _key(source, version, flags)
    folder = _cache_folder()
    library = folder / f"{source.stem}-{key}.so"
    for last_try in (False, True):
        if not library.exists():
            with FileLock.take(folder / f"{source.stem}.lock", wait=True):
                if not library.exists():  # another process may have built it while this one waited
                    echo(f"compiling {source.name} with {version}")
                    _compile(compiler, source, library, flags)
                    echo(f"built {library}")
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:
            # A file that was whole when renamed but is not now (a machine that lost power): build
            # it again.
            if last_try:
                raise CannotBuild(f"{library} was built but cannot be loaded: {error}") from error
            library.unlink(missing_ok=True)
    raise AssertionError("unreachable")


def function(
    source: Path, name: str, takes: Sequence[type], gives: type
) -> Callable[..., Any] | None:
    """One function of a library, with the ctypes of its arguments and of its result; None where it
    cannot be built, for those who can do without."""
    try:
        found = load(source)[name]
    except CannotBuild:
        return None
    found.argtypes, found.restype = takes, gives
    return found


@functools.cache
def triton_works() -> bool:
    """Whether kernels written in Triton run here: it is installed, sees one kind of GPU, and can
    build what launches kernels on it. torch brings Triton where there is CUDA, but an image made
    only to run programs may lack the C compiler or Python's headers that it needs."""
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except (ImportError, RuntimeError, OSError, AssertionError, subprocess.SubprocessError):
        return False
    return True


def _compiler() -> tuple[str, str]:
    """Path and version line of the first C++ compiler found; CXX is honoured as everywhere."""
    return _first_compiler(os.environ.get("CXX"), os.environ.get("PATH"))


@functools.lru_cache(maxsize=4)
def _first_compiler(chosen: str | None, folders: str | None) -> tuple[str, str]:
    """Asks compilers for their versions, which starts a process each."""
    for name in filter(None, (chosen, "g++", "clang++", "c++")):
        if path := shutil.which(name, path=folders):
            try:
                out = subprocess.run(
                    [path, "--version"], capture_output=True, text=True, timeout=20
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if out.returncode == 0 and out.stdout:
                return path, out.stdout.splitlines()[0]
    raise CannotBuild("no C++ compiler was found (looked for $CXX, g++, clang++ and c++)")


def _key(source: Path, version: str, flags: tuple[str, ...] = ()) -> str:
    parts = [source.read_text(), version, *FLAGS, *flags, platform.machine(), _cpu_features()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _cpu_features() -> str:
    """Features of the processor, on which -march=native depends: an image built here may be started
    on another one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    found = [next((line for line in lines if line.startswith(name)), "") for name in wanted]
    return "\n".join(found)


def _cache_folder() -> Path:
    """Folder of builds, beside the environment, so that removing it removes them; otherwise the
    user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    for folder in (Path(sys.prefix) / "share" / "workbench", Path(base) / "workbench"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise CannotBuild(f"neither {sys.prefix} nor {base} can be written to")


def _compile(compiler: str, source: Path, library: Path, flags: tuple[str, ...]) -> None:
    """Only under the lock."""
    for abandoned in library.parent.glob(f"{source.stem}.*.partial"):
        abandoned.unlink(missing_ok=True)
    # A name of our own: the compiler of a killed build may have outlived it and still be writing.
    partial = library.with_name(f"{source.stem}.{os.getpid()}.partial")
    command = [compiler, *FLAGS, *flags, str(source), "-o", str(partial)]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"{compiler} did not finish: {error}") from error
    if out.returncode != 0:
        message = (out.stderr.strip().splitlines() or ["no message"])[-1]
        raise CannotBuild(f"{compiler} failed on {source.name}: {message}")
    os.replace(partial, library)
