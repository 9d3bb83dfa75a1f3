"""A user's mistakes as a notebook shows them: one sentence, and no frames of ours."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

_ROOT = Path(__file__).parents[2]
_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
OTHERS = tuple(f"{place}/" for place in (*_INSTALLED, _ROOT / "workbench", _ROOT / "baselines"))
"""Folders of code that is not the user's."""
MADE = "<frozen", "<eval", "<string"
"""Beginnings of names of files that are none: of code that was made while it ran."""


@contextmanager
def in_a_sentence(*, calls_users: bool = False) -> Iterator[None]:
    """A ValueError or OSError of ours is its sentence in a notebook; elsewhere it stays the error
    that it is. Where the code inside also `calls_users` functions, errors that these raise keep
    their frames. Also a decorator."""
    try:
        yield
    except (ValueError, OSError) as error:
        if not (calls_users and _of_users(error)):
            error._render_traceback_ = [str(error)].copy  # IPython asks for it
        raise


def without_prefix(error: BaseException, prefix: str, *, own: bool) -> None:
    """Have a mistake's sentence quote names as the user knows them, without a prefix of ours;
    `own`: some names of the user's begin so themselves."""
    if isinstance(error, ValueError) and error.args and isinstance(error.args[0], str):
        told = error.args[0]
        for quote in "'\"":
            told = told.replace(quote + prefix * (1 + own), quote + prefix * own)
        error.args = (told, *error.args[1:])


def line_of_users(error: BaseException | None) -> str:
    """Where in the user's own code an error arose, or one that it was raised from: file and line of
    the innermost frame, empty where there is none."""
    while error is not None:
        for frame, line in reversed([*walk_tb(error.__traceback__)]):
            name = frame.f_code.co_filename
            if not name.startswith((*OTHERS, *MADE)):
                cell = "ipykernel" in name or name.startswith("<ipython")
                return f"the cell, line {line}" if cell else f"{name}:{line}"
        error = error.__cause__
    return ""


def _of_users(error: BaseException | None) -> bool:
    """Whether the user's code raised it, or an error that it was raised from."""
    while error is not None:
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        if frames and not frames[-1].f_code.co_filename.startswith((*OTHERS, *MADE)):
            return True
        error = error.__cause__
    return False
