"""How the notebooks of exhibits ended, kept beside their report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workbench.core.readable import format_seconds
from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed, write_sealed
from workbench.model.corpus import STDLIB
from workbench.report.page import Html, tag
from workbench.runs.store import Store, set_aside

OUTCOMES = "exhibits.json"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the notebook of an exhibit ended."""

    ok: bool
    message: str
    """Why it failed; empty when it did not."""
    seconds: float
    started: str
    """ISO 8601, UTC."""
    notebook: str
    """File name of the executed notebook, beside the report."""
    text: str = STDLIB
    """Text that it trained on, where that can be chosen."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Parameters that were given in place of the size's."""

    @property
    def when(self) -> str:
        """Day and minute it was started, UTC."""
        return self.started[:16].replace("T", " ")


def folder_of(store: Store, size: str) -> Path:
    """Where the report of a size lies, with its figures, tables and notebooks."""
    return store.root / "reports" / size


def load_outcomes(store: Store, size: str) -> dict[str, Outcome]:
    """How the exhibits of a size ended when they were last run; {} when none was, and where the
    file does not fit, which `Store.problems` then says."""
    path = folder_of(store, size) / OUTCOMES
    store.problems.pop(path, None)
    try:
        return read_as(dict[str, Outcome], read_sealed(path, "it"), "it")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        store.problems[path] = str(error)
        return {}


def save_outcomes(store: Store, size: str, outcomes: dict[str, Outcome]) -> None:
    """Keep them for `workbench report`. Raises StoreError where that cannot be written."""
    folder = folder_of(store, size)
    data = {figure: asdict(outcome) for figure, outcome in outcomes.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder / OUTCOMES in store.problems:
            set_aside(folder / OUTCOMES)
        write_sealed(folder / OUTCOMES, data)
    except OSError as error:
        raise store.unusable(error) from error


def how_it_ended(outcome: Outcome | None, where_none: str) -> Html:
    """A paragraph of when it ran, or why not to its end; `where_none` if nobody ran it."""
    if outcome is None:
        return tag("p", where_none, class_="soft")
    if not outcome.ok:
        return tag("p", f"It did not run to its end: {outcome.message}", class_="warn")
    took = format_seconds(outcome.seconds)
    words = f"Run {outcome.when} UTC in {took}; notebook {outcome.notebook}."
    return tag("p", words, class_="soft")
