"""Slabs come back as they went, a full disk is out of memory, and no file is left behind."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch

from tests.runs.helpers import at_once
from workbench.runtime.memory import disk
from workbench.runtime.memory.disk import DiskStore
from workbench.runtime.memory.tiers import OutOfMemory, Tier, slab
from workbench.runtime.passes.staging import ALIGNMENT


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def store(request, tmp_path):
    with DiskStore(
        tmp_path / "scratch", direct=request.param, staging_nbytes=2 * ALIGNMENT
    ) as store:
        if request.param and not store.direct:
            pytest.skip("this file system has no direct I/O")
        yield store


def random_bytes(nbytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("nbytes", [1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, 10 * ALIGNMENT + 7])
@pytest.mark.parametrize("aligned", [True, False])
def test_a_slab_comes_back(store, nbytes, aligned):
    """Aligned memory goes straight to the disk, all other and the ends of slabs through staging."""
    store.allocate("before", 3)
    store.allocate("states", nbytes)
    store.allocate("after", 5)
    neighbours = {"before": random_bytes(3), "after": random_bytes(5)}
    for name, data in neighbours.items():
        store.write(name, data)
    data = random_bytes(nbytes + 1)
    source = slab(Tier("host"), "source", nbytes + 1).tensor
    source.copy_(data)
    source = source[:nbytes] if aligned else source[1:]
    store.write("states", source)
    back = torch.zeros(nbytes, dtype=torch.uint8)
    store.read("states", back)
    assert torch.equal(back, source)
    for name, data in neighbours.items():
        found = torch.zeros_like(data)
        store.read(name, found)
        assert torch.equal(found, data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_any_type_and_shape(store, dtype):
    states = torch.randn(31, 41).to(dtype)
    store.allocate("states", states.nbytes)
    store.write("states", states)
    back = torch.empty_like(states)
    store.read("states", back)
    assert torch.equal(back, states)


def test_what_was_never_written_reads_as_zeros(store):
    store.allocate("moments", 3 * ALIGNMENT + 5)
    back = torch.ones(3 * ALIGNMENT + 5, dtype=torch.uint8)
    store.read("moments", back)
    assert not back.any()


def test_pieces(store):
    nbytes = 5 * ALIGNMENT + 100
    data = random_bytes(nbytes)
    store.allocate("states", nbytes)
    store.write("states", data[3 * ALIGNMENT :], offset=3 * ALIGNMENT)
    store.write("states", data[: 3 * ALIGNMENT])
    middle = torch.zeros(2 * ALIGNMENT, dtype=torch.uint8)
    store.read("states", middle, offset=2 * ALIGNMENT)
    assert torch.equal(middle, data[2 * ALIGNMENT : 4 * ALIGNMENT])


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(1, ALIGNMENT), (0, 100), (-ALIGNMENT, ALIGNMENT), (ALIGNMENT, 2 * ALIGNMENT)],
)
def test_pieces_that_would_touch_others_are_refused(store, offset, nbytes):
    store.allocate("states", 2 * ALIGNMENT)
    with pytest.raises(
        ValueError, match=f"bytes {offset} to {offset + nbytes} of slab 'states', which has 8192"
    ):
        store.write("states", torch.zeros(nbytes, dtype=torch.uint8), offset=offset)


def test_unusable_arguments_are_named(store):
    store.allocate("states", 100)
    with pytest.raises(ValueError, match=r"no slab 'moments' on disk; there are \['states'\]"):
        store.read("moments", torch.zeros(100))
    with pytest.raises(ValueError, match="contiguous CPU tensors, not meta ones"):
        store.read("states", torch.zeros(25, device="meta"))
    with pytest.raises(ValueError, match="states already holds 4096 bytes"):
        store.allocate("states", 100)


def test_counters_count_what_callers_moved(store):
    data = random_bytes(ALIGNMENT + 100)
    store.allocate("states", data.nbytes)
    for _ in range(3):
        store.write("states", data)
    store.read("states", data)
    assert (store.bytes_written, store.bytes_read) == (3 * data.nbytes, data.nbytes)


def test_threads_at_once(store):
    """Each works on slabs of its own; staging is shared and smaller than their number."""
    failures = []

    def work(thread: int) -> None:
        store.allocate(f"states {thread}", 20_001)
        for cycle in range(10):
            data = random_bytes(20_001, seed=100 * thread + cycle)
            back = torch.zeros_like(data)
            store.write(f"states {thread}", data)
            store.read(f"states {thread}", back)
            if not torch.equal(back, data):
                failures.append((thread, cycle))

    at_once(*(partial(work, number) for number in range(8)))
    assert not failures
    assert store.bytes_written == store.bytes_read == 8 * 10 * 20_001


def test_the_budget_holds(tmp_path):
    with DiskStore(tmp_path, budget=10 * ALIGNMENT) as store:
        store.allocate("a", 8 * ALIGNMENT - 1)
        with pytest.raises(
            OutOfMemory, match="the disk tier is out of memory: b needs 12 KiB"
        ) as raised:
            store.allocate("b", 3 * ALIGNMENT)
        assert (raised.value.tier, raised.value.in_use) == ("disk", 8 * ALIGNMENT)
        store.allocate("b", 2 * ALIGNMENT)
        assert store.tier.peak == 10 * ALIGNMENT


def test_room_is_taken_when_it_is_allocated(tmp_path):
    with DiskStore(tmp_path) as store:
        store.allocate("states", 10 * ALIGNMENT)
        assert os.fstat(store._fd).st_blocks * 512 >= 10 * ALIGNMENT


def test_staging_is_in_the_hosts_ledger(tmp_path):
    host = Tier("host")
    with DiskStore(tmp_path, host=host, staging_count=3, staging_nbytes=ALIGNMENT):
        assert host.in_use == 3 * ALIGNMENT
    assert host.in_use == 0


def test_a_full_disk_is_found_at_allocation(tmp_path):
    """Simulated by a limit on the size of files, which the kernel reports from the same call."""
    code = """
        import resource, sys
        from pathlib import Path
        from workbench.runtime.memory.disk import DiskStore
        from workbench.runtime.memory.tiers import OutOfMemory
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        store = DiskStore(Path(sys.argv[1]))
        store.allocate("fits", 1 << 19)
        try:
            store.allocate("does not", 1 << 20)
        except OutOfMemory as error:
            print(error.tier, error.asked, error.in_use, error.budget, error)
        store.allocate("fits too", 1 << 19)
    """
    done = run(code, tmp_path)
    assert done.stdout.startswith(
        f"disk {1 << 20} {1 << 19} None the disk tier is out of memory: does not needs 1 M"
    )
    assert "File too large" in done.stdout
    assert done.returncode == 0, done.stderr


def test_a_full_disk_gives_back_what_it_had_given(tmp_path, monkeypatch):
    def fill_half(fd: int, offset: int, nbytes: int) -> None:
        os.ftruncate(fd, offset + nbytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with DiskStore(tmp_path) as store:
        store.allocate("a", ALIGNMENT)
        monkeypatch.setattr(disk.os, "posix_fallocate", fill_half)
        with pytest.raises(
            OutOfMemory, match="No space left on device: slab 'b', 8192 bytes at offset 4096 of "
        ):
            store.allocate("b", 2 * ALIGNMENT)
        assert (store.tier.in_use, os.fstat(store._fd).st_size) == (ALIGNMENT, ALIGNMENT)


def test_a_file_system_that_cannot_promise_room_fails_when_it_is_full(tmp_path, monkeypatch):
    def cannot(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(disk.os, "posix_fallocate", cannot)
    with DiskStore(tmp_path) as store:
        store.allocate("a", ALIGNMENT)
        store.write("a", random_bytes(ALIGNMENT))
        monkeypatch.setattr(disk.os, "pwritev", failing(errno.ENOSPC))
        with pytest.raises(OutOfMemory, match="No space left"):
            store.write("a", random_bytes(ALIGNMENT))


def failing(code: int):
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def test_a_failing_disk_names_file_and_offset(store, monkeypatch):
    store.allocate("first", ALIGNMENT)
    store.allocate("second", ALIGNMENT)
    monkeypatch.setattr(disk.os, "preadv", failing(errno.EIO))
    with pytest.raises(
        OSError, match=r"slab 'second', 4096 bytes at offset 4096 of .*\.scratch"
    ) as raised:
        store.read("second", torch.zeros(ALIGNMENT, dtype=torch.uint8))
    assert raised.value.errno == errno.EIO
    assert store.bytes_read == 0


def test_short_transfers_are_continued(store, monkeypatch):
    """A system call may move less than it was asked to; the rest must follow and land in place."""
    data = random_bytes(9 * ALIGNMENT)
    calls = []

    def shortened(real):
        def call(fd: int, views: list[memoryview], offset: int) -> int:
            calls.append(offset)
            return real(fd, [views[0][: 2 * ALIGNMENT]], offset)

        return call

    source = slab(Tier("host"), "source", data.nbytes).tensor
    source.copy_(data)
    target = slab(Tier("host"), "target", data.nbytes).tensor
    store.allocate("states", data.nbytes)
    monkeypatch.setattr(disk.os, "pwritev", shortened(os.pwritev))
    monkeypatch.setattr(disk.os, "preadv", shortened(os.preadv))
    store.write("states", source)
    store.read("states", target)
    assert torch.equal(target, data)
    assert len(calls) == 2 * 5


def test_a_transfer_that_stops_is_an_error_and_not_an_endless_loop(store, monkeypatch):
    store.allocate("states", 2 * ALIGNMENT)
    monkeypatch.setattr(disk.os, "preadv", lambda *_: 0)
    with pytest.raises(OSError, match="no progress: slab 'states'"):
        store.read("states", torch.zeros(2 * ALIGNMENT, dtype=torch.uint8))


def test_the_file_has_no_name_while_it_is_used(tmp_path):
    with DiskStore(tmp_path / "deep" / "folder") as store:
        store.allocate("states", 100)
        assert list((tmp_path / "deep" / "folder").iterdir()) == []
        assert store.path.parent == tmp_path / "deep" / "folder"
    store.close()


def run(code: str, *arguments: object) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_killed_process_leaves_nothing(tmp_path):
    done = run(
        """
        import os, signal, sys
        from pathlib import Path
        from workbench.runtime.memory.disk import DiskStore
        store = DiskStore(Path(sys.argv[1]))
        store.allocate("states", 1 << 20)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_the_next_start_removes_what_died_before_it_was_unlinked(tmp_path):
    (tmp_path / "workbench-abc.scratch").touch()
    (tmp_path / "notes.txt").touch()
    with DiskStore(tmp_path) as running:
        running.allocate("states", ALIGNMENT)
        with DiskStore(tmp_path):
            assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
        running.write("states", random_bytes(ALIGNMENT))


def test_a_folder_that_cannot_hold_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file cannot hold a scratch file: File exists"):
        DiskStore(tmp_path / "file")
