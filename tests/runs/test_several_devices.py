"""Methods on several devices as a user runs them: profile, plan, ranks, record, timeline."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.methods import plain
from tests.runs.helpers import left_behind
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.model.hf_config import spec_from_config
from workbench.runs import runner
from workbench.runs.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


def assert_told(
    spec: RunSpec, record: RunRecord, folder: Path, rel: float = 1e-6, searched: bool = False
) -> None:
    """A record says what was planned and what was seen, which is the training of torch.

    A plan that is ``searched`` may leave a rank idle: one pack is the fastest for a small model
    where links of that moment are slow.
    """
    assert record.status == "ok", record.message
    norms: list[float] = []
    expected, _ = plain.train(spec, norms=norms)
    assert record.losses == pytest.approx(expected, rel=rel)
    assert record.grad_norms == pytest.approx(norms, rel=1e-5)
    assert record.moved_bytes == record.predicted["moved_bytes"]
    assert record.peak_bytes["device"] <= record.predicted["peak_bytes"]["device"]
    if spec.device_memory is not None:
        assert record.predicted["peak_bytes"]["device"] <= spec.device_memory
    assert record.predicted["step_seconds"] > 0
    timeline = json.loads((folder / "timeline.json").read_text())
    seen, planned = (
        {(event["name"], event["rank"]) for event in timeline[which]}
        for which in ("events", "predicted")
    )
    assert seen == planned
    if not searched:
        assert {rank for _, rank in seen} == {*range(spec.ranks)}
    assert_one_clock(timeline["events"])


def test_a_record_tells_what_was_planned_and_what_was_seen(tmp_path, measured):
    results = tmp_path / "results"
    shutil.copytree(measured, results / "profiles")
    spec = plain.spec_for(
        method="dp-swap", ranks=2, steps=6, forward_size=1, device_memory=600_000
    )  # fmt: skip
    store = Store(results)
    record = runner.run(spec, store)
    assert_told(spec, record, store.folder(record.key))
    assert left_behind(Path(results)) == []
    assert runner.run(spec, store).started == record.started, "it is not run again"


@pytest.mark.parametrize(
    ("method", "ranks"),
    [pytest.param("stronghold", 1, marks=pytest.mark.thorough), ("harmony-pp", 2)],
)
def test_a_decoder_of_another_library_trains_like_any(
    method, ranks, tmp_path, measured, monkeypatch
):
    """From its configuration file: profiled, planned and trained."""
    # A group of a test before has set it, and links are kept by it.
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        **sizes, num_key_value_heads=2, intermediate_size=64, vocab_size=256,
        max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    config.save_pretrained(tmp_path / "llama")
    results = tmp_path / "results"
    shutil.copytree(measured, results / "profiles")
    (links,) = results.glob("profiles/*/wires-2.json")
    links.unlink()
    model = spec_from_config(tmp_path / "llama", seq=16)
    spec = plain.spec_for(method=method, ranks=ranks, model=model, steps=6, eps=1e-6)
    record = runner.run(spec, Store(results))
    assert_told(spec, record, Store(results).folder(record.key), rel=1e-5, searched=True)
    assert links.exists() == (ranks > 1), "links of ranks are measured where they are not known"


def test_memory_is_bounded_where_one_lane_fetches_and_another_lets_go(tmp_path, measured):
    """Activations that a copy brought back are free when the backward pass has read them, not when
    the next copy begins: other passes were promised their bytes."""
    results = tmp_path / "results"
    shutil.copytree(measured, results / "profiles")
    packs = {"forward_packs": "2 3", "backward_packs": "3 1 1 1"}
    spec = plain.spec_for(
        method="harmony-pp", ranks=2, model=replace(plain.MODEL, layers=4), steps=6,
        forward_size=1, backward_size=2, **packs,
    )  # fmt: skip
    record = runner.run(spec, Store(results))
    assert_told(spec, record, Store(results).folder(record.key), rel=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"activations": "keep", "weight_stashing": True},
        pytest.param(
            {"prediction": "msnag", "model": replace(plain.MODEL, tied=False)},
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_stages_of_an_asynchronous_pipeline_take_no_more_than_was_planned(how, tmp_path, measured):
    """Graphs, versions of weights and what updates and predictions work in are counted."""
    results = tmp_path / "results"
    shutil.copytree(measured, results / "profiles")
    spec = plain.spec_for(
        method="ftpipe", ranks=2, steps=6, clip=None, cut="2 2 1 2", map="0 1 0 1", **how
    )
    record = runner.run(spec, Store(results))
    assert record.status == "ok", record.message
    assert record.peak_bytes["device"] <= record.predicted["peak_bytes"]["device"]


def assert_one_clock(events: list[dict]) -> None:
    """Every rank is done with a step's passes before the norm is taken, which is of all, and no
    update but a guess is made before that."""
    for step in {event["step"] for event in events}:
        mine = [event for event in events if event["step"] == step]
        passes = [event["end_s"] for event in mine if event["kind"] == "B"]
        (norm,) = (event for event in mine if event["kind"] == "N")
        assert max(passes) <= norm["start_s"]
        final = [e for e in mine if e["kind"] == "V" or (e["kind"] == "U" and "+" not in e["name"])]
        assert final
        assert all(event["start_s"] >= norm["end_s"] for event in final)
