"""What every test may use, and why a test cannot run here.

A test that needs something this machine lacks carries a marker and is skipped with the reason; it
never passes by doing nothing.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

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
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of tests do not wait for what else runs on this machine, nor that for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_PLACES", str(tmp_path_factory.mktemp("places")))
        yield


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of measurements of a results folder, with the ceilings of this machine's cores.

    Copied into a results folder, it spares the first run there a quarter of a minute, for tests
    that are about something else. Rougher than what a run measures, since its timings are short.
    """
    import torch

    from workbench.profile.store import ceilings

    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("measured")
    ceilings(folder, "cpu", seconds=0.02)
    torch.set_num_threads(threads)
    return folder / "profiles"


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, unavailable in UNAVAILABLE.items():
            if item.get_closest_marker(marker) and (reason := unavailable()):
                item.add_marker(pytest.mark.skip(reason=reason))
