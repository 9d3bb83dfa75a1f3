"""A user's own loop in several processes trains as torch's in one; a rank that fails is named."""

from __future__ import annotations

import pytest
import torch

from tests.methods.loops import (
    LR,
    RANKED,
    STEPS,
    batches,
    distance,
    in_groups,
    labels_of,
    loss_of,
    near,
    net,
    normed,
    torchs,
)
from tests.varuna.workers import Workers


@pytest.mark.parametrize(("stages", "replicas"), [(2, 1), (1, 2)])
def test_two_processes_train_it_as_one_does(stages, replicas) -> None:
    wanted, weights = torchs(in_groups, padded=True)
    with Workers() as workers:
        told = workers.run("driven", stages=stages, replicas=replicas)
    for one in told:
        assert one.get("losses") == pytest.approx(wanted, rel=1e-6), one
        near({name: torch.tensor(value) for name, value in one["weights"].items()}, weights)
        assert one["figures"]["told"] == pytest.approx(one["figures"]["wanted"], rel=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        *[m if m != "harmony-dp" else pytest.param(m, marks=pytest.mark.thorough) for m in RANKED],
        "fsdp",
    ],
)
def test_ranks_train_it_and_one_process_goes_on(engine, tmp_path, method) -> None:
    frozen = method != "fsdp"
    wanted, weights = torchs(in_groups, frozen=frozen, padded=True)
    how = {"method": method, "save": str(tmp_path), "results": str(engine.args[0])}
    how |= RANKED.get(method, {"microbatches": 2})
    ranks = 4 if method == "dp-swap" else 2  # the middle ones' labels are not the others' first
    with Workers() as workers:
        told = workers.run("driven", stages=1, replicas=ranks, **how)
    for one in told:
        assert one.get("losses") == pytest.approx(wanted, rel=1e-6), one
        near({name: torch.tensor(value) for name, value in one["weights"].items()}, weights)
        assert one["figures"]["told"] == pytest.approx(one["figures"]["wanted"], rel=1e-6)
        assert not one["left"]
    module, half = net(frozen=frozen), STEPS // 2
    config = {"lr": LR, "params": in_groups(module)}
    with engine("plain", module, config, weight_of=labels_of) as made:
        assert made.load(tmp_path) == half
        later = [made.step(batch, loss_of) for batch in [*batches(padded=True)][half:]]
        near(made.state_dict(), weights)
    assert later == pytest.approx(wanted[half:], rel=1e-6)


@pytest.mark.parametrize(
    ("method", "dtype", "near_by"),
    [
        ("harmony-pp", "bf16", 2e-3),
        ("harmony-dp", "fp32", 1e-6),
        ("fsdp", "fp32", 1e-6),
        pytest.param("harmony-pp", "fp32", 1e-6, marks=pytest.mark.thorough),
        pytest.param("harmony-dp", "bf16", 2e-3, marks=pytest.mark.thorough),
    ],
)
def test_two_ranks_go_on_with_statistics_masks_and_weights_of_bf16(
    engine, tmp_path, method, dtype, near_by
) -> None:
    """With BatchNorm a micro-batch has the rows of a process unless told; bf16 is without, and
    fsdp, whose sums of bf16 are fp32."""
    (module, data), losses = normed(dtype == "fp32" and method != "fsdp"), []
    rate = {"lr": LR if dtype == "fp32" else LR / 10}  # so that roundings of gradients tell less
    with engine("plain", module, rate, microbatches=2, dtype=dtype) as made:
        for pair in data:
            losses.append(made.step(pair, distance))
            if made.steps == 2:
                made.save(tmp_path)
        wanted, norm = made.state_dict(), made.grad_norm
    how = {"dtype": dtype, **rate, "results": str(engine.args[0]), "kept": str(tmp_path)}
    with Workers() as workers:
        told = workers.run("goes_on", stages=1, replicas=2, method=method, **how)
    for one in told:
        assert one.get("losses") == pytest.approx(losses[2:], rel=near_by), one
        assert one["norm"] == pytest.approx(norm, rel=5 * near_by)
        for name, value in wanted.items():
            found = torch.tensor(one["weights"][name])
            torch.testing.assert_close(found, value, rtol=10 * near_by, atol=10 * near_by)


