"""A results folder of real runs, in which nothing may stay behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.helpers import left_behind
from workbench.runs.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "results")
    yield store
    assert left_behind(store.root, patience_s=5) == []
