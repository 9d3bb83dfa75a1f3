"""Helpers of the process tests: specs for the fake method, and looks at processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from workbench.core.spec import RunSpec
from workbench.runs.campaign import Campaign
from workbench.runs.overrides import make_spec
from workbench.runs.processes import MARK
from workbench.runs.store import Store

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HANG_S = 240.0
"""Ends a test that hangs, and asks nothing: it is far longer than anything takes that ends."""


def fake_spec(text: str, **changes: object) -> RunSpec:
    """A run of the fake method that does what `text` says."""
    return make_spec({"method": "fake", "layers": 4, "steps": 3, "text": text, **changes})


def sweep_of(
    store: Store, name: str = "mine", *, text: str, seeds: int, **more: object
) -> Campaign:
    """A sweep of the fake method, a run for each seed."""
    base = {"method": "fake", "text": text, "steps": 5, **more}
    grid = {} if "seed" in more else {"seed": list(range(seeds))}
    return Campaign.create(store, {"name": name, "base": base, "grid": grid})


def store_at(root: Path) -> Iterator[Store]:
    """A results folder for a test; at the end no process that belongs to it is alive."""
    store = Store(root)
    yield store
    for campaign in Campaign.all(store):
        if campaign.alive:
            campaign.cancel()
            wait_for(lambda campaign=campaign: not campaign.alive)
    assert left_behind(root) == []


def processes_of(root: Path) -> list[psutil.Process]:
    """Every living process of any run in the results folder, by the mark it inherited."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = environment(process).get(MARK, "")
            if mark.startswith(str(root)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def environment(process: psutil.Process) -> dict[str, str]:
    """Of a process; there is none for a moment, while the system loads its program."""
    for _ in range(50):
        if (found := process.environ()) or not process.memory_info().vms:
            break
        time.sleep(0.002)
    return found


def connections(process: psutil.Process) -> list:
    """Of a process, which may have ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return process.net_connections(kind="inet")
    return []


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes that still run. A zombie is one that its parent has not waited for yet; it may go,
    and any other end, between two questions."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def role(name: str, root: Path) -> list[psutil.Process]:
    """The guards or the workers among them that were there at one time: a look takes a while, in
    which one may end and the next begin."""
    found = []
    for process in processes_of(root):
        with suppress(psutil.Error):  # it ended meanwhile
            if f"workbench.runs.{name}" in process.cmdline():
                found.append(process)
    return living(found)


def left_behind(root: Path, *, patience_s: float = HANG_S) -> list[str]:
    """Command lines of what does not end; with a patience of 0, of what is alive now."""
    deadline = time.monotonic() + patience_s
    pause = pauses()
    while (alive := processes_of(root)) and time.monotonic() < deadline:
        next(pause)
    return [str(process) for process in alive]


def workbench(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """The command line, as a user starts it."""
    command = [sys.executable, "-m", "workbench.cli", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def start_driver(*words: str | Path) -> subprocess.Popen[bytes]:
    """A command line that knows the fake method (driver.py), running in the background."""
    command = [sys.executable, str(HERE / "driver.py"), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def pauses() -> Iterator[None]:
    """Sleeps between looks, each a few times as long as the thread has worked since the last one:
    who is waited for needs the processor."""
    while True:
        began = time.thread_time()
        yield
        time.sleep(max(0.01, 4 * (time.thread_time() - began)))


def wait_for(condition: Callable[[], object], patience_s: float = HANG_S) -> object:
    deadline, pause = time.monotonic() + patience_s, pauses()
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        next(pause)
    return value


STARTER = """
import sys
from pathlib import Path
from workbench.runs import campaign
campaign.COMMAND = (sys.executable, sys.argv[1])
mine = campaign.Campaign(campaign.Store(sys.argv[2]), "mine")
mine.start(detached=sys.argv[3] == "detached")
print(mine.status().state, flush=True)
sys.stdin.read()
"""


def kernel_with(store: Store, how: str) -> subprocess.Popen:
    """What a notebook's kernel is to the sweep `mine`, which it has started."""
    words = [str(HERE / "sweep_process_driver.py"), str(store.root), how]
    kernel = subprocess.Popen(
        [sys.executable, "-c", STARTER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}, text=True,
    )  # fmt: skip
    assert kernel.stdout.readline().strip() in ("running", "waiting")
    return kernel


def end_kernel(kernel: subprocess.Popen) -> None:
    kernel.kill()
    kernel.wait(HANG_S)
    kernel.stdin.close()
    kernel.stdout.close()


def at_once(*calls: Callable[[], object]) -> None:
    """Make each call in a thread of its own, and wait until all are done."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
