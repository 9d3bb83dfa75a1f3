from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench import cli
from workbench.core.methods import known


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The exit code of `workbench doctor` with some words, and what it says on either stream."""

    def examine(*words: object) -> tuple[int, str, str]:
        return cli.main(["doctor", *map(str, words)]), *capfd.readouterr()

    return examine


def test_json_holds_ceilings_software_methods_and_sizes(examined: SimpleNamespace) -> None:
    told = examined.told
    assert told["measured_now"]
    assert told["ceilings"]["hardware"]["h2d_bytes_per_s"] > 0
    assert [method["name"] for method in told["methods"]] == list(known())
    assert {method["name"]: method["works"] for method in told["methods"]}["stronghold"]
    assert [size["name"] for size in told["sizes"]] == ["smoke", "small", "paper"]
    assert all(finding["detail"] for finding in told["software"])


def test_what_was_measured_is_stored_and_said_to_be(examined: SimpleNamespace, doctor) -> None:
    where = ("--device", "cpu", "--results", examined.results)
    again = json.loads(doctor("--json", "--stored", *where)[1])
    assert not again["measured_now"]
    assert again["ceilings"] == examined.told["ceilings"]
    text = doctor("--stored", *where)[1]
    assert f"measured on {again['ceilings']['measured']}" in text
    assert "host to device" in text


def test_a_device_that_is_not_there_is_one_sentence(doctor, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ended, _, complaint = doctor("--device", "cuda", "--results", tmp_path)
    assert ended == 2
    assert len(complaint.strip().splitlines()) == 1
    assert "cuda" in complaint
