"""Logs of the published STRONGHOLD artifact, and our own log.txt, as data.

People keep such logs for years, under names and through tools that nobody foresaw; so a log is
searched, not parsed: every fact is found by its own pattern, wherever it stands, after colours,
HTML and control characters have been removed, and a fact that is absent is absent. What is repaired
on the way is said in `notes`:

* a loss that is not a number was left out by Megatron's printer: an iteration without loss has loss
  nan;
* a run that was started again wrote some iterations twice: the later ones count;
* a run that the operating system killed ends in the shell's word for it, and is taken for out of
  host memory.

Only figures of other people's runs come from here. The status of our own is their record's.
"""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from workbench.core.files import read_whole
from workbench.core.methods import METHODS
from workbench.core.model_spec import ModelSpec
from workbench.core.options import takes
from workbench.core.record import Status

NAME = re.compile(
    r"(?:log_)?(?P<method>[a-z0-9]+(?:-[a-z0-9]+)*)_l-(?P<layers>\d{1,9})_hs?-(?P<hidden>\d{1,9})"
    r"_bs-(?P<batch>\d{1,9})_ws-(?P<window>\d{1,9})(?:_(?P<date>\d{4}-\d\d-\d\d))?"
)
"""File names: the artifact wrote ``_hs-``, its documentation says ``_h-``."""

_COUNT = r"(\d{1,15})(?!\d)"
"""Longer ones count nothing that there is."""
_NUMBER = r"[-+]?(?:nan|inf|\d+\.?\d*(?:[eE][-+]?\d+)?)"
_ITERATION = re.compile(rf"\biteration +{_COUNT}/ *{_COUNT} *\|(.*)")
_ITERATION_FIELD = re.compile(rf"([a-z][a-z ]*(?:\(ms\))?): *({_NUMBER})", re.IGNORECASE)
_SAMPLES = re.compile(rf"SamplesPerSec(?:ond)? *[:=] *({_NUMBER})")
_MEMORY = re.compile(
    r"after \d+ iterations\)? memory \(MB\) \| allocated: *"
    rf"{_NUMBER} \| max allocated: *({_NUMBER})"
)
_PARAMETERS = re.compile(rf"number of parameters on \(tensor, pipeline\)[^:\n]*: *{_COUNT}")
_VOCAB = re.compile(rf"new size: {_COUNT}\)|padded_vocab_size \.+ *{_COUNT}")
_OURS = re.compile(r"^ *method \.+ *([\w-]+)", re.MULTILINE)
_END = re.compile(r"exiting (?:the )?program at iteration (\d+)")
_KILLED = re.compile(r"^(?:.*line \d+: +\d+ +)?Killed\b", re.MULTILINE)
_DEVICE_OOM = re.compile(r"CUDA out of memory|CUDA error: out of memory")
_HOST_OOM = re.compile(r"can't allocate memory|MemoryError")
_ERROR = re.compile(r"^\w*(?:Error|Exception)\b.*$", re.MULTILINE)

_SETTINGS = {
    "layers": ("num-layers", "num_layers"),
    "hidden": ("hidden-size", "hidden_size"),
    "heads": ("num-attention-heads", "num_attention_heads"),
    "seq": ("seq-length", "seq_length"),
    "batch": ("global-batch-size", "global_batch_size", "batch-size", "batch_size"),
}
"""Setting of a run -> its names on the command line and in the dump of arguments."""

_DEFAULTS = {"heads": 16, "seq": 1024}
"""Fixed in every run of the artifact."""


@dataclass(frozen=True, kw_only=True)
class LogPoint:
    """One ``iteration`` line with what belongs to it: averages over a log interval."""

    iteration: int
    total_iterations: int
    elapsed_ms: float
    """Per iteration."""
    loss: float
    """nan where the printer left it out."""
    samples_per_second: float
    """As printed, or from the elapsed time."""


