"""Published models by the names that may be given as the family, and what follows from numbers of
layers; no framework is asked.

GPT, Megatron's T5 and the bottleneck Wide-ResNet have the sizes of Aceso (EuroSys'24): billions of
parameters in their names are as published, and near what the models have. A depth of
``gpt-scale-layer`` is given beside it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from workbench.core.model_spec import (
    BOTTLENECKS,
    GPT_FAMILY,
    T5_FAMILY,
    T5_LIKE_GPT,
    VIT,
    WIDE_RESNET,
)
from workbench.model.operators.sizes import CLASSES, PICTURE, VOCABULARY, published_sizes

T5_SIZES = {
    "small": (6, 512, 8, 64, 2048),
    "base": (12, 768, 12, 64, 3072),
    "large": (24, 1024, 16, 64, 4096),
    "3b": (24, 1024, 32, 128, 16384),
}
"""Published models -> layers of each half, hidden, heads, head_size, feed_forward."""
LISTS = {GPT_FAMILY: "gpt", T5_LIKE_GPT: "t5", BOTTLENECKS: "resnet"}
"""Family -> the name of its list of operators."""
SHAPE = {
    "hidden_size": "hidden", "num_attention_heads": "heads", "seq_length": "seq",
    "encoder_seq_length": "seq", "decoder_seq_length": "target_seq", "kv_channels": "head_size",
    "ffn_hidden_size": "feed_forward", "in_channels": "hidden", "width_factor": "width_factor",
}  # fmt: skip
"""Key of a published shape -> field of a spec."""
ALSO: dict[str, dict[str, Any]] = {
    GPT_FAMILY: {"vocab": VOCABULARY["gpt"]},
    T5_LIKE_GPT: {"vocab": VOCABULARY["t5"]},
    BOTTLENECKS: {"heads": 1, "seq": PICTURE, "vocab": CLASSES, "tied": False},
}
"""Fields that all sizes of a family have."""


NAMED: dict[str, dict[str, Any]] = {
    f"t5-{name}": {
        "family": T5_FAMILY, "layers": layers, "hidden": hidden, "heads": heads, "seq": 512,
        "vocab": 32128, "head_size": head_size, "feed_forward": feed_forward,
    }
    for name, (layers, hidden, heads, head_size, feed_forward) in T5_SIZES.items()
} | {
    f"wrn_{depth}x{widening}_c{classes}{'_dr03' * drops}{'_gn' * grouped}": {
        "family": WIDE_RESNET, "layers": (depth - 4) // 2, "hidden": 16 * widening, "heads": 1,
        "seq": 32, "vocab": classes, "dropout": 0.3 * drops, "tied": False, "group_norm": grouped,
    }
    for depth, widening in ((16, 4), (28, 10))
    for classes, drops, grouped in product((10, 100), (False, True), (False, True))
} | {
    f"{family}-{name}": {
        "family": family, **more,
        "layers": size.layers if isinstance(size.layers, int) else sum(size.layers),
        **{SHAPE[key]: number for key, number in size.shape.items() if key in SHAPE},
    }
    for family, more in ALSO.items()
    for name, size in published_sizes(LISTS[family]).items()
} | {
    f"vit_{name}_patch{patch}_{side}": {
        "family": VIT, "layers": layers, "hidden": hidden, "heads": heads, "seq": side,
        "vocab": 1000, "tied": False, "patch": patch,
    }
    for name, layers, hidden, heads in (("base", 12, 768, 12), ("large", 24, 1024, 16))
    for patch, side in product((16, 32), (224, 384))
}  # fmt: skip
"""Published models by a name that may be given as the family -> fields of their specs."""


def groups_of(layers: int, groups: int) -> tuple[int, ...]:
    """Layers of each group, nearly equal, the later ones larger. Raises ValueError where there are
    too few."""
    if layers < groups:
        raise ValueError(f"layers is {layers}; the model has {groups} groups of one or more each")
    each, more = divmod(layers, groups)
    return tuple(each + (group >= groups - more) for group in range(groups))


def bottlenecks_of(layers: int) -> tuple[int, ...]:
    """Bottleneck blocks of each group: 3, 4, the rest and 3, as published, or nearly equal ones
    where they are fewer than 13. Raises ValueError for fewer than 4.

    >>> bottlenecks_of(16), bottlenecks_of(33), bottlenecks_of(4)
    ((3, 4, 6, 3), (3, 4, 23, 3), (1, 1, 1, 1))
    """
    return (3, 4, layers - 10, 3) if layers >= 13 else groups_of(layers, 4)
