"""A T5 in a folder as Hugging Face's transformers writes it: config.json, *.safetensors.

Its sizes become a spec of the family t5; its weights are read as those of any model (weights/).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from workbench.core.model_spec import T5_FAMILY, ModelSpec
from workbench.model.t5_names import shape_of


def spec_of(config: Any, **sizes: int | None) -> ModelSpec:
    """The spec of a `T5Config`; `sizes`: seq and target_seq. Raises ValueError for a T5 that ours
    is not."""
    sizes["seq"] = sizes["seq"] or getattr(config, "n_positions", 512)
    return ModelSpec(family=T5_FAMILY, **asdict(shape_of(config)), **sizes)
