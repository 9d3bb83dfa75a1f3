"""Facts of the machine and of the code are right, and cost nothing to say."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.core import host
from workbench.runs import provenance


@pytest.fixture
def with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A driver that lists two GPUs."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA A, 580.1, 1024'\necho 'NVIDIA B, 580.1, [N/A]'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    host.gpus.cache_clear()
    yield
    host.gpus.cache_clear()


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["NVIDIA A", "NVIDIA B"]),
        ("1", ["NVIDIA B"]),
        ("1,0", ["NVIDIA B", "NVIDIA A"]),
        ("", []),
        ("-1", []),
        ("5", []),
    ],
)
def test_gpus_are_those_cuda_would_see(
    with_gpus: None, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert [gpu.name for gpu in host.gpus()] == names


@pytest.mark.parametrize(("cuda", "device"), [("13.0", "cuda"), (None, "cpu")])
def test_auto_is_the_gpu_only_if_torch_can_use_it(
    with_gpus: None, monkeypatch: pytest.MonkeyPatch, cuda: str | None, device: str
) -> None:
    monkeypatch.setattr(host, "torch_build", lambda: host.TorchBuild(version="2", cuda=cuda))

    assert host.resolve_device("auto") == device
    if cuda is None:
        with pytest.raises(ValueError, match="the installed torch is a CPU build"):
            host.resolve_device("cuda")
    else:
        assert host.device_class("cuda") == "cuda:NVIDIA A"


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "gpus", lambda: ())

    assert host.resolve_device("auto") == "cpu"
    with pytest.raises(ValueError, match="no NVIDIA GPU is visible"):
        host.resolve_device("cuda")


def test_torch_is_described_without_being_imported() -> None:
    code = (
        "import sys\nfrom workbench.core import host\n"
        "from workbench.runs import provenance, runner, sweep\n"
        "assert host.torch_build().version == provenance.gather()['packages']['torch']\n"
        "assert 'torch' not in sys.modules"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_provenance_names_the_host_by_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    provenance._machine.cache_clear()
    monkeypatch.setattr(provenance.socket, "gethostname", lambda: "secret-host")

    gathered = provenance.gather(["workbench", "run"])

    provenance._machine.cache_clear()
    assert "secret-host" not in str(gathered)
    assert gathered["command"] == ["workbench", "run"]
    assert gathered["cores"] >= 1
