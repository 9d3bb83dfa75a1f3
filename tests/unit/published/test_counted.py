"""Bytes of layers that were counted without running them are those that a GPU took."""

from __future__ import annotations

import json

import pytest

from benchmarks import counted
from workbench.model.hf import HFModel
from workbench.profile.alone import Setting
from workbench.profile.footprint import footprints
from workbench.published import hardware
from workbench.published.gpt_bytes import gpt_bytes
from workbench.runs.store import REPOSITORY_RESULTS

ROWS = REPOSITORY_RESULTS / "published-here" / "h200" / "counted.json"


def test_the_smallest_layouts_need_what_an_h200_took(tmp_path, monkeypatch) -> None:
    """The heads of decoders that were measured put out all logits at once."""
    monkeypatch.setattr(HFModel, "_find_divided", lambda self: None)
    rows = {row["case"]: row["measured"] for row in json.loads(ROWS.read_text())["cases"]}
    asked = [
        case
        for case in counted.cases(tmp_path)
        if "gpt" in case.label or ("4 x 2048" in case.label and "llama, 128" in case.label)
    ]
    assert len(asked) > 12
    for case in asked:
        model = case.model, case.microbatch, case.dtype, case.compile
        needs = counted.smallest(case, hardware.profile(counted.MACHINE, *model))
        assert needs == pytest.approx(rows[case.label], rel=0.02), case.label


def test_the_formula_of_our_gpt_is_what_fake_tensors_count() -> None:
    from workbench.core.model_spec import ModelSpec
    from workbench.model import make_model

    spec = ModelSpec(layers=1, hidden=128, heads=4, seq=64, vocab=500)
    setting = Setting.of_tokens(make_model(spec), (8, 64), dtype="bf16", device="cpu")
    found, _ = footprints(setting, fake=True)
    needs = gpt_bytes(spec, 8, 2, gpu=False, compiled=False)
    for kind in ("embedding", "block"):
        for name, nbytes in needs[kind].items():
            assert found[kind][name] == pytest.approx(nbytes, rel=0.02, abs=2048), (kind, name)
