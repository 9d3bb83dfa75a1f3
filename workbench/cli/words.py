"""Words of a command line that are no flags, and its answers: exit codes and complaints."""

from __future__ import annotations

import sys
from typing import Any

from workbench.core.jsonfile import parse_json

OK, BAD_INPUT, NOT_OK, INTERRUPTED = 0, 2, 3, 130


def parse_parameter(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` with the value as JSON where it is JSON, else as text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not a parameter; write KEY=VALUE")
    try:
        return name, parse_json(value, name)
    except ValueError:
        return name, value


def complain(sentence: str) -> None:
    """Tell people on standard error."""
    print(f"workbench: {sentence}", file=sys.stderr, flush=True)
