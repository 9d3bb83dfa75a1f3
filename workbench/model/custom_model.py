"""Layers, weights and samples of a user's own model (custom.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.model.base import set_parameter
from workbench.model.custom import function_of, importing
from workbench.model.decompose import Layer, decompose, from_list
from workbench.model.keyed import make_keyed, unkeyed
from workbench.model.keys import permuted
from workbench.model.modules import Decomposed
from workbench.model.spec import ModelSpec
from workbench.model.text import Batches, Text, load_text

EXAMPLE = 2
"""Samples of the example a model is decomposed with; the number is free afterwards."""
HASHED = 16
"""Samples that the digest is of."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a function made."""

    module: nn.Module
    listed: bool
    """Whether it gave a list of modules, which `module` calls one after another."""
    samples: Any
    """None for tokens of the run's text."""


def make(spec: ModelSpec, seed: int) -> Made:
    """What the spec's function makes after torch's generator was given a seed, which it is spared.

    Raises ValueError where it fails, or gives something else than a module.
    """
    function = function_of(spec.family, spec.config_digest)
    with torch.random.fork_rng(devices=[]), importing():
        torch.manual_seed(seed)
        try:
            made = function(spec)
        except Exception as error:
            raise ValueError(f"{spec.family} failed: {type(error).__name__}: {error}") from error
    module, samples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    listed = isinstance(module, list) and all(isinstance(part, nn.Module) for part in module)
    if not isinstance(module, nn.Module) and not (listed and module):
        raise ValueError(
            f"{spec.family} gave {_kind(made)}; it must give an nn.Module, or a list of them, or "
            "either and its samples"
        )
    if samples is not None and not (
        hasattr(samples, "__getitem__") and hasattr(samples, "__len__")
    ):
        raise ValueError(
            f"{spec.family} gave {_kind(samples)} as samples; they need a length and an index"
        )
    return Made(module=nn.Sequential(*module) if listed else module, listed=listed, samples=samples)


def make_layered(spec: ModelSpec) -> Decomposed:
    """The layered model of a spec; it holds no weights, but for what else a module computed."""
    made = make(spec, 0)
    module = make_keyed(made.module.train())
    *inputs, _ = _rows(spec, made, EXAMPLE)
    with unkeyed():
        if made.listed:
            layers = from_list([*module], tuple(inputs), criterion=loss)
        else:
            layers = decompose(module, tuple(inputs), criterion=loss)
    if len(layers) < 2:
        raise ValueError(
            f"{spec.family} made a model of one layer, {type(module).__name__}; two are needed"
        )
    _empty(layers)
    return Decomposed(
        layers,
        _Weights(spec, layers),
        hidden=spec.hidden,
        vocab=spec.vocab,
        max_seq=spec.seq,
    )


def load_data(
    spec: ModelSpec, source: str | Path, tokenizer: str, *, seed: int, cache: Path | None
) -> Samples | Words:
    """The samples that come with the model, else those of the run's text."""
    made = make(spec, seed)
    if made.samples is not None:
        return Samples(made.samples, name=spec.family, seed=seed)
    text = load_text(source, tokenizer, vocab=spec.vocab, seq=spec.seq, cache=cache)
    return Words(text, spec.seq, seed)


def blank_rows(spec: ModelSpec, samples: int) -> tuple[Tensor, ...]:
    """Inputs and targets of so many samples: their shapes and dtypes, and zeros."""
    return _rows(spec, make(spec, 0), samples)


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Mean over all samples, in fp32."""
    if targets.is_floating_point():
        return F.mse_loss(output.float(), targets.float())
    if output.shape[:-1] == targets.shape:
        return F.cross_entropy(output.float().flatten(0, -2), targets.flatten())
    return F.cross_entropy(output.float(), targets)


class Words(Batches):
    """Samples of a text."""

    def __init__(self, text: Text, seq: int, seed: int) -> None:
        super().__init__(text.tokens, seq, 1, seed)
        self.name = text.name


class Samples:
    """Samples of any indexed collection, in an order that only the seed decides."""

    def __init__(self, items: Any, *, name: str, seed: int) -> None:
        """Raises ValueError for no samples, or such as are no tuples."""
        self._items, self.name, self._seed = items, name, seed
        if len(items) < 1:
            raise ValueError(f"{name} gave no samples; at least one is needed")
        step = max(1, len(items) // HASHED)
        digest = hashlib.sha256(str(len(items)).encode())
        for at in range(0, len(items), step):
            for part in item_of(items, at):
                digest.update(part.contiguous().reshape(-1).view(torch.uint8).numpy())
        self.digest = digest.hexdigest()

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """What the model takes, the targets last, on the CPU."""
        items = [item_of(self._items, self._position(sample)) for sample in samples]
        try:
            return tuple(torch.stack(parts) for parts in zip(*items, strict=True))
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"samples of {self.name} are unlike each other: {error}") from error

    def _position(self, sample: int) -> int:
        epoch, place = divmod(sample, len(self._items))
        return permuted(place, len(self._items), self._seed, "sample", epoch)


def item_of(items: Any, at: int) -> tuple[Tensor, ...]:
    """One sample. Raises ValueError where it is no tuple of inputs and a target."""
    item = items[at]
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise ValueError(
            f"sample {at} is {_kind(item)}; it must be a tuple of what the model takes and, last, "
            "the target"
        )
    return tuple(torch.as_tensor(part) for part in item)


class _Weights:
    """Initial weights: the function's own. The whole of them lies in memory from the first unit
    that is asked for to the last."""

    def __init__(self, spec: ModelSpec, layers: list[Layer]) -> None:
        self._spec, self._layers = spec, layers
        self._seed: int | None = None
        self._found: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, module: nn.Module, unit: int, seed: int) -> None:
        if self._seed != seed:
            made = make(self._spec, seed).module
            self._seed, self._found = seed, dict(made.named_parameters(remove_duplicate=False))
        layer = self._layers[unit]
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if name not in layer.shared:
                parameter.copy_(self._found[layer.state[name]])
        if unit == len(self._layers) - 1:
            self._seed, self._found = None, {}


def _rows(spec: ModelSpec, made: Made, samples: int) -> tuple[Tensor, ...]:
    if made.samples is None:
        return tuple(torch.zeros(samples, spec.seq, dtype=torch.int64) for _ in range(2))
    if len(made.samples) < 1:
        raise ValueError(f"{spec.family} gave no samples; at least one is needed")
    parts = item_of(made.samples, 0)
    return tuple(torch.zeros((samples, *part.shape), dtype=part.dtype) for part in parts)


def _empty(layers: list[Layer]) -> None:
    """Let go of all weights: units are made one by one."""
    there: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for layer in layers:
        for name, parameter in [*layer.module.named_parameters(remove_duplicate=False)]:
            if id(parameter) not in there:
                bare = torch.empty_like(parameter, device="meta")
                left = nn.Parameter(bare, requires_grad=parameter.requires_grad)
                there[id(parameter)] = parameter, left
            set_parameter(layer.module, name, there[id(parameter)][1])


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
