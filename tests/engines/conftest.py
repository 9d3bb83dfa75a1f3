"""A results folder of real runs, in which nothing may stay behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.helpers import left_behind
from workbench.runs.store import Store


@pytest.fixture
def store(tmp_path: Path, measured: Path) -> Iterator[Store]:
    store = Store(tmp_path / "results")
    shutil.copytree(measured, store.root / "profiles")
    yield store
    assert left_behind(store.root) == []
