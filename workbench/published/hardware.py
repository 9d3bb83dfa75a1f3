"""The machines of the papers as profiles: constants with their provenance, scaled to any model.

Every constant of machines.json stands beside the log line it was read from. Times follow from two
rates that a whole forward and a whole backward pass reached (Megatron-LM, 32 layers of hidden size
2048, micro-batch 4, fp32): a unit costs its floating-point operations at that rate. That blocks and
logits run at one rate is an approximation which the logs bear out: both passes come out at the same
rate within 1 %, and STRONGHOLD's 16-layer run, which was not used, within 4 %. Of models that are
no GPT the needs are counted (profile/counted.py), which imports torch; nothing else here does.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from workbench.core.model_spec import GPT_FAMILY, ModelSpec
from workbench.core.spec import RunSpec
from workbench.profile.profile import Hardware, Profile, UnitCost

MACHINES = Path(__file__).resolve().parent / "machines.json"
DEFAULT = "v100-32gb"
FP32_BYTES = 4


def machine(name: str = DEFAULT) -> Hardware:
    """Ceilings of a published machine. Raises ValueError naming the known ones."""
    return Hardware(name=name, source="published", **_values(_entry(name)["hardware"]))


def constants(name: str, system: str) -> dict[str, Any]:
    """Constants of a system's own behaviour on a machine, as its paper ran it."""
    return _values(_entry(name)["systems"][system])


def calibrated(name: str, figure: str, method: str, layers: int, window: int | None) -> bool:
    """Whether a constant of the machine was read from the run behind this point of a figure."""
    return any(
        figure in run["figures"]
        and (run["method"], run["layers"], run.get("window")) == (method, layers, window)
        for run in _entry(name)["calibrated_on"]
    )


def published_profile(spec: RunSpec, name: str = DEFAULT) -> Profile:
    """The profile of the spec's model on a published machine.

    Raises ValueError for what the published constants do not cover, bf16, and for a model that
    cannot be made.
    """
    if spec.dtype != "fp32":
        raise ValueError(
            f"{name} is known in fp32 only, not {spec.dtype}: use fp32, or profile a machine"
        )
    return profile(name, spec.model, spec.microbatch)


def profile(name: str, model: ModelSpec, microbatch: int) -> Profile:
    """Costs of a model's units on a published machine at `microbatch` samples, in fp32: of a GPT by
    formula, of other families counted. Raises ValueError for a model that cannot be made."""
    known = _values(_entry(name)["model"])
    label = _entry(name)["label"]
    if model.family == GPT_FAMILY:
        units = _gpt(known, model, microbatch)
        note = f"constants of published hardware ({label}), times by operations"
    else:
        from workbench.profile.counted import Rates, unit_costs  # imports torch

        rates = Rates(forward=known["forward_flops_per_s"], backward=known["backward_flops_per_s"])
        units = unit_costs(model, microbatch, rates, _block(known, model, microbatch, 0))
        note = (
            f"constants of published hardware ({label}), times by operations; what the layers of "
            f"{model.family} need was counted without running them"
        )
    return Profile(
        hardware=machine(name),
        units=tuple(units),
        microbatch=microbatch,
        seq=model.seq,
        weight_bytes=FP32_BYTES,
        note=note,
    )


def _gpt(known: dict[str, Any], model: ModelSpec, microbatch: int) -> list[UnitCost]:
    """Every unit of a GPT."""
    forward, backward = known["forward_flops_per_s"], known["backward_flops_per_s"]
    tokens = microbatch * model.seq
    residual = tokens * model.hidden * FP32_BYTES
    logits = tokens * model.vocab * FP32_BYTES
    outside = (model.vocab + model.seq) * model.hidden
    embedding = UnitCost(
        kind="embedding",
        parameters=outside,
        forward_s=0.0,
        recompute_s=0.0,
        backward_s=0.0,
        output_bytes=residual,
    )
    head_flops = 2 * tokens * model.hidden * model.vocab
    head = UnitCost(
        kind="head",
        parameters=2 * model.hidden + (0 if model.tied else model.vocab * model.hidden),
        forward_s=head_flops / forward,
        recompute_s=head_flops / forward,
        backward_s=2 * head_flops / backward,
        input_bytes=residual,
        kept_bytes=2 * logits,
        backward_scratch_bytes=round(known["head_transient_logits"] * logits),
        flops=head_flops,
    )
    block = _block(known, model, microbatch, model.block_parameters)
    return [embedding, *[block] * model.layers, head]


def _block(known: dict[str, Any], model: ModelSpec, microbatch: int, parameters: int) -> UnitCost:
    """A GPT's block."""
    forward, backward = known["forward_flops_per_s"], known["backward_flops_per_s"]
    tokens = microbatch * model.seq
    residual = tokens * model.hidden * FP32_BYTES
    scores = microbatch * model.heads * model.seq**2 * FP32_BYTES
    flops = 24 * tokens * model.hidden**2 + 4 * tokens * model.seq * model.hidden
    return UnitCost(
        kind="block",
        parameters=parameters,
        forward_s=flops / forward,
        recompute_s=flops / backward,
        backward_s=2 * flops / backward,
        input_bytes=residual,
        output_bytes=residual,
        # 16.5 residual-sized tensors and 2.25 score-sized ones (Korthikanti et al. 2022, section
        # 4.1, with 4 bytes a value and 1 byte a dropout mask).
        kept_bytes=residual * 33 // 2 + scores * 9 // 4,
        forward_scratch_bytes=3 * scores,
        backward_scratch_bytes=2 * scores,
        flops=flops,
    )


def _entry(name: str) -> dict[str, Any]:
    machines = _machines()
    if name not in machines:
        raise ValueError(f"no published machine {name!r}; there are {', '.join(machines)}")
    return machines[name]


@cache
def _machines() -> dict[str, Any]:
    return json.loads(MACHINES.read_text())


def _values(section: dict[str, Any]) -> dict[str, Any]:
    return {name: constant["value"] for name, constant in section.items()}
