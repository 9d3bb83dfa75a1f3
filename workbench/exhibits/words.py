"""Words and claims of an exhibit, in a TOML file beside its class.

``harmony/fig8.toml`` has the title, the claim, how it is tested and at which sizes, the columns of
its table, and its claims as rows (`claims.py`). The class `Exhibit` beside it has these as fields;
the notebook of the exhibit, its chapter of the report and the pages of docs/ are made from them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.core.schema import read_as
from workbench.exhibits.claim_rows import Claim


@dataclass(frozen=True, kw_only=True)
class Words:
    """Fields of an exhibit that are no code."""

    figure: str
    title: str
    subject: str = ""
    """In the notebook's heading, where that is not the title."""
    section: str = ""
    claim: str
    tested: str
    """How, in paragraphs."""
    small_print: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    takes: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    sizes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Size -> what runs, and how long it takes."""
    columns: dict[str, str] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    about: str = ""
    """Where its numbers are from, if nothing runs."""
    link: str = ""
    judgement: str = ""
    counted: str = ""


def read_words(path: Path) -> dict[str, Any]:
    """The fields that the file has, lines within a paragraph joined. Raises ValueError, one
    sentence, for a field that no exhibit has or that is of another type."""
    told = tomllib.loads(path.read_text())
    words = read_as(Words, told, path.name)
    found = {name: getattr(words, name) for name in told}
    texts = {"claim", "tested", "small_print"} & told.keys()
    return found | {name: joined(found[name]) for name in texts}


def read_claims(path: Path) -> list[Claim]:
    """The claims that an exhibit's file has."""
    return read_words(path).get("claims", [])


def joined(text: str) -> str:
    """Paragraphs, each a line.

    >>> joined("one\\ntwo\\n\\nthree\\n")
    'one two\\n\\nthree'
    """
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))
