"""The index beside other processes, on other disks, and of ten thousand records."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.runs.helpers import HANG_S
from tests.unit.runs.index.parts import (
    assert_is_table_of,
    put,
    record,
)
from workbench.runs import index as index_module
from workbench.runs.index import Index
from workbench.runs.index_cache import CACHE
from workbench.runs.store import Store

USE = """
import json, sys, time
from pathlib import Path
from workbench.runs.index import Index
from workbench.runs.store import Store

store = Store(sys.argv[1])
index = Index(store)
"""
PRINT = f"{USE}sys.stdout.write(ascii(index.rows()))"
FOLLOW = f"""{USE}
while not Path(sys.argv[2]).exists():
    index.refresh()
index.refresh()
sys.stdout.write(ascii(index.rows()))
"""
REBUILD = f"{USE}print('begun', flush=True); index.refresh()"


def python(code: str, *arguments: object, root: Path, before: str = "") -> subprocess.Popen[str]:
    """A fresh interpreter; `before` is a command that becomes it, given its words."""
    return subprocess.Popen(
        [*shlex.split(before), sys.executable, "-c", code, *map(str, arguments)],
        cwd=root,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def output(process: subprocess.Popen[str]) -> str:
    text, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    return text


def shell(command: str) -> str:
    return f"sh -c {shlex.quote(command)} sh"


def test_a_full_disk_is_done_without(filled: Store, root: Path) -> None:
    full = shell('ulimit -f 0 && exec "$@"')
    for _ in range(2):
        text = output(python(PRINT, filled.root, root=root, before=full))
        assert text == ascii(Index(filled).rows())


@pytest.mark.parametrize("cached", [False, True])
def test_a_folder_that_cannot_be_written_is_read(filled: Store, root: Path, cached: bool) -> None:
    expected = ascii(Index(filled).rows())
    cache = filled.root / CACHE
    if not cached:
        cache.unlink()
    before = ""
    if os.geteuid() == 0:  # permissions do not bind it, a disk mounted read-only does
        folder = shlex.quote(str(filled.root))
        mount = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
        if subprocess.run(["unshare", "--mount", "sh", "-c", mount], check=False).returncode:
            pytest.skip("root without the right to mount a folder read-only")
        before = "unshare --mount " + shell(f'{mount} && ! touch {folder}/x && exec "$@"')
    else:
        filled.root.chmod(0o555)
    try:
        assert output(python(PRINT, filled.root, root=root, before=before)) == expected
    finally:
        filled.root.chmod(0o755)
    assert cache.exists() == cached


def test_several_processes_share_a_cache_while_runs_end(
    store: Store, root: Path, tmp_path: Path, parsed: list[str]
) -> None:
    for number in range(150):
        put(store, record(f"{number:04}"))
    stop = tmp_path / "stop"
    processes = [python(FOLLOW, store.root, stop, root=root) for _ in range(3)]
    try:
        for number in range(100, 250):  # some anew, some for the first time
            store.write(record(f"{number:04}", seconds=float(number), status="diverged"))
            if number % 50 == 0:
                shutil.rmtree(store.folder(f"{number - 100:04}"))
                (store.root / CACHE).unlink(missing_ok=True)
        stop.touch()
        rows = ascii(Index(store).rows())
        assert [output(process) == rows for process in processes] == [True] * 3
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert_is_table_of(Index(store), store)
    time.sleep(index_module.SETTLED_NS / 1e9)
    Index(store).refresh()
    parsed.clear()
    assert_is_table_of(Index(store), store)
    assert parsed == []


def test_a_process_killed_while_it_rebuilds_leaves_nothing_wrong(store: Store, root: Path) -> None:
    for number in range(300):
        put(store, record(f"{number:04}", losses=[0.5] * 1000))
    kept = 0
    for step in range(5):
        (store.root / CACHE).unlink(missing_ok=True)
        process = python(REBUILD, store.root, root=root)
        try:
            assert process.stdout.readline() == "begun\n"
            time.sleep(0.03 * step)
        finally:
            process.kill()
            process.communicate()
        index = Index(store)
        index.refresh(limit_seconds=0)
        kept += (store.root / CACHE).exists()
        assert_is_table_of(Index(store), store)
    assert kept


def test_a_look_keeps_to_its_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on where it was: with those that it has not come to read."""
    clock = itertools.count()
    monkeypatch.setattr(index_module.time, "monotonic", lambda: next(clock))
    for number in range(5 * index_module.AT_ONCE):
        put(store, record(f"{number:04}"))
    index = Index(store)
    for left in (2, 0):
        index.refresh(limit_seconds=2.5)
        assert index.pending == left * index_module.AT_ONCE
        assert len(index.rows()) == (5 - left) * index_module.AT_ONCE


# -- ten thousand ------------------------------------------------------------------------------
@contextmanager
def many(records: int = 10_000) -> Iterator[Store]:
    """So many records of 300 steps, 20 KB each; removed afterwards, since it is much."""
    memory = Path("/dev/shm")  # where there is one: to remove so many from a disk takes long
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2**30
    with tempfile.TemporaryDirectory(dir=memory if roomy else None) as folder:
        store = Store(folder)
        series = [1 / (number + 3) for number in range(300)]
        template = record(
            "KEY", losses=series, step_seconds=series, grad_norms=series, started="STARTED"
        ).to_json()
        assert len(template) > 20_000
        for number in range(records):
            key = f"{number:016x}"
            store.folder(key).mkdir(parents=True)
            text = template.replace("KEY", key).replace("STARTED", f"2026-{number:05}")
            (store.folder(key) / "record.json").write_text(text)
        yield store


OPEN = f"""{USE}
def timed(do):
    began = time.perf_counter()
    result = do()
    return result, time.perf_counter() - began

_, opened = timed(index.refresh)
assert len(index.table()) == 10_000
(first, *_), path = index.rows(), store.folder("0" * 16) / "record.json"
path.write_text(path.read_text().replace(first["started"], first["started"] + "+"))
(changed, table), again = timed(lambda: (index.refresh(), index.table()))
assert changed == {{"0" * 16}} and table["started"][0] == first["started"] + "+"
_, looked = timed(index.refresh)
peak = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
print(json.dumps({{"opened": opened, "again": again, "looked": looked}}))
print(int(peak[0].split()[1]) / 1024)
"""


@pytest.mark.thorough
def test_ten_thousand_records_fit_in_300_mib(root: Path, answered) -> None:
    """In a fresh process, which also does a change, without the cache and with it; 145 MiB seen.
    Of a page without the cache test_runs_table_panel.py asks as much."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak of resident memory is read from /proc")
    with many() as store:
        for name, goal_s in (("without a cache", 60), ("opened", 3)):
            with answered(f"index: 10,000 records {name}, a new process", goal_s):
                told, mebibytes = output(python(OPEN, store.root, root=root)).splitlines()
            assert float(mebibytes) < 300
        seconds = json.loads(told)
        answered.enter("index: a table after one of 10,000 has changed", 0.8, seconds["again"])
        answered.enter("index: a look at 10,000 that have not", 0.3, seconds["looked"])
        (store.root / CACHE).unlink()
        with answered("index: a look at 10,000 that may take half a second", 1.5):
            Index(store).refresh(limit_seconds=0.5)
