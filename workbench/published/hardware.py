"""The machines of the papers as profiles: constants with their provenance, scaled to any model.

Every constant of machines.json stands beside the log line it was read from. Times follow from two
rates that a whole forward and a whole backward pass reached (Megatron-LM, 32 layers of hidden size
2048, micro-batch 4, fp32): a unit costs its floating-point operations at that rate. That blocks and
logits run at one rate is an approximation which the logs bear out: both passes come out at the same
rate within 1 %, and STRONGHOLD's 16-layer run, which was not used, within 4 %. Of models that are
no GPT the needs are counted (profile/counted.py), which imports torch; nothing else here does.

Machines that no paper used are known by the datasheet of their GPU (datasheets.json). How much of
its rates training reaches is assumed, as is the host: `ASSUMED` says what, and where it was seen.
What was measured of such a GPU takes its place (measured.json: ceilings that `workbench doctor`
found, to four digits).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from workbench.core.model_spec import GPT_FAMILY, ModelSpec
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.profile.profile import Hardware, Profile, UnitCost
from workbench.published.gpt_bytes import gpt_bytes

FOLDER = Path(__file__).resolve().parent
MACHINES, DATASHEETS = FOLDER / "machines.json", FOLDER / "datasheets.json"
MEASURED = FOLDER / "measured.json"
DEFAULT = "v100-32gb"
ASSUMED = {
    "passes": (0.5, "share of its operations a second: 0.53 on an H100, GPT-2 XL in bf16"),
    "memory": (0.9, "share of its memory that a run may use, as on measured machines"),
    "link": (0.55, "share of the link's rate: 0.54 on an H100"),
    "update": (0.85, "share of its memory's rate, at 28 bytes a parameter: 0.9 on an H100"),
    "libraries": (64 << 20, "bytes that matrix products work in: 64 MiB on an H200"),
}
"""What is assumed of a machine that is known by its datasheet, and why."""
SERVER = {"cores": 32, "host_bytes": 256 << 30, "host_adam_params_per_s": 3.5e9}
DESKTOP = {"cores": 16, "host_bytes": 64 << 30, "host_adam_params_per_s": 2.0e9}
"""Hosts are assumed whole: give --host-memory. Updates read and write 28 bytes a parameter."""
DISK = {"disk_read_bytes_per_s": 3e9, "disk_write_bytes_per_s": 2e9}


@dataclass(frozen=True, kw_only=True)
class Known:
    """A machine as plans want it, before there is a model."""

    hardware: Hardware
    flops_per_s: dict[str, tuple[float, float]]
    """dtype -> operations a second that whole forward and backward passes reach."""
    note: str
    """Origin of the rates, in a sentence."""
    head_transient_logits: float = 1.0
    fused: bool = True
    """Whether attention keeps no scores."""

    def rates(self, dtype: str) -> tuple[float, float]:
        """Raises ValueError for a dtype whose rates are not known."""
        if dtype in self.flops_per_s:
            return self.flops_per_s[dtype]
        able = [each for each, sheet in _datasheets().items() if dtype in sheet["flops_per_s"]]
        raise ValueError(
            f"no rate of {self.hardware.name} is known in {dtype}, only in "
            f"{', '.join(self.flops_per_s)}; {dtype} is known of {', '.join(able)}: give "
            "--machine or --dtype, or measure this machine: workbench plan --measure"
        )


def names() -> list[str]:
    """Of all machines that are known, those of papers first."""
    return [*_machines(), *_datasheets()]


def machine(name: str = DEFAULT) -> Hardware:
    """Ceilings of a machine. Raises ValueError naming the known ones."""
    return known(name).hardware


def known(name: str) -> Known:
    """A machine by its name. Raises ValueError naming the known ones."""
    if (sheet := _datasheets().get(name)) is None:
        entry = _entry(name)
        values = _values(entry["model"])
        return Known(
            hardware=Hardware(name=name, source="published", **_values(entry["hardware"])),
            flops_per_s={"fp32": (values["forward_flops_per_s"], values["backward_flops_per_s"])},
            note=f"constants of published hardware ({entry['label']}), times by operations",
            head_transient_logits=values["head_transient_logits"],
            fused=False,
        )
    link, share = sheet["link_bytes_per_s"] * ASSUMED["link"][0], ASSUMED["passes"][0]
    hardware = Hardware(
        name=name, source="datasheet", device="cuda",
        device_bytes=int(sheet["memory_bytes"] * ASSUMED["memory"][0]),
        h2d_bytes_per_s=link, d2h_bytes_per_s=link,
        device_adam_params_per_s=sheet["memory_bytes_per_s"] * ASSUMED["update"][0] / 28,
        matmul_flops_per_s=max(sheet["flops_per_s"].values()) * share,
        host_copy_bytes_per_s=2 * link, **(SERVER if sheet["server"] else DESKTOP), **DISK,
    )  # fmt: skip
    note, host = f"by the datasheet of {sheet['label']}", "the host is an assumed one"
    if there := _measured().get(name):
        hardware = replace(hardware, source="benchmark", **there["hardware"])
        note = f"link, updates and disk as measured on {there['date']} on {there['on']}"
        host = "the host's memory is assumed"
    return Known(
        hardware=hardware,
        flops_per_s={dtype: (rate * share,) * 2 for dtype, rate in sheet["flops_per_s"].items()},
        note=f"{note}: passes are assumed to reach {share:.0%} of its datasheet's rate, and "
        f"{host}, with --host-memory where that is given",
    )


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

    Raises ValueError for a dtype whose rate is not known, and for a model that cannot be made.
    """
    return profile(name, spec.model, spec.microbatch, spec.dtype, spec.compile)


