"""Record of a run: the one form in which every method, baseline and simulation ends.

The status of a run is this record's and nothing else's; out of memory is a result, not a failure.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, Literal, TypedDict, get_args

from workbench.core.methods import RENAMED, known
from workbench.core.options import catalogue, options_of, takes
from workbench.core.schema import Measured, read_as, read_fields
from workbench.core.sealed import parse_sealed
from workbench.core.spec import EVERY_FLAT_VERSION, EVERY_VERSION, RunSpec

Status = Literal[
    "ok", "oom_device", "oom_host", "oom_disk", "timeout", "cancelled", "diverged", "error"
]
STATUSES = get_args(Status)
RESULTS: frozenset[Status] = frozenset({"ok", "oom_device", "oom_host", "oom_disk", "diverged"})
"""Statuses that say something about the spec: running it again would tell nothing new."""

State = Literal["pending", "running", "done", "failed"]

PARTS = (
    "weights_in", "gradients_out", "activations_in", "activations_out", "sums_in", "sums_out",
)  # fmt: skip
"""Traffic over the link between host and device, by part. Sums are of gradients that lack
micro-batches."""
BETWEEN = ("p2p", "all_reduced")
"""Traffic between devices: messages, counted by their senders, and the size of each rank's part in
sums, not the bytes that the algorithm then moves. Records from before have neither."""

BUSY = 0.1
"""Share of the cores or of a GPU that others may use before times of a run say nothing of it."""
SHARED = {"cores": "the cores", "gpu": "the GPU"}

Source = Literal["measured", "simulated", "published"]
SCHEMA = 2
"""Since 2, options stand together in a spec; in 1, those of all methods beside its fields."""


class Predicted(TypedDict, total=False):
    """Figures of a plan, told before the run."""

    step_seconds: Measured | None
    spread: float
    peak_bytes: dict[str, int | float | None]
    moved_bytes: dict[str, int | float | None]
    moved_parts: dict[str, int | float]
    binding: str
    how: str
    settings: dict[str, Any]


class Evaluation(TypedDict, total=False):
    """Measured on held-out data; figures that a task does not have are lacking."""

    step: int
    """Steps done before it."""
    epoch: float
    samples: int
    loss: Measured
    perplexity: Measured
    """Of text: e to the loss of a token."""
    accuracy: float
    """Share of samples whose class was found."""
    exact: float
    """Per cent of answers that are a reference's words (SQuAD's exact match)."""
    f1: float
    """Mean harmonic mean of precision and recall of an answer's words, per cent."""
    seconds: float


HELD_OUT = ("loss", "perplexity", "accuracy", "exact", "f1")
"""Figures of an evaluation, which rows name ``held_out_loss``, ..."""


class Provenance(TypedDict, total=False):
    """Where a record came from (provenance.py), as far as it is read again."""

    command: list[str]
    commit: str | None
    cores: int
    cpu: str
    device_class: str | None
    dirty: bool | None
    gpus: list[str]
    host_memory_bytes: int
    packages: dict[str, str]
    python: str
    system: str


class Step(TypedDict):
    """A measured step, lane by lane."""

    seconds: float
    """From its first action to that of the next step, in a run that goes on."""
    host_memory_bytes_per_s: float | None
    """Rate that the machine's profile has of host memory: copies both ways and updates at once."""
    events: list[tuple[str, str, float, float, int]]
    """Lane, name, start and end of each action, and its bytes through host memory. Seconds count
    from the first compute action; updates and copies may end after the step does."""


class Entry(TypedDict):
    """A run's place in a benchmark (`published.here`)."""

    case: str
    method: str
    """The benchmark's name of the method, a variant in parentheses after it."""
    warmup: int
    """First steps, which are not measured."""


