"""Runs of the offload benchmark: methods, cases, and how long a run is likely to take. All data.

Every run of a case trains the same model on the same samples from the same weights, in the same
precision, with the same clipping, update rule and learning rates. What differs is the method, and
the budget of the device, which those that keep everything on it do not get.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from workbench.core.model_spec import GPT_FAMILY, ModelSpec
from workbench.core.spec import RunSpec
from workbench.published.here import Run
from workbench.runs.overrides import make_spec

GIB = 1 << 30

METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "plain (keep)": {"method": "plain", "activations": "keep"},
    "plain (eager)": {"method": "plain", "compile": "off"},
    "megatron-core": {"method": "megatron-lm"},
    "megatron-core (keep)": {"method": "megatron-lm", "activations": "keep"},
    "l2l": {"method": "l2l"},
    "fsdp-offload": {"method": "fsdp"},
    "zero-offload": {"method": "zero-offload"},
    "zero-offload (twin-flow)": {"method": "zero-twin-flow"},
    "zero-infinity": {"method": "zero-infinity"},
    "zero-infinity-disk": {"method": "zero-infinity", "optimizer_tier": "disk"},
    "stronghold": {"method": "stronghold", "activations": "auto"},
    "stronghold (recompute)": {"method": "stronghold"},
    "stronghold-disk": {"method": "stronghold", "activations": "auto", "disk_memory": 110 * GIB},
}
"""Name in the CSV, with a variant in parentheses -> fields of the spec. Activations are recomputed
unless it says otherwise."""
IN_GPU = ("plain", "megatron-core")
"""Whose variants all get the whole device."""
ON_DISK = ("zero-infinity-disk", "stronghold-disk")

ROOFS = ("plain", "plain (keep)", "megatron-core", "megatron-core (keep)")
PEERS = ("zero-offload", "zero-infinity", "fsdp-offload", "l2l")
OFFLOADED = ("stronghold", *PEERS)
ROOMY = (*OFFLOADED, "zero-offload (twin-flow)")
"""Where the device may have room for a share of the states."""
ROOMIEST = {"l2l": {"activations": "host"}, "stronghold": {"activations": "recompute"}}
"""Changes of a search for the largest model, by method of the spec."""

PIN = re.compile(r"([wrpk])(\d+)")
PINNED = {"w": "window", "r": "resident", "p": "pulled", "k": "kept"}
WORDS = {"stash": {"activations": "host"}}
"""Settings that a variant pins; the planner chooses the rest."""
PLACEMENTS = (
    "p0", "p4", "p6", "p8", "p10", "p12", "p16", "p4 k4", "p8 k4", "p12 k4", "w4 p8", "w4 p12",
    "w8 p8",
)  # fmt: skip
"""Compared with what the planner chooses."""

TRAINING: dict[str, Any] = {
    "text": "stdlib",
    "tokenizer": "bytes",
    "lr": 1e-4,
    "lr_schedule": "constant",
    "warmup_steps": 4,
    "clip": 1.0,
    "device": "cuda",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting and who runs in it."""

    name: str
    methods: tuple[str, ...]
    """Keys of `METHODS`."""
    changes: dict[str, Any]
    """Fields of the spec, of all methods of the case."""
    cap_gib: float | None = None
    """Device memory of those that offload."""
    of_method: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further changes by name in the CSV."""
    splits: tuple[int, ...] = (1,)
    """Numbers of micro-batches to try in turn while the device's memory does not suffice: all peers
    recompute, so the whole batch at once is best where it fits."""
    steps: tuple[int, int] | None = None
    """Warm-up and measured steps, where they are not the command line's."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of the benchmark: a method in a case."""

    case: str
    method: str
    """As in the CSV, with its variant."""
    spec: RunSpec
    warmup: int
    """First steps that are not measured."""
    splits: tuple[int, ...] = (1,)

    @property
    def name(self) -> str:
        return f"{self.case}/{self.method}"


