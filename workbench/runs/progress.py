"""Progress for people: what the events of a run or a sweep look like as lines of text.

On a terminal one line is rewritten as steps end; elsewhere (a log, a pipe) a line is written when
something begins or ends and at most every few seconds in between. Needs nothing but a stream.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, TextIO

from workbench.core.bytesize import format_bytes
from workbench.core.model_spec import ModelSpec
from workbench.core.readable import format_seconds, format_step
from workbench.core.record import HELD_OUT, RunRecord, steady_step_seconds
from workbench.core.spec import RunSpec
from workbench.runs.events import Event
from workbench.runs.sweep import Sweep

FINISHED = "finished"
"""Begins the state of a run that has its record, in previews."""
QUIET_S = 10.0
"""Longest silence between two lines where there is no terminal."""


def describe_spec(spec: RunSpec) -> str:
    """One line: method, size, batch, steps."""
    model = spec.model
    sequence = "" if model.custom else f"sequence {model.seq}, "
    return (
        f"{spec.method}: {describe_model(model)}, batch {spec.batch}, {sequence}"
        f"{spec.steps} steps, {spec.dtype} on {spec.device}"
    )


def describe_model(model: ModelSpec) -> str:
    """Its size; of a user's own, whose numbers mean what its function takes them for, the name."""
    return model.family if model.custom else f"{model.layers} layers x {model.hidden}"


def describe_record(record: RunRecord) -> str:
    """One line: how it ended, and the numbers that were asked for."""
    if record.status != "ok":
        return f"{record.method}: {record.status}: {record.message}"
    parts = [f"{record.method}: ok"]
    step_seconds = steady_step_seconds(record.step_seconds)
    if step_seconds is not None:
        parts.append(f"{format_seconds(step_seconds)} a step")
    if record.samples_per_second is not None:
        parts.append(f"{record.samples_per_second:.4g} samples/s")
    if record.losses:
        parts.append(f"loss {record.losses[0]:.4f} to {record.losses[-1]:.4f}")
    if record.evaluations:
        parts.append(describe_evaluation(record.evaluations[-1]))
    peaks = [f"{format_bytes(n)} {tier}" for tier, n in record.peak_bytes.items() if n]
    if peaks:
        parts.append("peak " + ", ".join(peaks))
    return ", ".join(parts)


def describe_evaluation(found: Mapping[str, Any]) -> str:
    """Figures of an evaluation on one line."""
    figures = [f"{name} {float(found[name]):.4g}" for name in HELD_OUT if name in found]
    return f"held out, after {found['step']} steps: {', '.join(figures)}"


def describe_packs(settings: dict[str, Any]) -> Iterator[str]:
    """Micro-batches and packs of a Harmony plan; nothing of other plans."""
    if "forward_packs" not in settings:
        return
    forward, backward = settings.get("forward_size"), settings.get("backward_size")
    yield f"micro-batches of {forward} samples forward, {backward} backward"
    for way in ("forward", "backward"):
        yield f"{way} packs, by their units: {settings.get(f'{way}_packs') or 'none'}"
    way = "there and back again" if settings.get("mirrored") else "in turn"
    yield f"packs go to the ranks {way}; {settings.get('resident')} units stay"


class Progress:
    """Feed it every event (`on_event`); it writes to the stream."""

    def __init__(
        self, stream: TextIO, spec: RunSpec | None = None, sweep: Sweep | None = None
    ) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._sweep, self._spec = sweep, spec
        self.saved: int | None = None
        """Step of the newest checkpoint that was told of."""
        self._unsaved = False
        """Whether it was told that later ones are not written, which may be so at every step."""
        self._seconds: list[float] = []
        self._spoke = 0.0
        self._live = False

    def on_event(self, event: Event) -> None:
        """Write what is worth a line."""
        kind = event["event"]
        if kind == "point" and self._sweep is not None:
            self._spec, self._seconds = self._sweep.points[event["index"]].spec, []
            self.line(f"{self._position(event['index'])} {describe_spec(self._spec)}")
        elif kind == "point_ended" and self._sweep is not None:
            record = self._sweep.points[event["index"]].record
            self.line(f"{self._position(event['index'])} {describe_record(record)}{self._left()}")
        elif kind == "cached":
            self.line(
                f"cached from {event['started'][:16].replace('T', ' ')} UTC (--force runs it again)"
            )
        elif kind in ("waiting", "phase", "profile", "divided"):
            self.line(event["text"])
        elif kind == "plan":
            if event.get("step_seconds"):
                step = format_step(event["step_seconds"], event.get("step_seconds_range"))
                self.line(f"planned: {step}")
            for text in describe_packs(event["settings"]):
                self.line(text)
        elif kind == "damaged" or (kind == "not_saved" and not self._unsaved):
            self.line(event["reason"])
            self._unsaved = kind == "not_saved"
        elif kind == "bytes":
            done, whole = format_bytes(event["done_bytes"]), format_bytes(event["all_bytes"])
            self.passing(f"{event['text']}: {done} of {whole}")
        elif kind == "resumed" and event["next_step"]:
            self.saved = event["next_step"]
            self.line(f"going on from step {self.saved}, where a checkpoint was left")
        elif kind == "saved":
            self.saved, self._unsaved = event["next_step"], False
        elif kind == "evaluating":
            self.passing(f"evaluating held-out data after {event['next_step']} steps")
        elif kind == "evaluated":
            self.line(describe_evaluation(event))
        elif kind == "not_evaluated":
            self.line(f"not evaluated: {event['reason']}")
        elif kind == "step":
            self._step(event)

    def line(self, text: str) -> None:
        """A line that stays."""
        self.end()
        self._stream.write(text + "\n")
        self._stream.flush()
        self._spoke = time.monotonic()

    def passing(self, text: str, *, last: bool = False) -> None:
        """A line that the next replaces; without a terminal it stays, if last or after a while."""
        if self._terminal:
            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{text[: width - 1]}")
            self._stream.flush()
            self._live = True
        elif last or time.monotonic() - self._spoke >= QUIET_S:
            self.line(text)

    def finish(self, record: RunRecord) -> None:
        """Write how the run ended."""
        self.line(describe_record(record))

    def goes_on(self) -> None:
        """Write which step the same command goes on from; nothing where it has done all."""
        if self._spec is not None and self.saved is not None and self.saved < self._spec.steps:
            step = self.saved
            self.line(f"its newest checkpoint is of step {step}; run again, it goes on from there")

    def end(self) -> None:
        """Remove the live line, if there is one."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._live = False

    def _step(self, event: Event) -> None:
        if self._sweep is not None and "index" in event:
            point = self._sweep.points[event["index"]]
            self._spec, self._seconds = point.spec, point.step_seconds
        else:
            self._seconds.append(float(event["seconds"]))
        steps = self._spec.steps if self._spec is not None else 0
        done = event["step"] + 1
        each = median(self._seconds[1:] or self._seconds)
        text = (
            f"step {done}/{steps}, loss {float(event['loss']):.4f}, {format_seconds(each)} a step"
        )
        if self._sweep is not None:
            text += self._left()
        elif steps > done and len(self._seconds) > 1:  # the first one may compile layers
            text += f", {format_seconds(each * (steps - done))} left"
        self.passing(text, last=done == steps)

    def _position(self, index: int) -> str:
        return f"[{index + 1}/{len(self._sweep.points)}]"

    def _left(self) -> str:
        seconds = self._sweep.seconds_left() if self._sweep is not None else None
        return f", {format_seconds(seconds)} left" if seconds else ""
