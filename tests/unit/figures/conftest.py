"""Fixtures of the tests of exhibits."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def nothing_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that the project has committed must not decide a test."""
    monkeypatch.setattr(
        "workbench.exhibits.opened.REPOSITORY_RESULTS", tmp_path / "none" / "results"
    )
