"""Tensors of a module that share memory without being one object, and parameters that it holds in a
list, a dictionary, an object or a function as well.

An update of one of two such tensors changes the other, and copies of the two would not know of each
other. Layers put weights of their own in the places of registered parameters, by their names, and
would leave in any other place what was there in the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from workbench.model.code_names import used_by_type
from workbench.model.reachable import attributes_of, contents

OWN = frozenset(vars(nn.Module())) | {"_flat_weights"}
"""Attributes of any module, and one that torch's recurrent ones keep up to date."""


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


def hidden(model: nn.Module) -> tuple[str, str] | None:
    """An attribute in which forward code finds a trained parameter, and that parameter's name; None
    where there is none."""
    every = {name: p for name, p in model.named_parameters() if p.requires_grad}
    homes = {p.untyped_storage().data_ptr(): name for name, p in every.items() if _is_known(p)}
    names = {id(p): name for name, p in every.items()}
    own = {id(module): module for module in model.modules()}
    kinds = {*map(type, own.values())}
    read = frozenset[str]().union(*(used_by_type(kind, "forward")[0] for kind in kinds)) - OWN
    for begin, key, value in attributes_of(model):
        if key not in read or isinstance(value, Tensor | nn.Module):
            continue  # tensors that are attributes overlap
        for place, each in contents(begin, value, dict(own), _is_no_name):
            if isinstance(each, np.ndarray) and each.dtype.kind == "f" and each.flags.writeable:
                each = torch.from_numpy(each)
            for one in each.parameters() if isinstance(each, nn.Module) else [each]:
                home = one.untyped_storage().data_ptr() if _is_known(one) else 0
                if name := names.get(id(one)) or homes.get(home):
                    return place, name
    return None


def _is_no_name(value: object) -> bool:
    return not isinstance(value, type | ModuleType)


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each tensor once, of those whose memory is known; parameters and buffers first."""
    seen = set[int]()
    named = model.named_parameters(), model.named_buffers()
    plain = ((name, value) for name, _, value in attributes_of(model))
    for name, tensor in chain(*named, plain):
        if _is_known(tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _is_known(value: object) -> bool:
    """Whether it is a tensor in a memory of its own or of others."""
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or is_lazy(value):
        return False
    return value.layout == torch.strided and value.numel() > 0 and value.data_ptr() != 0


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