CALM = 1e6
"""A clipping limit that never fires. From random weights every step of a short run is clipped at
1.0; a model that has trained for a while is clipped now and then."""

LLAMA: dict[str, Any] = {
    **TRAINING,
    "family": "examples/llama-3.1-8b.json",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "seq": 2048,
    "vocab": 128256,
    "tied": False,
    "dtype": "bf16",
    "batch": 8,
    "host_memory": 94 * GIB,
}
"""From random weights: nothing is downloaded. Plans of ZeRO's and FSDP2 need more memory."""
PAPER: dict[str, Any] = {
    **TRAINING,
    "hidden": 2048,
    "heads": 16,
    "seq": 1024,
    "vocab": 50257,
    "dtype": "bf16",
}


def _paper(name: str, layers: int, batch: int, methods: tuple[str, ...], **more: Any) -> Case:
    changes = {**PAPER, "layers": layers, "batch": batch, **more.pop("changes", {})}
    splits = (1, 2, 4) if batch > 4 else (1,)
    return Case(name=name, methods=methods, changes=changes, splits=splits, **more)


CASES: dict[str, tuple[Case, ...]] = {
    "paper": (
        _paper("fits-b4", 32, 4, (*ROOFS, *ROOMY), cap_gib=32),
        _paper("78-b4", 78, 4, (*ROOFS, *ROOMY), cap_gib=32),
        _paper("78-b16", 78, 16, (*ROOFS, *ROOMY), cap_gib=32),
        _paper("100-b4", 100, 4, (*ROOFS, *ROOMY), cap_gib=32),
        _paper("100-b16", 100, 16, ("plain", "megatron-core", *ROOMY), cap_gib=32),
        _paper("78-b4-24g", 78, 4, OFFLOADED, cap_gib=24),
        _paper("78-b4-16g", 78, 4, OFFLOADED, cap_gib=16),
        _paper("78-b16-24g", 78, 16, OFFLOADED, cap_gib=24),
        _paper("78-b16-16g", 78, 16, OFFLOADED, cap_gib=16),
        _paper("78-b4-noclip", 78, 4, ("plain", *OFFLOADED), cap_gib=32, changes={"clip": None}),
        _paper("78-b16-noclip", 78, 16, ("plain", *OFFLOADED), cap_gib=32, changes={"clip": None}),
        *(
            _paper(
                f"{layers}-b{batch}-calm", layers, batch, ("stronghold",), cap_gib=32,
                changes={"clip": CALM},
            )  # fmt: skip
            for layers in (78, 100)
            for batch in (4, 16)
        ),
        Case(
            name="llama-8b", methods=("stronghold", "l2l"), changes=LLAMA, cap_gib=24,
            splits=(8,), steps=(2, 5),
        ),  # fmt: skip
        Case(
            name="small-fp32",
            methods=(*ROOFS[:1], "megatron-core", *OFFLOADED, *ON_DISK),
            changes={**PAPER, "layers": 16, "hidden": 1024, "batch": 4, "dtype": "fp32"},
            cap_gib=3,
            of_method={"stronghold-disk": {"optimizer_tier": "disk"}},
        ),
        *(
            _paper(f"depth-{layers}", layers, 4, ("stronghold (w4 r0 stash)",), cap_gib=32)
            for layers in (40, 60, 80)
        ),
        _paper(
            "disk-b4", 32, 4, ON_DISK, cap_gib=32, steps=(1, 3),
            of_method={"stronghold-disk": {"optimizer_tier": "disk", "resident": 0}},
        ),  # fmt: skip
        _paper(
            "windows", 32, 4, tuple(f"stronghold (w{w} r0)" for w in (2, 4, 8, 16)), cap_gib=32
        ),
        _paper(
            "placements", 24, 4, ("stronghold", *(f"stronghold ({pins})" for pins in PLACEMENTS)),
            cap_gib=8, changes={"clip": None},
        ),  # fmt: skip
    ),
    "tiny": (
        Case(
            name="tiny",
            methods=("plain", "plain (keep)", "fsdp-offload", "l2l", "zero-offload", "stronghold"),
            changes={
                **TRAINING, "device": "cpu", "text": str(Path(__file__).resolve()), "layers": 3,
                "hidden": 32, "heads": 4, "seq": 32, "vocab": 256, "batch": 4, "dtype": "fp32",
            },
        ),
    ),
}  # fmt: skip
"""By size: of the published models, or small enough for any machine."""


