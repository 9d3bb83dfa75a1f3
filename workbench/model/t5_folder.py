"""A T5 in a folder as Hugging Face's transformers writes it: config.json, *.safetensors.

Its sizes become a spec of the family t5; its weights are read as those of any model (weights/).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from workbench.core.files import replacing
from workbench.core.model_spec import T5_FAMILY, ModelSpec
from workbench.model.t5 import T5Shape
from workbench.model.t5_names import COPIES, shape_of, to_hugging_face


def spec_of(config: Any, **sizes: int | None) -> ModelSpec:
    """The spec of a `T5Config`; `sizes`: seq and target_seq. Raises ValueError for a T5 that ours
    is not."""
    sizes["seq"] = sizes["seq"] or getattr(config, "n_positions", 512)
    return ModelSpec(family=T5_FAMILY, **asdict(shape_of(config)), **sizes)


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
