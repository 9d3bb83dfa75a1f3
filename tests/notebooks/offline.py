"""Finds addresses in a report that a browser would ask: there may be none."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

LOADS = {"src", "href", "srcset", "data", "poster", "action", "formaction", "background"}


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(name)
        self.addresses += [value or "" for key, value in attributes if key in LOADS]


def outside_addresses(path: Path) -> list[str]:
    """Parts of the page that could make a browser ask another place, or run a program."""
    text = path.read_text()
    page = _Addresses()
    page.feed(text)
    found = [a for a in page.addresses if not a.startswith(("#", "data:image/svg+xml;base64,"))]
    found += [n for n in page.names if n in ("script", "link", "iframe", "object", "embed", "base")]
    return found + re.findall(r"@import[^;]*|url\([^)]*\)", text)
