"""A T5 in a folder as Hugging Face's transformers writes it: config.json, *.safetensors.

Its sizes become a spec of the family t5, and its weights are read a unit at a time: a rank reads
only those of its own stages. Numbers of any type become fp32. Weights that are pickled
(pytorch_model.bin) could run anything, and are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from workbench.core.files import replacing
from workbench.core.model_spec import T5_FAMILY, ModelSpec
from workbench.core.paths import user_path
from workbench.model.t5 import T5, T5Shape
from workbench.model.t5_names import (
    ACTIVATIONS,
    COPIES,
    check_names,
    shape_of,
    to_hugging_face,
)

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def spec_of(
    config: Any, folder: Path, *, seq: int | None, target_seq: int | None, random: bool
) -> ModelSpec:
    """The spec of a `T5Config`, and, unless its weights are to be `random`, of the trained ones in
    its folder, where there are some. Raises ValueError for a T5 that ours is not, and for weights
    that no run reads."""
    shape = shape_of(config)
    spec = ModelSpec(
        family=T5_FAMILY, layers=shape.layers, decoder_layers=shape.decoder_layers,
        hidden=shape.hidden, heads=shape.heads, head_size=shape.head_size,
        feed_forward=shape.feed_forward, gated=shape.gated, vocab=shape.vocab, tied=shape.tied,
        dropout=shape.dropout, seq=seq or getattr(config, "n_positions", 512),
        target_seq=target_seq, pretrained="" if random else _trained_in(folder),
    )  # fmt: skip
    if spec.pretrained:
        TrainedT5(spec.pretrained, shape)
    return spec


def _trained_in(folder: Path) -> str:
    """The folder, if it has weights."""
    if any(folder.glob("*.safetensors")):
        return str(folder)
    if pickled := sorted(folder.glob("pytorch_model*.bin")):
        raise ValueError(
            f"{pickled[0]} is pickled and could run anything; save the model as safetensors, or "
            "give weights=random to begin from random ones"
        )
    return ""


class TrainedT5:
    """The weights of a folder, by our names; a file is read when somebody asks for its tensors."""

    def __init__(self, folder: str | Path, shape: T5Shape) -> None:
        """Raises ValueError, with file and name, unless the folder's safetensors hold all tensors
        of the shape, and no others."""
        self._files: dict[str, Path] = {}
        found: dict[str, list[int]] = {}
        for file in sorted(user_path(folder).glob("*.safetensors")):
            found |= (own := _sizes(file))
            self._files |= dict.fromkeys(own, file)
        if not found:
            raise ValueError(f"pretrained is {str(folder)!r}; there are no *.safetensors in it")
        self._names = check_names(found, shape, str(folder))
        with torch.device("meta"):
            expected = {name: list(value.shape) for name, value in T5(shape).state_dict().items()}
        for ours, theirs in self._names.items():
            if found[theirs] != expected[ours]:
                raise ValueError(
                    f"{self._files[theirs]} has {theirs!r} of shape {found[theirs]}; a T5 of these "
                    f"sizes has {expected[ours]}"
                )

    def read(self, name: str) -> Tensor:
        """A tensor by its name in our state dict, on the CPU, of the type it is stored in."""
        theirs = self._names[name]
        with safe_open(self._files[theirs], framework="pt") as file:
            return file.get_tensor(theirs)

    @torch.no_grad()
    def fill(self, module: nn.Module, names: Mapping[str, str]) -> None:
        """Write a unit's weights; `names`: local name -> name in our state dict. Parameters without
        elements are another unit's."""
        for local, parameter in module.named_parameters():
            if parameter.numel():
                parameter.copy_(self.read(names[local]))


def save_folder(folder: Path, state: Mapping[str, Tensor], shape: T5Shape) -> None:
    """Write config.json and model.safetensors, which `T5ForConditionalGeneration.from_pretrained`
    reads, of a state dict of our `T5`. Raises OSError."""
    left_out = {*COPIES, *(["lm_head.weight"] if shape.tied else [])}
    made = to_hugging_face(state, shape).items()
    kept = {name: value.contiguous() for name, value in made if name not in left_out}
    feed_forward = next(name for name, gated in ACTIVATIONS.items() if gated == shape.gated)
    config = {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5",
        "is_encoder_decoder": True, "d_model": shape.hidden, "d_kv": shape.head_size,
        "d_ff": shape.feed_forward, "num_layers": shape.layers,
        "num_decoder_layers": shape.decoder_layers, "num_heads": shape.heads,
        "vocab_size": shape.vocab, "dropout_rate": shape.dropout,
        "feed_forward_proj": feed_forward, "tie_word_embeddings": shape.tied,
        "scale_decoder_outputs": shape.tied, "pad_token_id": 0, "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as part:
        save_file(kept, part, metadata={"format": "pt"})
    with replacing(folder / CONFIG) as part:
        part.write_text(json.dumps(config, indent=2) + "\n")


def _sizes(file: Path) -> dict[str, list[int]]:
    """Shapes in a file, of which the beginning is read."""
    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return {name: opened.get_slice(name).get_shape() for name in names}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} is no file of safetensors: {error}") from None
