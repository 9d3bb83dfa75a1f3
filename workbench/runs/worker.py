"""The process that trains: one run, from spec.json to record.json, in a process of its own.

It has its own memory to run out of and its own device context to take down with it; the process
that asked for the run only reads files. How it ended is decided here, from the exception, and never
from the text of a log. Three ends leave no record here, because they are not results of the spec:
cancelled and timed out (the runner knows which, and writes it), and a results folder that cannot be
written.

Run as ``python -m workbench.runs.worker FOLDER`` by the guard; standard output goes to log.txt. It
may be started before there is a folder (ahead.py), and imports until one comes.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import io
import json
import math
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from workbench.core import methods
from workbench.core.files import write_whole
from workbench.core.garbage import keep_what_is_there
from workbench.core.methods import imported
from workbench.core.others import read, shares
from workbench.core.record import Outcome, Predicted, RunRecord, Status, steady_step_seconds
from workbench.core.reporter import MACHINE, WITHOUT_MEMORY, compile_seconds
from workbench.core.sealed import read_sealed
from workbench.core.spec import RunSpec
from workbench.model.custom import look_here
from workbench.profile.store import hardware
from workbench.runs import legacy
from workbench.runs.ahead import WORD, Pages, waited
from workbench.runs.chosen import told_parts, with_parts
from workbench.runs.events import EventLog, EventReader, evaluations_of, of_attempt, steps_of
from workbench.runs.jobfile import JobFile
from workbench.runs.logged import Log
from workbench.runs.planning import library_prediction
from workbench.runs.starts import TOLD_S, start_of
from workbench.runs.store import Store, StoreError, share_tokens, write_record

CANCELLED_EXIT = 128 + signal.SIGTERM
STORE_EXIT = 74
"""The results folder could not be written; EX_IOERR of sysexits."""

COMPARED = "workbench.training.compared"
"""Has what is asked of a module that is not ours before any method trains it."""

TEARDOWN_S = 20
"""After the record is written, how long library threads and destructors may take before a hard
exit."""

LONGEST_MESSAGE = 300
"""Longest part of a library's message; the whole of it is in log.txt."""


class Cancelled(BaseException):
    """SIGTERM came. Not an Exception, so that a method's own handlers do not swallow it."""


class WorkerReporter:
    """A `Reporter`: events for programs, and log lines in the published format for people."""

    def __init__(self, spec: RunSpec, log: EventLog, folder: Path, curves: str = "") -> None:
        """`folder` is the run's own; `curves` names the package that writes them, if any does."""
        self._spec, self._log = spec, log
        self.curves = Log(curves, spec, folder, self.phase)
        self._lines = legacy.LineWriter(spec)
        self._readings, self._compiled_s, self._stepped = [read()], 0.0, False
        self.others: dict[str, float] = {}
        """Shares of the machine that others used during the measured steps."""
        self.pages: Pages | None = None
        """They are brought until the run lays out memory of its own."""

    def began(self, command: list[str]) -> None:
        """Write the command and the header of the log."""
        print(shlex.join(command), *self._lines.header(), sep="\n")

    def ended(self) -> None:
        """Write the line that says that training came to its end."""
        print(self._lines.footer())

    def phase(self, text: str) -> None:
        """Tell of a preparation."""
        self._tell_compiled()
        if text not in WITHOUT_MEMORY:
            self.end_pages()
        self.event("phase", text=text)
        print(legacy.phase_line(text))

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None = None) -> None:
        """Tell of a step (from 0), its mean loss, its seconds and its gradients' norm."""
        if not self._stepped:
            self._stepped = True
            self._tell_compiled()
            # Beside the next step, which is timed already.
            threading.Thread(target=lambda: self._readings.append(read()), daemon=True).start()
        elif step == self._spec.steps - 1:
            gpus = self._spec.ranks if self._spec.device == "cuda" else 0
            self.others = shares([*self._readings, read()], gpus)
        norm = {} if grad_norm is None else {"grad_norm": grad_norm}
        self.event("step", step=step, loss=loss, seconds=seconds, **norm)
        self.curves.step(step, loss, seconds, grad_norm)
        for line in self._lines.step(step, loss, seconds):
            print(line)

    def end_pages(self) -> None:
        """Have no more pages brought, and tell how many were."""
        pages, self.pages = self.pages, None
        if pages is not None and (nbytes := pages.end()):
            self.event("pages", touched_bytes=nbytes)

    def _tell_compiled(self) -> None:
        """How long torch has compiled since this was told last, which parts of the start leave
        out."""
        total = compile_seconds()
        if total - self._compiled_s > TOLD_S:
            self.event("compiled", took=total - self._compiled_s)
        self._compiled_s = total

    def event(self, kind: str, **values: Any) -> None:
        """Write an event. Raises StoreError."""
        try:
            self._log.write(kind, **values)
        except OSError as error:
            raise StoreError(
                error.errno, f"events.jsonl cannot be written: {error.strerror}"
            ) from error
        self.curves.event(kind, values)


