"""Weights of a Hugging Face model under the names of its module, by transformers' own loader.

Names on disk are not always names in the module, nor tensors on disk those of the module: experts
lie one by one and are fused, projections are joined or cut. Which, and how, transformers says for
each architecture (`conversion_mapping`), and its loader does (`core_model_loading`). Here it is
given a module whose parameters are on the meta device, and the tensors of one parameter, so no more
of a model is in memory than that; and, to see what is missing or left over by its rules before
anything is read, all tensors without values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import conversion_mapping, core_model_loading, modeling_utils
from transformers.utils import logging

from workbench.model.weights.mapped import DTYPES, Lazy
from workbench.model.weights.reader import check_shapes
from workbench.model.weights.stored import Stored, few


class Converted:
    """A `Reader` (reader.py) of a model's tensors."""

    def __init__(self, stored: Stored, hollow: Callable[[], nn.Module]) -> None:
        """`hollow` makes the module, its parameters on the meta device."""
        self._stored, self._hollow, self._module = stored, hollow, hollow()
        self._mapping = conversion_mapping.get_model_conversion_mapping(self._module)
        kinds = {entry.dtype for entry in stored.entries.values()}
        if len(kinds) == 1:  # rearranged as they are, and cast when they are copied
            for p in self._module.parameters():
                p.data = torch.empty_like(p, dtype=DTYPES[min(kinds)])
        self._meta = self._module.state_dict(keep_vars=True)
        self._labels = self._of_names()

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """See `Reader`: by the rules of `from_pretrained`."""
        path, module = self._stored.path, self._hollow()
        info = self._load(module, self._stored.entries, "meta")
        if info.conversion_errors:
            name, told = min(info.conversion_errors.items())
            raise ValueError(
                f"{path} has tensors of which transformers makes no {name!r}: "
                f"{told.strip().splitlines()[-1]:.200}"
            )
        there = {name: tuple(shape) for name, shape, _ in info.mismatched_keys}
        check_shapes(path, there, {name: tuple(s) for name, _, s in info.mismatched_keys})
        module.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
        module._adjust_missing_and_unexpected_keys(info)
        if info.missing_keys:
            raise ValueError(f"{path} lacks tensors of the model: {few(info.missing_keys)}")
        if info.unexpected_keys:
            raise ValueError(
                f"{path} has tensors that the model lacks: {few(info.unexpected_keys)}"
            )

    def names(self) -> set[str]:
        """See `Reader`."""
        return {*self._labels}

    def read(self, name: str) -> Tensor:
        """See `Reader`."""
        path, _, leaf = name.rpartition(".")
        self._load(self._module, self._labels[name], "cpu")
        found = getattr(self._module.get_submodule(path), leaf).detach()
        for made in self._made_with(name):
            path, _, leaf = made.rpartition(".")
            setattr(self._module.get_submodule(path), leaf, self._meta[made])
        assert not found.is_meta, f"{name} was not loaded"
        return found

    def _made_with(self, name: str) -> list[str]:
        labels = self._labels[name]
        return [other for other, of in self._labels.items() if of is labels]

    def _load(self, module: nn.Module, labels: Iterable[str], device: str) -> Any:
        """Have transformers load some tensors; without values onto the meta device."""
        tensors = {
            label: Lazy(self._stored.entries[label], bare=device == "meta") for label in labels
        }
        how = modeling_utils.LoadStateDictConfig(
            weight_mapping=self._mapping, device_map={"": device}, dtype=torch.float32
        )
        with _no_progress_bars():
            info, _ = core_model_loading.convert_and_load_state_dict_in_model(module, tensors, how)
        return info

    def _of_names(self) -> dict[str, list[str]]:
        """Name in the module -> labels of the tensors in files that it is made of: labels that the
        loader renames to one name go together, and may make more than that one."""
        loading, meta = core_model_loading, self._meta
        renamings = [one for one in self._mapping if isinstance(one, loading.WeightRenaming)]
        converters = [one for one in self._mapping if isinstance(one, loading.WeightConverter)]
        several = {
            s for one in converters if len(one.target_patterns) > 1 for s in one.source_patterns
        }
        prefix = self._module.base_model_prefix
        groups: dict[str, list[str]] = {}
        more: set[str] = set()
        for label in sorted(self._stored.entries, key=loading.dot_natural_key):
            name, pattern = loading.rename_source_key(label, renamings, converters, prefix, meta)
            if name not in meta and label in meta:
                name, pattern = loading.rename_source_key(label, [], [], prefix, meta)
            groups.setdefault(name, []).append(label)
            more |= {name} if pattern in several else set()
        found = {name: labels for name, labels in groups.items() if name in meta}
        for name in more & found.keys():
            info = self._load(self._hollow(), found[name], "meta")
            found |= dict.fromkeys(meta.keys() - info.missing_keys, found[name])
        return found


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