@pytest.mark.parametrize(
    ("method", "how", "words"),
    [
        ("harmony-dp", "raises", "RankFailed: rank 1: no such luck"),
        ("harmony-pp", "killed", "RankFailed: rank 1: its process has ended, in step 2"),
        ("pp-swap", "closed", "RankFailed: rank 1: it has closed its engine, in step 2"),
        pytest.param(
            "fsdp", "raises", "RankFailed: rank 1: no such luck", marks=pytest.mark.thorough
        ),
        ("fsdp", "killed", "RankFailed: rank 1: its process has ended, in step 2"),
        ("fsdp", "uneven", "ValueError: rank 0 is in step 2 and rank 1 is in state_dict; all"),
        ("varuna", "raises", "RankFailed: rank 1: no such luck"),
        ("varuna", "closed", "RankFailed: rank 1: it has closed its engine, in step 2"),
        ("harmony-dp", "stopped", "RankFailed: rank 1: it is stopped, and has not"),
        ("harmony-pp", "fewer", "ValueError: the processes have different numbers of rows"),
        ("harmony-pp", "stages", "ValueError: stages is 2; leave it out"),
        ("dp-swap", "small", "DoesNotFit: "),
        ("harmony-pp", "lacks", "OutOfMemory: the host tier is out of memory: all needs 9 B"),
    ],
)
def test_a_rank_that_fails_ends_the_other(engine, method, how, words) -> None:
    results = str(engine.args[0])
    with Workers() as workers:
        told = workers.run("failing", stages=1, replicas=2, method=method, results=results, how=how)
    assert told[0]["said"].startswith(words), told
    then = "and weights may be half updated; load a checkpoint, several processes after they are"
    assert how != "raises" or then in told[0]["said"], told
    assert how != "stopped" or told[0]["said"].endswith("in step 2"), told
    if how in ("fewer", "stages", "small", "lacks", "uneven"):  # before there is anything to train
        assert told[1] == told[0]


@pytest.mark.parametrize(
    "method", ["harmony-dp", "varuna", pytest.param("fsdp", marks=pytest.mark.thorough)]
)
def test_processes_that_disagree_are_told_of_it_all_alike(engine, method) -> None:
    with Workers() as workers:
        told = workers.run(
            "disagreeing", stages=1, replicas=2, method=method, results=str(engine.args[0])
        )
    assert told[0] == told[1]
    assert told[0].get("steps") == 2, told
    words = (
        "weight_decay is 0.1 in rank 0 and 0.2 in rank 1",
        "clip is 0.5 in rank 0 and None in rank 1",
        "the code of loss_fn differs between rank 0 and rank 1",
        "parameter 'blocks.2.inner.weight' is of [12, 12], trained in rank 0 and of [12, 12], not",
        "the learning rate is 0.01 in rank 0 and 0.005 in rank 1",
    )
    for said, each in zip(told[0]["said"], words, strict=True):
        assert said.startswith(f"the processes disagree: {each}"), said


PLACES = {
    "planning": "planning the first step", "step": "step 1", "save": "save", "load": "load",
    "state_dict": "state_dict",
}  # fmt: skip
"""Places where a rank may be stopped, as an error names them."""


@pytest.mark.parametrize(
    ("method", "places"),
    [
        ("fsdp", ["step", "load", "state_dict"]),
        ("harmony-dp", ["planning", "save"]),
        ("varuna", ["step"]),
        pytest.param("fsdp", ["planning", "save"], marks=pytest.mark.thorough),
        pytest.param("harmony-dp", ["step", "load", "state_dict"], marks=pytest.mark.thorough),
        pytest.param(
            "varuna", ["planning", "save", "load", "state_dict"], marks=pytest.mark.thorough
        ),
    ],
)
def test_a_rank_that_is_stopped_is_named_wherever_it_is_and_another_engine_trains(
    engine, method, places
) -> None:
    """All ranks pass equal rows, so losses are those of one."""
    how = {"stages": 1, "replicas": 2, "method": method, "results": str(engine.args[0])}
    with Workers() as workers:
        told = workers.run("stopped", **how, places=places)
    words = "RankFailed: rank 1: it is stopped, and has not moved for 0 s, in "
    assert told[0].get("told") == [words + PLACES[place] for place in places], told
    with engine("plain", net(frozen=method != "fsdp"), clip=None) as made:
        wanted = [made.step(batch, loss_of) for batch in batches(2)]
    assert told[0]["losses"] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("method", "waits"), [("fsdp", "torch's"), ("harmony-dp", "ours"), ("varuna", "a stage's")]
)
def test_a_wait_that_is_deaf_to_cut_connections_ends_with_the_words_of_others(
    engine, method, waits, capfd
) -> None:
    """In torch's code nothing can be raised, so there the process ends."""
    words = "RankFailed: rank 1: it is stopped, and has not moved for 0 s, in step 1"
    how = {"method": method, "results": str(engine.args[0]), "waits": waits}
    with Workers() as workers:
        told = workers.run("deaf", stages=1, replicas=2, **how)
    said = capfd.readouterr().err
    if waits != "torch's":
        assert told[0].get("said") == words, told
        assert words not in said
    else:
        assert told[0] == {"signal": -1}, told
        assert f"{words}\nsend of " in said
