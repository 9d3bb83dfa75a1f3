"""Models as flat lists of operators, which a plan cuts, shards and recomputes one by one.

`operator_list` makes GPT, T5 and Wide-ResNet as Aceso (EuroSys'24) published them, and Llama as
transformers computes it; layouts, extra
tensors and corrections are data of each operator (operator.py), and no rule goes by a name. Nothing
here imports torch.

    >>> len(operator_list("gpt", 24)), len(operator_list("t5", 24))
    (315, 821)
    >>> len(operator_list("resnet", [3, 4, 6, 3]))
    134
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model.operators.layers import whole_layers
from workbench.model.operators.layout import Factors, Layout
from workbench.model.operators.operator import Extra, Kind, Operator, OperatorList
from workbench.model.operators.pictures import resnet
from workbench.model.operators.sizes import Size, published_sizes
from workbench.model.operators.transformer import gpt, llama, t5

__all__ = [
    "MODULE", "Extra", "Factors", "Kind", "Layout", "Operator", "OperatorList", "Size",
    "operator_list", "published_sizes",
]  # fmt: skip

FAMILIES = ("gpt", "t5", "resnet", "llama")
MODULE = "module"
"""Name of the list of a user's own module, whose operators are its layers."""
DEEPEST = 4096


def operator_list(family: str, layers: int | Sequence[int]) -> OperatorList:
    """Operators of a model of `layers` layers; of a Wide-ResNet, of its blocks by group.

    Raises ValueError for another family, and for numbers that no model has.
    """
    if family == MODULE and type(layers) is int and 1 <= layers <= DEEPEST:
        return whole_layers(layers)
    if family not in FAMILIES:
        raise ValueError(f"the model is {family!r}; it must be one of {', '.join(FAMILIES)}")
    counts = list(layers) if family == "resnet" and isinstance(layers, Sequence) else [layers]
    for each in counts:
        if type(each) is not int or not 1 <= each <= DEEPEST:
            raise ValueError(f"num_layers is {layers!r}; {_wanted(family)}")
    if family == "resnet":
        if len(counts) != 4:
            raise ValueError(f"num_layers is {layers!r}; {_wanted(family)}")
        return resnet(counts)
    return {"gpt": gpt, "t5": t5, "llama": llama}[family](counts[0])


def _wanted(family: str) -> str:
    numbers = "four numbers of blocks, each" if family == "resnet" else "a whole number"
    return f"it must be {numbers} from 1 to {DEEPEST}"
