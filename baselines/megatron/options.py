"""Options of Megatron-LM on several GPUs: ranks that share a tensor, and stages."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.core import host
from workbench.core.model_spec import GPT_FAMILY
from workbench.core.options import Options as Common
from workbench.core.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Tensor and pipeline parallelism; what ranks are left replicate (dp)."""

    tp: int = 1
    """Ranks that share each matrix (tensor parallelism); it divides the heads."""
    pp: int = 1
    """Stages of equal numbers of layers (pipeline parallelism, 1F1B); it divides the layers."""
    distributed_optimizer: bool = False
    """Whether replicas divide the optimizer's states among them, Megatron's ZeRO-1."""

    def dp(self, ranks: int) -> int:
        """Replicas on so many ranks."""
        return ranks // (self.tp * self.pp)

    def check(self, spec: RunSpec) -> None:
        model, shape = spec.model, f"tp {self.tp} x pp {self.pp}"
        if self.tp < 1 or self.pp < 1 or spec.ranks % (self.tp * self.pp):
            raise ValueError(f"{shape} must be 1 or more each, and divide the {spec.ranks} ranks")
        for name, value, number, of in (
            ("tp", self.tp, model.heads, "heads"), ("pp", self.pp, model.layers, "layers"),
        ):  # fmt: skip
            if number % value:
                raise ValueError(f"{name} is {value}; it must divide the model's {number} {of}")
        if spec.batch % (pieces := spec.microbatches * self.dp(spec.ranks)):
            raise ValueError(
                f"Megatron-LM gives every rank as many samples: a batch of {spec.batch} does not "
                f"divide into {pieces}, {spec.microbatches} micro-batches of "
                f"{self.dp(spec.ranks)} replicas"
            )
        if model.family != GPT_FAMILY or model.dropout:
            raise ValueError(
                f"the model is {model.family} with dropout {model.dropout}; of megatron-core only "
                "its GPT runs here, without dropout: its masks depend on the order of computation"
            )
        if spec.activations == "host":
            raise ValueError("activations is 'host'; megatron-core's are kept or recomputed")
        if spec.save_every or spec.start_from or spec.evaluates:
            raise ValueError(
                "save_every, start_from and evaluations are not for Megatron-LM on several GPUs, "
                "whose weights lie in shards: leave them out"
            )

    def settled(self, spec: RunSpec, results: Path) -> dict[str, Any]:
        """Nothing. Raises ValueError where megatron-core cannot compute on this machine."""
        if (device := host.resolve_device(spec.device)) != "cuda":
            raise ValueError(
                f"device is {device!r} and this machine has {len(host.gpus())} GPUs; "
                f"megatron-core computes on CUDA alone, and needs {spec.ranks} for tp {self.tp} x "
                f"pp {self.pp} x dp {self.dp(spec.ranks)}"
            )
        if find_spec("megatron") is None:
            raise ValueError("megatron-core is not installed: pip install -e .[megatron]")
        return {}
