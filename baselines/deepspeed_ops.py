"""DeepSpeed's native operators, built once, visibly, into the environment.

DeepSpeed compiles its C++ operators the first time a run wants one. Left alone, that puts one to
four silent minutes of compiling inside a measured run, in a cache folder shared by every project of
the user, and a run killed meanwhile leaves a lock file behind that makes every later run wait for
ever. So here

* `build` compiles them ahead of any run, several at once, and says what it is doing;
* they live in a folder of this Python environment, named after everything that the machine code
  depends on (torch, DeepSpeed, Python, processor, accelerator): an upgrade or a move to another
  processor finds them missing, never stale;
* `activate`, which a worker calls before it imports DeepSpeed, points DeepSpeed at that folder and
  removes the locks whose builder is gone.

`python -m baselines.deepspeed_ops` builds what is missing; `scripts/setup.py` does the same.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from baselines.deepspeed_compile import RECIPE, compile_quickly
from baselines.processor import keep_the_processors_name, processor

READY = "ready"
"""File that says an operator was compiled and loaded; its library alone may be half linked."""

GIB_PER_COMPILER = 1.5
"""Peak memory of one compiler process on a source that includes torch's headers."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One native operator of DeepSpeed."""

    builder: str
    """DeepSpeed's class that compiles it."""
    wanted_by: str
    """Part of this project that does not run without it."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    """Accelerators on which DeepSpeed asks for it."""
    disk: bool = False
    """Whether only the disk tier wants it, through libaio."""


OPS: dict[str, Op] = {
    "deepspeed_shm_comm": Op(
        builder="ShareMemCommBuilder",
        wanted_by="every DeepSpeed run without a GPU (collectives in shared memory)",
        devices=("cpu",),
    ),
    "cpu_adam": Op(builder="CPUAdamBuilder", wanted_by="ZeRO-Offload, ZeRO-Infinity (host AdamW)"),
    "async_io": Op(builder="AsyncIOBuilder", wanted_by="ZeRO-Infinity's disk tier", disk=True),
}
"""Operators that the baselines use, by DeepSpeed's names. async_io brings DeepSpeed's pin_memory
along, which pinned host memory alone does not need."""

LIBAIO_HINT = "install libaio-dev (Debian, Ubuntu), libaio-devel (Fedora) or libaio (conda)"


def default_device() -> str:
    """`cuda` where torch can use a GPU, else `cpu`: DeepSpeed's own choice of accelerator."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def extensions_dir(device: str | None = None) -> Path:
    """Folder that holds the compiled operators of this environment on this processor."""
    device = device or default_device()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "deepspeed")}
    tag = "-".join(
        (
            f"torch{versions['torch']}",
            f"deepspeed{versions['deepspeed']}",
            f"py{sys.version_info.major}{sys.version_info.minor}",
            device,
            processor(),
            RECIPE,
        )
    )
    return Path(sys.prefix) / "share" / "workbench" / "torch_extensions" / tag


def required(*, disk: bool = False, offload: bool = True, device: str | None = None) -> list[str]:
    """Operators that a DeepSpeed run needs; `disk` adds those of the disk tier, without `offload`
    nothing is updated on the host."""
    device = device or default_device()
    wanted = [name for name, op in OPS.items() if device in op.devices and (disk or not op.disk)]
    return [name for name in wanted if offload or name != "cpu_adam"]


def missing(ops: Iterable[str] | None = None, device: str | None = None) -> list[str]:
    """Operators of `ops` (default: all that this device uses) that are not built yet."""
    folder = extensions_dir(device)
    names = required(disk=True, device=device) if ops is None else ops
    return [name for name in names if not (folder / name / READY).is_file()]


def why_not(name: str) -> str | None:
    """Why operator `name` cannot be built on this machine, in one sentence; None if it can."""
    if name not in OPS:
        raise ValueError(f"unknown DeepSpeed operator {name!r}: choose from {', '.join(OPS)}")
    if importlib.util.find_spec("deepspeed") is None:
        return "DeepSpeed is not installed: `make setup` installs it"
    if compiler() is None:
        return "no C++ compiler was found (c++, g++ or clang++ on the PATH)"
    if OPS[name].disk and not has_libaio():
        return f"libaio was not found: {LIBAIO_HINT}, then run `make setup`"
    return None


