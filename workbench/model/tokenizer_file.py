"""A tokenizer that somebody has trained: the ``tokenizer.json`` of a folder of Hugging Face's.

The file is data, which the tokenizers library reads; no code of the folder runs. A T5 pads with
``<pad>``, which its decoder begins with, and ends a text with ``</s>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.files import read_whole
from workbench.core.paths import user_path
from workbench.model.corpus import Corpus
from workbench.model.tokenize import Tokenizer, encoded_pieces, kept
from workbench.model.tokenizer_folder import FILE

PADDING, END = "<pad>", "</s>"


class FromFile(Tokenizer):
    """The tokens of a file."""

    def __init__(self, folder: str) -> None:
        """Raises ValueError, one sentence, for a folder without such a file, or with none."""
        path = user_path(folder) / FILE
        if not path.parent.is_dir():
            raise ValueError(f"tokenizer is {folder!r}, which is no folder; name one with a {FILE}")
        if not path.is_file():
            raise ValueError(
                f"tokenizer is {folder!r}; there is no {FILE} in it, which transformers' "
                "AutoTokenizer.from_pretrained and save_pretrained make of older files"
            )
        data = read_whole(path, str(path))
        try:
            from tokenizers import Tokenizer as Inner

            self.inner = Inner.from_str(data.decode())
        except ImportError:
            raise ValueError(
                f"{path} needs the package tokenizers, which is not installed; use 'bytes'"
            ) from None
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} is no tokenizer: {error}") from None
        self.inner.no_truncation()
        self.inner.no_padding()
        self.inner.encode_special_tokens = True  # a text that spells one is a text
        self.name, self.digest = folder, sha256(data).hexdigest()
        self.vocab = max(self.inner.get_vocab().values(), default=-1) + 1

    @property
    def words(self) -> int:
        """Special tokens do not count: no text is made of them. Gemma 3's tokenizer has one for
        pictures, for which a model of texts alone has no weights."""
        added = self.inner.get_added_tokens_decoder().items()
        special = {number for number, token in added if token.special}
        return max({*self.inner.get_vocab().values()} - special, default=-1) + 1

    def encode(self, text: bytes) -> np.ndarray:
        ids = self.inner.encode(text.decode(), add_special_tokens=False).ids
        return np.asarray(ids, dtype=np.uint32)

    def encode_whole(self, corpus: Corpus, cache: Path | None) -> np.ndarray:
        """Tokens [n] of a text of any length, kept in the cache."""
        stem = f"tokens-{self.digest[:16]}-{corpus.digest[:16]}"
        parts = encoded_pieces(self.inner, corpus.data)

        def make() -> tuple[np.ndarray, dict[str, Any]]:
            return np.concatenate([np.asarray(ids, dtype=np.uint32) for ids in parts]), {}

        return kept(cache, stem, make)[0]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.inner.decode([*tokens], skip_special_tokens=True)


class OfT5(FromFile):
    """A T5's."""

    def __init__(self, folder: str) -> None:
        """Raises ValueError, one sentence, as any does, and without a T5's special tokens."""
        super().__init__(folder)
        known = self.inner.get_vocab()
        for token in (PADDING, END):
            if token not in known:
                path = user_path(folder) / FILE
                raise ValueError(f"{path} has no token {token!r}, as a T5's has")
        self.padding, self.end = known[PADDING], known[END]
