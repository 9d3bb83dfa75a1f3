"""A text of the user's in figures 13 and 21, in place of the small one that every machine has.

The paper fine-tunes on MRPC and trains on WikiText-103, which are not this project's to pass on. A
folder in either one's format takes the place of the default. All of it is read before anything
runs, so that what is missing or malformed is one sentence and not three failed runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workbench.core.paths import user_path
from workbench.figures.exhibit import words_of
from workbench.figures.harmony.curves import DEFAULT_TEXT
from workbench.figures.harmony.sizes import HarmonySize, Trained, named
from workbench.model.corpus import STDLIB
from workbench.model.pairs import MRPC_FILES, WORDPIECE, WORDPIECE_FILE, Pairs, load_pairs
from workbench.model.text import Text
from workbench.model.wikitext import FORMS, load_wikitext

READS = {"harmony_13": "pairs", "harmony_21": "text"}
"""The exhibits that train on a text, and their models by their names in a size."""
TOKENIZER = "bytes"
"""Of the exhibits' runs, but where pairs come with a vocabulary for which the model has room: the
reduced ones have none."""
FORMATS = {
    "harmony_13": f"MRPC, with {' or '.join(MRPC_FILES['train'])}",
    "harmony_21": f"WikiText, with {' or '.join(f'wiki.train.{form}' for form in FORMS)}",
}


def trained_on(size: HarmonySize, figure: str, text: str) -> HarmonySize:
    """A size whose model of the exhibit trains on the text."""
    if text == STDLIB:
        return size
    trained = _trained(size, figure)
    changes = {"text": text}
    if tokenizer_of(trained, figure, text) != TOKENIZER:
        changes["tokenizer"] = WORDPIECE
    return replace(size, **{READS[figure]: replace(trained, changes=trained.changes | changes)})


def tokenizer_of(trained: Trained, figure: str, text: str | Path) -> str:
    """``wordpiece`` for pairs beside whose text lies a ``vocab.txt`` of no more words than the
    model has, as BERT's; else ``bytes``."""
    words = Path(text) / WORDPIECE_FILE
    if READS[figure] != "pairs" or not words.is_file():
        return TOKENIZER
    count = len(words.read_bytes().splitlines())
    return WORDPIECE if count <= trained.model.vocab else TOKENIZER


def found(figure: str, size: str, text: str, base: Path) -> str:
    """Where the text lies, a relative path from `base` on. Raises ValueError, one sentence, for an
    exhibit that reads none, and for a folder that is missing or not of the exhibit's format."""
    if text == STDLIB:
        return text
    if figure not in READS:
        raise ValueError(
            f"{words_of(figure)} trains on no text of your own; {' and '.join(READS)} do"
        )
    folder = (base / user_path(text)).resolve()
    wanted = f"{words_of(figure)} reads a folder in the format of {FORMATS[figure]}"
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}; {wanted}")
    try:
        _read(figure, _trained(named(size), figure), folder)
    except ValueError as error:
        raise ValueError(f"{error}; {wanted}") from None
    return str(folder)


def described(size: HarmonySize, figure: str, text: str) -> str:
    """What the exhibit trains on, for its provenance: the name, the folder, and the digest of what
    lies there now."""
    if text == STDLIB:
        return DEFAULT_TEXT
    try:
        data = _read(figure, _trained(size, figure), Path(text))
    except ValueError as error:
        return f"{text}, which cannot be read now: {error}"
    return f"{data.name} in {text}, SHA-256 {data.digest[:12]}"


def _trained(size: HarmonySize, figure: str) -> Trained:
    return getattr(size, READS[figure])


def _read(figure: str, trained: Trained, folder: Path) -> Pairs | Text:
    shape = {"vocab": trained.model.vocab, "seq": trained.model.seq}
    if READS[figure] == "pairs":
        return load_pairs(folder, tokenizer_of(trained, figure, folder), seed=0, **shape)
    return load_wikitext(folder, TOKENIZER, **shape)