def compiler() -> str | None:
    """The C++ compiler that torch would call, or None."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["c++", "g++", "clang++"]
    return next((path for path in map(shutil.which, candidates) if path), None)


def has_libaio() -> bool:
    """Whether a program that calls libaio compiles and links here."""
    cxx = compiler()
    if cxx is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text("#include <libaio.h>\nint main() { return io_destroy(nullptr); }\n")
        command = [cxx, str(source), "-laio", "-o", str(Path(folder) / "probe")]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def activate(device: str | None = None) -> Path:
    """Make DeepSpeed use the operators of this environment; return their folder.

    Call it in the process that runs DeepSpeed, before importing it. It sets DeepSpeed's accelerator
    and torch's extension folder, puts this environment's ninja on the PATH (torch asks for it even
    when there is nothing left to build), and clears locks whose builder is gone.
    """
    device = device or default_device()
    folder = extensions_dir(device)
    os.environ["DS_ACCELERATOR"] = device
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    if device == "cuda":
        # For the GPUs that are here; and DeepSpeed cannot read the "9.0a" that some images list.
        os.environ["TORCH_CUDA_ARCH_LIST"] = _capabilities()
    scripts = str(Path(sys.prefix) / "bin")
    others = [p for p in os.environ.get("PATH", "").split(os.pathsep) if p and p != scripts]
    # First, so that the same ninja answers as when the operators were built: another rebuilds them.
    os.environ["PATH"] = os.pathsep.join([scripts, *others])
    clear_stale_locks(folder)
    compile_quickly()
    keep_the_processors_name(folder)
    return folder


def _capabilities() -> str:
    """Compute capabilities of this machine's GPUs, as TORCH_CUDA_ARCH_LIST has them."""
    import torch

    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ";".join(f"{major}.{minor}" for major, minor in sorted(found))


def clear_stale_locks(folder: Path) -> list[Path]:
    """Remove the locks below `folder` that no living process holds; return them.

    torch's lock is a file that its owner creates and keeps open while it builds, and that everybody
    else waits for, without limit, to disappear. A lock that no process has open therefore has no
    owner any more.
    """
    locks = [path for path in folder.glob("*/lock") if path.stat().st_uid == os.getuid()]
    if not locks:
        return []
    held = _open_files()
    stale = [path for path in locks if path.resolve() not in held]
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def build(
    ops: Sequence[str] | None = None,
    echo: Callable[[str], None] = print,
    device: str | None = None,
) -> list[str]:
    """Compile what is missing of `ops`, all at once; return the names that are still missing.

    `echo` gets a line when each starts and ends. An operator that cannot be built is reported with
    its reason and does not stop the others.
    """
    device = device or default_device()
    wanted = missing(ops, device)
    buildable = []
    for name in wanted:
        reason = why_not(name)
        if reason is None:
            buildable.append(name)
        else:
            echo(f"skip {name}, wanted by {OPS[name].wanted_by}: {reason}.")
    if not buildable:
        return wanted
    folder = extensions_dir(device)
    clear_stale_locks(folder)
    jobs = _compilers_at_once(len(buildable))
    command = [sys.executable, "-m", "baselines.deepspeed_ops", "--device", device, "--compile"]
    processes = {}
    started_s = time.monotonic()
    for name in buildable:
        (folder / name).mkdir(parents=True, exist_ok=True)
        echo(f"compiling {name}, wanted by {OPS[name].wanted_by}")
        with (folder / name / "build.log").open("w") as log:
            processes[name] = subprocess.Popen(
                [*command, name],
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "MAX_JOBS": str(jobs)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
    try:
        _wait(processes, folder, started_s, echo)
    finally:
        for process in processes.values():
            _end(process)
    return missing(wanted, device)


def _wait(
    processes: dict[str, subprocess.Popen[bytes]],
    folder: Path,
    started_s: float,
    echo: Callable[[str], None],
) -> None:
    """Report each builder as it ends."""
    running = dict(processes)
    while running:
        time.sleep(0.2)
        for name in [name for name, process in running.items() if process.poll() is not None]:
            code = running.pop(name).returncode
            seconds = time.monotonic() - started_s
            if code == 0:
                echo(f"built {name} after {seconds:.0f} s")
            else:
                log = folder / name / "build.log"
                echo(f"could not build {name} (exit code {code} after {seconds:.0f} s): see {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a builder and its compilers, which stay in our process group to end with it too."""
    import psutil

    if process.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid)
        for member in (family, *family.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate()
    process.wait()


def _compile(name: str, device: str) -> None:
    """Compile and load one operator in this process, and mark it ready."""
    folder = activate(device)
    from deepspeed.accelerator import get_accelerator

    get_accelerator().create_op_builder(OPS[name].builder).load()
    (folder / name / READY).touch()


def _compilers_at_once(builders: int) -> int:
    """Compiler processes for each of `builders`: as many as cores, if memory allows."""
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    fitting = int(memory_gib / (GIB_PER_COMPILER * builders))
    return max(1, min(os.cpu_count() or 1, fitting))


def _open_files() -> set[Path]:
    """Files that any process we may look into has open."""
    import psutil

    files = set()
    for process in psutil.process_iter():
        try:
            files.update(Path(entry.path) for entry in process.open_files())
        except (psutil.Error, OSError):
            continue
    return files


def main(argv: Sequence[str] | None = None) -> int:
    """Build what is missing; exit with 1 if one failed that this machine ought to build."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: what torch finds")
    parser.add_argument("--compile", choices=OPS, metavar="OP", help="just one, here")
    options = parser.parse_args(argv)
    if options.compile:
        _compile(options.compile, options.device or default_device())
        return 0
    return int(any(why_not(name) is None for name in build(device=options.device)))


if __name__ == "__main__":
    sys.exit(main())
