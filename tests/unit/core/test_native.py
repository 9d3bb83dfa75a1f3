"""A library is built once, whatever happens to the processes that build it."""

import ctypes
import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from workbench.core import native

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")),
    reason="this machine has no C++ compiler",
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(native.sys, "prefix", str(tmp_path / "prefix"))
    return tmp_path / "prefix" / "share" / "workbench"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }')
    return path


def test_builds_once_and_says_so(cache, source):
    said = []
    assert native.load(source, said.append).answer() == 42
    assert said[0].startswith("compiling answer.cpp with ")
    built = list(cache.glob("answer-*.so"))
    assert len(built) == 1
    assert native.load(source, said.append).answer() == 42
    assert len(said) == 2
    assert list(cache.glob("*.so")) == built


def test_a_changed_source_is_built_again(cache, source):
    native.load(source)
    source.write_text('extern "C" int answer() { return 43; }')
    assert native.load(source).answer() == 43


def test_other_flags_make_another_library(cache, source):
    source.write_text('extern "C" int answer() { return ANSWER; }')
    assert native.load(source, flags=("-DANSWER=1",)).answer() == 1
    assert native.load(source, flags=("-DANSWER=2",)).answer() == 2


def test_another_processor_gets_its_own_build(cache, source, monkeypatch):
    native.load(source)
    monkeypatch.setattr(native, "_cpu_features", lambda: "flags : none of them")
    native.load(source)
    assert len(list(cache.glob("answer-*.so"))) == 2


def test_a_damaged_library_is_built_again(cache, source):
    """As after power was lost before its bytes reached the disk."""
    cache.mkdir(parents=True)
    key = native._key(source, native._compiler()[1])
    (cache / f"answer-{key}.so").write_bytes(b"")
    assert native.load(source).answer() == 42


def test_a_read_only_environment_builds_in_the_users_cache(cache, source, tmp_path, monkeypatch):
    (tmp_path / "prefix").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert native.load(source).answer() == 42
    assert len(list((tmp_path / "home" / "workbench").glob("answer-*.so"))) == 1


def test_a_failed_build_says_why(cache, source):
    source.write_text("this is not C++")
    with pytest.raises(native.CannotBuild, match=r"failed on answer\.cpp: "):
        native.load(source)
    assert not list(cache.glob("*.so"))


def test_no_compiler_says_what_was_looked_for(cache, source, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(native.CannotBuild, match=r"no C\+\+ compiler was found"):
        native.load(source)


def _answer(source, results):
    results.put(native.load(source).answer())


def test_processes_that_start_together_share_one_build(cache, source):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=_answer, args=(source, results)) for _ in range(4)]
    for child in children:
        child.start()
    assert [results.get() for _ in children] == [42] * 4
    for child in children:
        child.join()
    assert len(list(cache.glob("*.so"))) == 1
    assert not list(cache.glob("*.partial"))


def test_a_killed_build_blocks_nobody(cache, source, tmp_path):
    """Its lock goes with it, and what it wrote is removed."""
    slow = tmp_path / "slow-compiler"
    started = tmp_path / "started"
    slow.write_text(
        "#!/bin/sh\ncase $1 in --version) exec c++ --version;; esac\n"
        f"touch {started}\nexec sleep 600\n"
    )
    slow.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from workbench.core import native; "
        f"native.sys.prefix = {str(tmp_path / 'prefix')!r}; native.load(Path({str(source)!r}))"
    )
    environment = os.environ | {"CXX": str(slow), "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with (cache / "answer.lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    (cache / f"answer.{killed.pid}.partial").write_bytes(b"half a library")
    assert native.load(source).answer() == 42
    assert not list(cache.glob("*.partial"))


def test_loads_through_ctypes_without_the_interpreter_lock(cache, source):
    assert type(native.load(source)) is ctypes.CDLL  # PyDLL would keep the lock
