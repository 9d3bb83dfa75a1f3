"""Sizes of the models that Aceso (EuroSys'24 artifact) profiles, by their names there, and of Llama
2 and 3."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A size of a family."""

    layers: int | tuple[int, ...]
    """Layers (of T5, of the encoder and of the decoder, each), or blocks by group."""
    shape: MappingProxyType[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Further keys of a plan, in the order in which plans hold them."""
    half: bool = True
    """Trained with 16-bit weights and 32-bit masters; else in 32 bits."""


VOCABULARY = MappingProxyType({"gpt": 51200, "t5": 30592})
CLASSES, PICTURE = 1024, 224


def _gpt(layers: int, hidden: int, heads: int) -> Size:
    return Size(layers=layers, shape=_shape(
        seq_length=2048, max_position_embeddings=2048, num_attention_heads=heads,
        hidden_size=hidden,
    ))  # fmt: skip


def _t5(layers: int, heads: int, kv: int, ffn: int) -> Size:
    return Size(layers=layers, shape=_shape(
        encoder_seq_length=2048, decoder_seq_length=512, max_position_embeddings=2048,
        num_attention_heads=heads, kv_channels=kv, hidden_size=1024, ffn_hidden_size=ffn,
    ))  # fmt: skip


def _resnet(channels: int, width: int, *, deep: bool = False) -> Size:
    blocks = (3, 4, 23 if deep else 6, 3)
    return Size(layers=blocks, shape=_shape(in_channels=channels, width_factor=width), half=False)


def _llama(layers: int, hidden: int, heads: int, keys: int, ffn: int) -> Size:
    return Size(layers=layers, shape=_shape(
        seq_length=2048, num_attention_heads=heads, num_key_value_heads=keys, hidden_size=hidden,
        ffn_hidden_size=ffn,
    ))  # fmt: skip


def _shape(**numbers: Any) -> MappingProxyType[str, int]:
    return MappingProxyType(numbers)


def published_sizes(family: str) -> dict[str, Size]:
    """Sizes of a family by name. A depth of ``scale-layer`` is given beside it: 1 here."""
    if family == "gpt":
        return {
            "350M": _gpt(24, 1024, 16), "1_3B": _gpt(24, 2048, 32), "2_6B": _gpt(32, 2560, 32),
            "6_7B": _gpt(32, 4096, 32), "13B": _gpt(40, 5120, 40), "scale-layer": _gpt(1, 512, 8),
        }  # fmt: skip
    if family == "t5":
        return {
            "770M": _t5(24, 16, 64, 4096), "3B": _t5(24, 32, 128, 16384),
            "6B": _t5(24, 64, 128, 32768), "11B": _t5(24, 128, 128, 65536),
            "22B": _t5(48, 128, 128, 65536),
        }  # fmt: skip
    if family == "llama":
        return {"7B": _llama(32, 4096, 32, 32, 11008), "8B": _llama(32, 4096, 32, 8, 14336)}
    return {
        "500M": _resnet(224, 2), "1B": _resnet(320, 2), "2B": _resnet(448, 2),
        "4B": _resnet(640, 2), "6_8B": _resnet(320, 16), "13B": _resnet(320, 16, deep=True),
    }  # fmt: skip


TINY = MappingProxyType({
    "gpt": Size(layers=4, shape=_shape(
        seq_length=64, max_position_embeddings=64, num_attention_heads=4, hidden_size=64,
    )),
    "t5": Size(layers=2, shape=_shape(
        encoder_seq_length=32, decoder_seq_length=16, max_position_embeddings=32,
        num_attention_heads=4, kv_channels=16, hidden_size=64, ffn_hidden_size=128,
    )),
    "resnet": Size(layers=(1, 1, 1, 1), shape=_shape(in_channels=16, width_factor=2), half=False),
})  # fmt: skip
"""Family -> a size that any machine profiles and trains."""
