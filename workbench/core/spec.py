"""Spec of a run: everything that determines its result, as plain data.

A `RunSpec` is frozen, JSON-able and hashable into a key; two runs with one key would do the same
work on the same class of device, so the second is not run again. What all methods have in common
are fields of it; what is a method's own is in `options`, a dataclass in the method's folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

from workbench.core.fields import Field, fields_of
from workbench.core.model_spec import (
    DOCUMENTS,
    FLASH,
    GPT_FAMILY,
    GPU_KERNELS,
    PICTURED,
    STREAM,
    ModelSpec,
)
from workbench.core.options import Options, catalogue, choose, options_of
from workbench.core.schema import check_words, read_as


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """One training run. Memory is in bytes, None meaning all there is."""

    method: str
    model: ModelSpec = field(default_factory=ModelSpec)
    text: str = "stdlib"
    """``stdlib`` (the Python standard library's sources), a text file, or a folder of WikiText; a
    file of token ids (``.npy``); for decoders of Hugging Face a file of rows (``.jsonl``,
    ``.parquet``, ``.arrow``), with text, prompt and completion, messages, or input_ids; for bert of
    MRPC or SuperGLUE; of pictures ``digits``, or a folder of CIFAR or of class folders."""
    tokenizer: str = "bytes"
    """``bytes``, or ``bpe:N`` for a byte-level BPE of N tokens trained on the text; ``wordpiece``
    of pairs; or a folder with the ``tokenizer.json`` of a trained one."""
    train_on: Literal["answers", "all"] = "answers"
    """Tokens of rows that are trained on: completions and the assistant's turns, or prompts and
    other turns, too."""
    cut_rows: bool = False
    """Whether rows longer than `seq` are cut, not refused."""
    augment: Literal["none", "crop-flip"] = "none"
    """Change of pictures that are trained on: ``crop-flip`` moves each by up to an eighth of a side
    and mirrors every other one, by seed and sample, as is usual on CIFAR."""
    batch: int = 4
    """Samples per optimizer step."""
    microbatches: int | Literal["auto"] = 1
    """Equal parts the batch is computed in, in our own pipelines equal but for a sample; gradients
    accumulate over them. ``auto`` is the number with which the method's plan is the fastest."""
    steps: int = 10
    """Optimizer steps; the first warms up and counts for no speed."""
    seed: int = 1234
    """Seed of weights, data order and dropout, for all methods alike."""
    weights: str = "auto"
    """Where training begins: ``auto`` reads the safetensors beside a Hugging Face configuration,
    and is ``random`` where there are none; or a folder or a file of safetensors, or a run or a
    checkpoint of any method, from whose weights this run begins with fresh moments."""
    device: Literal["cpu", "cuda", "auto"] = "auto"
    """Device that computes; ``auto`` is a GPU where there is one."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Working weights, activations and gradients; AdamW states are fp32 always."""
    activations: Literal["auto", "keep", "host", "recompute"] = "auto"
    """Fate of activations between forward and backward pass; ``auto`` lets a planner that can
    choose do so for each layer, and is ``recompute`` for the others."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether layers are compiled; ``auto`` compiles those that can be, on CUDA in bf16."""
    replay: Literal["auto", "on", "off"] = "auto"
    """Whether passes of layers are recorded and launched by the GPU itself: where they can be,
    ``auto`` is on for passes so short that one thread's launches would not keep up."""
    ranks: int = 1
    """Processes of one host, each with a device, for methods on several devices."""
    clip: float | None = 1.0
    """Global gradient-norm clipping, exact in every method; None for no clipping."""
    lr: float = 1.5e-4
    """AdamW's learning rate after the warm-up."""
    min_lr: float = 1e-5
    """Learning rate at the end of the decay."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Decay from lr to min_lr over `lr_decay_steps`, after `warmup_steps` of linear growth."""
    warmup_steps: int = 0
    """Steps in which the learning rate grows to `lr`."""
    lr_decay_steps: int | None = None
    """None: the run's own number of steps."""
    weight_decay: float = 0.01
    """AdamW's decoupled weight decay, of matrices, not of biases and norms."""
    beta1: float = 0.9
    """AdamW's decay of the mean of gradients."""
    beta2: float = 0.999
    """AdamW's decay of the mean of their squares."""
    eps: float = 1e-8
    """Added to the root of the latter."""
    device_memory: int | None = None
    """Budget of the device, such as ``32GiB``, enforced."""
    host_memory: int | None = None
    """Budget of the host's memory, such as ``90GiB``, enforced."""
    disk_memory: int | None = None
    """Budget of the disk tier; without one, only layers that a flag sends there use the disk."""
    link_bytes_per_s: float | None = None
    """Emulate a slower link between host and device, each way; None for the machine's own. Without
    a GPU only: it recreates the scarcity of the papers' machines where copies cost little."""
    save_every: int = 0
    """Steps between checkpoints in the run's folder, 0 for none; the same command goes on from the
    newest."""
    start_from: str = ""
    """Key of a run among the same results, or the folder of any: its newest checkpoint is where
    this run begins, under any method, packs and number of ranks."""
    eval_every: int = 0
    """Steps between evaluations on held-out data, 0 for none; the last step is evaluated, too."""
    eval_epochs: int = 0
    """Epochs between evaluations, 0 for none."""
    eval_share: float = 0.05
    """Share of the data that evaluations hold out, its end, where it has no part for them."""
    eval_samples: int = 256
    """Held-out samples that an evaluation reads at most, 0 for all."""
    eval_text: str = ""
    """Text or rows for decoders that are held out as a whole, instead of a share of `text`; without
    a number of steps or epochs they are evaluated after the last step."""
    options: Options = field(default=None)
    """The method's own, of the class that its row in the table names; by default all at theirs."""

    def __post_init__(self) -> None:
        if self.microbatches == AUTO:
            self._check_whole()
            return
        layers = self.model.layers
        for names, fits, wanted in RANGES:
            for name in names:
                if (value := getattr(self, name)) is not None and not fits(value):
                    raise ValueError(f"{name} is {value}; it must be {wanted}")
        for name, most in MOST.items():
            if (value := getattr(self, name)) > most:
                raise ValueError(
                    f"{name} is {value}; it must be at most {most}, more than one host has use for"
                )
        if (passes := layers * max(self.microbatches, self.ranks)) > MOST_PASSES:
            raise ValueError(
                f"{layers} layers in {self.microbatches} micro-batches on {self.ranks} ranks are "
                f"{passes} forward passes a step; at most {MOST_PASSES} can be planned: use fewer "
                "layers, micro-batches or ranks"
            )
        check_words(self)
        self._decide_rows()
        self._check_attention()
        self._check_eval_text()
        if self.augment != "none" and self.model.family not in PICTURED:
            raise ValueError(
                f"augment is {self.augment!r}; {self.model.family} reads no pictures of ours, "
                f"{', '.join(PICTURED)} do"
            )
        kind = options_of(self.method)
        if self.options is None:
            object.__setattr__(self, "options", kind())
        elif type(self.options) is not kind:
            raise ValueError(
                f"options of {self.method} are {kind.__qualname__}, not {self.options!r}"
            )
        if self.batch % self.microbatches and not kind.uneven:
            raise ValueError(
                f"a batch of {self.batch} does not divide into {self.microbatches} micro-batches"
            )
        if self.model.calls and not kind.calls:
            raise ValueError(
                f"calls is {self.model.calls!r}, and {self.method} trains a model's own layers: "
                "leave it out, or use the method that the partition was made for"
            )
        if self.start_from and self.names_weights:
            raise ValueError(
                f"weights is {self.weights!r} beside start_from {self.start_from!r}, which has "
                "weights of its own; give one of them"
            )
        self.options.check(self)

    def _check_whole(self) -> None:
        """Check the spec in one micro-batch, which it has where it cannot have several."""
        whole = replace(self, microbatches=1)
        for name in ("model", "options") if self.divides else ("model", "options", "microbatches"):
            object.__setattr__(self, name, getattr(whole, name))

    def _decide_rows(self) -> None:
        """Say in the model how rows make samples, where the text is of rows."""
        own = self.model.rows
        decoder = self.model.family != GPT_FAMILY and not self.model.decomposed
        held = decoder and self.text.lower().endswith(ROW_FILES)
        if not held and own not in (None, STREAM):
            raise ValueError(
                f"rows is {own!r}, and {self.text!r} is a text without rows; they end with "
                f"{', '.join(ROW_FILES)}"
            )
        rows = (own or DOCUMENTS) if held else None
        if rows != own:
            object.__setattr__(self, "model", replace(self.model, rows=rows))

    def _check_attention(self) -> None:
        kernel = self.model.attention
        if kernel in GPU_KERNELS and self.device == "cpu":
            raise ValueError(
                f"attention is {kernel!r}, which trains on a GPU only, and device is cpu; give "
                "sdpa or eager"
            )
        if kernel == FLASH and self.dtype != "bf16":
            raise ValueError(f"attention is {kernel!r}, and dtype is {self.dtype}; it takes bf16")
        if kernel == FLASH and self.model.rows == DOCUMENTS:
            raise ValueError(
                f"attention is {kernel!r}, which does not keep the documents of a sample apart; "
                "give rows padded or stream, or another kernel"
            )

    def _check_eval_text(self) -> None:
        if self.eval_text and self.model.decomposed:
            raise ValueError(
                f"eval_text is {self.eval_text!r}; decoders read one, and of the data of "
                f"{self.model.family} a part is held out: leave it out"
            )
        if self.eval_text and self.tokenizer.startswith("bpe:"):
            raise ValueError(
                f"tokenizer is {self.tokenizer!r}, which learns its tokens from each text anew; "
                "beside eval_text it must be 'bytes', or a folder with a tokenizer.json"
            )

    @property
    def held_out(self) -> RunSpec:
        """The spec of data that evaluations read: its `text` is the run's `eval_text`, where there
        is any."""
        if not self.eval_text:
            return self
        rows = self.model.rows if self.eval_text.lower().endswith(ROW_FILES) else None
        model = replace(self.model, rows=rows)
        return replace(self, text=self.eval_text, eval_text="", model=model)

    @property
    def names_weights(self) -> bool:
        """Whether `weights` names a place."""
        return self.weights not in ("auto", "random")

    @property
    def divides(self) -> bool:
        """Whether the number of micro-batches may be left open."""
        return options_of(self.method).tries_parts and self.model.divides and self.batch > 1

    @property
    def may_use_disk(self) -> bool:
        """Whether plans have a disk: it is given, or options put something there."""
        return bool(self.disk_memory) or self.options.on_disk

    @property
    def microbatch(self) -> int:
        """Samples in one micro-batch; of an uneven batch, at least; all where their number is
        open."""
        return self.batch // (1 if self.microbatches == AUTO else self.microbatches)

    @property
    def evaluates(self) -> bool:
        """Whether the run is evaluated on data that it does not train on."""
        return bool(self.eval_every or self.eval_epochs or self.eval_text)

    def evaluates_at(self, steps: int, epoch: int) -> bool:
        """Whether an evaluation follows so many steps; `epoch` is its number of samples."""
        span = self.eval_epochs * epoch
        return self.evaluates and (
            steps == self.steps
            or (self.eval_every > 0 and steps % self.eval_every == 0)
            or (span > 0 and steps * self.batch // span > (steps - 1) * self.batch // span)
        )

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
        """JSON-able."""
        return asdict(self)

    @classmethod
    def of(cls, **values: Any) -> RunSpec:
        """A spec of fields and of options of its method, by their names."""
        given = {name: values.pop(name) for name in values.keys() - COMMON}
        return cls(**values, options=choose(values["method"], given)) if given else cls(**values)

    @classmethod
    def from_dict(cls, data: dict[str, Any], *, lenient: bool = False) -> RunSpec:
        """Inverse of `to_dict`; options may also stand beside the other fields, as older versions
        wrote them. Raises ValueError naming what does not fit, and an option that the method does
        not have, which `lenient` leaves out."""
        if not isinstance(data, dict):
            return read_as(cls, data, "")
        if not isinstance(data.get("method", ""), str):
            raise ValueError(f"method is {data['method']!r}; it must be text")
        if "method" not in data:
            raise ValueError("a run spec needs a method")
        values = {name: value for name, value in data.items() if name in COMMON}
        given = values.pop("options", None) or {}
        if not isinstance(given, dict):
            raise ValueError(f"options is {given!r}; it must be an object")
        given = given | {name: data[name] for name in data if name not in COMMON}
        values["options"] = choose(data["method"], given, lenient=lenient)
        return read_as(cls, values, "")

    def with_(self, **changes: Any) -> RunSpec:
        """A changed copy, checked like a new one. Options are changed by their names; under another
        method those stay that it has, too."""
        given = {name: changes.pop(name) for name in changes.keys() - COMMON}
        method = changes.get("method", self.method)
        if given or method != self.method:
            stay = choose(method, vars(self.options), lenient=True)
            changes["options"] = choose(method, vars(stay) | given)
        return replace(self, **changes)

    def key(self, *facts: str, **instead: str) -> str:
        """Identity of the run's result: the fields that are not at their default, `instead` of
        which some are told by what they name, and other facts that decide it (code, machine)."""
        usual = flat(RunSpec(method=self.method)) | {"method": ""}
        named = {name: value for name, value in flat(self).items() if value != usual[name]}
        text = json.dumps([named | instead, *facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


AUTO = "auto"
ROW_FILES = (".jsonl", ".ndjson", ".parquet", ".arrow", ".feather")
"""Endings of files of rows."""
COMMON = frozenset(each.name for each in fields(RunSpec))
"""Fields that specs of all methods have."""
RANGES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("batch", "microbatches", "steps", "ranks"), lambda n: n >= 1, "at least 1"),
    (("device_memory", "host_memory", "disk_memory", "lr", "eps"), lambda n: n > 0, "positive"),
    (("clip", "link_bytes_per_s"), lambda n: n > 0, "positive, or none"),
    (("beta1", "beta2"), lambda n: 0 <= n < 1, "at least 0, below 1"),
    (("weight_decay", "min_lr", "warmup_steps", "save_every"), lambda n: n >= 0, "0 or more"),
    (("eval_every", "eval_epochs", "eval_samples"), lambda n: n >= 0, "0 or more"),
    (("eval_share",), lambda n: 0 < n < 1, "above 0, below 1"),
)
"""Fields, whether a value of them is in range, and the range in words."""
MOST = {"batch": 1 << 20, "ranks": 64}
"""Devices of large hosts. Each sample and rank takes time to plan for."""
MOST_PASSES = 20_000
"""Passes of a layer in a forward pass of all micro-batches: planning takes time and memory for each
of them, and a run starts each from Python."""


def flat(spec: RunSpec) -> dict[str, Any]:
    """Fields of a spec, of its model and its options, by their names, the model's first."""
    parts = (spec.model, spec, spec.options)
    found = {f.name: getattr(part, f.name) for part in parts for f in fields(part)}
    del found["model"], found["options"]
    return found


def every_field() -> dict[str, Field]:
    """Fields of all specs by their names: the model's first, those that all methods have, and
    options."""
    return _common_fields() | catalogue()


def field_of(name: str) -> Field:
    """The field of that name; raises ValueError naming the known ones."""
    found = _common_fields().get(name) or catalogue().get(name)
    if found is None:
        known = ", ".join(sorted(every_field()))
        raise ValueError(f"unknown field {name!r} in a run spec; known: {known}")
    return found


@cache
def _common_fields() -> dict[str, Field]:
    parts = fields_of(ModelSpec) | fields_of(RunSpec)
    return {name: found for name, found in parts.items() if name not in ("model", "options")}


EVERY_VERSION = frozenset({
    "method", "model", "family", "layers", "hidden", "heads", "seq", "vocab", "dropout", "tied",
    "config_digest", "text", "tokenizer", "batch", "microbatches", "steps", "seed", "device",
    "dtype", "activations", "clip", "lr", "min_lr", "lr_schedule", "warmup_steps",
    "lr_decay_steps", "weight_decay", "beta1", "beta2", "eps", "device_memory", "host_memory",
    "disk_memory", "link_bytes_per_s", "save_every",
})  # fmt: skip
"""Fields of a run and of its model that all versions have written: a record without one of them is
damaged, not old."""
EVERY_FLAT_VERSION = frozenset({"window", "resident", "optimizer_tier", "host_workers"})
"""Options that all versions have written that wrote them beside the other fields."""
VALUE_BYTES = {"fp32": 4, "bf16": 2}
"""Bytes of a weight, an activation or a gradient, by dtype."""
