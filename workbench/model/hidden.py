"""Parameters that a module holds in a list, a dictionary, an object or a function as well.

Layers put weights of their own in the places of registered parameters, by their names. What holds
one of these, or some of its memory, in any other place would keep it as it was in the beginning.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from workbench.model.code_names import used_by_type
from workbench.model.reachable import within

OWN = frozenset(vars(nn.Module())) | {"_flat_weights"}
"""Attributes of any module, and one that torch's recurrent ones keep up to date."""


def hidden(model: nn.Module) -> tuple[str, str] | None:
    """An attribute in which forward code finds a trained parameter, and that parameter's name; None
    where there is none."""
    every = {name: p for name, p in model.named_parameters() if p.requires_grad}
    homes = {p.untyped_storage().data_ptr(): name for name, p in every.items()}
    homes.pop(0, None)  # of tensors without memory
    names = {id(p): name for name, p in every.items()}
    read = frozenset[str]().union(*(used_by_type(type(m), "forward")[0] for m in model.modules()))
    for path, part in model.named_modules():
        for key in vars(part).keys() & read - OWN:
            if isinstance(value := vars(part)[key], Tensor | nn.Module):
                continue  # tensors that are attributes are looked at by overlap.py
            begin, held = f"{path}.{key}" if path else key, {id(m): m for m in model.modules()}
            for place, each in within(begin, value, held, _is_no_name):
                for tensor in each.parameters() if isinstance(each, nn.Module) else [each]:
                    if name := names.get(id(tensor)) or homes.get(_home(tensor)):
                        return place, name
    return None


def _is_no_name(value: object) -> bool:
    return not isinstance(value, type | ModuleType)


def _home(value: object) -> int:
    """Address of the memory of a tensor, or an array; 0 where there is none."""
    if isinstance(value, np.ndarray):
        writes = value.dtype.kind in "f" and value.flags.writeable
        return torch.from_numpy(value).untyped_storage().data_ptr() if writes else 0
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.is_meta:
        return 0
    return value.untyped_storage().data_ptr() if value.layout == torch.strided else 0