@dataclass(frozen=True, kw_only=True)
class ParsedLog:
    """A whole log."""

    method: str
    """A name of the table of methods."""
    model: ModelSpec
    batch: int
    window: int | None
    """None for methods without one, though it is in every file name."""
    date: str
    """As in the file's name; empty if it is not."""
    parameters: int
    """As the log prints them; by the architecture where it prints billions only."""
    points: tuple[LogPoint, ...]
    peak_mib: float | None
    """Most device memory in the first interval, where the log tells it."""
    status: Status
    message: str
    notes: tuple[str, ...]

    @property
    def median_ms(self) -> float:
        """Median time per iteration over all log points."""
        return median(point.elapsed_ms for point in self.points)

    @property
    def samples_per_second(self) -> float:
        """Mean over all log points."""
        return mean(point.samples_per_second for point in self.points)

    def row(self, name: str) -> dict[str, Any]:
        """The log as a row of `workbench.records`: seconds, bytes, and None for what it does not
        say. A log has averages of some iterations each, so that its lists are shorter."""
        points, peak, model = self.points, self.peak_mib, self.model
        return {
            "key": name, "source": "log", "method": self.method, "status": self.status,
            "message": self.message, "layers": model.layers, "hidden": model.hidden,
            "heads": model.heads, "seq": model.seq, "batch": self.batch, "window": self.window,
            "parameters": self.parameters,
            "step_seconds": self.median_ms / 1000 if points else None,
            "samples_per_second": self.samples_per_second if points else None,
            "final_loss": points[-1].loss if points else None,
            "peak_device_bytes": None if peak is None else round(peak * 2**20),
            "notes": "; ".join(self.notes), "started": self.date,
            "losses": [point.loss for point in points],
            "all_step_seconds": [point.elapsed_ms / 1000 for point in points],
        }  # fmt: skip


def read_log(path: str | Path) -> ParsedLog:
    """Parse a file. Raises ValueError when it cannot be read or is no such log."""
    path = Path(path)
    try:
        text = read_whole(path, f"the log {path}", 1 << 30).decode("utf-8-sig", errors="replace")
    except FileNotFoundError as error:
        raise ValueError(f"the log {path} cannot be read: {error.strerror}") from None
    return parse_log(text, path.name)


def parse_log(text: str, name: str = "") -> ParsedLog:
    """Parse the text of a log; its file's name says what the text may not.

    Raises ValueError when neither tells the model's size.
    """
    text = clean(text)
    named = NAME.search(name)
    known = named.groupdict() if named else {}
    settings = {what: known.get(what) or _setting(text, what) for what in _SETTINGS}
    missing = [what for what, value in settings.items() if value is None]
    if missing:
        raise ValueError(f"{name or 'the text'} is no log of a known form: it has no {missing[0]}")
    size = {what: int(value) for what, value in settings.items()}
    method, method_notes = _method(text, known.get("method"))
    batch = size.pop("batch")
    points, notes = _points(text, batch)
    status, message = _verdict(text, points)
    exact = _PARAMETERS.search(text)
    vocab = _VOCAB.search(text)
    model = ModelSpec(**size, **({"vocab": int(vocab[1] or vocab[2])} if vocab else {}))
    memory = _MEMORY.search(text)
    return ParsedLog(
        method=method,
        model=model,
        batch=batch,
        window=int(known["window"]) if known.get("window") and takes(method, "window") else None,
        date=known.get("date") or "",
        parameters=int(exact[1]) if exact else model.parameters,
        points=points,
        peak_mib=float(memory[1]) if memory else None,
        status=status,
        message=message,
        notes=(*method_notes, *notes),
    )


def clean(text: str) -> str:
    """The text as it would stand in a plain file: without HTML, colours and control characters."""
    if re.search(r"</?(?:html|body|pre|span|div|br|p)\b", text, re.IGNORECASE):
        text = re.sub(r"<(?:br|/p|/div|/pre)\b[^<>]*>", "\n", text, flags=re.IGNORECASE)
        text = html.unescape(re.sub(r"</?[a-z][^<>\n]*>", "", text, flags=re.IGNORECASE))
    text = re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)", "", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text)


