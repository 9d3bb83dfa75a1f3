"""The published profiles, read once; tests that want them skip where they are not."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from workbench.methods.harmony.published.profile_file import load
from workbench.methods.harmony.published.profiles import PublishedProfile


@pytest.fixture(scope="session")
def published(reference: Path) -> Path:
    """The folder of the artifact's profiles and estimates."""
    folder = reference / "harmony"
    if not folder.is_dir():
        pytest.skip(f"the artifact's profiles are not there: {folder}")
    return folder


@pytest.fixture(scope="session")
def profile_of(published: Path) -> Callable[[str], PublishedProfile]:
    return cache(lambda name: load(published / f"profile_{name}.json"))


@pytest.fixture(scope="session")
def rows_of(published: Path) -> Callable[[str], list[dict[str, str]]]:
    def rows(name: str) -> list[dict[str, str]]:
        with (published / name).open(newline="") as file:
            return list(csv.DictReader(file))

    return rows
