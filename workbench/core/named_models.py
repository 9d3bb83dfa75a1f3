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

T5_SIZES = {
    "small": (6, 512, 8, 64, 2048),
    "base": (12, 768, 12, 64, 3072),
    "large": (24, 1024, 16, 64, 4096),
    "3b": (24, 1024, 32, 128, 16384),
}
"""Published models -> layers of each half, hidden, heads, head_size, feed_forward."""
GPT_SIZES = {
    "350M": (24, 1024, 16),
    "1_3B": (24, 2048, 32),
    "2_6B": (32, 2560, 32),
    "6_7B": (32, 4096, 32),
    "13B": (40, 5120, 40),
    "scale-layer": (8, 512, 8),
}
"""Size -> layers, hidden, heads."""
T5_LIKE_GPT_SIZES = {
    "770M": (24, 16, 64, 4096),
    "3B": (24, 32, 128, 16384),
    "6B": (24, 64, 128, 32768),
    "11B": (24, 128, 128, 65536),
    "22B": (48, 128, 128, 65536),
}
"""Size -> layers of each half, heads, head_size, feed_forward."""
BOTTLENECK_SIZES = {
    "500M": (16, 224, 2),
    "1B": (16, 320, 2),
    "2B": (16, 448, 2),
    "4B": (16, 640, 2),
    "6_8B": (16, 320, 16),
    "13B": (33, 320, 16),
}
"""Size -> blocks, channels, width_factor."""
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
    f"{GPT_FAMILY}-{size}": {
        "family": GPT_FAMILY, "layers": layers, "hidden": hidden, "heads": heads, "seq": 2048,
        "vocab": 51200,
    }
    for size, (layers, hidden, heads) in GPT_SIZES.items()
} | {
    f"{T5_LIKE_GPT}-{size}": {
        "family": T5_LIKE_GPT, "layers": layers, "hidden": 1024, "heads": heads, "seq": 2048,
        "target_seq": 512, "vocab": 30592, "head_size": head_size, "feed_forward": feed_forward,
    }
    for size, (layers, heads, head_size, feed_forward) in T5_LIKE_GPT_SIZES.items()
} | {
    f"{BOTTLENECKS}-{size}": {
        "family": BOTTLENECKS, "layers": layers, "hidden": hidden, "heads": 1, "seq": 224,
        "vocab": 1024, "tied": False, "width_factor": factor,
    }
    for size, (layers, hidden, factor) in BOTTLENECK_SIZES.items()
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
