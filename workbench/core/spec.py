"""What a run is: everything that determines its result, as plain data.

A `RunSpec` is frozen, JSON-able and hashable into a key; two runs with one key would do the same
work on the same class of device, so the second is not run again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from workbench.core.model_spec import ModelSpec
from workbench.core.schema import read_as

Auto = Literal["auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """One training run. Memory is in bytes, None meaning all there is."""

    method: str
    model: ModelSpec = field(default_factory=ModelSpec)
    text: str = "stdlib"
    """``stdlib`` (the Python standard library's sources), a text file, or a WikiText folder."""
    tokenizer: str = "bytes"
    """``bytes``, or ``bpe:N`` for a byte-level BPE of N tokens trained on the text."""
    batch: int = 4
    """Samples per optimizer step."""
    microbatches: int = 1
    """Equal parts the batch is computed in; gradients accumulate over them."""
    steps: int = 10
    """Optimizer steps; the first warms up and counts for no speed."""
    seed: int = 1234
    """Of weights, data order and dropout; the same in every method."""
    device: Literal["cpu", "cuda", "auto"] = "auto"
    """Where it computes; ``auto`` is a GPU where there is one."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Working weights, activations and gradients; AdamW states are fp32 always."""
    window: int | Auto = "auto"
    """Layers on the device at once (STRONGHOLD); 2 to the number of layers."""
    resident: int | Auto = "auto"
    """First layers whose weights and optimizer states never leave the device."""
    pulled: int | Auto = "auto"
    """Layers after the resident ones whose weights stay on the device while their optimizer states
    come from the host to be updated there."""
    activations: Literal["auto", "keep", "host", "recompute"] = "auto"
    """What becomes of activations between forward and backward pass; ``auto`` lets a planner that
    can choose do so for each layer, and is ``recompute`` for the others."""
    kept: int | Auto = "auto"
    """Last layers that keep their activations, where `activations` is ``auto``."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compiled layers: where they can be, ``auto`` compiles on CUDA in bf16."""
    replay: Literal["auto", "on", "off"] = "auto"
    """Whether passes of layers are recorded and launched by the GPU itself: where they can be,
    ``auto`` is on for passes so short that one thread's launches would not keep up."""
    clipping: Literal["auto", "speculate", "wait"] = "auto"
    """Whether updates of states that live on the host run before the global norm is known, to be
    taken back where gradients are clipped after all, or wait for it. Exact either way."""
    optimizer_tier: Literal["auto", "host", "disk"] = "auto"
    """Where the optimizer states of offloaded layers live. ``auto`` is the host; where that has no
    room for all of them, STRONGHOLD puts the rest on the disk if `disk_memory` allows it one."""
    disk_layers: int | Auto = "auto"
    """Last layers whose optimizer states live on the disk, where `optimizer_tier` is ``auto``."""
    host_workers: int = 1
    """Host updates that may run at once."""
    ranks: int = 1
    """Processes with a device each, of methods on several; their host is one."""
    forward_size: int | Auto = "auto"
    """Samples of a forward micro-batch, where forward and backward passes divide the batch on their
    own (Harmony), or of all, where the planner chooses them (DP Swap, PP Swap); `microbatches` is
    for the others."""
    backward_size: int | Auto = "auto"
    """Samples of a backward micro-batch there."""
    forward_packs: str = "auto"
    """Units of each forward pack there, from the first one, as in ``4 4 3``; those of the last
    backward pack are in none. Empty, also written ``none``, where that is the whole model."""
    backward_packs: str = "auto"
    """Units of each backward pack there, the embedding and the head among them."""
    packing: Literal["ours", "faithful"] = "ours"
    """Who chooses these four where they are ``auto``: our search, within memory, or the rules and
    the estimate that Harmony's authors published."""
    clip: float | None = 1.0
    """Global gradient-norm clipping, exact in every method; None for no clipping."""
    lr: float = 1.5e-4
    """AdamW's learning rate after the warm-up."""
    min_lr: float = 1e-5
    """Where it decays to."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Decay from lr to min_lr over `lr_decay_steps`, after `warmup_steps` of linear growth."""
    warmup_steps: int = 0
    """Steps in which the learning rate grows to `lr`."""
    lr_decay_steps: int | None = None
    """None: the run's own number of steps."""
    weight_decay: float = 0.01
    """AdamW's decoupled weight decay."""
    beta1: float = 0.9
    """AdamW's decay of the mean of gradients."""
    beta2: float = 0.999
    """AdamW's decay of the mean of their squares."""
    eps: float = 1e-8
    """Added to the root of the latter."""
    device_memory: int | None = None
    """Budget of the device, enforced."""
    host_memory: int | None = None
    """Budget of the host's memory, enforced."""
    disk_memory: int | None = None
    """Budget of the disk tier; without one, nothing but what is asked for goes there."""
    link_bytes_per_s: float | None = None
    """Emulate a slower link between host and device, each way; None for the machine's own. Without
    a GPU only: it recreates the scarcity of the papers' machines where copies cost little."""
    save_every: int = 0
    """Steps between checkpoints in the run's folder; 0 for none."""
    start_from: str = ""
    """Key of a run among the same results, or the folder of any: its newest checkpoint is where
    this run begins, under whatever method, packs and number of ranks."""

    def __post_init__(self) -> None:
        layers = self.model.layers
        for name in ("batch", "microbatches", "steps", "host_workers", "ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
            if name in MOST and getattr(self, name) > MOST[name]:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it must be at most {MOST[name]}, more than "
                    "one host has use for"
                )
        if (passes := layers * max(self.microbatches, self.ranks)) > MOST_PASSES:
            raise ValueError(
                f"{layers} layers in {self.microbatches} micro-batches on {self.ranks} ranks are "
                f"{passes} forward passes a step; at most {MOST_PASSES} can be planned: use fewer "
                "layers, micro-batches or ranks"
            )
        if self.batch % self.microbatches:
            raise ValueError(
                f"a batch of {self.batch} does not divide into {self.microbatches} micro-batches"
            )
        if self.window != "auto" and not 2 <= self.window <= max(2, layers):
            raise ValueError(
                f"a window of {self.window} layers is out of range; the model has {layers} layers, "
                f"so it must be 2 to {layers}, or auto"
            )
        if self.resident != "auto" and not 0 <= self.resident <= layers:
            raise ValueError(f"resident is {self.resident}; it must be 0 to {layers}, or auto")
        for name in ("kept", "pulled", "disk_layers"):
            value = getattr(self, name)
            if value != "auto" and not 0 <= value <= layers:
                raise ValueError(f"{name} is {value}; it must be 0 to {layers}, or auto")
        for name in ("forward_size", "backward_size"):
            value = getattr(self, name)
            if value != "auto" and not 1 <= value <= self.batch:
                raise ValueError(f"{name} is {value}; it must be 1 to {self.batch}, or auto")
        for name in ("forward_packs", "backward_packs"):
            words = getattr(self, name).split()
            if name == "forward_packs" and words in ([], [NO_PACKS]):
                object.__setattr__(self, name, "")
            elif words != ["auto"] and not (words and all(w.isdecimal() and int(w) for w in words)):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be numbers of units such as "
                    "'4 4 3', or auto"
                )
        if not self.forward_packs and len(self.backward_packs.split()) > 1:
            raise ValueError(
                f"forward_packs is {NO_PACKS!r}, backward_packs {self.backward_packs!r}; only "
                "where one backward pack is the whole model there are no forward packs"
            )
        if self.disk_layers != "auto" and self.optimizer_tier != "auto":
            raise ValueError(
                f"disk_layers is {self.disk_layers} and optimizer_tier {self.optimizer_tier!r}; "
                "only with optimizer_tier auto some layers' states are on the disk"
            )
        for name in ("device_memory", "host_memory", "disk_memory"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value} bytes; it must be positive")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip is {self.clip}; it must be positive, or none")
        for name in ("lr", "eps"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0, below 1")
        for name in ("weight_decay", "min_lr", "warmup_steps", "save_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.link_bytes_per_s is not None and self.link_bytes_per_s <= 0:
            raise ValueError(
                f"link_bytes_per_s is {self.link_bytes_per_s}; it must be positive, or none"
            )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}"
                )

    @property
    def microbatch(self) -> int:
        """Samples in one micro-batch."""
        return self.batch // self.microbatches

    def learning_rate(self, step: int) -> float:
        """Learning rate of step `step` (from 0)."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.lr_schedule == "constant":
            return self.lr
        from math import cos, pi

        span = max(1, (self.lr_decay_steps or self.steps) - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / span)
        share = 1 - done if self.lr_schedule == "linear" else (1 + cos(pi * done)) / 2
        return self.min_lr + (self.lr - self.min_lr) * share

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunSpec:
        """Inverse of `to_dict`; raises ValueError naming what does not fit."""
        if isinstance(data, dict) and "method" not in data:
            raise ValueError("a run spec needs a method")
        return read_as(cls, data, "")

    def with_(self, **changes: Any) -> RunSpec:
        """A changed copy, checked like a new one."""
        return replace(self, **changes)

    def key(self, *facts: str, **instead: str) -> str:
        """Identity of the run's result: the fields that are not at their default, `instead` of
        which some are told by what they name, and other facts that decide it (code, machine)."""
        usual = flat(RunSpec(method=""))
        named = {name: value for name, value in flat(self).items() if value != usual[name]}
        text = json.dumps([named | instead, *facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


MOST = {"batch": 1 << 20, "host_workers": 256, "ranks": 64}
"""Processors and devices of large hosts. Each sample, worker and rank takes time to plan for."""
MOST_PASSES = 20_000
"""Passes of a layer in a forward pass of all micro-batches: planning takes time and memory for each
of them, and a run starts each from Python."""


def flat(spec: RunSpec) -> dict[str, Any]:
    """Fields of a spec and of its model, by their names, the model's first."""
    parts = (spec.model, spec)
    found = {f.name: getattr(part, f.name) for part in parts for f in fields(part)}
    del found["model"]
    return found


