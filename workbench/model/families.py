"""Models that are ordinary modules: how each is made, decomposed, filled and fed.

A `ModelSpec` names one by its family. What its numbers mean there:

* ``bert``: as for GPT; n + 3 units, with pooler and classifier. Data: sentence pairs.
* ``vgg``: `layers` convolutions in five groups, `hidden` channels of the first one, pictures of
  `seq` pixels a side, `vocab` classes; n + 3 units. ``layers=413, hidden=64, seq=224, vocab=1000``
  is VGG416.
* ``resnet``: `layers` basic blocks in four groups, the rest alike; n + 2 units. ``layers=512`` is
  ResNet1026.
* ``wide-resnet``: `layers` blocks in three groups, of n each at a depth of 6 n + 4; `hidden`
  channels of the first group, 16 times the factor k; `dropout` inside blocks, `group_norm`; n + 2
  units. ``wrn_28x10_c100_dr03_gn`` and the like are names with published sizes.
* ``vit``: `layers` blocks on patches of `patch` pixels of pictures of `seq`, `vocab` classes; n + 2
  units. ``vit_base_patch16_384`` and the like are names with published sizes.
* ``wide-resnet-imagenet``: `layers` bottleneck blocks in four groups, 16 or 33 as published;
  `hidden` channels, `width_factor`; n + 2 units. ``wide-resnet-imagenet-1B`` and the like are
  names with published sizes.
* ``t5``: `layers` blocks of the encoder and `decoder_layers` of the decoder, so many units and 4;
  sources of `seq` tokens, answers of `target_seq`. Data: pairs of texts (answers.py).
* ``megatron-t5``: as t5. ``megatron-t5-770M`` and the like are names with published sizes.
* ``package.module:function``: whatever the function takes them for (custom.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.call_sets import read_sets
from workbench.core.model_spec import (
    BOTTLENECKS,
    DOCUMENTS,
    T5_FAMILY,
    T5_LIKE_GPT,
    VIT,
    WIDE_RESNET,
    ModelSpec,
)
from workbench.core.paths import user_path
from workbench.model import (
    bert,
    cifar,
    custom_data,
    custom_model,
    digits,
    t5,
    t5_like_gpt,
    vision,
    vit,
    wide_resnet,
    wide_resnet_imagenet,
)
from workbench.model.answers import holds_out as answers_held_out
from workbench.model.answers import load_answers
from workbench.model.call_layers import LayerWeights, call_layers
from workbench.model.corpus import BUNDLED, DIGITS, STDLIB
from workbench.model.decompose import decompose
from workbench.model.drawn import unkeyed
from workbench.model.keyed import make_keyed
from workbench.model.modules import Decomposed
from workbench.model.named import bottlenecks_of, groups_of
from workbench.model.pairs import holds_out as pairs_held_out
from workbench.model.pairs import load_pairs
from workbench.model.pictures import ArrayPictures, FolderPictures, Pictures, SyntheticPictures
from workbench.model.t5_names import names_in
from workbench.model.weights.stored import Stored

EXAMPLE = 2
"""Samples of the example a model is decomposed with; the number is free afterwards."""
PICTURES = 4096
"""Synthetic pictures in an epoch."""
ANSWER = 8
"""Tokens of an answer where a spec names no number."""


class Data(Protocol):
    """Samples that are found by their number alone."""

    name: str
    digest: str

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """Inputs of the model, the targets last."""

    def at(self, places: Sequence[int], samples: Sequence[int]) -> tuple[Tensor, ...]:
        """As `rows`, at some places of the data; `samples` are for what a sample draws."""

    def __len__(self) -> int:
        """Samples in one epoch."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """How to make the models of one family and their data."""

    make: Callable[[ModelSpec], nn.Module]
    initialize: Callable[..., None]
    example: Callable[[ModelSpec], tuple[Tensor, ...]]
    """Inputs of `EXAMPLE` samples, the targets last."""
    load: Callable[..., Data]
    """``load(spec, source, tokenizer, seed, cache)``."""
    holds_out: Callable[[str | Path], bool] = lambda source: False
    """Whether a source has a part for evaluations, which `load` gives where ``held_out`` is True.
    """
    names: Callable[[ModelSpec, Stored], Mapping[str, str]] = lambda spec, stored: {}
    """Names in the model of the tensors in files that others wrote -> the names there; none where
    they are the model's."""
    counted: bool = False
    """Whether labels of -100 are left out of the loss, so that those of samples are counted."""


def make_decomposed(spec: ModelSpec, seed: int = 0) -> Decomposed:
    """The layered model of a spec, its buffers those of the seed; no weights are made. Raises
    ValueError for sizes that a family does not have."""
    if spec.custom:
        return custom_model.make_layered(spec, seed)
    return copy(_decomposed(spec, torch.get_default_dtype()))


