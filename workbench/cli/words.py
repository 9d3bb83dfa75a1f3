"""Words of a command line that are no flags."""

from __future__ import annotations

from typing import Any

from workbench.core.jsonfile import parse_json


def parse_parameter(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` with the value as JSON where it is JSON, else as text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not a parameter; write KEY=VALUE")
    try:
        return name, parse_json(value, name)
    except ValueError:
        return name, value
