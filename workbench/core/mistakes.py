"""A user's mistakes as a notebook shows them: one sentence, and no frames of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


@contextmanager
def in_a_sentence(*, calls_users: bool = False) -> Iterator[None]:
    """A ValueError or OSError of ours is its sentence in a notebook; elsewhere it stays the error
    that it is. Where the code inside also `calls_users` functions, errors that arose in those keep
    their frames. Also a decorator."""
    try:
        yield
    except (ValueError, OSError) as error:
        if not (calls_users and _of_users(error)):
            error._render_traceback_ = [str(error)].copy  # IPython asks for it
        raise


def _of_users(error: BaseException) -> bool:
    """Whether another's code raised it, or an error that it was raised from."""
    *_, (last, _) = walk_tb(error.__traceback__)
    return error.__cause__ is not None or not last.f_code.co_filename.startswith(PACKAGE)