def _setting(text: str, what: str) -> str | None:
    if what in _DEFAULTS and not re.search(r"--num-layers|num_layers", text):
        return str(_DEFAULTS[what])
    for name in _SETTINGS[what]:
        found = re.search(rf"(?:--{name}[ =]+|\b{name} \.+ *){_COUNT}", text)
        if found:
            return found[1]
    return str(_DEFAULTS[what]) if what in _DEFAULTS else None


def _method(text: str, named: str | None) -> tuple[str, list[str]]:
    ours = _OURS.search(text)
    if ours and ours[1] in METHODS:
        return ours[1], []
    if named in METHODS:
        return named, []
    if named == "zero-infinity-nvme":
        return "zero-infinity", ["optimizer states on the disk, parameters on the host"]
    if re.search(r"offloading-func-call-overhead|enable_gl \.+ *True", text):
        return "stronghold", []
    if re.search(r"enable_l2l \.+ *True", text):
        return "l2l", []
    stage = re.search(r"zero_optimization_stage \.+ *(\d)", text)
    if stage:
        return ("zero-infinity" if stage[1] == "3" else "zero-offload"), []
    if named is None:
        return "megatron-lm", ["the log does not name its method; it looks like Megatron-LM's"]
    raise ValueError(f"the log's name says {named!r}; known methods: {', '.join(METHODS)}")


def _points(text: str, batch: int) -> tuple[tuple[LogPoint, ...], list[str]]:
    """The log points, each with the lines up to the next one (and DeepSpeed's timers before it)."""
    deepspeed = "DeepSpeed" in text and not _OURS.search(text)
    matches = list(_ITERATION.finditer(text))
    points: list[LogPoint] = []
    without_loss: list[int] = []
    for index, match in enumerate(matches):
        values = {key.strip(): float(v) for key, v in _ITERATION_FIELD.findall(match[3])}
        elapsed = values.get("elapsed time per iteration (ms)")
        if not elapsed or not math.isfinite(elapsed):
            continue  # a line cut off in the middle
        if "lm loss" not in values:
            without_loss.append(int(match[1]))
        before = text[matches[index - 1].end() if index else 0 : match.start()]
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        samples = _SAMPLES.findall(before if deepspeed else text[match.end() : end])
        points.append(
            LogPoint(
                iteration=int(match[1]),
                total_iterations=int(match[2]),
                elapsed_ms=elapsed,
                loss=values.get("lm loss", math.nan),
                samples_per_second=float(samples[-1]) if samples else 1000 * batch / elapsed,
            )
        )
    notes = []
    last = {point.iteration: point for point in points}
    if len(last) < len(points):
        notes.append(
            f"{len(points) - len(last)} iterations stand twice, since the run was started again: "
            "the later ones count"
        )
    if without_loss:
        where = ", ".join(map(str, sorted(set(without_loss))))
        notes.append(f"no loss is printed at iteration {where}: it was not a number")
    return tuple(last[iteration] for iteration in sorted(last)), notes


def _verdict(text: str, points: tuple[LogPoint, ...]) -> tuple[Status, str]:
    last = points[-1] if points else None
    end = _END.search(text)
    if end or (last and last.iteration == last.total_iterations):
        if last and not math.isfinite(last.loss):
            return "diverged", f"the loss is {last.loss} at iteration {last.iteration}"
        return "ok", ""
    where = f"after iteration {last.iteration}" if last else "before the first log line"
    if _DEVICE_OOM.search(text):
        return "oom_device", f"out of device memory {where}"
    if _HOST_OOM.search(text):
        return "oom_host", f"out of host memory {where}"
    if _KILLED.search(text):
        return "oom_host", f"killed by the system {where}, presumably out of host memory"
    error = _ERROR.findall(text)
    return "error", f"{error[-1].strip()} {where}" if error else f"the log stops {where}"
