"""Tensors of a module that share memory without being one object: where one is written, so is the
other, and copies of the two would not know of each other."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor


def overlapping(model: nn.Module) -> tuple[str, str] | None:
    """Names of a parameter that is trained and of another parameter, a buffer or a plain attribute
    that has some of its elements; None where there are none."""
    ends: dict[torch.device, list[tuple[int, int, str, Tensor]]] = {}
    for name, tensor in _tensors_of(model):
        if reach := _bytes(tensor):
            first = tensor.data_ptr()
            ends.setdefault(tensor.device, []).append((first, first + reach, name, tensor))
    for spans in ends.values():
        spans.sort(key=lambda span: span[:2])
        near: list[tuple[int, int, str, Tensor]] = []
        for span in spans:
            near = [other for other in near if other[1] > span[0]]
            for _, _, name, tensor in near:
                if _meet(tensor, span[3]):
                    return name, span[2]
            near.append(span)
    return None


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each tensor once, those with memory that is known."""
    seen = set[int]()
    for path, part in model.named_modules():
        for table in (part._parameters, part._buffers, vars(part)):
            for key, tensor in table.items():
                strange = not isinstance(tensor, Tensor) or isinstance(tensor, FakeTensor)
                if strange or id(tensor) in seen or tensor.is_meta or nn.parameter.is_lazy(tensor):
                    continue
                seen.add(id(tensor))
                if tensor.layout == torch.strided and tensor.numel() and tensor.data_ptr():
                    yield f"{path}.{key}" if path else key, tensor


def _bytes(tensor: Tensor) -> int:
    """From the first byte of a tensor to its last."""
    steps = (
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (sum(steps) + 1) * tensor.itemsize


def _meet(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, one of which is trained, have a byte in common; their spans have."""
    trained = (isinstance(t, nn.Parameter) and t.requires_grad for t in (one, other))
    if not any(trained):
        return False
    if all(_bytes(tensor) <= tensor.nbytes for tensor in (one, other)):  # without gaps
        return True
    first = min(one.data_ptr(), other.data_ptr())
    length = max(t.data_ptr() + _bytes(t) for t in (one, other)) - first
    taken = torch.zeros(length, dtype=torch.bool)
    found = []
    for tensor in (one, other):
        strides = [stride * tensor.itemsize for stride in tensor.stride()]
        found.append(
            taken.as_strided(
                (*tensor.shape, tensor.itemsize), (*strides, 1), tensor.data_ptr() - first
            )
        )
    found[0].fill_(True)
    return bool(found[1].any())