EVERY_VERSION = frozenset({
    "method", "model", "family", "layers", "hidden", "heads", "seq", "vocab", "dropout", "tied",
    "config_digest", "text", "tokenizer", "batch", "microbatches", "steps", "seed", "device",
    "dtype", "window", "resident", "activations", "optimizer_tier", "host_workers", "clip", "lr",
    "min_lr", "lr_schedule", "warmup_steps", "lr_decay_steps", "weight_decay", "beta1", "beta2",
    "eps", "device_memory", "host_memory", "disk_memory", "link_bytes_per_s", "save_every",
})  # fmt: skip
"""Fields of a run and of its model that all versions have written: a record without one of them is
damaged, not old."""
NO_PACKS = "none"
"""What people write for no forward packs."""
VALUE_BYTES = {"fp32": 4, "bf16": 2}
"""Of a weight, an activation or a gradient, by dtype."""
CHOICES = {
    "device": ("cpu", "cuda", "auto"),
    "dtype": tuple(VALUE_BYTES),
    "activations": ("auto", "keep", "host", "recompute"),
    "compile": ("auto", "on", "off"),
    "replay": ("auto", "on", "off"),
    "clipping": ("auto", "speculate", "wait"),
    "optimizer_tier": ("auto", "host", "disk"),
    "packing": ("ours", "faithful"),
    "lr_schedule": ("constant", "linear", "cosine"),
}
"""Closed sets of the spec, checked at construction since JSON and widgets pass any string."""
