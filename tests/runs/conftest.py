"""A method that misbehaves on demand, and a store in which nothing may stay behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.helpers import HANG_S, HERE, store_at
from workbench.core import methods
from workbench.runs import campaign as campaigns
from workbench.runs.store import Store


@pytest.fixture(autouse=True)
def fake_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method ``fake`` stands in the table, where workers learn the module to import; so it does
    for a sweep's process, which a busy machine may take long to start."""
    fake = methods.Method(name="fake", label="Fake", module="fake_method", summary="tests")
    monkeypatch.setitem(methods.METHODS, "fake", fake)
    monkeypatch.setattr(methods, "code_version", lambda name: "code")
    monkeypatch.syspath_prepend(HERE)
    driver = (sys.executable, str(HERE / "sweep_process_driver.py"))
    monkeypatch.setattr(campaigns, "COMMAND", driver)
    monkeypatch.setattr(campaigns, "START_S", HANG_S)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    yield from store_at(tmp_path / "results")
