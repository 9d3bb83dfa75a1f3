"""Fixtures for every test, and the reasons why a test cannot run here.

A test that needs something this machine lacks carries a marker and is skipped with the reason; it
never passes by doing nothing. Workers of one run share the machine, and so does whatever else runs
there: no test asks how long anything takes. `make bench` does, in the same places.
"""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.forks.server import command, fork, shared
from workbench.core.spec import RunSpec
from workbench.profile.store import wires_for
from workbench.profile.timing import BRIEF

pytest_plugins = ["tests.processor_seconds"]
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def reference() -> Path:
    """Published numbers and logs kept beside the checkout, where there are any."""
    folder = ROOT.parent / "shared" / "reference"
    if not folder.is_dir():
        pytest.skip(f"the reference data is not there: {folder}")
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_device_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of tests do not wait for what else runs on this machine, nor that for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_PLACES", str(tmp_path_factory.mktemp("places")))
        yield


@pytest.fixture(scope="session", autouse=True)
def heard_interrupts() -> None:
    """Programs that tests start hear Ctrl-C, also where a shell started the tests in its
    background, where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def brief_timings() -> Iterator[None]:
    """Runs of tests measure what their layers cost as every run does, and take a moment for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BRIEF, "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Models of tests are tiny, and torch's threads wait for each other: up to a hundred times
    longer than one takes alone, where another process wants the cores as well."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def examined(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Measurements and words of `workbench doctor` on this machine's cores, and its results
    folder."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    results, told = base / "examined", base / "examined.json"
    with (base / "examined.lock").open("w") as door:  # one worker examines for all
        fcntl.flock(door, fcntl.LOCK_EX)
        if not told.exists():
            words = ("doctor", "--json", "--quick", "--device", "cpu", "--results", str(results))
            asked = command("workbench.cli", *words)
            done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            told.write_text(done.stdout)
    return SimpleNamespace(results=results, told=json.loads(told.read_text()))


@pytest.fixture(scope="session")
def measured(examined: SimpleNamespace) -> Path:
    """A results folder's measurements of this machine, and of the links of two ranks.

    Copied into another one, they spare the first run there a quarter of a minute, for tests that
    are about something else.
    """
    with pytest.MonkeyPatch.context() as patch:
        fork(patch)
        wires_for(RunSpec(method="harmony-pp", ranks=2, device="cpu"), examined.results)
    return examined.results / "profiles"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of runs are forked (tests/forks/server.py)."""
    fork(monkeypatch)


class Unasked:
    """Nobody wants to know how long anything takes."""

    asked = False

    def __call__(self, question: str, goal_s: float, clock: str = "") -> AbstractContextManager:
        return nullcontext()

    def enter(self, question: str, goal_s: float, seconds: float) -> None: ...


@pytest.fixture(scope="session")
def answered(request: pytest.FixtureRequest) -> Unasked:
    """`with answered("what is done", 3):` is timed by benchmarks/answers.py, and by no test."""
    return getattr(request.config, "answers", Unasked())


@pytest.fixture(scope="module", autouse=True)
def own_heap() -> None:
    """The garbage collector passes over all tests, what they import and what those before left: a
    million objects and more, which whoever has a process of their own does not have, and through
    which it goes for longer than many a test takes."""
    gc.collect()
    gc.freeze()


@cache
def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "torch sees no CUDA device"


@cache
def _no_browser() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    found = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return None if found else "no Chromium on the PATH"


@cache
def _no_deepspeed() -> str | None:
    from baselines import deepspeed_ops

    reason = deepspeed_ops.why_not("cpu_adam")
    if reason is not None:
        return reason
    absent = deepspeed_ops.missing(deepspeed_ops.required())
    return f"operators not built: {', '.join(absent)}; run `make setup`" if absent else None


UNAVAILABLE: dict[str, Callable[[], str | None]] = {
    "gpu": _no_gpu,
    "browser": _no_browser,
    "deepspeed": _no_deepspeed,
}


def pytest_configure(config: pytest.Config) -> None:
    """All workers of a run of tests have one server that forks for them. Nobody looks for garbage
    while modules are imported and tests are made, which stay."""
    gc.disable()
    if not hasattr(config, "workerinput"):
        forks = ExitStack()
        forks.enter_context(shared())
        config.add_cleanup(forks.close)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="run what asks more of the same, too")


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip with a reason. Files with slow tests come first, so that no worker is left with one when
    the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    thorough = config.getoption("--thorough")
    for item in items:
        if item.get_closest_marker("thorough") and not thorough:
            item.add_marker(pytest.mark.skip(reason="half of a grid, or long: `make thorough`"))
        for marker, unavailable in UNAVAILABLE.items():
            if item.get_closest_marker(marker) and (reason := unavailable()):
                item.add_marker(pytest.mark.skip(reason=reason))
