"""Words and claims of an exhibit, in a TOML file beside its class.

``harmony/fig8.toml`` has the title, the claim, how it is tested and at which sizes, the columns of
its table, and its claims as rows (`claims.py`). Its fields are class variables of the class
(`base.Exhibit`); what a system's exhibits share lies in the file beside their base class. The
notebook of the exhibit, its chapter of the report and the pages of docs/ are made from them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, ClassVar, TypedDict, get_args, get_origin, get_type_hints

from workbench.core.schema import read_as
from workbench.exhibits.claim_rows import Claim


def read_words(path: Path, exhibit: type) -> dict[str, Any]:
    """The class variables of `exhibit` that the file has, lines within a paragraph joined. Raises
    ValueError, one sentence, for a field that is none or that is of another type."""
    told, hints = tomllib.loads(path.read_text()), get_type_hints(exhibit)
    known = {n: get_args(hint)[0] for n, hint in hints.items() if get_origin(hint) is ClassVar}
    if unknown := sorted(told.keys() - known.keys()):
        names = ", ".join(sorted(known))
        raise ValueError(f"{path.name}: unknown field {unknown[0]!r}; known: {names}")
    fields = TypedDict("fields", {name: known[name] for name in told})
    found = read_as(fields, told, path.name)
    return {name: joined(own) if isinstance(own, str) else own for name, own in found.items()}


def read_claims(path: Path) -> list[Claim]:
    """The claims that an exhibit's file has."""
    return read_as(list[Claim], tomllib.loads(path.read_text())["claims"], path.name)


def joined(text: str) -> str:
    """Paragraphs, each a line.

    >>> joined("one\\ntwo\\n\\nthree\\n")
    'one two\\n\\nthree'
    """
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))
