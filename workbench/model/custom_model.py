"""Layers and weights of a user's own model (custom.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.call_sets import read_sets
from workbench.core.model_spec import ModelSpec
from workbench.model.base import set_parameter
from workbench.model.call_layers import call_layers
from workbench.model.custom import function_of, importing
from workbench.model.custom_data import Samples, Words, classes_of, item_of, loss
from workbench.model.decompose import Layer, ListOfLayers, Undecomposed, decompose, from_list
from workbench.model.drawn import generators, unkeyed
from workbench.model.frozen import thaw
from workbench.model.keyed import make_keyed
from workbench.model.modules import Decomposed
from workbench.model.refused import refuse
from workbench.model.text import load_text

EXAMPLE = 2
"""Samples of the example a model is decomposed with; the number is free afterwards."""
APART = ", such as the parts of an nn.Sequential or nn.ModuleList"
"""Ends what is said of a module that is one layer."""
ASKS = (
    "; values must not decide what is called or how much there is: choose with torch.where "
    "or a mask"
)
"""Advice where code cannot be followed since it asks for values."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """Return values of a user's function."""

    module: nn.Module
    listed: bool
    """Whether it gave a list of modules, which `module` calls one after another."""
    samples: Any
    """None for tokens of the run's text."""


def make(spec: ModelSpec, seed: int) -> Made:
    """Call the spec's function after the generators of torch, numpy and Python were given a seed;
    they are left as they were.

    Raises ValueError where it fails, gives something else than a module, or a module that does what
    layers could not (refused.py).
    """
    function = function_of(spec.family, spec.config_digest)
    with generators(seed), importing():
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
    module = ListOfLayers(*module) if listed else module
    refuse(module, spec.family)
    return Made(module=module, listed=listed, samples=samples)


def make_layered(spec: ModelSpec, seed: int = 0) -> Decomposed:
    """The layered model of a spec; it holds no weights, but for what else a module computed."""
    made = make(spec, seed)
    module = make_keyed(made.module.train())
    frozen = thaw(module)
    *inputs, targets = _rows(spec, made, EXAMPLE)
    places = None
    with unkeyed():
        try:
            if spec.calls:
                layers, places = call_layers(module, tuple(inputs), read_sets(spec.calls), loss)
            elif made.listed:
                layers = from_list([*module], tuple(inputs), criterion=loss)
            else:
                layers = decompose(module, tuple(inputs), criterion=loss)
        except Undecomposed as error:
            raise ValueError(f"{error.reason}{_advice(made, error)}") from error
    if len(layers) < 2:
        raise ValueError(
            f"{spec.family} made a model of one layer, {type(module).__name__}; "
            f"two are needed{APART}"
        )
    empty(layers)
    model = Decomposed(
        module,
        layers,
        _Weights(spec, layers),
        hidden=spec.hidden,
        vocab=spec.vocab,
        max_seq=spec.seq,
        targets=targets,
        frozen=frozen,
        foreign=True,
        places=places,
    )
    model.classes = classes_of(model.output, targets, spec.family)
    return model


def load_data(
    spec: ModelSpec,
    source: str | Path,
    tokenizer: str,
    *,
    seed: int,
    cache: Path | None,
    classes: int | None = None,
) -> Samples | Words:
    """The samples that come with the model, else those of the run's text. With `classes`, labels
    must be among so many."""
    made = make(spec, seed)
    if made.samples is not None:
        return Samples(made.samples, name=spec.family, seed=seed, classes=classes)
    text = load_text(source, tokenizer, vocab=spec.vocab, seq=spec.seq, cache=cache)
    return Words(text, spec.seq, seed, classes)


def blank_rows(spec: ModelSpec, samples: int) -> tuple[Tensor, ...]:
    """Inputs and targets of so many samples: their shapes and dtypes, and zeros."""
    return _rows(spec, make(spec, 0), samples)


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


def empty(layers: list[Layer]) -> None:
    """Let go of all weights: units are made one by one."""
    there: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for layer in layers:
        for name, parameter in [*layer.module.named_parameters(remove_duplicate=False)]:
            if id(parameter) not in there:
                bare = torch.empty_like(parameter, device="meta")
                left = nn.Parameter(bare, requires_grad=parameter.requires_grad)
                there[id(parameter)] = parameter, left
            set_parameter(layer.module, name, there[id(parameter)][1])


def _advice(made: Made, error: Undecomposed) -> str:
    """Advice for the author of the function; of a list, each module runs as it is."""
    if error.asks:
        return ASKS
    if made.listed:
        return ""
    only = "if the module runs by itself, " if error.failed else ""
    return (
        f"; {only}put that code into a submodule, which is run as it is, or return a list of "
        "modules that are called one after another"
    )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
