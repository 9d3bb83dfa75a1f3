"""A Hugging Face configuration as a file: read, and seen to be one, without torch."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from workbench.core.jsonfile import parse_json
from workbench.core.paths import user_path


def read_config_file(path: str | Path) -> tuple[Path, dict[str, Any], str]:
    """The file (of a folder, its config.json), its fields, and its SHA-256. Raises ValueError."""
    file = user_path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"the model {str(path)!r} is not known: it is gpt, bert, vgg, resnet, a function "
            "(package.module:name), or the path of a Hugging Face config.json, which cannot be "
            f"read there: {error.strerror}"
        ) from None
    numbers = parse_json(data, str(file))
    if not isinstance(numbers, dict) or not isinstance(numbers.get("model_type"), str):
        raise ValueError(f"{file} is no Hugging Face configuration: it names no model_type")
    return file, numbers, sha256(data).hexdigest()