def profile(
    name: str, model: ModelSpec, microbatch: int, dtype: str = "fp32", compile: str = "auto"
) -> Profile:
    """`profile_on` a machine by its name."""
    return profile_on(known(name), model, microbatch, dtype, compile)


def profile_on(
    known: Known, model: ModelSpec, microbatch: int, dtype: str, compile: str = "auto"
) -> Profile:
    """Costs of a model's units on a known machine at `microbatch` samples: of a GPT by formula, of
    other families counted. Raises ValueError for a dtype whose rate is not known, and for a model
    that cannot be made."""
    note, (forward, backward) = known.note, known.rates(dtype)
    on_gpu = known.hardware.device == "cuda"
    if model.family == GPT_FAMILY:
        compiled = on_gpu and (compile == "on" or (compile == "auto" and dtype != "fp32"))
        units = _gpt(known, model, microbatch, dtype, compiled)
    else:
        from workbench.profile.counted import Rates, unit_costs  # imports torch

        rates = Rates(forward=forward, backward=backward)
        units = unit_costs(model, microbatch, rates, dtype, gpu=on_gpu)
        note += f"; what the layers of {model.family} need was counted without running them"
    return Profile(
        hardware=known.hardware,
        units=tuple(units),
        microbatch=microbatch,
        seq=model.seq,
        weight_bytes=VALUE_BYTES[dtype],
        library_bytes=ASSUMED["libraries"][0] if known.fused and on_gpu else 0,
        note=note,
    )


def _gpt(
    known: Known, model: ModelSpec, microbatch: int, dtype: str, compiled: bool
) -> list[UnitCost]:
    """Every unit of a GPT."""
    (forward, backward), value_bytes = known.rates(dtype), VALUE_BYTES[dtype]
    tokens = microbatch * model.seq
    residual = tokens * model.hidden * value_bytes
    logits = tokens * model.vocab * value_bytes
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
    kept, scratch = 2 * logits, round(known.head_transient_logits * logits)
    head = UnitCost(
        kind="head",
        parameters=2 * model.hidden + (0 if model.tied else model.vocab * model.hidden),
        forward_s=head_flops / forward,
        recompute_s=head_flops / forward,
        backward_s=2 * head_flops / backward,
        input_bytes=residual,
        kept_bytes=kept,
        backward_scratch_bytes=scratch,
        flops=head_flops,
    )
    block = _block(known, model, microbatch, dtype)
    if known.fused:
        gpu = known.hardware.device == "cuda"
        needs = gpt_bytes(model, microbatch, value_bytes, gpu=gpu, compiled=compiled)
        embedding, block, head = (
            replace(unit, **needs[unit.kind]) for unit in (embedding, block, head)
        )
    return [embedding, *[block] * model.layers, head]


def _block(known: Known, model: ModelSpec, microbatch: int, dtype: str) -> UnitCost:
    """A GPT's block, as it needed memory when attention kept its scores."""
    (forward, backward), value_bytes = known.rates(dtype), VALUE_BYTES[dtype]
    tokens = microbatch * model.seq
    residual = tokens * model.hidden * value_bytes
    scores = microbatch * model.heads * model.seq**2 * value_bytes
    # 16.5 residual-sized tensors and 2.25 score-sized ones (Korthikanti et al. 2022, section 4.1,
    # with 4 bytes a value and 1 byte a dropout mask). Fused attention keeps no scores.
    kept = residual * 33 // 2 + scores * 9 // 4
    forward_scratch, backward_scratch = 3 * scores, 2 * scores
    flops = 24 * tokens * model.hidden**2 + 4 * tokens * model.seq * model.hidden
    return UnitCost(
        kind="block",
        parameters=model.block_parameters,
        forward_s=flops / forward,
        recompute_s=flops / backward,
        backward_s=2 * flops / backward,
        input_bytes=residual,
        output_bytes=residual,
        kept_bytes=kept,
        forward_scratch_bytes=forward_scratch,
        backward_scratch_bytes=backward_scratch,
        flops=flops,
    )


def _entry(name: str) -> dict[str, Any]:
    if name not in (machines := _machines()):
        raise ValueError(
            f"no machine {name!r} is known; there are {', '.join(names())}, and files (NAME.json), "
            "which `workbench doctor --save NAME` writes"
        )
    return machines[name]


@cache
def _datasheets() -> dict[str, Any]:
    return json.loads(DATASHEETS.read_text())


@cache
def _measured() -> dict[str, Any]:
    return json.loads(MEASURED.read_text())


@cache
def _machines() -> dict[str, Any]:
    return json.loads(MACHINES.read_text())


def _values(section: dict[str, Any]) -> dict[str, Any]:
    return {name: constant["value"] for name, constant in section.items()}
