"""A store, filled or not, and what was parsed of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.runs.index.parts import (
    put,
    various,
)
from workbench.core.record import RunRecord
from workbench.runs import index as index_module
from workbench.runs.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def filled(store: Store) -> Store:
    for one in various():
        put(store, one)
    return store


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the records that were parsed, in that order."""
    keys: list[str] = []
    real = index_module.read_record

    def read(path: Path) -> RunRecord:
        keys.append(path.parent.name)
        return real(path)

    monkeypatch.setattr(index_module, "read_record", read)
    return keys
