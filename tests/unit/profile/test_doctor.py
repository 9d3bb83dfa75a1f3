from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.runs.methods import METHODS


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def doctor(root: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workbench.cli", "doctor", *map(str, words)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def examined(results: Path) -> dict:
    root = Path(__file__).resolve().parents[3]
    done = doctor(root, "--json", "--quick", "--device", "cpu", "--results", results)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_json_holds_ceilings_software_methods_and_sizes(examined: dict) -> None:
    assert examined["measured_now"]
    assert examined["ceilings"]["hardware"]["h2d_bytes_per_s"] > 0
    assert [method["name"] for method in examined["methods"]] == list(METHODS)
    assert {method["name"]: method["works"] for method in examined["methods"]}["stronghold"]
    assert [size["name"] for size in examined["sizes"]] == ["smoke", "small", "paper"]
    assert all(finding["detail"] for finding in examined["software"])


def test_what_was_measured_is_stored_and_said_to_be(
    examined: dict, results: Path, root: Path
) -> None:
    again = json.loads(doctor(root, "--json", "--stored", "--results", results).stdout)
    assert not again["measured_now"]
    assert again["ceilings"] == examined["ceilings"]
    text = doctor(root, "--stored", "--results", results).stdout
    assert f"measured on {examined['ceilings']['measured']}" in text
    assert "host to device" in text


def test_a_device_that_is_not_there_is_one_sentence(root: Path, results: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = doctor(root, "--device", "cuda", "--results", results)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "cuda" in done.stderr
