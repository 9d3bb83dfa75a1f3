"""Exhibits: what each shows, and the session that runs, draws and judges it."""

from __future__ import annotations

from pathlib import Path

from workbench.core.paths import user_path
from workbench.exhibits.harmony import HarmonySession
from workbench.exhibits.here import SESSIONS
from workbench.exhibits.session import Session
from workbench.figures import sizes
from workbench.figures.exhibit import HARMONY, HERE, find
from workbench.figures.harmony import own_text
from workbench.model.corpus import STDLIB
from workbench.runs.store import REPOSITORY_RESULTS, Store


def open_exhibit(
    figure: str,
    size: str = "smoke",
    results: str | Path = REPOSITORY_RESULTS,
    text: str = STDLIB,
    machine: str = "",
) -> Session:
    """The exhibit `figure` (``8a``) at a size: ``smoke``, ``small`` or ``paper``. Starts nothing.

    This project's own (``here_offload``) are the same at every size: they show what is committed.
    `results` is the folder of the run records, `text` one that Harmony's figures 13 and 21 train on
    (`own_text`); a relative one lies in the repository. `machine` is a folder in
    ``published-here`` for this project's own exhibits, else the one with most rows. Raises
    ValueError for an unknown exhibit, size, text or machine, and for ``small`` without a GPU.
    """
    repository = REPOSITORY_RESULTS.parent
    folder = repository / user_path(results)
    exhibit = find(figure)
    if text != STDLIB:
        text = own_text.found(exhibit.FIGURE, size, text, repository)
    if exhibit.FIGURE in HERE:
        return SESSIONS[exhibit.FIGURE](exhibit, sizes.named(size), Store(folder), machine)
    if exhibit.FIGURE in HARMONY:
        return HarmonySession(exhibit, size, Store(folder), text)
    return Session(exhibit, sizes.named(size), Store(folder))