@lru_cache(maxsize=8)
def _decomposed(spec: ModelSpec, dtype: torch.dtype) -> Decomposed:
    """The model of a family where `dtype` is torch's default. A run asks several times, and has
    copies, which share all but their attributes."""
    family = FAMILIES[spec.family]
    with torch.device("meta"):
        model = make_keyed(family.make(spec))
        *example, _ = family.example(spec)
    criterion = custom_data.loss if family.counted else cross_entropy
    places = None
    with unkeyed():
        if spec.calls:
            layers, places = call_layers(model, tuple(example), read_sets(spec.calls), criterion)
        else:
            layers = decompose(model, tuple(example), criterion=criterion)
    own = LayerWeights(layers, lambda: make_decomposed(replace(spec, calls="")))

    def initialize(module: nn.Module, unit: int, seed: int) -> None:
        if spec.calls:
            own(module, unit, seed)
        else:
            family.initialize(module, unit=unit, seed=seed)

    made = Decomposed(
        model, layers, initialize, hidden=spec.hidden, vocab=spec.vocab, max_seq=spec.seq,
        targets=family.example(spec)[-1], left_out=family.counted, places=places,
        names=partial(family.names, spec),
    )  # fmt: skip
    if made.num_units != spec.units:
        raise ValueError(
            f"a {spec.family} of {spec.layers} layers came apart into {made.num_units} units, "
            f"{spec.units} were expected"
        )
    return made


def load_data(
    spec: ModelSpec,
    source: str | Path,
    tokenizer: str,
    *,
    seed: int,
    cache: Path | None,
    classes: int | None = None,
    held_out: bool = False,
) -> Data:
    """The data set of a model's family; of a user's own, labels must be among so many classes.
    `held_out`: its part for evaluations, where `holds_out` says that it has one."""
    if spec.custom:
        return custom_model.load_data(
            spec, source, tokenizer, seed=seed, cache=cache, classes=classes
        )
    part = {"held_out": True} if held_out else {}
    return FAMILIES[spec.family].load(spec, source, tokenizer, seed, cache, **part)


def holds_out(spec: ModelSpec, source: str | Path) -> bool:
    """Whether the data of a model's family has a part for evaluations."""
    return not spec.custom and FAMILIES[spec.family].holds_out(source)


def blank_rows(spec: ModelSpec, samples: int) -> tuple[Tensor, ...]:
    """Inputs and targets of so many samples of any model: their shapes and dtypes, and zeros."""
    if spec.custom:
        return custom_model.blank_rows(spec, samples)
    if not spec.decomposed:
        parts = 3 if spec.rows == DOCUMENTS else 2
        return tuple(torch.zeros(samples, spec.seq, dtype=torch.int64) for _ in range(parts))
    return tuple(
        torch.zeros((samples, *part.shape[1:]), dtype=part.dtype)
        for part in FAMILIES[spec.family].example(spec)
    )


def module_of(spec: ModelSpec, seed: int) -> nn.Module:
    """The module of a spec as its author wrote it, with weights. Raises ValueError for a decoder,
    of which there is none here."""
    if spec.custom:
        return custom_model.make(spec, seed).module
    if spec.family not in FAMILIES:
        raise ValueError(
            f"{spec.family} has layers and no module, whose calls could be nodes: leave out "
            "--basic_blocks and --depth"
        )
    return FAMILIES[spec.family].make(spec)


