"""Specs of models as plain data: enough to count parameters without a framework.

Closed formulas for the GPT family, with h hidden, n layers, V vocabulary and s sequence: a block
has P = 12 h^2 + 13 h parameters (QKV 3h^2 + 3h, projection h^2 + h, feed-forward 8h^2 + 5h, two
norms 4h), the embeddings V h + s h, the final norm 2h. With hidden 2048 these give the published
model sizes of STRONGHOLD (SC'22) to the last digit: 1,716,588,544 for 32 layers and 5,140,951,040
for 100.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from itertools import chain
from math import isqrt
from typing import Any

from workbench.core.schema import read_as

GPT_FAMILY = "gpt"
WORD = r"[^\W\d]\w*"
FUNCTION = re.compile(rf"({WORD}(?:\.{WORD})*):({WORD})")
"""A family that a function of the user's makes: ``package.module:function``."""
ENGINE = "engine:"
"""Begins the family of a module in a user's own loop."""
MODULES = {"bert": 3, "vgg": 3, "resnet": 2}
"""Families of ordinary modules (families.py), which are decomposed -> units beside their layers."""
HEADLESS = ("vgg", "resnet")
"""Families to which the number of heads means nothing."""
MOST = {"layers": 2000, "hidden": 1 << 20, "heads": 1 << 20, "seq": 1 << 27, "vocab": 1 << 27}
"""Twice the deepest transformers that were trained; one layer of the widest has 12 trillion
parameters. What takes time in proportion to one of these ends in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A decoder: GPT of any size, or a Hugging Face configuration (made by `model.hf_config`)."""

    family: str = GPT_FAMILY
    """``gpt``; ``bert``, ``vgg`` or ``resnet`` (families.py); ``package.module:function``, which
    makes a module (custom.py); or the path of a Hugging Face ``config.json`` (or of the folder that
    holds it)."""
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

    def __post_init__(self) -> None:
        if not self.family:
            raise ValueError("the model family is empty; use 'gpt' or the path of a config.json")
        for name in ("layers", "hidden", "heads", "seq", "vocab"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}; it must be a whole number")
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
            if value > MOST[name]:
                raise ValueError(
                    f"{name} is {value}; it must be at most {MOST[name]}, more than any machine "
                    "has trained"
                )
        if self.hidden % self.heads and self.family not in HEADLESS:
            nearest = _nearest_divisor(self.hidden, self.heads)
            raise ValueError(
                f"{self.heads} heads do not divide a hidden size of {self.hidden}; "
                f"{nearest} heads would"
            )
        if not isinstance(self.dropout, int | float) or not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is {self.dropout!r}; it must be at least 0 and below 1")
        if not isinstance(self.tied, bool):
            raise ValueError(f"tied is {self.tied!r}; it must be true or false")

    @property
    def pure(self) -> bool:
        """Whether a block's output depends on nothing but its weights and its input."""
        return self.family == GPT_FAMILY and self.dropout == 0

    @property
    def units(self) -> int:
        """Embedding, blocks and head, or the layers of a decomposed module. How many a user's own
        has, only `workbench.model.units_of` can tell: it is made to be counted."""
        assert not self.custom, "count with workbench.model.units_of"
        return self.layers + MODULES.get(self.family, 2)

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
        """JSON-able."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSpec:
        """Inverse of `to_dict`; raises ValueError naming what does not fit."""
        return read_as(cls, data, "")


def _nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is nearest to another, the smaller one of two."""
    pairs = ((d, number // d) for d in range(1, isqrt(number) + 1) if number % d == 0)
    return min(chain.from_iterable(pairs), key=lambda d: (abs(d - wanted), d))
