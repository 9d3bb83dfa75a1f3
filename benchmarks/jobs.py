"""Costs of checkpoints and of a lost worker in a job of the launcher, on one machine.

    python -m benchmarks.jobs --out FOLDER --slots 4 --batch 512 --chunk 8 --stages 4 \
        -- --layers 48 --hidden 1600 --heads 25 --seq 1024 --vocab 50304 --bf16
    python -m benchmarks.jobs --out FOLDER --size tiny

The script is examples/gpt.py, whose flags stand behind ``--``. The job saves every `EVERY` steps.
After three saves one of its workers is killed, between two checkpoints. Steps before the first save
are compared with those of two periods, by their means, so that all steps around a save count. The
loss is told in parts: until it is seen, until the next round is told to start, until workers have
made their stages, until they have read the checkpoint, and a step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from benchmarks.offload_sheet import without_paths
from workbench.core.paths import import_path
from workbench.elastic.folder import State, read_file
from workbench.methods.varuna.logs import read_losses
from workbench.runs import provenance

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "gpt.py"
EVERY, WARMUP = 10, 3
"""Steps from save to save, and those that begin the job."""
TINY = ["--layers", "2", "--hidden", "32", "--heads", "2", "--seq", "32", "--vocab", "256"]
LIMIT_S, LOOK_S = 600.0, 0.02


class Job:
    """One job in a folder of its own."""

    def __init__(self, folder: Path, hosts: str, batch: int, words: Sequence[str]) -> None:
        """`hosts` is the machine list, `words` are the launcher's, with the script's behind them.
        Starts nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.run, self._words = folder, folder / "run", words
        (folder / "hosts").write_text(hosts)
        self._command = [
            sys.executable, "-m", "workbench.cli", "varuna", "--machine_list", folder / "hosts",
            "--batch_size", batch, "--folder", self.run, "--morph", "always",
        ]  # fmt: skip

    def start(self, *flags: str) -> None:
        """Start the manager."""
        command = [*map(str, self._command), *flags, *map(str, self._words)]
        there = {**os.environ, **import_path()}
        with (self.folder / "manager.log").open("ab") as log:
            self.manager = subprocess.Popen(command, stdout=log, stderr=log, env=there)

    def steps(self) -> list[float]:
        """Seconds of each step, as its log has them."""
        path = self.run / "varuna_loss.log"
        return [line.step_s for line in read_losses(path)] if path.exists() else []

    def told(self, pattern: str, since: float) -> float:
        """Unix time of the manager's first event that matches, from a moment on."""

        def found() -> float | None:
            events = read_file(State, self.run).events
            times = (at for at, text in events if at >= since and re.search(pattern, text))
            return next(times, None)

        return self.wait(found)

    def wait(self, for_what: Callable[[], Any], look_s: float = LOOK_S) -> Any:
        """The first value of `for_what` that is true. Raises RuntimeError where the job ends
        before, or stands."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := for_what()):
            if self.manager.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the job ended or stands; {self.folder}/manager.log says why")
            time.sleep(look_s)
        return found

    def workers(self) -> dict[int, psutil.Process]:
        """The process that writes the output of each rank."""
        found = {}
        for process in psutil.Process(self.manager.pid).children(recursive=True):
            with suppress(OSError, psutil.Error):
                if out := re.search(r"-(\d+)\.out$", os.readlink(f"/proc/{process.pid}/fd/1")):
                    found[int(out[1])] = process
        return found

    def close(self) -> None:
        """End it."""
        while self.manager.poll() is None:
            self.manager.terminate()
            time.sleep(1.0)


def measure(folder: Path, slots: int, batch: int, words: Sequence[str]) -> dict[str, Any]:
    """Seconds of steps with and without saves, and of the parts of a loss."""
    saved = folder / "saved"
    saves = ["--steps", "999", "--save_every", str(EVERY), "--save", str(saved)]
    shutil.rmtree(folder / "job", ignore_errors=True)
    one = Job(folder / "job", f"127.0.0.2:{slots}\n", batch, [*words, *saves])
    one.start()
    with closing(one):
        one.wait(lambda: len(one.steps()) >= 3 * EVERY + EVERY // 2)
        steps = one.steps()
        alone, saving = fmean(steps[WARMUP:EVERY]), fmean(steps[EVERY : 3 * EVERY])
        nbytes = sum(f.stat().st_size for f in newest(saved).iterdir())
        last, before = one.workers()[slots - 1], len(one.steps())
        killed = time.time()
        last.kill()
        seen = one.told("died|failed", killed)
        begun = one.told("resumed", seen)
        done = one.told(r"step \d+ is done", begun)
        first_s = one.wait(lambda: one.steps()[before:])[0]
        made = max(started(path) for path in one.run.glob("varuna_logs-*"))
    parts = {"detect": seen - killed, "end": begun - seen, "start": made - begun}
    parts |= {"load": done - first_s - made, "first step": first_s}
    return {
        "step_seconds": alone, "step_seconds_saving": saving, "cost": saving / alone - 1,
        "saved_bytes": nbytes, "next_step_seconds": done - killed, "parts": parts,
    }  # fmt: skip


def started(path: Path) -> float:
    """Unix time of the last start that a log of tasks tells."""
    return float(re.findall(r"^start time (\S+)$", path.read_text(), re.MULTILINE)[-1])


def newest(folder: Path) -> Path:
    """The last checkpoint."""
    return max(folder.glob("step-*"))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures, and write them with their provenance; exit code 0."""
    parser = argparse.ArgumentParser(prog="benchmarks.jobs", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of jobs.json, and of the jobs themselves")
    add("--slots", type=int, default=2, help="workers of the one host")
    add("--batch", type=int, default=8)
    add("--chunk", type=int, default=2)
    add("--stages", type=int, default=2)
    add("--size", choices=("tiny", "given"), default="given")
    add("words", nargs="*", metavar="...", help="flags of examples/gpt.py")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the job, too
    out = given.out.resolve()
    script = [*(TINY if given.size == "tiny" else given.words), "--text", str(SCRIPT)]
    words = [
        "--nstages", str(given.stages), "--chunk_size", str(given.chunk), str(SCRIPT), *script,
    ]  # fmt: skip
    found = measure(out / "jobs", given.slots, given.batch, words)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    told = {"measured": at, "words": words, **found, "provenance": provenance.gather(sys.argv)}
    (out / "jobs.json").write_text(without_paths(json.dumps(told, indent=1)) + "\n")
    print(f"step {found['step_seconds']:.3f} s, saving every {EVERY} {found['cost']:+.1%}")
    print(f"checkpoint {found['saved_bytes'] / 1e9:.3f} GB")
    print(f"next step {found['next_step_seconds']:.1f} s after a worker was killed:")
    for name, seconds in found["parts"].items():
        print(f"  {name:10} {seconds:6.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
