"""Rows that `workbench run` makes, what lies in their folder of work, and processes that end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.offload_bench import busy
from benchmarks.real_cases import Row
from workbench.core.record import RunRecord
from workbench.model.corpus import read_corpus
from workbench.runs.events import EventReader

GIB = 1 << 30
CLIP, LR = "1.0", "1e-4"
TOKENS, LEARNED = 4096, 1 << 20
"""Most tokens of a tokenizer made on the spot, and bytes of the text that it is made from."""
ROOM = 48 << 30
"""Bytes of the disk that a checkpoint of 3.2 billion parameters and its weights take."""
SECONDS_TO_END = 15
LOG = 4000
"""Letters that are kept of what a row that failed has told."""
Figures = dict[str, Any]


@dataclass(kw_only=True)
class Ended:
    """A process that has ended, or was ended."""

    code: int
    out: str
    told: str
    """The end of what it told beside."""
    seconds: float
    host_gib: float
    """Most memory that was in use at once on this machine, less that before."""


def process(command: Sequence[str], limit_s: float) -> Ended:
    """Run a command; at the limit it is ended, and all that it started."""
    began, host = time.monotonic(), HostPeak()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as told, host:
        started = subprocess.Popen([*command], stdout=out, stderr=told, start_new_session=True)
        try:
            code = started.wait(timeout=max(1.0, limit_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if started.poll() is None:
                end(started)
        texts = []
        for file in (out, told):
            file.seek(0)
            texts.append(file.read())
    seconds = time.monotonic() - began
    if code is None:
        code, texts[1] = 124, f"{texts[1]}\nended after {seconds:.0f} s"
    return Ended(code=code, out=texts[0], told=texts[1], seconds=seconds, host_gib=host.gib)


def end(started: subprocess.Popen) -> None:
    """End a process of a session of its own, and its children."""
    for way in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(started.pid, way)
        with suppress(subprocess.TimeoutExpired):
            started.wait(SECONDS_TO_END)
            return


@dataclass
class HostPeak:
    """Looks at this machine's memory while its context lasts: files that the system keeps, and may
    let go, do not count. A machine may get more memory as it is used."""

    gib: float = 0.0
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> HostPeak:
        self._before = _used()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.25):
            self.gib = max(self.gib, (_used() - self._before) / GIB)


def _used() -> int:
    memory = psutil.virtual_memory()
    return memory.total - memory.available


# -- runs ------------------------------------------------------------------------------------------


def run(row: Row, limit_s: float) -> Figures:
    """Figures of `workbench run`, in as few micro-batches as the device has memory for."""
    until = time.monotonic() + limit_s
    for split in row.splits or (row.microbatches,):
        figures = _run(replace(row, microbatches=split), until - time.monotonic())
        if figures.get("status") != "oom_device":
            break
    return figures


def _run(row: Row, limit_s: float) -> Figures:
    work = Path(row.folder).parent
    began, results, words = time.time(), work / "results", command(row)
    ended = process(words, limit_s)
    found = [path for path in results.glob("runs/*/record.json") if path.stat().st_mtime > began]
    shown = ["workbench", *(word.removeprefix(f"{work}/") for word in words[3:])]
    told = {
        "microbatches": row.microbatches, "all_s": ended.seconds, "host_gib": ended.host_gib,
        "command": shown,
    }  # fmt: skip
    if not found:
        return told | {"failed": last_lines(ended.told), "log": ended.told[-LOG:]}
    path = max(found, key=lambda path: path.stat().st_mtime)
    return told | of_record(RunRecord.from_json(path.read_text()), path.parent, began)


def of_record(record: RunRecord, folder: Path, began: float) -> Figures:
    """A record's part in a row."""
    if record.status != "ok":
        log = (folder / "log.txt").read_text(errors="replace")[-LOG:]
        return {"status": record.status, "failed": record.message, "log": log}
    seconds, predicted = record.step_seconds, record.predicted
    events = EventReader(folder / "events.jsonl").read()
    first = [e["time"] for e in events if e["event"] == "step" and e.get("time", 0.0) > began]
    step_s = median(seconds[len(seconds) // 2 :])
    kept = {tier: each / GIB for tier, each in record.peak_bytes.items() if each}
    planned = {tier: each / GIB for tier, each in predicted.get("peak_bytes", {}).items() if each}
    return {
        "samples_per_s": record.spec["batch"] / step_s, "step_s": step_s, "seconds": seconds,
        "losses": record.losses, "planned_s": predicted.get("step_seconds"),
        "peak_gib": kept.get("device"), "tiers_gib": kept, "planned_gib": planned,
        "binding": predicted.get("binding"), "settings": predicted.get("settings"),
        "window": record.window, "resident": record.resident, "grad_norms": record.grad_norms,
        "first_step_s": min(first, default=began) - began, "start": record.start,
        "lanes": busy(folder), "others": record.others, "key": record.key,
    }  # fmt: skip


def command(row: Row) -> list[str]:
    """The command of a row."""
    work = Path(row.folder).parent
    words: dict[str, Any] = {
        "-m": row.method, "--hf-config": row.folder, "--seq": row.seq, "-b": row.batch,
        "--dtype": row.dtype, "--clip": CLIP, "--lr": LR,
        "--lr-schedule": "constant", "--steps": row.steps, "--results": work / "results",
    }  # fmt: skip
    if row.compile != "auto":
        words["--compile"] = row.compile
    if row.microbatches:
        words["--microbatches"] = row.microbatches
    if row.ranks > 1:
        words["--ranks"] = row.ranks
    if row.cap:
        words["--device-memory"] = row.cap
    if row.host:
        words["--host-memory"] = row.host
    if row.text == "rows":
        tokens = min(TOKENS, row.config["vocab_size"] // 2)
        whole = LEARNED // 8 if row.smoke else None
        text = rows_of_text(work / "text", row.seq - 2, tokens, read_corpus().data[:whole])
        words |= {"--text": text / "rows.jsonl", "--tokenizer": text, "--warmup-steps": 2}
    given = [str(word) for each in words.items() for word in each]
    return [sys.executable, "-m", "workbench", "run", *given, "--force"]


def last_lines(text: str, count: int = 3) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


# -- what lies in the folder of work ---------------------------------------------------------------


def rows_of_text(folder: Path, most: int, tokens: int, text: bytes) -> Path:
    """A folder with ``rows.jsonl``, pieces of a text of at most so many bytes, and a tokenizer of
    at most so many tokens that is made from it."""
    from workbench.model.tokenize import BPE
    from workbench.model.tokenizer_folder import FILE
    from workbench.model.trial import END, SETTINGS

    if (folder / "rows.jsonl").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    inner = BPE.train("real", tokens, text[:LEARNED]).inner
    inner.add_special_tokens([END])
    inner.save(str(folder / FILE))
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    pieces = (text[at : at + most].decode(errors="ignore") for at in range(0, len(text), most))
    lines = [json.dumps({"text": piece}) + "\n" for piece in pieces if piece]
    (folder / "rows.jsonl").write_text("".join(lines))
    return folder


class Folders:
    """Folders of random weights, each made by a process once it is asked for."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._making: dict[str, subprocess.Popen] = {}
        work.mkdir(parents=True, exist_ok=True)

    def path(self, model: str) -> Path:
        """Where a model's weights are, or will be."""
        return self._work / model

    def begin(self, model: str, config: Mapping[str, Any]) -> None:
        """Start to make a folder, unless it is there. Rows that are measured meanwhile go first."""
        folder = self.path(model)
        Path(f"{folder}.json").write_text(json.dumps(config))
        if folder.is_dir() or model in self._making:
            return
        words = ["nice", sys.executable, "-m", "benchmarks.folder", f"{folder}.json", str(folder)]
        words.append("--alike")
        with Path(f"{folder}.log").open("w") as told:
            self._making[model] = subprocess.Popen(
                words, stdout=told, stderr=told, start_new_session=True
            )

    def wait(self, model: str, config: Mapping[str, Any], limit_s: float) -> float:
        """Seconds until the folder was there. Raises ValueError where it is not within a limit."""
        began, folder = time.monotonic(), self.path(model)
        self.begin(model, config)
        if model in self._making:
            with suppress(subprocess.TimeoutExpired):
                self._making[model].wait(max(1.0, limit_s))
        if not folder.is_dir():
            told = last_lines(Path(f"{folder}.log").read_text())
            raise ValueError(f"{folder.name} was not made in {limit_s:.0f} s: {told}")
        return time.monotonic() - began

    def make_room(self, needed: Container[str]) -> None:
        """Remove folders of other models where the disk has little room left."""
        for folder in (path.with_suffix("") for path in self._work.glob("*.log")):
            if folder.name not in needed and shutil.disk_usage(self._work).free < ROOM:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """End what is being made."""
        for started in self._making.values():
            if started.poll() is None:
                end(started)
