"""A text of the user's in figures 13 and 21, in place of the small one that every machine has.

The paper fine-tunes on MRPC and trains on WikiText-103, which are not this project's to pass on. A
folder in either one's format takes the place of the default. All of it is read before anything
runs, so that a missing or malformed file is one sentence and not three failed runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workbench.exhibits.harmony.sizes import HarmonySize, Trained
from workbench.model.corpus import STDLIB
from workbench.model.pairs import WORDPIECE, WORDPIECE_FILE, Pairs, load_pairs
from workbench.model.text import Text
from workbench.model.wikitext import load_wikitext

DEFAULT_TEXT = "the sources of Python's standard library"
TOKENIZER = "bytes"
"""Tokenizer of the exhibits' runs, but where pairs come with a vocabulary for which the model has
room: the reduced ones have none."""


def trained_on(size: HarmonySize, reads: str, text: str) -> HarmonySize:
    """A size whose model `reads` (``pairs``, ``text``) trains on the text."""
    if text == STDLIB:
        return size
    trained = getattr(size, reads)
    changes = {"text": text}
    if tokenizer_of(trained, reads, text) != TOKENIZER:
        changes["tokenizer"] = WORDPIECE
    return replace(size, **{reads: replace(trained, changes=trained.changes | changes)})


def tokenizer_of(trained: Trained, reads: str, text: str | Path) -> str:
    """``wordpiece`` for pairs beside whose text lies a ``vocab.txt`` of no more words than the
    model has, as BERT's; else ``bytes``."""
    words = Path(text) / WORDPIECE_FILE
    if reads != "pairs" or not words.is_file():
        return TOKENIZER
    count = len(words.read_bytes().splitlines())
    return WORDPIECE if count <= trained.model.vocab else TOKENIZER


def check(folder: Path, reads: str, trained: Trained, wanted: str) -> None:
    """Raise ValueError, one sentence that ends with what is `wanted`, for a folder that is missing
    or not of that format."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}; {wanted}")
    try:
        _read(folder, reads, trained)
    except ValueError as error:
        raise ValueError(f"{error}; {wanted}") from None


def described(trained: Trained, reads: str, text: str) -> str:
    """The text for an exhibit's provenance: the name, the folder, and the digest of its content
    now."""
    if text == STDLIB:
        return DEFAULT_TEXT
    try:
        data = _read(Path(text), reads, trained)
    except ValueError as error:
        return f"{text}, which cannot be read now: {error}"
    return f"{data.name} in {text}, SHA-256 {data.digest[:12]}"


def _read(folder: Path, reads: str, trained: Trained) -> Pairs | Text:
    shape = {"vocab": trained.model.vocab, "seq": trained.model.seq}
    if reads == "pairs":
        return load_pairs(folder, tokenizer_of(trained, reads, folder), seed=0, **shape)
    return load_wikitext(folder, TOKENIZER, **shape)
