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
  does to logits, and makes the auxiliary loss of its routers (hf_layers.py).

Random numbers are torch's own inside these modules, so the default generator is seeded around each
unit by (seed, step, unit, first sample): a recomputed forward pass sees the same masks, though
with dropout another split of the batch sees other ones (our GPT does not have this limit).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional as F

from workbench.core.model_spec import DOCUMENTS, GPU_KERNELS, ModelSpec
from workbench.model.base import Context, Part, Written, move_buffers
from workbench.model.custom_data import counted, loss
from workbench.model.dropout import seeded
from workbench.model.frozen import held
from workbench.model.hf_attention import anywhere, causal_lm
from workbench.model.hf_calls import Calls, Record, at_positions, recorded
from workbench.model.hf_config import dropout_of, read_config, understood
from workbench.model.hf_head import DividedHead, divided_head
from workbench.model.hf_layers import (
    Decoder,
    FinalNorm,
    Flow,
    Routers,
    as_written,
    kinds,
    with_children,
)
from workbench.model.hf_trial import check_rows, try_out
from workbench.model.keys import key
from workbench.model.weights.stored import Stored, find

if TYPE_CHECKING:
    from workbench.model.weights.converted import Converted

FINAL_NORMS = ("norm", "ln_f", "final_layernorm", "final_layer_norm")
COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")
"""Under which a causal-LM model keeps the factor of its auxiliary loss."""
WORDS = 1024
"""Of a model that is shortened."""
VISITED = ("num_experts_per_tok", "moe_topk", "moe_k")
"""Under which configurations say how many experts a token visits."""


