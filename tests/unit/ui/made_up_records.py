"""A folder of made-up records: good ones, failed ones, and some that nobody should trust."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.runs.campaign import Campaign
from workbench.runs.store import Store

METHODS = ("stronghold", "l2l", "zero-offload", "megatron-lm")
LAYERS = (8, 16, 24, 32)
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\x00\u202eevil\ud800"


def key_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:16]


def record(number: int, **changes: Any) -> RunRecord:
    """One of a grid of methods and sizes; `changes` are fields of the record, or of its spec."""
    layers = changes.pop("layers", LAYERS[number // len(METHODS) % len(LAYERS)])
    method = changes.pop("method", METHODS[number % len(METHODS)])
    seconds = layers * (0.01 + 0.004 * METHODS.index(method)) * (1 + number % 7 / 50)
    spec = RunSpec(
        method=method,
        model=ModelSpec(layers=layers, hidden=256, heads=4, seq=64),
        batch=changes.pop("batch", 4),
        steps=5,
        seed=changes.pop("seed", number),
        device="cpu",
        device_memory=changes.pop("device_memory", None),
    )
    values: dict[str, Any] = {
        "key": key_of(number),
        "method": method,
        "status": "ok",
        "spec": spec.to_dict(),
        "losses": [6.0 - 0.3 * step - 0.01 * number for step in range(5)],
        "step_seconds": [2.0, *[seconds] * 4],
        "samples_per_second": 4 / seconds,
        "peak_bytes": {"device": layers * 2**26, "host": layers * 2**27, "disk": 0},
        "moved_bytes": {"load": layers * 10**7, "store": layers * 10**6, "read": 0, "write": 0},
        "parameters": layers * 10**6,
        "window": 3,
        "predicted": {
            "step_seconds": seconds * 0.9,
            "peak_bytes": {"device": layers * 2**26, "host": layers * 2**27, "disk": 0},
            "moved_bytes": {"load": layers * 10**7, "store": layers * 10**6, "read": 0, "write": 0},
            "binding": "the host optimizer",
            "settings": {"slots": 3},
        },
        "engine": "workbench",
        "started": f"2026-11-{1 + number % 28:02d}T{number % 24:02d}:00:00+00:00",
        "seconds": 20.0,
        "provenance": {"commit": "abc", "dirty": False, "device_class": "cpu:made up x2"},
    }
    return RunRecord(**{**values, **changes})


def failed(number: int, status: str, message: str = "it did not fit", **changes: Any) -> RunRecord:
    """A run that ended before its first step."""
    empty = {"losses": [], "step_seconds": [], "samples_per_second": None, "peak_bytes": {},
             "moved_bytes": {}, "parameters": None, "window": None}  # fmt: skip
    return record(number, status=status, message=message, **{**empty, **changes})


def put(store: Store, one: RunRecord, log: str = "") -> Path:
    """The record in its folder, without the disk's leisure that `Store.write` waits for."""
    folder = store.folder(one.key)
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / "record.json", folder / ".record.json.part"
    part.write_text(one.to_json())
    before = part.stat().st_mtime_ns - 10**9
    os.utime(part, ns=(before, before))  # old enough not to be looked at twice
    part.rename(path)
    if log:
        (folder / "log.txt").write_text(log, encoding="utf-8", errors="surrogatepass")
    return path


def fill(store: Store, count: int) -> list[RunRecord]:
    """A grid of good runs."""
    made = [record(number) for number in range(count)]
    for one in made:
        put(store, one)
    return made


def fill_many(store: Store, count: int) -> None:
    """Many good runs, fast: a text for each method and size, with keys, seeds and days of their
    own."""
    kinds = [record(number, seed=987654) for number in range(len(METHODS) * len(LAYERS))]
    texts = [(one.key, one.started, one.to_json()) for one in kinds]
    for number in range(count):
        key, started, text = texts[number % len(texts)]
        day = f"2026-{1 + number % 12:02d}-{1 + number // 12 % 28:02d}T00:00:00+00:00"
        text = text.replace(key, key_of(number)).replace("987654", str(number))
        folder = store.folder(key_of(number))
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(text.replace(started, day))


def lines_in(cells: bytes) -> list[list[Any]]:
    """Rows of the columns that the page is sent."""
    columns = json.loads(gzip.decompress(cells))
    return [list(line) for line in zip(*columns, strict=True)]


def put_timeline(store: Store, key: str, scale: float = 1.0) -> None:
    """Two steps of a load, a forward and a backward pass and an update, 10 ms a step."""
    events = []
    for step in (0, 1):
        for name, kind, lane, start, end, nbytes in (
            ("L1", "L", "h2d", 0, 2, 8_000_000),
            ("F1.0", "F", "compute", 2, 4, 0),
            ("B1.0", "B", "compute", 4, 8, 0),
            ("U1", "U", "host", 8, 14, 0),
        ):
            at = [scale * (10 * step + time) * 1e-3 for time in (start, end)]
            events.append(
                {"name": name, "kind": kind, "unit": 1, "microbatch": 0 if "." in name else None,
                 "rank": 0, "lane": lane, "step": step, "start_s": at[0], "end_s": at[1],
                 "nbytes": nbytes}
            )  # fmt: skip
    data = {"schedule": "made up", "source": "measured", "events": events}
    (store.folder(key) / "timeline.json").write_text(json.dumps(data))


def put_sweep(store: Store, name: str, numbers: Iterable[int], **grid: list[Any]) -> Campaign:
    """A named sweep that started some of the runs."""
    data = {"name": name, "base": {"method": "l2l"}, **({"grid": grid} if grid else {})}
    campaign = Campaign.create(store, data)
    events = [{"time": 1.0, "event": "point", "index": i, "key": key_of(n), "where": None}
              for i, n in enumerate(numbers)]  # fmt: skip
    (campaign.folder / "events.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in events))
    return campaign
