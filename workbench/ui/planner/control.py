"""Controls the planner's page: a question, an answer at once, and better ones until the next
question.

    planner = PlannerControl(store)
    planner.answer(Question.of(layers=100, device_memory="24GiB", host_memory="90GiB"))

The page never waits for an answer. `ask` hands a question to the helper process
(helper_process.py) and returns; `poll` returns the reply that has come back since. Only the newest
question counts: the process works in slices of less than a tenth of a second, so that an old
question is left in the middle. The first answer to a question comes from a quick search near the
last one (methods/stronghold/search.py); it is replaced, step by step, by the answer of `workbench
plan`.

Nothing here knows widgets; the work of the process is in work.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workbench.core import methods
from workbench.core.spec import RunSpec
from workbench.runs.overrides import make_spec
from workbench.runs.store import REPOSITORY_RESULTS, Store
from workbench.ui.helper_process import HelperAnswer, HelperProcess
from workbench.ui.runs.commands import plan_command

ANY = "any"
"""Instead of a method: the fastest one that fits."""
WORK = "workbench.ui.planner.work:work_on"
SLICE_S = 0.05
"""Seconds of work between two looks at whether another question was asked."""
LONG_S = 5.0
"""Seconds at an old question after which the process is left for a new one."""
LOOK_S = 0.005
PATIENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question to the planner. Make one with `of`."""

    spec: RunSpec
    """Model, budgets and settings; its method is not used where `method` is `ANY`."""
    method: str = ANY
    machine: str | None = None
    """Another machine by its name; None is this one."""

    @classmethod
    def of(cls, *, method: str = ANY, machine: str | None = None, **changes: Any) -> Question:
        """A question about the default model, changed. Amounts of memory may be text, ``24GiB``.

        Raises ValueError, in one sentence, for an unknown field or method and for a value out of
        range.
        """
        whole = {"method": _named(method), "microbatches": 1}
        spec = make_spec(whole, changes, lenient=True)
        return cls(spec=spec, method=method, machine=machine)

    def with_(self, **changes: Any) -> Question:
        """Return the question with other fields of the spec, or another method or machine."""
        method, machine = changes.pop("method", self.method), changes.pop("machine", self.machine)
        spec = make_spec(self.spec.to_dict(), changes, {"method": _named(method)}, lenient=True)
        return Question(spec=spec, method=method, machine=machine)

    def names(self) -> list[str]:
        """Methods that are compared, and the one asked for."""
        compared = methods.compared(self.spec.ranks, self.spec.model)
        asked = [] if self.method == ANY else [self.method]
        return list(dict.fromkeys((*compared, *asked)))

    def command(self, results: Path = REPOSITORY_RESULTS) -> str:
        """The command line that asks this question."""
        method = None if self.method == ANY else self.method
        return plan_command(self.spec, method=method, machine=self.machine, results=results)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Question:
        """Make a question from plain data, as `asdict` gives it."""
        return cls(**{**data, "spec": RunSpec.from_dict(data["spec"])})


