"""One schedule trained on several ranks of one machine, reported and saved by the run's process.

That process (runs/worker.py) holds the host memory of all ranks, starts one process a rank
(rank.py), and is the only one that reports, saves and resumes. A rank that fails or is killed
ends the run within seconds, with its own cause; one that hangs is named with what it was doing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workbench.core.record import Evaluation
from workbench.core.reporter import RANKS, Reporter
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.ranks.failures import RankFailed
from workbench.ranks.launcher import POLL_S, PROCESS, RankLauncher
from workbench.ranks.watchdog import LIMITS, Limits, Watchdog
from workbench.runtime.executor.board import Board, Stage
from workbench.runtime.rank import layouts_of
from workbench.schedule.action import Kind
from workbench.schedule.schedule import Schedule
from workbench.schedule.serialize import to_json
from workbench.training.history import History
from workbench.training.rank_evaluation import evaluation
from workbench.training.rank_host import RankHost, check_runs
from workbench.training.run import load_batches, write_weights

END_S = 2.0
"""How long ranks may take to end after one has failed, before they are killed."""
TIMELINE_STEPS = 3
WORK = "workbench.training.rank"


def launcher_of(
    folder: Path, ranks: int, *, device: str, process: Sequence[str] = PROCESS
) -> RankLauncher:
    """A launcher of the ranks of a run; `folder` is the run's own. Ranks may be prepared before the
    run has a schedule."""
    return RankLauncher(folder / "ranks", WORK, ranks, device=device, process=process)


class RankTraining:
    """A run of one schedule on its ranks."""

    def __init__(
        self,
        spec: RunSpec,
        schedule: Schedule,
        folder: Path,
        *,
        device: str,
        process: Sequence[str] = PROCESS,
        launcher: RankLauncher | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """`folder` is the run's own; `launcher` one that has begun already (`launcher_of`).
        Raises ValueError for a schedule of another model or batch, or one that breaks a rule, and
        OutOfMemory where the host has no room."""
        self.spec, self.schedule = spec, schedule
        self._limits = limits
        self.model = make_model(spec.model, spec.seed)
        self.layouts = layouts_of(self.model)
        check_runs(spec, schedule, self.model, self.layouts)
        self.batches = load_batches(spec, self.model, folder / "cache")
        self.history = History(spec, folder, self.batches, model=self.model)
        self._host: RankHost | None = None
        ranks = schedule.mesh.processes
        self._launcher = launcher or launcher_of(folder, ranks, device=device, process=process)
        self.folder = self._launcher.folder
        try:
            self._launcher.resize(ranks)
            self._launcher.prepare()  # ranks import while memory is laid out
            self.board = self._launcher.make_board(Board.sizes(schedule))
            self._host = RankHost(
                spec, schedule, self.model, self.layouts, self.board, device=device
            )
            self.states, self.flats = self._host.states, self._host.flats
        except BaseException:
            self._close_memory()
            raise

    def run(self, report: Reporter) -> None:
        """All steps that are left. Raises what made a rank fail."""
        host = self._host
        first = host.resume(self.history, self.folder, report)
        total, ends = self.spec.steps, self.history.pauses(first)
        segments = [*zip([first, *ends], ends, strict=False)]
        report.phase(f"starting {self.schedule.mesh.processes} ranks")
        self._start(segments)
        if first == 0:  # nothing was taken up; ranks start meanwhile, and wait to be allowed to go
            seed, watch = self.spec.seed, self._launcher.check
            write_weights(report, self.model, self.states, self.flats, seed, watch)
        report.phase(RANKS)
        self._await_ready(first)
        report.phase("training")
        seen = first
        for _, end in segments:
            self.board.allow(end)
            last = time.monotonic()  # neither starting nor saving is a step's time
            while self.board.drained < end or seen < end:
                running = self._launcher.check(lambda end=end: self._watchdog.late(end))
                if seen < min(self.board.steps, end) and self._known(seen):
                    last = host.ended(self.history, seen, last, report)
                    seen += 1
                    continue
                if not running:
                    raise RankFailed(f"all ranks have ended, and step {seen} of {total} has not")
                time.sleep(POLL_S)
            if self.history.evaluates_at(end):
                self.history.evaluate(end, partial(self._evaluation, end), report)
            if self.history.saves_at(end):
                host.save(self.history, end, self.folder, report)
        report.phase("ending")
        while running := self._launcher.running():
            self._launcher.check(lambda: self._watchdog.late(total))
            if late := self._watchdog.still_there(running):
                raise RankFailed(late)
            time.sleep(POLL_S)
        self._launcher.check()

    def _evaluation(self, steps: int) -> Evaluation:
        """The first rank's, after so many steps. Raises what made one fail."""
        found, note = evaluation(self.folder, steps, self._launcher.check)
        self.history.evaluator.note = note
        return found

    def _await_ready(self, step: int) -> None:
        """Until all ranks may begin a step. Raises what made one fail, or who does not start."""
        ranks = range(len(self._launcher.processes))
        while any(self.board.stage(rank) is not Stage.READY for rank in ranks):
            if not self._launcher.check(lambda: self._watchdog.late(step + 1)):
                raise RankFailed("all ranks have ended before they were ready")
            time.sleep(POLL_S)

    def results(self) -> list[dict[str, Any]]:
        """Measurements of each rank."""
        return self._launcher.results()

    def _start(self, segments: list[tuple[int, int]]) -> None:
        (self.folder / "schedule.json").write_text(to_json(self.schedule))
        first, processes = self.board.steps, self._launcher.processes
        self._watchdog = Watchdog(self.schedule, self.board, self._limits, first, processes)
        if not segments:
            self._launcher.leave()
            return
        order = {
            "spec": self.spec.to_dict(),
            "host": self._host.paths,
            "segments": segments,
            "record_from": self.spec.steps - TIMELINE_STEPS,
            "origin": time.perf_counter(),
        }
        # To add up gradients ranks need a process group (transport/groups.py); messages do not.
        meets = any(action.kind is Kind.REDUCE for action in self.schedule.actions)
        self._launcher.start(order, meets=meets)

    def _known(self, step: int) -> bool:
        """Whether a step's norm is, if it has one: it is decided after the last backward pass."""
        return self.spec.clip is None or self._host.norm(step) is not None

    def close(self) -> None:
        """End what is left, and give the memory back."""
        self.board.stop()
        self._close_memory()

    def _close_memory(self) -> None:
        self._launcher.close(END_S)
        if self._host is not None:
            self._host.close()
