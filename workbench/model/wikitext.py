"""WikiText by its parts: training text, and the texts that are held out.

Merity et al., "Pointer Sentinel Mixture Models" (ICLR 2017). A folder as it was published has
``wiki.train.tokens``, ``wiki.valid.tokens`` and ``wiki.test.tokens``, or the raw form of these
(``wiki.train.raw`` and so on). The training part is also what `text.load_text` reads from such a
folder; what is added here is the other parts in the training part's tokens, so that a loss on held
out text means something, and a look at whether the file is WikiText at all. The text is kept as it
is: ``<unk>`` and ``@-@`` of the tokens form are text like any other.
"""

from __future__ import annotations

import re
from pathlib import Path

from workbench.model.corpus import BOM, read_corpus
from workbench.model.text import Text, load_text

PARTS = ("train", "valid", "test")
FORMS = ("tokens", "raw")
"""Endings of the files; the first form whose training part is there is read."""
TITLE = re.compile(rb"= [^=].* =")
"""An article begins with `` = Title = ``; sections have more equals signs."""


def wikitext_files(folder: str | Path) -> dict[str, Path]:
    """Part -> file, of one form. Raises ValueError when there is no training part."""
    folder = Path(folder)
    for form in FORMS:
        if (folder / f"wiki.train.{form}").is_file():
            files = {part: folder / f"wiki.{part}.{form}" for part in PARTS}
            return {part: file for part, file in files.items() if file.is_file()}
    raise ValueError(f"there is no wiki.train.tokens or wiki.train.raw in {str(folder)!r}")


def load_wikitext(
    folder: str | Path,
    tokenizer: str = "bytes",
    *,
    part: str = "train",
    vocab: int,
    seq: int,
    cache: Path | None = None,
) -> Text:
    """A part of WikiText in the tokens of its training part, for `text.Batches`.

    Raises ValueError, one sentence, when a file is missing, is no WikiText, or is no text, and for
    all that `load_text` refuses.
    """
    files = wikitext_files(folder)
    if part not in files:
        raise ValueError(
            f"there is no part {part!r} in {str(folder)!r}; it has {', '.join(sorted(files))}"
        )
    for file in dict.fromkeys((files["train"], files[part])):
        _check_title(file)
    train = load_text(files["train"], tokenizer, vocab=vocab, seq=seq, cache=cache)
    if part == "train":
        return train
    corpus = read_corpus(files[part])
    tokens = train.tokenizer.encode(corpus.data)
    if len(tokens) <= seq:
        raise ValueError(
            f"{corpus.name} has {len(tokens)} tokens, too few for one sample of {seq}: "
            f"it takes {seq + 1}"
        )
    return Text(
        name=corpus.name,
        digest=corpus.digest,
        nbytes=len(corpus.data),
        tokenizer=train.tokenizer,
        tokens=tokens,
    )


def _check_title(path: Path) -> None:
    """Raises ValueError unless the first line that is not blank is the title of an article."""
    try:
        with path.open("rb") as file:
            lines = enumerate(file, start=1)
            number, line = next((pair for pair in lines if pair[1].strip()), (0, b""))
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror}") from None
    title = line.removeprefix(BOM).strip(b" \r\n")
    if number and not TITLE.fullmatch(title):  # reading an empty file says so
        raise ValueError(
            f"{path.name} line {number} is not WikiText: its first text must be a title "
            "as in ' = Title = '"
        )
