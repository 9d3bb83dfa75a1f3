"""Files are whole or not there, and locks end with their holder."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.core import files
from workbench.core.files import FileLock, TemporaryFolder, replacing, write_whole


def test_a_disk_that_is_full_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "state.json"
    write_whole(path, "before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "after")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("state.json", "before")]


def test_nothing_is_seen_before_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with replacing(path) as part:
        part.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not FileLock.is_taken(path)
    first = FileLock.take(path)
    assert FileLock.take(path) is None
    assert FileLock.is_taken(path)
    first.release()
    first.release()
    with FileLock.take(path, wait=True):
        assert FileLock.is_taken(path)
    assert not FileLock.is_taken(path)


def test_a_lock_lasts_as_long_as_a_child_that_shares_it(tmp_path: Path) -> None:
    lock = FileLock.take(tmp_path / "lock")
    code = f"import sys; sys.stdin.read(); assert {lock.fd}"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[lock.fd]
    )
    lock.release()
    assert FileLock.is_taken(tmp_path / "lock")
    child.communicate()
    assert not FileLock.is_taken(tmp_path / "lock")


def test_a_folder_of_a_killed_process_goes_with_the_next_and_others_stay(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path))
    code = """if True:
        from workbench.core.files import TemporaryFolder
        made = TemporaryFolder("kind")
        (made.path / "file").touch()
        print(made.path, flush=True)
        input()"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    left, first = Path(child.stdout.readline().strip()), TemporaryFolder("kind")
    assert {*tmp_path.iterdir()} == {left, first.path}
    child.kill()
    child.communicate()
    assert left.exists()
    second = TemporaryFolder("kind")
    assert {*tmp_path.iterdir()} == {first.path, second.path}
    second.close()
    del first
    assert not [*tmp_path.iterdir()]


def test_what_is_no_file_or_too_large_is_a_sentence_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    kinds = {tmp_path / "pipe": "is a pipe", tmp_path: "is a folder", Path("/dev/zero"): "a device"}
    for path, words in (kinds | {tmp_path / "sparse": "has 1 TiB; it must have 64 MiB"}).items():
        with pytest.raises(ValueError, match=f"^the spec .*{words}"):
            files.read_whole(path, "the spec")
    (tmp_path / "file").write_bytes(b"{}")
    assert files.read_whole(tmp_path / "file", "the spec") == b"{}"


def test_a_private_file_is_private_whatever_stood_there(tmp_path: Path) -> None:
    others, path = tmp_path / "others", tmp_path / "token"
    others.write_text("theirs")
    for make in (path.touch, lambda: path.symlink_to(others), lambda: None):
        make()
        write_whole(path, "secret", mode=0o600)
        assert (path.lstat().st_mode & 0o777, path.read_text()) == (0o600, "secret")
        path.unlink()
    assert others.read_text() == "theirs"
    path.touch(mode=0o666)
    FileLock.take(path, mode=0o600).release()
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(others)
    with pytest.raises(OSError, match="symbolic links"):
        FileLock.take(tmp_path / "link", mode=0o600)
    (tmp_path / "wide").mkdir(mode=0o755)
    files.private_folder(tmp_path / "wide")
    assert (tmp_path / "wide").stat().st_mode & 0o777 == 0o700
    (tmp_path / "way").symlink_to(tmp_path / "wide")
    with pytest.raises(PermissionError, match="another user, or is a link"):
        files.private_folder(tmp_path / "way")
