"""A model in a folder of Hugging Face's: names of its tensors there, and the files beside them.

Names and layout on disk are not always those in the module: transformers leaves tied weights out,
and splits what it has fused, such as experts. Its own rules say how, for as many tensors at once as
belong together.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

TOKENIZER = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "*.model", "*.tiktoken", "tekken.json", "chat_template*", "additional_chat_templates/*.jinja",
)  # fmt: skip
"""Files of a tokenizer, and of its chat template."""
GENERATION = "generation_config.json"


def kept(source: nn.Module) -> dict[str, Tensor]:
    """Tensors of a `PreTrainedModel` that are saved, by their names in it: of tied ones one."""
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    state = source.state_dict()
    for name in source._keys_to_ignore_on_save or ():
        state.pop(name, None)
    return remove_tied_weights_from_state_dict(state, source)


def on_disk(source: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by their names and in their form on disk."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(source, tensors)


def apart(source: nn.Module, groups: Sequence[Sequence[str]]) -> bool:
    """Whether each group of names goes to the disk by itself as it does among all."""
    state = kept(source)
    whole = {name: tensor.shape for name, tensor in on_disk(source, dict(state)).items()}
    found: dict[str, Any] = {}
    for group in groups:
        made = on_disk(source, {name: state[name] for name in group})
        found |= {name: tensor.shape for name, tensor in made.items()}
    return found == whole


def describe(source: nn.Module, came_from: Path | None, folder: Path, dtype: str) -> None:
    """Write the configuration, whose weights are of this `dtype`, as torch names it, and that of
    generation, which is the folder's that the model `came_from` if it has one."""
    config = copy.deepcopy(source.config)
    config.dtype, config.architectures = dtype, [type(source).__name__]
    config.save_pretrained(folder)
    if came_from is not None and (came_from / GENERATION).is_file():
        shutil.copyfile(came_from / GENERATION, folder / GENERATION)
    elif source.can_generate():
        source.generation_config.save_pretrained(folder)


def copy_tokenizer(came_from: Path, folder: Path) -> None:
    """Copy the files of a tokenizer, those that there are."""
    for file in (file for pattern in TOKENIZER for file in came_from.glob(pattern)):
        if file.is_file():
            (target := folder / file.relative_to(came_from)).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