@cache
def counted_units(spec: ModelSpec) -> int:
    """Units of a model that has to be made to be counted."""
    return make_decomposed(spec).num_units


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean loss of the samples, in fp32."""
    return F.cross_entropy(logits.float(), labels)


def _bert(spec: ModelSpec) -> nn.Module:
    return bert.Bert(
        bert.BertShape(
            layers=spec.layers, hidden=spec.hidden, heads=spec.heads, vocab=spec.vocab,
            positions=spec.seq, dropout=spec.dropout,
        )
    )  # fmt: skip


def _pairs(
    spec: ModelSpec, source: str | Path, tokenizer: str, seed: int, cache: Path | None,
    held_out: bool = False,
) -> Data:  # fmt: skip
    return load_pairs(
        source, tokenizer, vocab=spec.vocab, seq=spec.seq, seed=seed, cache=cache,
        held_out=held_out,
    )  # fmt: skip


def _words(spec: ModelSpec) -> tuple[Tensor, ...]:
    ids = torch.zeros(EXAMPLE, spec.seq, dtype=torch.int64)
    return ids, ids.clone(), ids.bool(), _labels()


def _labels() -> Tensor:
    """One a sample."""
    return torch.zeros(EXAMPLE, dtype=torch.int64)


def _vgg(spec: ModelSpec) -> nn.Module:
    return vision.Vgg(
        vision.VggShape(
            convs=groups_of(spec.layers, 5), width=spec.hidden, image=spec.seq,
            hidden=64 * spec.hidden, classes=spec.vocab, dropout=spec.dropout,
        )
    )  # fmt: skip


def _resnet(spec: ModelSpec) -> nn.Module:
    shape = vision.ResNetShape(
        blocks=groups_of(spec.layers, 4), width=spec.hidden, classes=spec.vocab
    )
    return vision.ResNet(shape)


def _wide_resnet(spec: ModelSpec) -> nn.Module:
    return wide_resnet.WideResNet(
        wide_resnet.WideResNetShape(
            blocks=groups_of(spec.layers, 3), width=spec.hidden, classes=spec.vocab,
            dropout=spec.dropout, group_norm=spec.group_norm,
        )
    )  # fmt: skip


def _vit(spec: ModelSpec) -> nn.Module:
    return vit.Vit(
        vit.VitShape(
            layers=spec.layers, hidden=spec.hidden, heads=spec.heads, image=spec.seq,
            patch=spec.patch_size, classes=spec.vocab,
            dropout=spec.dropout,
        )
    )  # fmt: skip


def _bottlenecks(spec: ModelSpec) -> nn.Module:
    return wide_resnet_imagenet.BottleneckResNet(
        wide_resnet_imagenet.BottleneckShape(
            blocks=bottlenecks_of(spec.layers), width=spec.hidden, factor=spec.width_factor or 2,
            classes=spec.vocab,
        )
    )  # fmt: skip


def _picture(spec: ModelSpec) -> tuple[Tensor, ...]:
    return torch.zeros(EXAMPLE, 3, spec.seq, spec.seq), _labels()


def _pictures(
    spec: ModelSpec, source: str | Path, tokenizer: str, seed: int, cache: Path | None,
    held_out: bool = False,
) -> Data:  # fmt: skip
    size: dict[str, Any] = {"size": (spec.seq, spec.seq), "seed": seed}
    if source == STDLIB:
        return SyntheticPictures(classes=spec.vocab, count=PICTURES, **size)
    found: Pictures
    if source == DIGITS:
        part = "test" if held_out else "train"
        one, labels = digits.read_digits(part)
        parts = [(one[:, None], labels)]
        found = ArrayPictures(f"{DIGITS}, {part}", parts, [digits.FILE], digits.CLASSES, **size)
    elif at := cifar.cifar_at(user_path(source), held_out):
        version, files = at
        found = ArrayPictures(version.name, cifar.read_cifar(*at), files, version.classes, **size)
    else:
        found = FolderPictures(source, **size)
    if len(found.classes) > spec.vocab:
        raise ValueError(
            f"{found.name} has {len(found.classes)} classes, and the model tells {spec.vocab} "
            f"apart; use vocab={len(found.classes)}"
        )
    return found


def _pictures_held_out(source: str | Path) -> bool:
    """Whether pictures have a part for evaluations: the digits, and a folder of CIFAR."""
    if source in BUNDLED:
        return source == DIGITS
    return cifar.cifar_at(user_path(source), held_out=True) is not None


def t5_shape(spec: ModelSpec) -> t5.T5Shape:
    """Sizes of the encoder-decoder that a spec describes."""
    return t5.T5Shape(
        layers=spec.layers, decoder_layers=spec.decoder_layers or spec.layers,
        hidden=spec.hidden, heads=spec.heads,
        head_size=spec.head_size or spec.hidden // spec.heads,
        feed_forward=spec.feed_forward or 4 * spec.hidden, gated=spec.gated, vocab=spec.vocab,
        tied=spec.tied, dropout=spec.dropout,
    )  # fmt: skip


def _t5(spec: ModelSpec) -> nn.Module:
    return t5.T5(t5_shape(spec))


def _t5_like_gpt(spec: ModelSpec) -> nn.Module:
    return t5_like_gpt.T5LikeGPT(t5_shape(spec), max(spec.seq, spec.target_seq or ANSWER))


def _texts(spec: ModelSpec) -> tuple[Tensor, ...]:
    ids = torch.zeros(EXAMPLE, spec.seq, dtype=torch.int64)
    answer = torch.zeros(EXAMPLE, spec.target_seq or ANSWER, dtype=torch.int64)
    return ids, ids.bool(), answer, answer.clone()


def _answers(
    spec: ModelSpec, source: str | Path, tokenizer: str, seed: int, cache: Path | None,
    held_out: bool = False,
) -> Data:  # fmt: skip
    return load_answers(
        source, tokenizer, vocab=spec.vocab, seq=spec.seq, target_seq=spec.target_seq or ANSWER,
        seed=seed, cache=cache, held_out=held_out,
    )  # fmt: skip


FAMILIES = {
    "bert": Family(
        make=_bert, initialize=bert.initialize, example=_words, load=_pairs,
        holds_out=pairs_held_out,
    ),
    **{
        name: Family(
            make=make, initialize=initialize, example=_picture, load=_pictures,
            holds_out=_pictures_held_out,
        )
        for name, make, initialize in (
            ("vgg", _vgg, vision.initialize), ("resnet", _resnet, vision.initialize),
            (WIDE_RESNET, _wide_resnet, vision.initialize),
            (BOTTLENECKS, _bottlenecks, vision.initialize), (VIT, _vit, vit.initialize),
        )
    },
    **{
        name: Family(
            make=make, initialize=initialize, example=_texts, load=_answers,
            holds_out=answers_held_out, counted=True, **more,
        )
        for name, make, initialize, more in (
            (T5_FAMILY, _t5, t5.initialize, {"names": lambda s, of: names_in(of, t5_shape(s))}),
            (T5_LIKE_GPT, _t5_like_gpt, t5_like_gpt.initialize, {}),
        )
    },
}  # fmt: skip
