"""Tensors of a module that share memory without being one object: an update of one of them changes
the other, and copies of the two would not know of each other."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor


def overlapping(model: nn.Module) -> tuple[str, str] | None:
    """Names of a parameter that is trained and of another parameter, a buffer or a plain attribute
    that has some of its elements, in order; None where there are none."""
    near: list[tuple[str, Tensor]] = []
    places = ((str(t.device), t.data_ptr(), name, t) for name, t in _tensors_of(model))
    for device, first, name, tensor in sorted(places, key=lambda place: place[:2]):
        near = [(n, t) for n, t in near if str(t.device) == device and _end(t) > first]
        for other, one in near:
            if _meet(one, tensor):
                return other, name
        near.append((name, tensor))
    return None


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each tensor once, of those whose memory is known."""
    seen = set[int]()
    for path, part in model.named_modules():
        for table in (part._parameters, part._buffers, vars(part)):
            for key, tensor in table.items():
                if not isinstance(tensor, Tensor) or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                if isinstance(tensor, FakeTensor) or nn.parameter.is_lazy(tensor):
                    continue
                if tensor.layout == torch.strided and tensor.numel() and tensor.data_ptr():
                    yield f"{path}.{key}" if path else key, tensor


def _end(tensor: Tensor) -> int:
    """Address behind the last byte."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in steps) + 1
    return tensor.data_ptr() + reach * tensor.itemsize


def _meet(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors whose memory begins before the other's ends have a byte in common, and
    one of them is trained."""
    if not any(isinstance(t, nn.Parameter) and t.requires_grad for t in (one, other)):
        return False
    first, end = one.data_ptr(), max(_end(one), _end(other))
    if all(_end(t) - t.data_ptr() <= t.nbytes for t in (one, other)):  # without gaps
        return True
    memory = torch.zeros(end - first, dtype=torch.bool)
    views = [
        memory.as_strided(
            (*t.shape, t.itemsize), (*(s * t.itemsize for s in t.stride()), 1), t.data_ptr() - first
        )
        for t in (one, other)
    ]
    views[0].fill_(True)
    return bool(views[1].any())