@dataclass(frozen=True, kw_only=True)
class Row:
    """The answer of one method."""

    method: str
    label: str
    activations: str = "auto"
    """Fate of activations in the plan, where the question leaves it open."""
    microbatches: int = 0
    """Micro-batches of the plan: a pipeline is asked with several; 0 before there is one."""
    stage: str = ""
    """Empty while it has not been asked; ``first`` and ``better`` are plans of a quick search,
    ``full`` is the planner's."""
    fits: bool = False
    step_seconds: float | None = None
    samples_per_second: float | None = None
    peak: dict[str, int] = field(default_factory=dict)
    """Tier -> bytes; of the smallest layout, where nothing fits."""
    parts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Tier -> kind of buffers -> their bytes in the peak."""
    binding: str = ""
    """The constraint that decides, in words; the reason, where nothing fits."""
    lacking: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """window, resident, pulled_layers, kept_layers, stashed_inputs, disk_layers, ... as planned."""
    notes: tuple[str, ...] = ()
    largest_layers: int | None = None
    """The most layers that fit under the same budgets; None while unknown."""
    largest_parameters: int | None = None
    largest_open: bool = False
    """Whether even more may fit than were asked about."""

    @property
    def refused(self) -> bool:
        """Whether the method cannot be asked so, whatever the memory; `binding` says why."""
        return self.stage == "full" and not self.fits and self.lacking is None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """All that is known so far of one question."""

    question: Question
    problem: str = ""
    """One sentence, where there is no answer."""
    done: bool = False
    """Whether no more follows."""
    chosen: str = ""
    """The method that the answer is about: the one asked for, or the fastest that fits."""
    rows: tuple[Row, ...] = ()
    """One a method that is compared."""
    hardware: str = ""
    source: str = ""
    """Origin of the costs, as `Hardware.source` has it."""
    here: bool = True
    """Whether that is this machine."""
    device: str = ""
    """``cuda`` or ``cpu``."""
    note: str = ""
    """A sentence on how far the times can be trusted."""
    parameters: int = 0
    budgets: dict[str, int] = field(default_factory=dict)
    """Tier -> bytes asked for, otherwise all of the machine; no disk unless asked for."""
    capacity: dict[str, int] = field(default_factory=dict)
    """Tier -> bytes of the machine."""
    link_bytes_per_s: float = 0.0
    """Bytes a second each way, of the link asked about."""
    own_link_bytes_per_s: float = 0.0
    helps: tuple[dict[str, int], ...] = ()
    """Where nothing fits: each entry is a change that would help. device, host, disk: more bytes;
    layers: how many fit; microbatches: in how many parts."""
    timeline: dict[str, Any] | None = None
    """The predicted events, as timeline/data.py prepares them."""

    @property
    def refining(self) -> bool:
        """Whether a better answer is on its way."""
        return self.row is not None and self.row.stage != "full"

    @property
    def row(self) -> Row | None:
        """The row of the chosen method."""
        return next((row for row in self.rows if row.method == self.chosen and row.stage), None)

    def run_spec(self) -> RunSpec:
        """The spec of a run like this answer: of its method, and without a slower link where that
        cannot be had."""
        parts = self.row.microbatches or self.question.spec.microbatches
        spec = self.question.spec.with_(method=self.chosen, microbatches=parts)
        if spec.activations == "auto":
            spec = spec.with_(activations=self.row.activations)
        return spec if self.device == "cpu" else spec.with_(link_bytes_per_s=None)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], question: Question) -> Reply:
        """Make a reply from the plain data of work.py."""
        rows = tuple(Row(**{**row, "notes": tuple(row["notes"])}) for row in data["rows"])
        return cls(**{**data, "rows": rows, "helps": tuple(data["helps"]), "question": question})


class PlannerControl:
    """Questions and answers over one results folder. Close it, or let it end with this process."""

    def __init__(self, store: Store) -> None:
        """Start nothing."""
        self.store = store
        self._helper = HelperProcess()
        self._wanted: Question | None = None
        self._sent: Question | None = None
        self._answer: HelperAnswer | None = None
        self._asked_at = 0.0
        self.reply: Reply | None = None
        """The last reply."""

    @property
    def busy(self) -> bool:
        """Whether something is still to come."""
        return self._answer is not None

    def ask(self, question: Question) -> None:
        """Ask a question, which replaces the one before. Returns at once."""
        self._wanted = question
        if self._answer is None:
            self._send(0.0)

    def poll(self) -> Reply | None:
        """Return a new reply to the last question, or None. Takes no time."""
        if self._answer is None:
            return None
        if not self._answer.done:
            if self._sent != self._wanted and time.monotonic() > self._asked_at + LONG_S:
                self._helper.leave()
                self._send(0.0)
            return None
        answer, self._answer = self._answer, None
        if self._sent != self._wanted:
            self._send(0.0)
            return None
        if answer.error:
            self.reply = Reply(question=self._sent, problem=answer.error, done=True)
            return self.reply
        self.reply = Reply.from_dict(answer.value, self._sent)
        if not self.reply.done:
            self._send(SLICE_S)
        return self.reply

    def answer(self, question: Question, *, full: bool = False) -> Reply:
        """Ask, and wait for the first answer, which takes a tenth of a second; or, with `full`, for
        the last one, which takes a few seconds. For scripts: a page polls.
        """
        self.ask(question)
        until = time.monotonic() + PATIENCE_S
        while self.busy and time.monotonic() < until:
            reply = self.poll()
            if reply is not None and (reply.done or not full):
                return reply
            time.sleep(LOOK_S)
        raise ValueError(f"the planner did not answer within {PATIENCE_S:g} s")

    def close(self) -> None:
        """End the helper process."""
        self._answer = None
        self._helper.close()

    def _send(self, seconds: float) -> None:
        """Have the process work on the question for about so long, or until a first answer."""
        self._sent, self._asked_at = self._wanted, time.monotonic()
        self._answer = self._helper.ask(
            WORK, question=asdict(self._sent), root=str(self.store.root), seconds=seconds
        )


def _named(method: str) -> str:
    """The method of a question's spec; raises ValueError for one that is not known."""
    return methods.find("stronghold" if method == ANY else method).name
