"""Our GPT as megatron-core's GPTModel: its configuration, and our initial weights under its names.

Megatron-LM and this project build the same GPT (Narayanan et al., SC 2021), so each of our
parameters has one of theirs (names.py). With dropout off the losses are equal but for rounding.

The transformer layer is megatron-core's own in plain torch modules (its "local" specification, for
there is no need of Transformer Engine or Apex), with torch's fused attention set at its extension
point for the core attention: the shipped one writes out all S x S scores and needs CUDA even to
start.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional as F

from baselines.megatron.names import padded, their_layout, their_name
from workbench.core.model_spec import ModelSpec
from workbench.model.base import LayeredModel
from workbench.model.gpt import INIT_STD, NORM_EPS


class FusedAttention(nn.Module):
    """Causal core attention by torch's fused kernel.

    q, k, v [S, B, heads, d] -> [S, B, heads * d].
    """

    def __init__(self, config: TransformerConfig, *_: object, **__: object) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> Tensor:
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.permute(2, 0, 1, 3).flatten(2)


class PaddedGPT(GPTModel):
    """GPTModel whose last columns of logits are no words.

    Their rows of weights are zeros and stay so: no gradient reaches them. Megatron-LM lets them
    train as words that never come, so that its losses depend on how many there are.
    """

    words: int

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Loss of each token, over the words alone. labels [B, S], logits [S, B, rows / tp]."""
        rows = logits.shape[-1]
        own = max(0, self.words - rows * parallel_state.get_tensor_model_parallel_rank())
        logits[..., own:] = torch.finfo(logits.dtype).min
        return super().compute_language_model_loss(labels, logits)


def build(
    spec: ModelSpec, *, device: torch.device, dtype: torch.dtype, recompute: bool, tp: int = 1,
    pp: int = 1, first: bool = True, last: bool = True,
) -> GPTModel:  # fmt: skip
    """megatron-core's GPT of the spec's sizes, or this rank's shard of it, in the `first` or `last`
    of `pp` stages; its weights are yet to be set.

    `recompute` is its own full recomputation of every layer, which needs CUDA.
    """
    on_gpu = device.type == "cuda"
    config = TransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.hidden,
        num_attention_heads=spec.heads,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        layernorm_epsilon=NORM_EPS,
        init_method_std=INIT_STD,
        # The fused bias and GELU computes the tanh form; without it that form must be asked for.
        activation_func=F.gelu if on_gpu else partial(F.gelu, approximate="tanh"),
        bias_activation_fusion=on_gpu,
        bias_dropout_fusion=on_gpu,
        # Its backward pass gives bf16 whatever the logits were.
        cross_entropy_loss_fusion=on_gpu and dtype == torch.bfloat16,
        # These need Apex or Transformer Engine.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        pipeline_dtype=dtype,
        deallocate_pipeline_outputs=pp > 1,
    )
    model = PaddedGPT(
        config,
        _layer(),
        vocab_size=padded(spec.vocab, tp),
        max_sequence_length=spec.seq,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=spec.tied,
    )
    model.words = spec.vocab
    return model.to(device, dtype)


def initial_weights(
    ours: LayeredModel, spec: ModelSpec, seed: int, tp: int = 1
) -> Iterator[tuple[str, Tensor, bool]]:
    """(megatron-core's name, fp32 value on the CPU, whether it decays) of every initial weight."""
    for unit in range(ours.num_units):
        module = ours.build(unit, seed=seed)
        for name, parameter in module.named_parameters():
            if (unit, name) not in ours.tied():
                value = their_layout(name, parameter.detach(), spec, tp)
                yield their_name(ours, unit, name), value, ours.decays(unit, name)


def _layer() -> ModuleSpec:
    layer = copy.deepcopy(get_gpt_layer_local_spec())
    layer.submodules.self_attention.submodules.core_attention = FusedAttention
    return layer