class Bench(Entry, total=False):
    """A benchmark's own facts of a run."""

    told: dict[str, int | float | None]
    """Column of the run's row -> its value, where the record alone does not tell it."""
    lanes: dict[str, dict[str, float]]
    """``predicted``, ``measured``: busy seconds a step of each kind of lane."""
    log: list[str]
    """Its end, of a run that failed."""
    step: Step


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Return value of a method's `train`: the measured part of a record."""

    losses: list[Measured]
    """Mean loss of every step."""
    step_seconds: list[float]
    """Wall time of every step, the first (warm-up) included."""
    peak_bytes: dict[str, int | None]
    """Tier -> largest bytes in use; None where it cannot be measured, said in `notes`."""
    moved_bytes: dict[str, int | None]
    """load, store, read, write: bytes per steady step over each link; None where unknown."""
    parameters: int | None
    """None where the run ended before it was known."""
    moved_parts: dict[str, int] = field(default_factory=dict)
    """`PARTS`, the bytes over the link by what they are, and `BETWEEN`; empty where nobody told
    them apart."""
    window: int | None = None
    resident: int | None = None
    predicted: Predicted = field(default_factory=Predicted)
    """The plan: step_seconds, peak_bytes, moved_bytes, moved_parts, binding."""
    skipped_steps: list[int] = field(default_factory=list)
    """Steps left out because a gradient was not finite."""
    grad_norms: list[Measured | None] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    engine: str = ""
    """Implementation that ran: ``workbench``, ``deepspeed 0.19.8``, ``megatron-core 0.16.1``."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, repr=False)
class RunRecord:
    """One run, as stored in record.json."""

    key: str
    method: str
    status: Status
    spec: dict[str, Any]
    source: Source = "measured"
    message: str = ""
    """One sentence on why the status is not ok."""
    refused: bool = False
    """Whether the spec itself was the reason, before any step: a bad value, a budget too small."""
    losses: list[Measured] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    samples_per_second: Measured | None = None
    """Batch size over the median step time, the first step left out."""
    peak_bytes: dict[str, int | None] = field(default_factory=dict)
    moved_bytes: dict[str, int | None] = field(default_factory=dict)
    moved_parts: dict[str, int] = field(default_factory=dict)
    parameters: int | None = None
    microbatches: int | None = None
    """Their number, where the spec leaves it open."""
    window: int | None = None
    resident: int | None = None
    predicted: Predicted = field(default_factory=Predicted)
    skipped_steps: list[int] = field(default_factory=list)
    grad_norms: list[Measured | None] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    engine: str = ""
    notes: list[str] = field(default_factory=list)
    started: str = ""
    """ISO 8601, UTC."""
    seconds: float | None = None
    """Wall time of the whole run, set-up included."""
    start: dict[str, float] = field(default_factory=dict)
    """Part of the start -> its seconds, in order, up to the end of the first step."""
    others: dict[str, float] = field(default_factory=dict)
    """``cores``, ``gpu``: share that other processes used during the measured steps; empty where
    nobody looked, as before there was this field."""
    provenance: Provenance = field(default_factory=Provenance)
    bench: Bench | None = None
    """None of a run that no benchmark made."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r}; it must be one of {', '.join(STATUSES)}")

    def __repr__(self) -> str:
        """As a notebook shows it: how it ended, after which losses."""
        words = f"{self.method} {self.key}: {self.status}"
        if self.losses:
            first, last = self.losses[0], self.losses[-1]
            words += f", loss {first:.4f} to {last:.4f} in {len(self.losses)} steps"
        if self.samples_per_second is not None:
            words += f", {self.samples_per_second:.4g} samples/s"
        return f"<{words}{': ' * bool(self.message)}{self.message}>"

    @property
    def parts(self) -> int:
        """Micro-batches of a step."""
        return self.microbatches or self.spec["microbatches"]

    @property
    def busy(self) -> str:
        """How much others used where it was too much, in words; empty on an idle machine."""
        shares = [(share, SHARED.get(name, name)) for name, share in self.others.items()]
        much = [f"{share:.0%} of {name}" for share, name in shares if share > BUSY]
        return f"others used {' and '.join(much)}" if much else ""

    def to_json(self, indent: int | None = 1) -> str:
        """Strict JSON: a loss that is not a number becomes the string JSON has for it. A line where
        `indent` is None."""
        return json.dumps(strict(asdict(self)), indent=indent, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> RunRecord:
        """Inverse of `to_json`; raises ValueError when the text is no record of a known schema, or
        its spec none that a version of this program wrote."""
        raw = text if isinstance(text, bytes) else text.encode(errors="replace")
        data = parse_sealed(raw, "not a run record: it")
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema is None:
            raise ValueError("not a run record: it has no schema number")
        if type(schema) is int and schema > SCHEMA:
            raise ValueError(f"the record has schema {schema}, this version reads up to {SCHEMA}")
        where = "not a run record"
        if schema == 1 and data.get("method") in RENAMED:
            data = data | {"method": RENAMED[data["method"]]}
        spec = _read_spec(data.get("spec"), f"{where}: spec")
        record = read_as(cls, data | {"spec": spec}, where)
        if spec["method"] != record.method:
            raise ValueError(f"{where}: it is of {record.method}, its spec of {spec['method']}")
        return record


def _read_spec(data: Any, where: str) -> dict[str, Any]:
    """A spec that any version wrote, as this one writes it. What stood beside the other fields of
    options that the method does not have meant nothing, and is left out."""
    spec = read_fields(RunSpec, data, where, EVERY_VERSION)
    given = spec["options"]
    if given is None:
        for name in sorted(EVERY_FLAT_VERSION - spec.keys()):
            raise ValueError(f"{where}: the field {name!r} is missing")
        spec["method"] = RENAMED.get(spec["method"], spec["method"])
        if spec["method"] in known():
            given = {name: spec.pop(name) for name in catalogue().keys() & spec.keys()}
    kind = options_of(spec["method"])
    own = {name: value for name, value in (given or {}).items() if takes(spec["method"], name)}
    return spec | {"options": read_fields(kind, own, where, frozenset())}


def state_of(status: str) -> State:
    """State of a run by its record's status, which is empty where it has none. A run that was
    cancelled is pending, for nobody let it finish."""
    if status in ("", "cancelled"):
        return "pending"
    return "done" if status in RESULTS else "failed"


def steady_step_seconds(step_seconds: list[float]) -> float | None:
    """Median step time without the first, which warms caches and allocators up."""
    steady = step_seconds[1:] or step_seconds
    return median(steady) if steady else None


def steady_quartiles(step_seconds: list[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile of the steady steps, of which there is one.

    Quartiles within the samples: a run may have two steady steps, and what is extrapolated beyond
    those can be below zero.

    >>> steady_quartiles([9.0, 1.0, 21.0])
    (6.0, 11.0, 16.0)
    """
    steady = step_seconds[1:] or step_seconds
    if len(steady) < 2:
        return (steady[0],) * 3
    first, middle, third = quantiles(steady, n=4, method="inclusive")
    return first, middle, third


def strict(value: Any) -> Any:
    """A copy that strict JSON can hold: numbers that are not finite become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value
