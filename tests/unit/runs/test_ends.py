"""Which status an end without a record means, and which an exception means."""

import errno
import signal
from pathlib import Path

import pytest

from workbench.core import host
from workbench.runs.processes import kernels
from workbench.runs.runner import verdict
from workbench.runs.worker import classify
from workbench.schedule.plan import DoesNotFit


@pytest.mark.parametrize(
    ("end", "returncode", "status"),
    [
        ({"reason": "timeout"}, -signal.SIGKILL, "timeout"),
        ({"reason": "cancelled"}, 143, "cancelled"),
        ({}, -signal.SIGTERM, "cancelled"),
        ({"oom_kills": 1}, -signal.SIGKILL, "oom_host"),
        ({"peak_resident_bytes": 95}, -signal.SIGKILL, "oom_host"),
        ({"peak_resident_bytes": 50, "oom_kills": 0}, -signal.SIGKILL, "error"),
        ({"oom_kills": 1}, -signal.SIGSEGV, "error"),
        ({}, 1, "error"),
    ],
)
def test_ends_without_a_record(
    end: dict, returncode: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "host_memory_bytes", lambda: 100)

    found, message = verdict(end, returncode, timeout_s=3)

    assert found == status
    assert message


def _wrapped(cause: Exception, *, hidden: bool = False) -> Exception:
    try:
        try:
            raise cause
        except Exception as error:
            raise RuntimeError("the library failed") from (None if hidden else error)
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MemoryError(), "oom_host", "MemoryError"),
        (OSError(errno.ENOSPC, "No space"), "oom_disk", "No space"),
        (OSError(errno.ENOMEM, "Cannot allocate"), "oom_host", "Cannot allocate"),
        (DoesNotFit("too big", tier="disk"), "oom_disk", "too big"),
        (_wrapped(MemoryError("2 GiB")), "oom_host", "MemoryError: 2 GiB"),
        (_wrapped(MemoryError("2 GiB"), hidden=True), "error", "RuntimeError: the library failed"),
        (ValueError("batch is 3\nsecond line"), "error", "batch is 3"),
        (ZeroDivisionError("by zero"), "error", "ZeroDivisionError: by zero"),
        (SystemExit(1), "error", "SystemExit: 1"),
    ],
)
def test_exceptions(error: BaseException, status: str, message: str) -> None:
    found, sentence = classify(error)

    assert found == status
    assert message in sentence
    assert "\n" not in sentence


def test_exceptions_of_torch() -> None:
    torch = pytest.importorskip("torch")

    assert classify(torch.OutOfMemoryError("CUDA out of memory"))[0] == "oom_device"
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert classify(caught.value)[0] == "oom_host"


def test_gradients_that_are_no_numbers() -> None:
    adam_step = pytest.importorskip("workbench.runtime.updates.adam_step")

    status, message = classify(_wrapped(adam_step.Diverged(7, 3)))
    assert status == "diverged"
    assert message.startswith("the gradients of unit 3 are not finite at step 7")


def test_what_is_compiled_is_kept_among_the_users_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder,) = kernels().values()
    assert Path(folder).is_dir()
    assert Path(folder).is_relative_to(tmp_path / "cache")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernels() == {}, "torch's own place has to do"
