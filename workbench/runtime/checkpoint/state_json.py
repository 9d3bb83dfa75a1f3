"""State of schedulers, samplers and the like as JSON values, and back: nothing is unpickled.

Tuples, keys that are no text, infinities and tensors are tagged; anything else that JSON does not
know is refused with its place.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

ITEMS, TUPLE, FLOAT, TENSOR = "(items)", "(tuple)", "(float)", "(tensor)"
TAGS = {ITEMS, TUPLE, FLOAT, TENSOR}


def encoded(value: Any, place: str) -> Any:
    """JSON values of a state. Raises ValueError for what has none; `place` says where it is."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else {FLOAT: str(value)}
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        told = base64.b64encode(data.flatten().view(torch.uint8).numpy().tobytes()).decode()
        return {TENSOR: [str(data.dtype).removeprefix("torch."), [*data.shape], told]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and not TAGS & value.keys():
            return {key: encoded(each, f"{place}.{key}") for key, each in value.items()}
        pairs = [[encoded(k, place), encoded(v, f"{place}.{k}")] for k, v in value.items()]
        return {ITEMS: pairs}
    if isinstance(value, list):
        return [encoded(each, place) for each in value]
    if isinstance(value, tuple):
        return {TUPLE: [encoded(each, place) for each in value]}
    raise ValueError(
        f"{place} is a {type(value).__name__}; a checkpoint keeps numbers, text, tensors, and "
        "lists and dictionaries of them"
    )


def decoded(value: Any) -> Any:
    """The state that was encoded."""
    if isinstance(value, list):
        return [decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    (tag,) = value.keys() if len(value) == 1 else (None,)
    if tag == FLOAT:
        return float(value[FLOAT])
    if tag == TUPLE:
        return tuple(decoded(each) for each in value[TUPLE])
    if tag == ITEMS:
        return {decoded(key): decoded(each) for key, each in value[ITEMS]}
    if tag == TENSOR:
        dtype, shape, told = value[TENSOR]
        flat = torch.frombuffer(bytearray(base64.b64decode(told)), dtype=torch.uint8)
        return flat.view(getattr(torch, dtype)).reshape(shape)
    return {key: decoded(each) for key, each in value.items()}
