"""Plans, the answers of planners: whether it fits, with which settings, how fast, and what
binds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from workbench.core.bytesize import format_bytes
from workbench.schedule.schedule import Schedule
from workbench.schedule.simulate import Event

CLIPPED = "step_seconds_where_clipped"
"""Setting of a plan: its prediction of a step whose gradients exceed the limit, where updates are
made before their norm is known."""


class DoesNotFit(ValueError):
    """No plan of the method fits the budgets; `tier` is the one that lacks most."""

    def __init__(self, message: str, *, tier: str | None = None) -> None:
        super().__init__(message)
        self.tier = tier or "device"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A shape of a pipeline that a planner has looked at."""

    order: str
    """Order of its passes."""
    stages: int
    """Pipeline positions."""
    replicas: int
    """Pipelines side by side."""
    micro: int
    """Samples of a micro-batch."""
    microbatches: int
    """Micro-batches of a replica in a step."""
    activations: str = ""
    """Fate of activations, as the plan's settings say it."""
    seconds: float | None = None
    """Predicted, of a step; None where it was refused without looking."""
    least: bool = False
    """Whether a step takes these seconds at least, and no more was asked: others are far faster."""
    device_bytes: int | None = None
    """Bytes of the fullest device."""
    proved: bool = False
    """Whether these are those of its schedule; else they are foreseen without one."""
    reason: str = ""
    """Why it is refused; empty where it fits."""

    @property
    def ranks(self) -> int:
        """Processes that it has."""
        return self.stages * self.replicas

    @property
    def shape(self) -> str:
        """In words: ``2 x 1, 8 micro-batches of 4, varuna, recompute``."""
        sizes = (
            f"{self.stages} x {self.replicas}, {self.microbatches} micro-batches of {self.micro}"
        )
        return ", ".join(filter(None, (sizes, self.order, self.activations)))

    def words(self) -> str:
        """One line of a table."""
        if self.reason:
            return f"{self.shape}: {self.reason}"
        if self.least:
            return f"{self.shape}: {self.seconds:.4g} s a step or more"
        about = "" if self.proved else "about "
        nbytes = f"{about}{format_bytes(self.device_bytes)} of device memory"
        return f"{self.shape}: {about}{self.seconds:.4g} s a step, {nbytes}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A method's plan for one run."""

    method: str
    fits: bool
    schedule: Schedule | None = field(repr=False)
    """Schedule that would run; where nothing fits, the smallest that the method can do, or None."""
    step_seconds: float | None
    """Predicted steady-state seconds per step."""
    peak_bytes: dict[str, int]
    """Tier -> predicted peak."""
    moved_bytes: dict[str, int]
    """load, store, read, write: bytes per step."""
    binding: str
    """The constraint that decides, in words: what would have to grow for a larger or faster run."""
    lacking: str | None = None
    """The tier that is too small, where nothing fits."""
    window: int | None = None
    resident: int | None = None
    """First layers whose weights and optimizer states stay on the device."""
    settings: dict[str, int | float | str | bool | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Sentences for readers: constraints violated, assumptions, defects of published runs."""
    candidates: tuple[Candidate, ...] = ()
    """Shapes among which it was chosen, the best first, those that are refused last."""
    simulated: list[Event] = field(default_factory=list, repr=False)
    """Some steps of the schedule; the first finds nothing of one before it."""
    simulated_clipped: list[Event] = field(default_factory=list, repr=False)
    """Some steps whose gradients all exceed the limit; empty where these take no longer."""
    spread: float = 0.0
    """Share of `step_seconds` by which a measured step may be shorter or longer: that of the
    hardware, once the plan is told."""

    @property
    def step_seconds_range(self) -> tuple[float, float] | None:
        """The shortest and the longest step to expect."""
        if self.step_seconds is None:
            return None
        return self.step_seconds * (1 - self.spread), self.step_seconds * (1 + self.spread)

    def in_words(self) -> str:
        """A line: seconds a step, bytes of each tier, and the constraint that decides."""
        words = [] if self.step_seconds is None else [f"{self.step_seconds:.3g} s a step"]
        if (clipped := self.settings.get(CLIPPED)) is not None:
            words.append(f"{clipped:.3g} s where gradients are clipped")
        words += (f"{format_bytes(n)} of the {tier}" for tier, n in self.peak_bytes.items() if n)
        return f"{', '.join(words)}; bound by {self.binding}"

    def seconds_of(self, norms: Iterable[float | None], clip: float | None) -> float | None:
        """The predicted mean of steps with these global norms."""
        told = [norm for norm in norms if norm is not None]
        seconds, clipped = self.step_seconds, self.settings.get(CLIPPED)
        if seconds is None or clipped is None or not told:
            return seconds
        return seconds + sum(norm > clip for norm in told) / len(told) * (clipped - seconds)

    def predicted(self, norms: Iterable[float | None], clip: float | None) -> dict:
        """The predictions of a run's record, for steps with these global norms."""
        return {
            "step_seconds": self.seconds_of(norms, clip),
            "spread": self.spread,
            "peak_bytes": self.peak_bytes,
            "moved_bytes": self.moved_bytes,
            "binding": self.binding,
            "settings": self.settings,
        }

    def beside(
        self, measured: Sequence[Event], norms: Iterable[float | None] = (),
        clip: float | None = None,
    ) -> list[Event]:  # fmt: skip
        """Simulated steps under the numbers of the last measured ones, without the first. Where
        most of the global norms exceed the limit, the simulated steps' gradients do, too."""
        told = [norm > clip for norm in norms if norm is not None and clip is not None]
        mostly = sum(told) > len(told) / 2
        simulated = (self.simulated_clipped if mostly else []) or self.simulated
        steps = sorted({event.step for event in measured})
        final = max((event.step for event in simulated), default=0)
        first = max(1, final + 1 - len(steps))
        return [
            replace(event, step=steps[event.step - final - 1])
            for event in simulated
            if event.step >= first
        ]

    def to_dict(self) -> dict:
        """JSON-able, without the schedule and its events."""
        data = asdict(replace(self, schedule=None, simulated=[], simulated_clipped=[]))
        del data["schedule"], data["simulated"], data["simulated_clipped"]
        return {**data, "step_seconds_range": self.step_seconds_range}
