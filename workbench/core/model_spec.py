"""Specs of models as plain data: enough to count parameters without a framework.

Closed formulas for the GPT family, with h hidden, n layers, V vocabulary and s sequence: a block
has P = 12 h^2 + 13 h parameters (QKV 3h^2 + 3h, projection h^2 + h, feed-forward 8h^2 + 5h, two
norms 4h), the embeddings V h + s h, the final norm 2h. With hidden 2048 these give the published
model sizes of STRONGHOLD (SC'22) to the last digit: 1,716,588,544 for 32 layers and 5,140,951,040
for 100.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from itertools import chain
from math import isqrt
from typing import Any, Literal

from workbench.core.call_sets import read_sets
from workbench.core.schema import read_as

GPT_FAMILY = "gpt"
WORD = r"[^\W\d]\w*"
FUNCTION = re.compile(rf"({WORD}(?:\.{WORD})*):({WORD})")
"""A family that a function of the user's makes: ``package.module:function``."""
ENGINE = "engine:"
"""Begins the family of a module in a user's own loop."""
T5_FAMILY = "t5"
T5_LIKE_GPT = "megatron-t5"
ROWS = DOCUMENTS, PADDED, STREAM = "documents", "padded", "stream"
KERNELS = SDPA, EAGER, FLASH, FLEX = "sdpa", "eager", "flash_attention_2", "flex_attention"
GPU_KERNELS = (FLASH, FLEX)
"""Kernels of attention that train on a GPU only."""
OF_DECODERS = {"rows": ROWS, "attention": KERNELS}
"""Fields that decoders of Hugging Face alone have -> what they may be, beside None."""
WIDE_RESNET, VIT = "wide-resnet", "vit"
BOTTLENECKS = "wide-resnet-imagenet"
MODULES = {
    "bert": 3, "vgg": 3, "resnet": 2, WIDE_RESNET: 2, BOTTLENECKS: 2, VIT: 2, T5_FAMILY: 4,
    T5_LIKE_GPT: 4,
}  # fmt: skip
"""Families of ordinary modules (families.py), which are decomposed -> units beside their layers."""
ANSWERING = (T5_FAMILY, T5_LIKE_GPT)
"""Encoder-decoders."""
HEADLESS = ("vgg", "resnet", WIDE_RESNET, BOTTLENECKS)
PICTURED = (*HEADLESS, VIT)
"""Families of pictures; to the former the number of heads means nothing."""
MOST = {"layers": 2000, "hidden": 1 << 20, "heads": 1 << 20, "seq": 1 << 27, "vocab": 1 << 27}
"""Twice the deepest transformers that were trained; one layer of the widest has 12 trillion
parameters. What takes time in proportion to one of these ends in seconds."""
T5_MOST = {
    "decoder_layers": MOST["layers"], "target_seq": MOST["seq"], "head_size": MOST["hidden"],
    "feed_forward": MOST["hidden"],
}  # fmt: skip
"""Sizes that encoder-decoders alone have -> the most of each."""
PATCH = 16
"""Pixels of a side of the published patches."""
OWN_MOST = T5_MOST | {"width_factor": 1024, "patch": MOST["seq"]}
"""Sizes that some families alone have, None in the others' specs -> the most of each."""
ONLY = dict.fromkeys(T5_MOST, ANSWERING) | {
    "gated": (T5_FAMILY,), "group_norm": (WIDE_RESNET,),
    "width_factor": (BOTTLENECKS,), "patch": (VIT,),
}  # fmt: skip
"""Fields that mean something to some families alone -> these families."""
RARE = {
    **dict.fromkeys((*ONLY, *OF_DECODERS, "pretrained", "cut_rows", "eval_text")),
    "train_on": "answers",
}  # fmt: skip
"""Fields that few specs set -> what they are in the others, where that is not empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A decoder: GPT of any size, or a Hugging Face configuration (made by `model.hf_config`)."""

    family: str = GPT_FAMILY
    """``gpt``; ``bert``, ``vgg``, ``resnet``, ``wide-resnet``, ``wide-resnet-imagenet``, ``vit``,
    ``t5`` or ``megatron-t5`` (families.py);
    ``package.module:function``, which makes a module (custom.py); or the path of a Hugging Face
    ``config.json`` (or of the folder that holds it)."""
    layers: int = 16
    """Transformer blocks n; the model has n + 2 units."""
    hidden: int = 2048
    """Width h of the residual stream."""
    heads: int = 16
    """Attention heads; must divide hidden."""
    seq: int = 1024
    """Tokens per sample; for GPT also the number of learned positions."""
    vocab: int = 50304
    """Rows of the token embedding; 50304 is GPT-2's 50257 padded to a multiple of 128."""
    dropout: float = 0.0
    """Probability in [0, 1), for embedding, attention weights and both residual branches."""
    tied: bool = True
    """Whether the head's matrix is the token embedding."""
    config_digest: str = ""
    """SHA-256 of the Hugging Face configuration file, or of the file with the function; empty for
    GPT."""
    decoder_layers: int | None = None
    """Blocks of the decoder of t5 or megatron-t5; by default as many as `layers`, which are the
    encoder's."""
    target_seq: int | None = None
    """Tokens of an answer of t5 or megatron-t5, by default 8; `seq` are the source's."""
    head_size: int | None = None
    """Width of one attention head of t5 or megatron-t5; by default hidden / heads."""
    feed_forward: int | None = None
    """Width of the feed-forward of t5 or megatron-t5; by default 4 times hidden."""
    gated: bool = False
    """Whether the feed-forward of t5 is gated, as in its version 1.1."""
    pretrained: str = ""
    """Where the weights lie that the model begins from, as `weights` of a run decides; empty for
    random ones."""
    group_norm: bool = False
    """Whether norms of wide-resnet are GroupNorm, which needs no statistics, not BatchNorm."""
    calls: str = ""
    """Calls of each unit, as a partition of calls has them, such as ``depth=9 0-3,5 4,6-8``; empty
    for the model's own layers."""
    patch: int | None = None
    """Pixels of a side of vit's patches, which are its tokens; by default a quarter of a picture's
    side, or 16 if that is less."""
    width_factor: int | None = None
    """Times that the 3x3 convolutions of wide-resnet-imagenet are as wide as the 1x1 convolutions
    before them, by default 2; `hidden` are the channels of the first ones."""

    rows: Literal["documents", "padded", "stream"] | None = None
    """Samples of a decoder of Hugging Face that trains on rows: ``documents`` are several rows
    each, whose positions begin anew and which do not attend to each other; ``padded`` are one row
    each; ``stream`` are windows of all rows in order. By default documents of rows, and a stream of
    a text."""
    attention: Literal["sdpa", "eager", "flash_attention_2", "flex_attention"] | None = None
    """Kernel of attention in a decoder of Hugging Face, as Transformers calls it; by default the
    one that Transformers takes, mostly ``sdpa``."""

    def __post_init__(self) -> None:
        for name, words in OF_DECODERS.items():
            if (value := getattr(self, name)) not in (None, *words):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(words)}")
            if value and (self.family == GPT_FAMILY or self.decomposed):
                raise ValueError(
                    f"{name} is {value!r}; it is for decoders of Hugging Face (--hf-config), and "
                    f"the model is {self.family}"
                )
        if not self.family:
            raise ValueError("the model family is empty; use 'gpt' or the path of a config.json")
        for name, most in (MOST | OWN_MOST).items():
            value = getattr(self, name)
            if value is None and name in OWN_MOST:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}; it must be a whole number")
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
            if value > most:
                raise ValueError(
                    f"{name} is {value}; it must be at most {most}, more than any machine "
                    "has trained"
                )
        for name, families in ONLY.items():
            if (value := getattr(self, name)) and self.family not in families:
                raise ValueError(
                    f"{name} is {value}; of the model {self.family} it means nothing, only of "
                    f"{' and '.join(families)}"
                )
        if self.hidden % self.heads and not self.head_size and self.family not in HEADLESS:
            nearest = _nearest_divisor(self.hidden, self.heads)
            raise ValueError(
                f"{self.heads} heads do not divide a hidden size of {self.hidden}; "
                f"{nearest} heads would"
            )
        if self.family == VIT and self.seq % self.patch_size:
            raise ValueError(
                f"patches of {self.patch_size} pixels do not divide pictures of {self.seq}; use a "
                f"patch that does, or pictures of a multiple of {self.patch_size}"
            )
        if not isinstance(self.dropout, int | float) or not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is {self.dropout!r}; it must be at least 0 and below 1")
        for name in ("tied", "gated", "group_norm"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name} is {value!r}; it must be true or false")
        if self.calls:
            read_sets(self.calls)
            if not self.decomposed:
                raise ValueError(
                    f"calls is {self.calls!r}; the model {self.family} has layers and no module "
                    "whose calls these could be"
                )

    @property
    def pure(self) -> bool:
        """Whether a block's output depends on nothing but its weights and its input."""
        return self.family == GPT_FAMILY and self.dropout == 0

    @property
    def units(self) -> int:
        """Embedding, blocks and head, or the layers of a decomposed module. How many a user's own
        has, only `workbench.model.units_of` can tell: it is made to be counted."""
        if self.calls:
            return len(read_sets(self.calls).sets)
        assert not self.custom, "count with workbench.model.units_of"
        decoders = (self.decoder_layers or self.layers) if self.family in ANSWERING else 0
        return self.layers + decoders + MODULES.get(self.family, 2)

    @property
    def patch_size(self) -> int:
        """Pixels of a side of vit's patches."""
        return self.patch or min(PATCH, max(1, self.seq // 4))

    @property
    def deep(self) -> int | None:
        """Layers; None for a user's loop before its module is cut, which then has the most."""
        unknown = self.family.startswith(ENGINE) and self.layers == MOST["layers"]
        return None if unknown else self.layers

    @property
    def decomposed(self) -> bool:
        """Whether the model is an ordinary module, cut into layers."""
        return self.family in MODULES or self.custom

    @property
    def ours(self) -> bool:
        """Whether this project wrote the model: neither a user's own nor Hugging Face's."""
        return self.family == GPT_FAMILY or (self.decomposed and not self.custom)

    @property
    def custom(self) -> bool:
        """Whether a function of the user's makes the module."""
        return FUNCTION.fullmatch(self.family) is not None

    @property
    def anywhere(self) -> ModelSpec:
        """The model with a kernel of attention that every device has."""
        return replace(self, attention=None) if self.attention in GPU_KERNELS else self

    @property
    def block_parameters(self) -> int:
        """Parameters of one block: 12 h^2 + 13 h. GPT only."""
        self._needs_formula()
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the model, a tied matrix counted once: n P + (V + s) h + 2 h. GPT only."""
        outside = (self.vocab + self.seq) * self.hidden + 2 * self.hidden
        untied = 0 if self.tied else self.vocab * self.hidden
        return self.layers * self.block_parameters + outside + untied

    def _needs_formula(self) -> None:
        if self.family != GPT_FAMILY:
            raise ValueError(
                f"no closed formula counts the parameters of {self.family}; "
                "make_model(spec).parameters_count() does"
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, without the fields that other families alone have."""
        fields = asdict(self)
        for name in ("calls", "pretrained", *OF_DECODERS):  # as before there were any
            if not fields[name]:
                del fields[name]
        named = fields.items()
        return {n: value for n, value in named if self.family in ONLY.get(n, (self.family,))}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSpec:
        """Inverse of `to_dict`; raises ValueError naming what does not fit."""
        return read_as(cls, data, "")


def _nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is nearest to another, the smaller one of two."""
    pairs = ((d, number // d) for d in range(1, isqrt(number) + 1) if number % d == 0)
    return min(chain.from_iterable(pairs), key=lambda d: (abs(d - wanted), d))