def main(folder: Path, pages: Pages | None = None) -> int:
    """Returns the exit status. `pages` are brought until the run lays out memory."""
    _die_with_pipe()
    _open_log()
    job = JobFile.load(folder)
    look_here()
    spec = RunSpec.from_dict(read_sealed(folder / "spec.json", "spec.json"))
    log = EventLog(folder / "events.jsonl")
    reporter = WorkerReporter(spec, log, folder, job.log)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _raise_cancelled)
    outcome, refused, message = None, False, ""
    try:
        reporter.began(job.provenance["command"])
        reporter.event("started", attempt=job.started, pid=os.getpid(), group=os.getpgid(0))
        if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
            if "torch.distributed" in sys.modules:  # which looked there when it was imported
                sys.modules["torch.distributed"].set_debug_level_from_env()
            reporter.phase("TORCH_DISTRIBUTED_DEBUG is lowered to INFO: torch's DDP ends at DETAIL")
        if not spec.model.ours:
            import_module(COMPARED).ensure(spec, folder.parents[1], reporter)
        if pages is not None:
            _bring_on(pages, spec, folder.parents[1], reporter)
        share_tokens(folder)
        divided = with_parts(spec, folder, job, reporter)
        method = imported(job.module)
        keep_what_is_there(collect=False)
        outcome = method.train(divided, reporter, folder)
        reporter.ended()
        reporter.curves.ended(outcome.peak_bytes)
        if not outcome.predicted:
            outcome = replace(outcome, predicted=_prediction(divided, folder, outcome))
        status: Status = "ok"
        if outcome.losses and not math.isfinite(outcome.losses[-1]):
            status, message = "diverged", f"the loss is {outcome.losses[-1]} at the last step"
    except (Cancelled, StoreError) as error:
        print(str(error) or "[ended by SIGTERM]")
        return CANCELLED_EXIT if isinstance(error, Cancelled) else STORE_EXIT
    except BaseException as error:
        traceback.print_exc()
        status, message = classify(error)
        refused = isinstance(error, ValueError) and _is_ours(error, job.module)
        message = " ".join(str(error).split()) if refused else message
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left takes milliseconds
        reporter.curves.close()
    if outcome is None:
        outcome = unfinished(folder, job)
        refused = refused and not outcome.losses
    try:
        seconds = time.monotonic() - began
        record = make_record(
            spec, job, outcome, status=status, message=message, refused=refused, seconds=seconds,
            start=start_of(folder, job), others=reporter.others,
            microbatches=told_parts(folder, job),
        )  # fmt: skip
        write_record(folder, record)
        if record.losses and hasattr(imported(job.module), "results_of"):
            _write_results(folder, *imported(job.module).results_of(record))
        reporter.event("ended", status=status, message=message)
    except StoreError as error:
        print(error)
        return STORE_EXIT
    return 0


def _bring_on(pages: Pages, spec: RunSpec, results: Path, report: WorkerReporter) -> None:
    """Measure the machine while no pages are brought, where the method's plan is from that: they
    disturb no other measurement before the run has memory."""
    report.pages, row = pages, methods.lookup(spec.method)
    if row is None or row.driven != methods.PLANNED or not pages.there:
        report.end_pages()
        return
    with pages.paused():
        report.phase(MACHINE)
        hardware(spec, results, lambda text: report.event("profile", text=text))


def _write_results(folder: Path, name: str, results: dict[str, Any]) -> None:
    """A record in another system's form; a disk that refuses it has not harmed the run."""
    try:
        write_whole(folder / name, (json.dumps(results, indent=1) + "\n").encode())
    except OSError as error:
        print(f"{name} was not written: {error}")


def _prediction(spec: RunSpec, folder: Path, outcome: Outcome) -> Predicted:
    """Of a library's run, which is good without one."""
    try:
        return library_prediction(spec, Store(folder.parents[1]), outcome.grad_norms[1:])
    except Exception:
        traceback.print_exc()
        return {}


