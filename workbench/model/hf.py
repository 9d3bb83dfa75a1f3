"""Any Hugging Face decoder as a list of units, its code and its weights untouched.

The usual way to cut such a model is to copy what its forward pass does around the layers
(embedding scale, positions, masks, rotary tables, logit caps) once per architecture and per
release. Here Hugging Face does it itself, each part in a copy of the model from which the others
are left out:

* embedding: the decoder without layers and final norm; what comes out is what the first layer
  gets;
* blocks: the decoder with its layers replaced by recorders says, once per shape, with which
  arguments (mask, positions, rotary tables) it calls each layer; these do not depend on weights;
* head: the causal-LM model whose decoder is replaced by its final norm, so it applies whatever it
  does to logits.

Random numbers are torch's own inside these modules, so the default generator is seeded around each
unit by (seed, step, unit, first sample): a recomputed forward pass sees the same masks, though
with dropout another split of the batch sees other ones (our GPT does not have this limit).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional as F

from workbench.core.jsonfile import parse_json
from workbench.core.paths import user_path
from workbench.model.base import Context, LayeredModel, move_buffers, set_parameter
from workbench.model.dropout import seeded
from workbench.model.keys import key
from workbench.model.spec import ModelSpec

FINAL_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")


class HFModel(LayeredModel):
    """The units of a `*ForCausalLM` module, whose weights are copied and never changed."""

    def __init__(self, source: nn.Module) -> None:
        """Raises ValueError when layers and final norm are not where decoders have them."""
        self.source = source
        self.config = source.config
        self.prefix = source.base_model_prefix
        decoder = getattr(source, self.prefix, None)
        children = dict(decoder.named_children()) if isinstance(decoder, nn.Module) else {}
        self.layers = self.config.num_hidden_layers
        self._layers_name = next((n for n, m in children.items() if _is_layers(m, self.layers)), "")
        self._norm_name = next((n for n in FINAL_NORMS if n in children), "")
        if not self._layers_name or not self._norm_name:
            raise ValueError(
                f"{type(source).__name__} cannot be cut into units: {self.prefix!r} must hold "
                f"{self.layers} layers in a list and a final norm; found {', '.join(children)}; "
                "any module is trained that a function makes (family=package.module:name)"
            )
        self.hidden = self.config.hidden_size
        self.vocab = source.get_output_embeddings().weight.shape[0]
        self.max_seq = self.config.max_position_embeddings
        self._fill_buffers()
        self._random = _dropout(self.config) > 0
        self._tied = self._find_tied()
        self._recorded: tuple[Any, list[tuple[tuple, dict]]] = (None, [])

    @classmethod
    def from_config(cls, config: Any) -> HFModel:
        """From a configuration object; weights are drawn by their rules, keyed per unit."""
        transformers = _transformers()
        with torch.device("meta"), understood(config.model_type):
            source = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
        return cls(source)

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> HFModel:
        """From a spec made by `ModelSpec.hugging_face`; ValueError when the file changed since, or
        the spec was made without it."""
        config, digest = _read_config(spec.family)
        with understood(spec.family):
            there = config.num_hidden_layers, config.hidden_size
        if there != (spec.layers, spec.hidden):
            raise ValueError(
                f"{spec.family} has {there[0]} layers of hidden size {there[1]}, and the spec says "
                f"{spec.layers} of {spec.hidden}; --hf-config takes them from the file"
            )
        if spec.config_digest and digest != spec.config_digest:
            raise ValueError(
                f"{spec.family} changed: its SHA-256 begins with {digest[:12]}, "
                f"that of the file the run was made for with {spec.config_digest[:12]}"
            )
        return cls.from_config(config)

    # Structure.

    def skeleton(self, unit: int) -> nn.Module:
        return _hollow(self._cut(unit))

    def _cut(self, unit: int) -> nn.Module:
        """The unit inside the source: its own module, or the model without the other units."""
        decoder = getattr(self.source, self.prefix)
        if unit == 0:
            rest = {self._layers_name: nn.ModuleList(), self._norm_name: nn.Identity()}
            return _with_children(decoder, rest)
        if unit == self.head:
            tail = FinalNorm(self._norm_name, getattr(decoder, self._norm_name))
            return _with_children(self.source, {self.prefix: tail})
        return getattr(decoder, self._layers_name)[unit - 1]

    def kind(self, unit: int) -> str:
        """Blocks are of one kind unless the configuration types layers or scales by number."""
        if not 0 < unit < self.head:
            return super().kind(unit)
        types = getattr(self.config, "layer_types", None)
        kind = f"block {types[unit - 1]}" if types and len(set(types)) > 1 else "block"
        by_number = getattr(self.config, "scale_attn_by_inverse_layer_idx", False)
        return f"{kind} {unit}" if by_number else kind

    def tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        return self._tied

    def state_name(self, unit: int, local_name: str) -> str:
        if unit == 0:
            return f"{self.prefix}.{local_name}"
        if unit == self.head:
            return local_name
        return f"{self.prefix}.{self._layers_name}.{unit - 1}.{local_name}"

    def parts(self, unit: int, module: nn.Module) -> dict[str, nn.Module]:
        if 0 < unit < self.head:
            return {self.state_name(unit, "")[:-1]: module}
        left_out = (self._layers_name, self._norm_name) if unit == 0 else (self.prefix,)
        parts = {
            self.state_name(unit, name): child
            for name, child in module.named_children()
            if name not in left_out
        }
        if unit == self.head:
            tail = module.get_submodule(self.prefix)
            parts[f"{self.prefix}.{self._norm_name}"] = tail.get_submodule(self._norm_name)
        return parts

    def _find_tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        owners: dict[int, tuple[int, str]] = {}
        tied = {}
        for unit in range(self.layers + 2):
            for name, parameter in self._cut(unit).named_parameters(remove_duplicate=False):
                owner = owners.setdefault(id(parameter), (unit, name))
                if owner != (unit, name):
                    tied[unit, name] = owner
        cut = {self.state_name(*place) for place in [*owners.values(), *tied]}
        whole = {name for name, _ in self.source.named_parameters(remove_duplicate=False)}
        if cut != whole:
            raise ValueError(
                f"{type(self.source).__name__} cannot be cut into units: "
                f"{min(whole ^ cut)} belongs to none"
            )
        return tied

    # Weights.

    def initialize(self, unit: int, module: nn.Module, *, seed: int) -> None:
        parameters = dict(self._cut(unit).named_parameters(remove_duplicate=False))
        if any(parameter.is_meta for parameter in parameters.values()):
            with torch.no_grad(), seeded(torch.device("cpu"), key(seed, "init", unit)):
                for part in module.modules():
                    self.source._init_weights(part)
            return
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if (unit, name) not in self._tied:
                parameter.detach().copy_(parameters[name].detach())

    def _fill_buffers(self) -> None:
        """Compute the buffers (rotary tables) of a model made on the meta device."""
        for module in self.source.modules():
            empty = [n for n, b in module.named_buffers(recurse=False) if b.is_meta]
            for name in empty:
                setattr(module, name, torch.empty_like(getattr(module, name), device="cpu"))
            if empty:
                self.source._init_weights(module)

    # Computation.

    def forward(
        self,
        unit: int,
        module: nn.Module,
        x: Tensor,
        ctx: Context,
        targets: Tensor | None = None,
    ) -> Tensor:
        if len(x) != len(ctx.samples):
            raise ValueError(
                f"{len(ctx.samples)} samples are named for a micro-batch of {len(x)} rows"
            )
        if module.training != ctx.training:
            module.train(ctx.training)
        if unit == self.head:
            logits = module(inputs_embeds=x, use_cache=False).logits
            if targets is None:
                return logits
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        args, kwargs = ((), {"use_cache": False}) if unit == 0 else self._arguments(x)[unit - 1]
        with self._keyed(x.device, ctx):
            out = module(x, *args, **kwargs)
        if unit == 0:
            return out.last_hidden_state
        return out[0] if isinstance(out, tuple) else out

    @property
    def couples(self) -> str:
        return "its layers draw dropout for a whole micro-batch" if self._random else ""

    def _keyed(self, device: torch.device, ctx: Context) -> AbstractContextManager[None]:
        if not self._random or not ctx.training:
            return nullcontext()
        return seeded(device, key(ctx.seed, "dropout", ctx.step, ctx.samples[0], ctx.unit))

    def _arguments(self, x: Tensor) -> list[tuple[tuple, dict]]:
        """What the decoder passes each layer beside x [B, S, H]; kept for the latest shape."""
        asked = (x.shape, x.dtype, x.device)
        if self._recorded[0] != asked:
            recorders = nn.ModuleList(Recorder() for _ in range(self.layers))
            decoder = _hollow(_with_children(self._cut(0), {self._layers_name: recorders})).eval()
            unread = set(decoder.get_input_embeddings().parameters())  # hidden states are given
            for name, p in list(decoder.named_parameters()):
                shape = torch.Size([0]) if p in unread else p.shape
                set_parameter(decoder, name, x.new_zeros(shape))
            move_buffers(decoder, x.device)
            with torch.no_grad(), understood(self.config.model_type):
                decoder(inputs_embeds=torch.zeros_like(x), use_cache=False)
            calls = [r.call for r in decoder.get_submodule(self._layers_name)]
            self._recorded = (asked, calls)
        return self._recorded[1]


class Recorder(nn.Module):
    """Stands for a layer: keeps the arguments it is called with and passes the hidden states on."""

    call: tuple[tuple, dict]

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.call = (args, kwargs)
        return hidden_states


class FinalNorm(nn.Module):
    """Stands for the decoder in the head: norms the hidden states it is given."""

    def __init__(self, name: str, norm: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, norm)

    def forward(self, input_ids: None = None, *, inputs_embeds: Tensor, **_: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        normed = self.get_submodule(self.name)(inputs_embeds)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=normed)


def describe(path: str | Path, *, seq: int | None = None) -> ModelSpec:
    """See `ModelSpec.hugging_face`."""
    config, digest = _read_config(path)
    with understood(path):
        positions = config.max_position_embeddings
        usual = min(1024, positions)
        sizes = {
            "layers": config.num_hidden_layers,
            "hidden": config.hidden_size,
            "heads": config.num_attention_heads,
            "vocab": config.vocab_size,
            "dropout": _dropout(config),
            "tied": bool(config.tie_word_embeddings),
        }
    if seq is not None and seq > positions:
        raise ValueError(f"{path} has {positions} positions; samples of {seq} tokens do not fit")
    return ModelSpec(family=str(path), seq=seq or usual, config_digest=digest, **sizes)


def _read_config(path: str | Path) -> tuple[Any, str]:
    """The configuration in a local JSON file (or in a folder's config.json), and its SHA-256."""
    file = user_path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"the model {str(path)!r} is not known: it is gpt, bert, vgg, resnet, a function "
            "(package.module:name), or the path of a Hugging Face config.json, which cannot be "
            f"read there: {error.strerror}"
        ) from None
    numbers = parse_json(data, str(file))
    if not isinstance(numbers, dict) or not isinstance(numbers.get("model_type"), str):
        raise ValueError(f"{file} is no Hugging Face configuration: it names no model_type")
    transformers = _transformers()
    model_type = numbers.pop("model_type")
    if model_type not in transformers.CONFIG_MAPPING:  # whose own words list all that there are
        raise ValueError(f"{file} is of the model_type {model_type!r}, which transformers lacks")
    with understood(file):
        return transformers.AutoConfig.for_model(model_type, **numbers), sha256(data).hexdigest()


