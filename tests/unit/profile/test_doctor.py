from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.core.methods import METHODS


def doctor(root: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workbench.cli", "doctor", *map(str, words)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)


def test_json_holds_ceilings_software_methods_and_sizes(examined: SimpleNamespace) -> None:
    told = examined.told
    assert told["measured_now"]
    assert told["ceilings"]["hardware"]["h2d_bytes_per_s"] > 0
    assert [method["name"] for method in told["methods"]] == list(METHODS)
    assert {method["name"]: method["works"] for method in told["methods"]}["stronghold"]
    assert [size["name"] for size in told["sizes"]] == ["smoke", "small", "paper"]
    assert all(finding["detail"] for finding in told["software"])


def test_what_was_measured_is_stored_and_said_to_be(examined: SimpleNamespace, root: Path) -> None:
    where = ("--device", "cpu", "--results", examined.results)
    again = json.loads(doctor(root, "--json", "--stored", *where).stdout)
    assert not again["measured_now"]
    assert again["ceilings"] == examined.told["ceilings"]
    text = doctor(root, "--stored", *where).stdout
    assert f"measured on {again['ceilings']['measured']}" in text
    assert "host to device" in text


def test_a_device_that_is_not_there_is_one_sentence(root: Path, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = doctor(root, "--device", "cuda", "--results", tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "cuda" in done.stderr
