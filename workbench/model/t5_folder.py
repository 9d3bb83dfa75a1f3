"""A T5 in a folder as Hugging Face's transformers writes it: config.json, *.safetensors.

Its sizes become a spec of the family t5, and its weights are read a unit at a time, as fp32: a rank
reads those of its own stages. Pickled weights (pytorch_model.bin) are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
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
from workbench.model.t5_names import COPIES, check_names, shape_of, to_hugging_face


def spec_of(config: Any, folder: Path, *, random: bool, **sizes: int | None) -> ModelSpec:
    """The spec of a `T5Config`, and, unless its weights are to be `random`, of the trained ones in
    its folder, where there are some; `sizes`: seq and target_seq. Raises ValueError for a T5 that
    ours is not, and for weights that no run reads."""
    shape = shape_of(config)
    trained, pickled = any(folder.glob("*.safetensors")), sorted(folder.glob("pytorch_model*.bin"))
    if pickled and not trained and not random:
        raise ValueError(
            f"{pickled[0]} is pickled and could run anything; save the model as safetensors, or "
            "give weights=random to begin from random ones"
        )
    sizes["seq"] = sizes["seq"] or getattr(config, "n_positions", 512)
    if trained and not random:
        TrainedT5(folder, shape)
    return ModelSpec(
        family=T5_FAMILY, **asdict(shape), **sizes,
        pretrained=str(folder) if trained and not random else "",
    )  # fmt: skip


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

    @torch.no_grad()
    def fill(self, module: nn.Module, names: Mapping[str, str]) -> None:
        """Write a unit's weights; `names`: local name -> name in our state dict. Parameters without
        elements are another unit's."""
        for local, parameter in module.named_parameters():
            if parameter.numel():
                theirs = self._names[names[local]]
                with safe_open(self._files[theirs], framework="pt") as file:
                    parameter.copy_(file.get_tensor(theirs))


def save_folder(folder: Path, state: Mapping[str, Tensor], shape: T5Shape) -> None:
    """Write config.json and model.safetensors, which `T5ForConditionalGeneration.from_pretrained`
    reads, of a state dict of our `T5`. Raises OSError."""
    left_out = {*COPIES, *(["lm_head.weight"] if shape.tied else [])}
    made = to_hugging_face(state, shape).items()
    kept = {name: value.contiguous() for name, value in made if name not in left_out}
    config = {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5",
        "is_encoder_decoder": True, "d_model": shape.hidden, "d_kv": shape.head_size,
        "d_ff": shape.feed_forward, "num_layers": shape.layers,
        "num_decoder_layers": shape.decoder_layers, "num_heads": shape.heads,
        "feed_forward_proj": "gated-gelu" if shape.gated else "relu", "vocab_size": shape.vocab,
        "dropout_rate": shape.dropout, "tie_word_embeddings": shape.tied,
        "scale_decoder_outputs": shape.tied, "pad_token_id": 0, "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.safetensors") as part:
        save_file(kept, part, metadata={"format": "pt"})
    with replacing(folder / "config.json") as part:
        part.write_text(json.dumps(config, indent=2) + "\n")


def _sizes(file: Path) -> dict[str, list[int]]:
    """Shapes in a file, of which the beginning is read."""
    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return {name: opened.get_slice(name).get_shape() for name in names}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} is no file of safetensors: {error}") from None