def method_changes(method: str, known: dict[str, dict[str, Any]] = METHODS) -> dict[str, Any]:
    """Fields of the spec for a name in the CSV; raises ValueError for one that is not `known`.

    A variant of pins, as in ``stronghold (w4 p8 stash)``, is that many layers in the window (w),
    resident (r), pulled (p) or kept (k), and whether inputs wait on the host.
    """
    base, _, variant = method.partition(" (")
    words = variant.removesuffix(")").split()
    pins = [PIN.fullmatch(word) for word in words if word not in WORDS]
    if method in known:
        return known[method]
    if base not in known or not words or not all(pins):
        raise ValueError(f"unknown method {method!r} of the benchmark; known: {', '.join(known)}")
    pinned = {PINNED[pin[1]]: int(pin[2]) for pin in pins}
    return {**known[base], **pinned, **{k: v for w in words for k, v in WORDS.get(w, {}).items()}}


def entries(size: str, *, warmup: int, measured: int, only: Iterable[str] = ()) -> list[Entry]:
    """The runs of a size in their order, as `chosen` picks them."""
    found = [
        entry_of(case, method, warmup, measured) for case in CASES[size] for method in case.methods
    ]
    return chosen(found, only)


def chosen(found: list[Entry], only: Iterable[str]) -> list[Entry]:
    """Entries that match one of some patterns of a case, a method or ``case/method``; all where
    there are no patterns. Raises ValueError for a pattern that matches nothing."""
    patterns = list(only)
    for pattern in patterns:
        if not any(matches(entry, pattern) for entry in found):
            names = ", ".join(dict.fromkeys(entry.case for entry in found))
            raise ValueError(f"nothing matches {pattern!r}; cases are {names}, and see --list")
    return [e for e in found if not patterns or any(matches(e, p) for p in patterns)]


def matches(entry: Entry, pattern: str) -> bool:
    """Whether a pattern with ``*`` and ``?`` names the entry's case, its method, or both."""
    return any(fnmatchcase(text, pattern) for text in (entry.case, entry.method, entry.name))


def entry_of(
    case: Case,
    method: str,
    warmup: int,
    measured: int,
    *,
    known: dict[str, dict[str, Any]] = METHODS,
    in_gpu: tuple[str, ...] = IN_GPU,
) -> Entry:
    """One run of a case; those of `in_gpu` get the whole device."""
    warmup, measured = case.steps or (warmup, measured)
    changes = {**case.changes, **method_changes(method, known), **case.of_method.get(method, {})}
    if case.cap_gib is not None and method.partition(" ")[0] not in in_gpu:
        changes["device_memory"] = round(case.cap_gib * GIB)
    spec = make_spec({**changes, **_steps(warmup + measured)})
    return Entry(case=case.name, method=method, spec=spec, warmup=warmup, splits=case.splits)


def _steps(number: int) -> dict[str, int]:
    """A run's steps, and how many of them the learning rate grows for."""
    return {"steps": number, "warmup_steps": min(TRAINING["warmup_steps"], number)}


