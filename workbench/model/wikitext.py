"""WikiText as it was published: its training text, and a look at whether a file is WikiText at all.

Merity et al., "Pointer Sentinel Mixture Models" (ICLR 2017). A folder has ``wiki.train.tokens``, or
the raw form ``wiki.train.raw``, and the parts that are held out. The text is kept as it is:
``<unk>`` and ``@-@`` of the tokens form are text like any other.
"""

from __future__ import annotations

import re
from pathlib import Path

from workbench.core.files import open_file
from workbench.model.corpus import BOM
from workbench.model.text import Text, load_text

FORMS = ("tokens", "raw")
"""Endings of the files; the first form whose training part is there is read."""
TITLE = re.compile(rb"= [^=].* =")
"""An article begins with `` = Title = ``; sections have more equals signs."""


def load_wikitext(
    folder: str | Path, tokenizer: str = "bytes", *, vocab: int, seq: int, cache: Path | None = None
) -> Text:
    """The training part of WikiText, for `text.Batches`.

    Raises ValueError, one sentence, when there is no such file, when it is no WikiText, and for all
    that `load_text` refuses.
    """
    files = (Path(folder) / f"wiki.train.{form}" for form in FORMS)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise ValueError(f"there is no wiki.train.tokens or wiki.train.raw in {str(folder)!r}")
    _check_title(file)
    return load_text(file, tokenizer, vocab=vocab, seq=seq, cache=cache)


def _check_title(path: Path) -> None:
    """Raises ValueError unless the first line that is not blank is the title of an article."""
    try:
        with open_file(path, str(path)) as file:
            lines = enumerate(file, start=1)
            number, line = next((pair for pair in lines if pair[1].strip()), (0, b""))
    except FileNotFoundError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    title = line.removeprefix(BOM).strip(b" \r\n")
    if number and not TITLE.fullmatch(title):  # reading an empty file says so
        raise ValueError(
            f"{path.name} line {number} is not WikiText: its first text must be a title "
            "as in ' = Title = '"
        )
