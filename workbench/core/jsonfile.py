"""Reads JSON that people, pages and other programs wrote; whatever is wrong is one ValueError.

Python's own parser lets four things pass that would surprise somebody later: a key that stands
twice in one object (the last one wins), ``NaN`` and ``Infinity``, text that no file can hold (half
of a surrogate pair), and numbers too large for a float, which become infinite. It also ends in
errors of its own for brackets nested too deep and for numbers of thousands of digits.

Numbers are looked at one by one only where the text holds one that may be too large: thousands of
records are read at once.

    >>> parse_json('{"lr": 1, "lr": 2}', "the sweep")
    Traceback (most recent call last):
    ...
    ValueError: the sweep is not JSON: the key 'lr' stands twice in one object
"""

from __future__ import annotations

import json
import re
from math import isfinite
from pathlib import Path
from typing import Any

from workbench.core.files import read_whole

_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
"""Numbers as their shape: ``1.5E+12`` is ``0.0e00``, without its sign."""

_EXPONENT = re.compile(b"e000")
"""Has three digits; bytes would be searched slower, for there are many zeros."""


def parse_json(text: str | bytes, where: str, *, any_text: bool = False) -> Any:
    """The value that `text` holds. `where` names the document in errors: ``the sweep a.json``.

    `any_text` lets halves of surrogate pairs pass: our own files hold names of other files, which
    may be any bytes.
    """
    try:
        raw = text if isinstance(text, bytes) else text.encode(errors="replace")
        shape = raw.translate(_SHAPE, b"+")
        large = b"0" * 300 in shape or _EXPONENT.search(shape)
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")  # editors of some systems begin a file with a mark
        value = json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=_finite if large else None,
            parse_int=_whole if large else None,
            object_pairs_hook=_unique,
        )
        if not any_text and ("\\ud" in text or "\\uD" in text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(f"{where} is not JSON: its brackets are nested too deep") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not JSON: byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError(f"{where} is not JSON: it holds half of a surrogate pair") from None
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    return value


def read_json(path: Path, where: str, *, any_text: bool = False) -> Any:
    """The value that a file holds. Raises FileNotFoundError where there is none, and ValueError
    where the file cannot be read or holds no JSON."""
    return parse_json(read_whole(path, where), where, any_text=any_text)


def read_object(path: Path, where: str) -> dict[str, Any]:
    """Read the one object that a file holds. Raises as `read_json` does."""
    value = read_json(path, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object")
    return value


def _no_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError(f"{_short(digits)} is too large for a number")
    return value


def _whole(digits: str) -> int:
    if len(digits) > 400:  # beyond any float, and soon beyond what Python converts
        raise ValueError(f"{_short(digits)} is too large for a number")
    return int(digits)


def _short(digits: str) -> str:
    return digits if len(digits) < 30 else f"a number of {len(digits)} digits"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found