@contextmanager
def understood(path: str | Path) -> Iterator[None]:
    """Raise a ValueError that names the file for whatever a library raises of its values."""
    try:
        yield
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        raise ValueError(
            f"{path} describes no model that transformers makes: {type(error).__name__}: {reason}"
        ) from None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "Hugging Face models need the package transformers, which is not installed; "
            "install workbench with its extra 'hf'"
        ) from None
    return transformers


def _with_children(module: nn.Module, children: dict[str, nn.Module]) -> nn.Module:
    """A shallow copy with other submodules in the place of some; the rest is shared."""
    clone = copy.copy(module)
    clone._modules = {**module._modules, **children}
    return clone


def _hollow(module: nn.Module) -> nn.Module:
    """A deep copy in which parameters are on the meta device, so that none is copied. Buffers are
    real, also where somebody asks with fake tensors what a unit needs."""
    with unset_fake_temporarily():
        stand_in = {
            id(p): nn.Parameter(torch.empty_like(p, device="meta")) for p in module.parameters()
        }
        return copy.deepcopy(module, stand_in)


def _is_layers(module: nn.Module, layers: int) -> bool:
    return isinstance(module, nn.ModuleList) and len(module) == layers


def _dropout(config: Any) -> float:
    """The largest probability of dropping anything; those of heads for other tasks are unused."""
    return max(
        (
            float(p)
            for name, p in config.to_dict().items()
            if "drop" in name and not name.startswith(("summary", "classifier"))
            if isinstance(p, int | float)
        ),
        default=0.0,
    )
