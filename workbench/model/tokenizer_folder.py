"""A tokenizer that is named by its folder: the files there that decide what tokens are.

None is read here, and numpy is not imported: each command asks, before it knows what will run.
"""

from __future__ import annotations

from pathlib import Path

from workbench.core.paths import user_path
from workbench.model.chat import SETTINGS, TEMPLATE

FILE = "tokenizer.json"
AS_BYTES = "bytes"
"""The tokenizer without files whose tokens are bytes."""


def is_folder(tokenizer: str) -> bool:
    """Whether a tokenizer is named by its folder."""
    bundled = tokenizer in ("", AS_BYTES, "wordpiece") or tokenizer.startswith("bpe:")
    return not bundled and (Path(tokenizer).name != tokenizer or user_path(tokenizer).is_dir())


def files_of(tokenizer: str) -> list[Path]:
    """Files in a tokenizer's folder that decide a row's tokens."""
    paths = (user_path(tokenizer) / name for name in (FILE, SETTINGS, TEMPLATE))
    return [path for path in paths if path.is_file()]
