"""Megatron-LM on several GPUs (Narayanan et al., SC 2021): tp, pp and dp of the real megatron-core.

Its shapes are those of Aceso's grid, which has costs of operators. Imports no torch until a run
starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.core import host
from workbench.core import options as common
from workbench.core.model_spec import GPT_FAMILY
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Options(common.Options):
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
        if model.heads % self.tp or model.layers % self.pp:
            raise ValueError(f"{shape} must divide the model's {model.heads} heads and "
                             f"{model.layers} layers")  # fmt: skip
        if spec.batch % (pieces := spec.microbatches * self.dp(spec.ranks)):
            raise ValueError(
                f"Megatron-LM gives every rank as many samples: a batch of {spec.batch} does not "
                f"divide into {pieces}, {spec.microbatches} micro-batches of "
                f"{self.dp(spec.ranks)} replicas"
            )
        if model.family != GPT_FAMILY or model.dropout or spec.activations == "host":
            raise ValueError(
                f"the model is {model.family} with dropout {model.dropout}, its activations "
                f"{spec.activations!r}; megatron-core trains its GPT here, without dropout, whose "
                "masks depend on the order of computation, with activations kept or recomputed"
            )
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


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """Raises ValueError: a profile of layers does not tell what shards of them take."""
    raise ValueError(
        f"{spec.method} divides layers, and a profile of whole layers does not say what their "
        "shards take; `workbench aceso megatron` predicts its shapes from profiled operators"
    )


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train on the spec's ranks; the first of the last stage tells of the steps. Raises ValueError
    where megatron-core cannot compute, RankFailed."""
    spec.options.settled(spec, folder)
    from workbench.training import trained_ranks

    teller = spec.ranks - spec.ranks // spec.options.pp
    return trained_ranks.train("baselines.megatron.ranks", spec, report, folder, teller=teller)