def probe(method: str, layers: int, device_cap: int | None, host_cap: int | None) -> Entry:
    """A run of a search for the largest model: three full steps under both budgets."""
    changes = {**PAPER, **method_changes(method), "layers": layers, "batch": 4, **_steps(3)}
    changes |= ROOMIEST.get(changes["method"], {})
    caps = {"device_memory": device_cap, "host_memory": host_cap}
    spec = make_spec({**changes, **{name: cap for name, cap in caps.items() if cap is not None}})
    words = [f"{cap / GIB:g}g" if cap else "all" for cap in caps.values()]
    return Entry(case=f"largest-{'-'.join(words)}", method=method, spec=spec, warmup=1)


# -- how long a run takes --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Rough costs of a method on one H200 with 16 cores, bf16; only for planning device time."""

    start_s: float
    """Process, imports, compilation, profile."""
    start_s_per_billion: float
    """Making and pinning the model, per 1e9 parameters."""
    step_s_per_billion: float
    """Of a step, beside compute."""


SPEEDS = {
    "plain": Speed(start_s=35, start_s_per_billion=5, step_s_per_billion=0.01),
    "megatron-core": Speed(start_s=35, start_s_per_billion=7, step_s_per_billion=0.01),
    "l2l": Speed(start_s=40, start_s_per_billion=18, step_s_per_billion=0.35),
    "fsdp-offload": Speed(start_s=45, start_s_per_billion=14, step_s_per_billion=0.37),
    "zero-offload": Speed(start_s=45, start_s_per_billion=20, step_s_per_billion=0.42),
    "zero-infinity": Speed(start_s=45, start_s_per_billion=22, step_s_per_billion=0.55),
    "zero-infinity-disk": Speed(start_s=60, start_s_per_billion=30, step_s_per_billion=10),
    "stronghold": Speed(start_s=60, start_s_per_billion=15, step_s_per_billion=0.15),
    "stronghold-disk": Speed(start_s=60, start_s_per_billion=20, step_s_per_billion=8),
    **dict.fromkeys(
        (
            "data-parallel",
            "torch-gpipe",
            "torch-1f1b",
            "torch-interleaved",
            "torch-zero-bubble",
            "deepspeed-pipe",
        ),
        Speed(start_s=40, start_s_per_billion=7, step_s_per_billion=0.02),
    ),
    **dict.fromkeys(
        ("gpipe", "1f1b", "interleaved", "zb-h1", "varuna"),
        Speed(start_s=50, start_s_per_billion=10, step_s_per_billion=0.02),
    ),
    **dict.fromkeys(
        ("harmony-pp", "harmony-dp", "pp-swap", "dp-swap"),
        Speed(start_s=80, start_s_per_billion=15, step_s_per_billion=0.3),
    ),
}
COMPUTE_S = 0.0175
"""Per sample of 1024 tokens and 1e9 parameters, with recomputation: 0.30 s for 4 on 4.03e9."""
TINY_S = 15.0
"""A run of the small size, nearly all of it starting."""


def about_parameters(model: ModelSpec) -> int:
    """As many as a GPT of these sizes has, where the family has no formula."""
    return replace(model, family=GPT_FAMILY).parameters


def estimated_seconds(entry: Entry, earlier: Iterable[Run] = ()) -> float:
    """How long a run may take. `earlier` are runs of the sheet: where there are some of the same
    method on this class of model, the longest start among them, scaled, replaces the table's."""
    spec = entry.spec
    if spec.device == "cpu":
        return TINY_S
    billions = about_parameters(spec.model) / 1e9
    base = entry.method.partition(" ")[0]
    speed = SPEEDS[base]
    compute = COMPUTE_S * spec.batch * billions * spec.model.seq / 1024 / spec.ranks
    step_s = speed.step_s_per_billion * billions + compute
    starts = [
        start * max(1.0, billions / known)
        for run in earlier
        if run.method == base and run.status == "ok"
        for start, known in [(run.start_seconds, run.parameters / 1e9)]
    ]
    start_s = max(starts, default=speed.start_s + speed.start_s_per_billion * billions)
    return start_s + step_s * spec.steps
