"""Configurations of Hugging Face: what a local file says, in sentences where it says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from workbench.core.files import read_whole
from workbench.core.jsonfile import parse_json
from workbench.core.model_spec import MODULES, T5_FAMILY, ModelSpec
from workbench.core.paths import user_path
from workbench.model.weights.stored import beside

SIZES = (
    "max_position_embeddings", "num_hidden_layers", "hidden_size", "num_attention_heads",
    "vocab_size", "tie_word_embeddings",
)  # fmt: skip
"""Fields that the configuration of a decoder has."""


def spec_from_config(
    path: str | Path, *, seq: int | None = None, target_seq: int | None = None
) -> ModelSpec:
    """The spec of a local Hugging Face configuration (needs transformers, no network).

    `seq` defaults to 1024, or to all the positions the model has if they are fewer. The model
    begins from the weights beside its configuration, where there are some. A T5 is one of our
    family; `target_seq` are tokens of its answers. Raises ValueError for a missing or malformed
    file, more positions than the model has, or a `target_seq` of another model.
    """
    config, digest = read_config(path)
    trained = str(beside(path) or "")
    if config.model_type == T5_FAMILY:
        from workbench.model.t5_folder import spec_of

        return replace(spec_of(config, seq=seq, target_seq=target_seq), pretrained=trained)
    if target_seq is not None:
        raise ValueError(f"target_seq is {target_seq}; of {path} it means nothing, only of a T5")
    if lacking := next((name for name in SIZES if not hasattr(config, name)), None):
        raise ValueError(
            f"{path} is of a {config.model_type}, which is no decoder of text alone: it has no "
            f"{lacking}; name the folder of a decoder"
        )
    with understood(path):
        positions = config.max_position_embeddings
        usual = min(1024, positions)
        sizes = {
            "layers": config.num_hidden_layers,
            "hidden": config.hidden_size,
            "heads": config.num_attention_heads,
            "vocab": config.vocab_size,
            "dropout": dropout_of(config),
            "tied": bool(config.tie_word_embeddings),
        }
    if seq is not None and seq > positions:
        raise ValueError(f"{path} has {positions} positions; samples of {seq} tokens do not fit")
    own = {"family": str(path), "config_digest": digest, "pretrained": trained}
    return ModelSpec(seq=seq or usual, **own, **sizes)


def read_config(path: str | Path) -> tuple[Any, str]:
    """The configuration in a local JSON file (or in a folder's config.json), and its SHA-256."""
    file = user_path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        data = read_whole(file, str(file))
    except FileNotFoundError as error:
        if Path(path).name != str(path):
            told = f"there is no configuration at {str(file)!r}; name its folder"
            raise ValueError(told) from None
        raise ValueError(
            f"the model {str(path)!r} is not known: it is gpt, {', '.join(MODULES)}, a function "
            "(package.module:name), or the path of a Hugging Face config.json, and "
            f"{str(file)!r} cannot be read: {error.strerror}"
        ) from None
    numbers = parse_json(data, str(file))
    if not isinstance(numbers, dict) or not isinstance(numbers.get("model_type"), str):
        raise ValueError(f"{file} is no Hugging Face configuration: it names no model_type")
    transformers = transformers_package()
    model_type = numbers.pop("model_type")
    if model_type not in transformers.CONFIG_MAPPING:  # whose own words list all that there are
        raise ValueError(f"{file} is of the model_type {model_type!r}, which transformers lacks")
    with understood(file):
        return transformers.AutoConfig.for_model(model_type, **numbers), sha256(data).hexdigest()


@contextmanager
def understood(path: str | Path) -> Iterator[None]:
    """Raise a ValueError that names the file for whatever a library raises of its values."""
    try:
        yield
    except Exception as error:
        reason = " ".join(map(str.strip, str(error).splitlines()[:2]))
        raise ValueError(
            f"{path} describes no model that transformers makes: {type(error).__name__}: {reason}"
        ) from None


def transformers_package() -> Any:
    """The package transformers. Raises ValueError where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "Hugging Face models need the package transformers, which is not installed; "
            "pip install transformers"
        ) from None
    return transformers


def dropout_of(config: Any) -> float:
    """The largest probability of dropping anything; those of heads for other tasks are unused."""
    return max(
        (
            float(p)
            for name, p in config.to_dict().items()
            if "drop" in name and not name.startswith(("summary", "classifier"))
            if isinstance(p, int | float)
        ),
        default=0.0,
    )