def make_record(
    spec: RunSpec,
    job: JobFile,
    outcome: Outcome,
    *,
    status: Status,
    message: str,
    seconds: float,
    start: dict[str, float],
    microbatches: int | None,
    refused: bool = False,
    others: dict[str, float] | None = None,
) -> RunRecord:
    """The record of one attempt."""
    step_seconds = steady_step_seconds(outcome.step_seconds)
    return RunRecord(
        key=job.key,
        method=spec.method,
        status=status,
        message=message,
        refused=refused,
        spec=spec.to_dict(),
        samples_per_second=spec.batch / step_seconds if step_seconds else None,
        started=job.started,
        seconds=seconds,
        start=start,
        microbatches=microbatches,
        others=others or {},
        provenance=job.provenance,
        **asdict(outcome),
    )


def unfinished(folder: Path, job: JobFile) -> Outcome:
    """Outcome of a run whose `train` did not return: the steps it reported."""
    every = EventReader(folder / "events.jsonl").read()
    events = every if job.resume else of_attempt(every, job.started)
    losses, seconds = steps_of(events)
    return Outcome(
        losses=losses, step_seconds=seconds, evaluations=evaluations_of(events), peak_bytes={},
        moved_bytes={}, parameters=None,
    )  # fmt: skip


def classify(error: BaseException) -> tuple[Status, str]:
    """The status an exception means, and one sentence. Wrapped causes count as well."""
    for cause in _causes(error):
        status = _memory_status(cause)
        if status is not None:
            return status, _sentence(cause)
        if _diverged(cause):
            return "diverged", str(cause)
    return "error", _sentence(error)


def does_not_fit(error: BaseException) -> bool:
    """Whether a planner refused: nothing was tried, the budgets are too small."""
    plan = sys.modules.get("workbench.schedule.plan")
    return plan is not None and isinstance(error, plan.DoesNotFit)


def _diverged(error: BaseException) -> bool:
    adam_step = sys.modules.get("workbench.runtime.updates.adam_step")
    return adam_step is not None and isinstance(error, adam_step.Diverged)


def _memory_status(error: BaseException) -> Status | None:
    # Looked up, not imported: an exception of theirs cannot exist unless they were imported.
    tiers, torch = sys.modules.get("workbench.runtime.memory.tiers"), sys.modules.get("torch")
    if does_not_fit(error) or (tiers is not None and isinstance(error, tiers.OutOfMemory)):
        return f"oom_{error.tier}"  # type: ignore[attr-defined]
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return "oom_device"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "oom_disk"
    text = str(error)
    if isinstance(error, MemoryError) or (
        # torch has no exception class for a failed host allocation
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text
    ):
        return "oom_host"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return "oom_host"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_ours(error: BaseException, method: str) -> bool:
    """Whether this project or the method raised it; a library's own ValueError is a bug."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    raiser = frame.f_globals.get("__name__", "").partition(".")[0]
    return raiser in ("workbench", "baselines", method.partition(".")[0])


def _sentence(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if len(text) > LONGEST_MESSAGE:
        text = text[: LONGEST_MESSAGE - 3] + "..."
    if text and (isinstance(error, ValueError | OSError) or hasattr(error, "tier")):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Forgiving(io.FileIO):
    """A full disk under the log must not decide how the run ends; the events decide."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def _open_log() -> None:
    """Standard output and error, line by line, into the file the guard was given."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(_Forgiving(fd, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(raw, errors="backslashreplace", line_buffering=True))


def _raise_cancelled(*_: object) -> None:
    raise Cancelled


def _die_with_pipe() -> None:
    """End the whole group when the guard's end of standard input closes, where the kernel does not.

    Standard input itself becomes empty, so that no child waits for it.
    """
    pipe = os.dup(0)
    with open(os.devnull) as empty:
        os.dup2(empty.fileno(), 0)

    def watch() -> None:
        os.read(pipe, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="watch-guard", daemon=True).start()


if __name__ == "__main__":
    word, *given = sys.argv[1:]
    order = waited(given) if word == WORD else (Path(word),)
    exit_status = main(*order) if order else 0
    # Libraries have been seen to hang or abort in their destructors; the record is in place by now.
    faulthandler.dump_traceback_later(TEARDOWN_S, exit=True)
    gc.freeze()  # else the end collects garbage in all that torch imported, for a third of a second
    sys.exit(exit_status)
