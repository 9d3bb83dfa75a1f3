"""Wide-ResNet with bottleneck blocks as a list of operators, as Aceso published it (EuroSys'24
artifact): 8 operators a block, and six. Every operator is a row of a profile, for widths differ.

Convolutions give each device of a row the whole output, in both partitions: what tp splits inside
is gathered there.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model.operators.layout import SAMPLES
from workbench.model.operators.operator import Extra, Kind, Operator, OperatorList, extras_of

BLOCK: tuple[tuple[str, Kind], ...] = (
    ("conv1", "conv"),
    ("bn1", "batchnorm"),
    ("conv2", "conv"),
    ("bn2", "batchnorm"),
    ("conv3", "conv"),
    ("bn3", "batchnorm"),
    ("downsample", "add"),
    ("relu", "relu"),
)
"""ReLUs after `bn1` and `bn2` belong to these."""


def resnet(blocks: Sequence[int]) -> OperatorList:
    """Of `blocks` bottleneck blocks in each of its groups."""
    operators = [
        _operator("conv1", "conv", chosen=False),
        _operator("bn1", "batchnorm", kept=0.0),
        _operator("relu1", "relu"),
        _operator("maxpool", "maxpool"),
    ]
    extras: tuple[Extra, ...] = ()
    layers = []
    for group, count in enumerate(blocks):
        for number in range(count):
            block = f"block-{group}-{number}-"
            start = len(operators)
            layers.append(start)
            operators += [_of_block(block, i, first=(group, number) == (0, 0))
                          for i in range(len(BLOCK))]  # fmt: skip
            places = {name: start + i for i, (name, _) in enumerate(BLOCK)}
            sketches = (("residual", "conv1", ("downsample",)),)
            extras += extras_of(sketches, places.__getitem__, block)
    operators += [_operator("avgpool", "avgpool"), _operator("fc", "classifier")]
    return OperatorList(
        family="resnet", operators=tuple(operators), rows=tuple(range(len(operators))),
        row_names=tuple(each.name for each in operators), extras=extras, partitions=2,
        layers=tuple(layers), towers=(len(layers),),
        reshards=True,
    )  # fmt: skip


def _of_block(block: str, place: int, *, first: bool) -> Operator:
    name, kind = BLOCK[place]
    if kind == "add" and block.endswith("-0-"):
        kind = "downsample-add"
    aliased = name == "bn3" or (name == "downsample" and not first)
    starts = name == "conv1"
    return _operator(
        block + name, kind, starts=starts, chosen=not starts and kind != "relu",
        kept=0.0 if aliased else 1.0,
    )  # fmt: skip


def _operator(
    name: str, kind: Kind, *, starts: bool = False, chosen: bool = True, kept: float = 1.0
) -> Operator:
    return Operator(
        name=name, kind=kind, layouts=((SAMPLES, SAMPLES),) * 2, chosen=chosen, kept=kept,
        tunable=kind in ("conv", "add", "downsample-add"), starts_layer=starts,
    )  # fmt: skip
