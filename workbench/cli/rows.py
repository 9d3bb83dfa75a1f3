"""Shows rows as a run would train on them: their tokens, those marked that are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from workbench.cli.spec import Parser
from workbench.core.paths import user_path
from workbench.core.spec import ROW_FILES, RunSpec, field_of
from workbench.model.row_files import read_rows
from workbench.model.row_tokens import FORMS, RowTokenizer, Tokens
from workbench.model.text import IGNORED
from workbench.model.tokenizer_folder import FILE as TOKENIZER

SHOWN = 3


def main(argv: Sequence[str]) -> int:
    """``workbench rows FILE``: print the first rows. Raises ValueError for a file, a tokenizer or a
    row that cannot be."""
    parser = Parser(prog="workbench rows", description=__doc__)
    about = f"rows ({', '.join(ROW_FILES)}) of {FORMS}"
    parser.add_argument("file", metavar="FILE", help=about)
    tokenizer, train_on = map(field_of, ("tokenizer", "train_on"))
    words = f"a folder with a {TOKENIZER}, or bytes (default)"
    parser.add_argument("--tokenizer", default=tokenizer.default, metavar="FOLDER", help=words)
    words = f"{train_on.about} ({train_on.takes}; default {train_on.default})"
    parser.add_argument("--train-on", default=train_on.default, metavar="ON", help=words)
    arguments = parser.parse_args(argv)
    spec = RunSpec(
        method="plain", text=arguments.file, tokenizer=arguments.tokenizer,
        train_on=arguments.train_on,
    )  # fmt: skip
    made = RowTokenizer(spec.tokenizer, spec.train_on)
    rows = [*islice(read_rows(user_path(spec.text)), SHOWN)]
    for (where, _), tokens in zip(rows, made.tokens(rows), strict=True):
        trained = int((tokens.labels != IGNORED).sum())
        print(f"{where}: {len(tokens.ids)} tokens, \u00abtrained on\u00bb are {trained}")
        print(f"  {_marked(made, tokens)}")
    return 0


def _marked(made: RowTokenizer, tokens: Tokens) -> str:
    """Tokens with a line between them, in marks if they are trained on."""
    words = []
    for token, label in zip(tokens.ids.tolist(), tokens.labels.tolist(), strict=True):
        word = made.word(token).replace("\n", "\\n")
        words.append(word if label == IGNORED else f"\u00ab{word}\u00bb")
    return "|".join(words)