class HFModel(Decoder):
    """The units of a `*ForCausalLM` module, whose weights are copied and never changed."""

    def __init__(self, source: nn.Module, rows: str | None = None) -> None:
        """`rows`: how rows make samples, as a `ModelSpec` has it. Raises ValueError when layers and
        final norm are not where decoders have them, and for rows that the module mixes."""
        self.source, self.rows = source, rows
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
        self.vocab = source.get_output_embeddings().weight.shape[0]
        with understood(self.config.model_type):
            self.hidden, self.max_seq = self.config.hidden_size, self.config.max_position_embeddings
        if bare := [name for name, buffer in source.named_buffers() if buffer.is_meta]:
            raise ValueError(f"{type(source).__name__} has a buffer without values: {bare[0]}")
        self._tied = self._find_tied()
        named = (
            self._cut(u).named_parameters(remove_duplicate=False) for u in range(self.head + 1)
        )
        self.frozen = [[name for name, p in own if not p.requires_grad] for own in named]
        """By unit, parameters that the source does not train."""
        self._kinds = kinds(self.layers_of(source), getattr(self.config, "layer_types", None))
        self.calls = Calls(self.recorder, self.config.model_type)
        self._routers = Routers(decoder)
        with anywhere(self.config):
            self._seen = try_out(self)
        self._flow = Flow(self.hidden, self._seen.seats)
        self.hidden = self._flow.width
        if not self._seen.seats:
            self._routers.places.clear()
        self._random = self._seen.draws or dropout_of(self.config) > 0
        self._divided = self._find_divided()
        if rows:
            check_rows(self)

    @classmethod
    def from_config(
        cls, config: Any, trained: str = "", rows: str | None = None, attention: str | None = None
    ) -> HFModel:
        """From a configuration object; weights are drawn by their rules, keyed per unit. Buffers
        are those of the path `trained`, where there are any in it; `attention` as in a spec."""
        source = causal_lm(config, attention)
        buffers = source.state_dict().keys() - dict(source.named_parameters(remove_duplicate=False))
        if trained and buffers:
            from workbench.model.weights.converted import Converted

            given = Converted(find(trained), partial(_hollow, source))
            for name in buffers & given.names():
                source.get_buffer(name).copy_(given.read(name))
        return cls(source, rows)

    @classmethod
    def from_spec(cls, spec: ModelSpec) -> HFModel:
        """From a spec made by `spec_from_config`; ValueError when the file changed since, or
        the spec was made without it."""
        config, digest = read_config(spec.family)
        with understood(spec.family):
            there = config.num_hidden_layers, config.hidden_size
        if there != (spec.layers, spec.hidden):
            raise ValueError(
                f"{spec.family} has {there[0]} layers of hidden size {there[1]}, and the spec says "
                f"{spec.layers} of {spec.hidden}; --hf-config (in Python hf_config) takes them "
                "from the file"
            )
        if spec.config_digest and digest != spec.config_digest:
            raise ValueError(
                f"{spec.family} changed: its SHA-256 begins with {digest[:12]}, "
                f"that of the file the run was made for with {spec.config_digest[:12]}"
            )
        return cls.from_config(config, spec.pretrained, spec.rows, spec.attention)

    def shortened(self) -> HFModel:
        """The model of the first layers only, two at least and as many as show all kinds; and of
        `WORDS` words, where it has more and transformers makes such a model."""
        layers = max(2, *(self._kinds.index(kind) + 1 for kind in {*self._kinds}))
        with suppress(Exception):  # whatever its code raises
            if self.vocab > WORDS:
                return self._first(min(layers, self.layers), WORDS)
        return self if layers >= self.layers else self._first(layers)

    def _first(self, layers: int, words: int | None = None) -> HFModel:
        """The model of the first layers, and words, alone."""
        source = copy.deepcopy(self.source, {id(p): p for p in self.source.parameters()})
        if words:
            source.resize_token_embeddings(words, mean_resizing=False)
        source.config.num_hidden_layers = layers
        with suppress(AttributeError, TypeError):  # there may be no list, or one that is made
            source.config.layer_types = source.config.layer_types[:layers]
        decoder = getattr(source, self.prefix)
        setattr(decoder, self._layers_name, getattr(decoder, self._layers_name)[:layers])
        return HFModel(source, self.rows)

    # Structure.

    def skeleton(self, unit: int) -> nn.Module:
        return _hollow(self._cut(unit))

    def _cut(self, unit: int) -> nn.Module:
        """The unit inside the source: its own module, or the model without the other units."""
        decoder = getattr(self.source, self.prefix)
        if unit == 0:
            rest = {self._layers_name: nn.ModuleList(), self._norm_name: nn.Identity()}
            return with_children(decoder, rest)
        if unit == self.head:
            tail = FinalNorm(self._norm_name, getattr(decoder, self._norm_name))
            return with_children(self.source, {self.prefix: tail})
        return getattr(decoder, self._layers_name)[unit - 1]

    def kind(self, unit: int) -> str:
        return self._kinds[unit - 1] if 0 < unit < self.head else super().kind(unit)

    def tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        return self._tied

    def layers_of(self, whole: nn.Module) -> nn.ModuleList:
        """The layers of the source, or of a copy."""
        return getattr(getattr(whole, self.prefix), self._layers_name)

    def decays(self, unit: int, local_name: str) -> bool:
        return local_name not in self.frozen[unit] and super().decays(unit, local_name)

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

    def _find_divided(self) -> DividedHead | None:
        def given(x: Tensor) -> Any:
            return self._flow.end(self._flow.begin(x))

        with unset_fake_temporarily(), torch.random.fork_rng(devices=[]), torch.enable_grad():
            head, width = self.skeleton(self.head), self._flow.hidden
            return divided_head(head, self.source, width, given, _cross_entropy)

    # Weights.

    def reader(self, stored: Stored) -> Converted:
        from workbench.model.weights.converted import Converted

        return Converted(stored, partial(_hollow, self.source))

    def initialize(self, unit: int, module: nn.Module, *, seed: int) -> None:
        """Copy the source's weights. Those of a model that was made without are drawn by its rules,
        but for the few that the layers' own constructors gave numbers."""
        source = dict(self._cut(unit).named_parameters(remove_duplicate=False))
        for name, p in module.named_parameters(remove_duplicate=False):
            if source[name].is_meta:
                p.detach().fill_(torch.nan)  # is seen if nobody writes there
            elif (unit, name) not in self._tied:
                p.detach().copy_(source[name].detach())
        if any(p.is_meta for p in self.source.parameters()):
            with torch.no_grad(), seeded(next(module.parameters()).device, key(seed, "init", unit)):
                for part in module.modules():
                    self.source._init_weights(part)

    # Computation.

    @property
    def compilable(self) -> bool:
        varies = self._random or any(self.frozen[1 : self.head])
        own = self.config._attn_implementation in GPU_KERNELS  # which come compiled
        return self._seen.steady and not varies and not own and self.follows

    def forward(
        self,
        unit: int,
        module: nn.Module,
        x: Tensor | tuple[Tensor, Tensor],
        ctx: Context,
        targets: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """As `LayeredModel.forward`; positions of documents flow beside the hidden states."""
        x, positions = x if isinstance(x, tuple) else (x, None)
        if len(x) != len(ctx.samples):
            raise ValueError(
                f"{len(ctx.samples)} samples are named for a micro-batch of {len(x)} rows"
            )
        if module.training != ctx.training:
            module.train(ctx.training)
        with self.keyed(x.device, ctx), held(module, self.frozen[unit]):
            if unit == self.head:
                given = self._flow.end(x)
                if targets is None or self._divided is None:
                    return self.told(module(inputs_embeds=given, use_cache=False), targets)
                return self._and_routers(
                    *self._divided.loss(module, given, targets, self.rows is not None)
                )
            if unit == 0:
                made = module(x, use_cache=False, **at_positions(positions)).last_hidden_state
                made = self._flow.begin(made)
            else:
                x, filled = self._flow.apart(x)
                made, logits = self.layer(unit, module, x, positions)
                made = self._flow.on(made, filled, logits)
        return made if positions is None else (made, positions)

    def boundary(self, unit: int, seq: int) -> tuple[Part, ...]:
        place = Part(shape=(seq,), dtype=torch.int64, differentiable=False)
        return super().boundary(unit, seq) + (place,) * (self.rows == DOCUMENTS)

    def layer(
        self, unit: int, module: nn.Module, x: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Hidden states [B, S, H] behind a layer, and the logits of its routers."""
        args, kwargs = self.calls.of(x, positions)[unit - 1]
        with self._routers.heard(module) as logits:
            out = module(x, *args, **kwargs)
        return out[0] if isinstance(out, tuple) else out, logits

    def told(self, made: Any, targets: Tensor | None) -> Tensor:
        """The logits that the causal-LM model made, or their loss with that of its routers."""
        if targets is None:
            return made.logits
        found = loss(made.logits, targets) if self.rows else _cross_entropy(made, targets)
        return self._and_routers(found, made)

    def _and_routers(self, loss: Tensor, made: Any) -> Tensor:
        return loss + self.coefficient * made.aux_loss if self._flow.seats else loss

    @property
    def counts_differ(self) -> bool:
        return bool(self.rows)

    def counted(self, targets: Tensor) -> list[int]:
        return counted(targets) if self.rows else super().counted(targets)

    @property
    def coefficient(self) -> float | None:
        """Factor of the loss of routers; None where there is none."""
        return next((vars(self.source)[n] for n in COEFFICIENTS if n in vars(self.source)), None)

    @property
    def couples(self) -> str:
        """Why samples of a micro-batch depend on each other; empty where they do not."""
        if self._flow.seats:
            return "the router's loss is of a micro-batch"
        if self._seen.mixes:
            return "its routers mix the samples of a micro-batch"
        return "its layers draw random numbers for a whole micro-batch" if self._random else ""

    def flops(self, unit: int, batch: int, seq: int) -> float:
        """As of any decoder, without the seats beside hidden states and the experts that a token
        does not visit."""
        tokens, hidden = batch * seq, self._flow.hidden
        whole = super().flops(unit, batch, seq)
        if unit in (0, self.head):
            return whole * hidden / self.hidden
        counts = (getattr(self.config, name, None) for name in VISITED)
        visited = next((count for count in counts if isinstance(count, int)), 1)
        experts = [shape for shape in self.shapes(unit).values() if len(shape) > 2]
        idle = sum(shape.numel() * (1 - visited / shape[0]) for shape in experts)
        return whole - 4.0 * tokens * seq * (self.hidden - hidden) - 2.0 * tokens * idle

    def keyed(self, device: torch.device, ctx: Context) -> AbstractContextManager[None]:
        """Within, random numbers are those of a unit and a micro-batch."""
        if not self._random or not ctx.training:
            return nullcontext()
        return seeded(device, key(ctx.seed, "dropout", ctx.step, ctx.samples[0], ctx.unit))

    def recorder(self, device: torch.device) -> Record:
        """As `recorded` says."""
        names = {"name": self._layers_name, "norm": self._norm_name}
        decoder = _hollow(self._cut(0)).eval()
        move_buffers(decoder, device)
        return partial(recorded, decoder, layers=self.layers, **names)

    # Undivided.

    def as_written(self, units: Sequence[nn.Module], *, checkpoint: bool = False) -> Written:
        return as_written(self, _hollow(self.source), units, checkpoint=checkpoint)


def _cross_entropy(made: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(made.logits.flatten(0, 1).float(), targets.flatten())


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
