"""A tiny Llama in a folder, its tokenizer, and rows: all that fine-tuning needs, with no download.

The rows ask what a function of Python's standard library is called that does what its docstring
says. The weights are random, so what is learned in a minute is what such names look like.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from workbench.core.paths import user_path
from workbench.model.answers import FUNCTION
from workbench.model.corpus import read_corpus
from workbench.model.tokenize import BPE
from workbench.model.tokenizer_folder import FILE
from workbench.model.weights.drawn import write_random

ROWS, HELD_OUT, LETTERS, TOKENS = 480, 48, 60, 480
END = "<|end|>"
CONFIG = {
    "model_type": "llama", "vocab_size": TOKENS + 32, "num_hidden_layers": 4, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "bos_token_id": None,
    "eos_token_id": TOKENS, "pad_token_id": TOKENS,
}  # fmt: skip
SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}


class Trial(NamedTuple):
    """Paths that a run takes."""

    model: str
    """A folder of a model and its tokenizer."""
    rows: str
    """Rows of prompts and completions."""
    held: str
    """Others of the kind, to be held out."""


def make_trial(folder: str | Path) -> Trial:
    """What lies in a folder for trials, made there unless it is there. Raises OSError for a disk
    that refuses."""
    place = user_path(folder).resolve()
    made = Trial(*(str(place / name) for name in ("model", "rows.jsonl", "held.jsonl")))
    if (place / "model" / FILE).is_file():
        return made
    place.mkdir(parents=True, exist_ok=True)
    text = read_corpus().data.decode()
    found = {" ".join(told.split())[:LETTERS]: name for name, told in FUNCTION.findall(text)}
    pairs = [*found.items()]
    held = pairs[:: max(1, len(pairs) // HELD_OUT)]
    for path, part in ((made.rows, [p for p in pairs if p not in held][:ROWS]), (made.held, held)):
        rows = [{"prompt": f"{told} ->", "completion": f" {name}"} for told, name in part]
        Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "config.json").write_text(json.dumps(CONFIG))
    if not (place / "model").is_dir():
        write_random(place, made.model)
    told = "\n".join(f"{told} -> {name}" for told, name in pairs).encode()
    inner = BPE.train("trial", TOKENS, told).inner
    inner.add_special_tokens([END])
    (place / "model" / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    inner.save(str(place / "model" / FILE))
    return made
