"""A user's module trains as torch's own loop trains it, whatever the stages and replicas."""

from __future__ import annotations

import pytest
import torch

from tests.varuna import net
from tests.varuna.cases import CLIP
from tests.varuna.workers import Workers

pytestmark = pytest.mark.slow

STEPS = 5
PAIRS = [range(0, 2), range(2, 4), range(4, 6), range(6, 7)]
"""Micro-batches of up to two of seven rows, in one or two replicas."""
KEEP = {"activations": "keep"}


@pytest.fixture(scope="module")
def workers():
    with Workers() as found:
        yield found


@pytest.fixture(scope="module")
def torchs():
    """Torch's own loop, by batch and optimizer."""
    known = {}

    def found(batch: int, optimizer: str = "adamw", *, double: bool = False, **kw):
        key = batch, optimizer, double, str(kw)
        if key not in known:
            torch.set_num_threads(1)
            torch.set_default_dtype(torch.float64 if double else torch.float32)
            known[key] = net.plain(batch, STEPS, CLIP, getattr(net, optimizer), **kw)
            torch.set_default_dtype(torch.float32)
        return known[key]

    return found


def check(results, wanted, rel=1e-5) -> None:
    """All ranks tell the losses of torch's loop, and hold its weights and statistics."""
    losses, weights, evaluated = wanted
    close = {"rtol": 10 * rel, "atol": rel, "check_dtype": False}
    for result in results:
        assert "losses" in result, result
        assert result["losses"] == pytest.approx(losses[-len(result["losses"]) :], rel=rel)
        assert result["evaluated"] == pytest.approx(evaluated, rel=rel)
        for name, values in result["weights"].items():
            found = torch.tensor(values, dtype=torch.float64)
            torch.testing.assert_close(found, weights[name], **close)
    assert {name for result in results for name in result["weights"]} == weights.keys()


def test_late_messages_and_passes_change_no_bit(workers):
    case = {"stages": 3, "replicas": 1, "batch": 9, "chunk": 1, "steps": 3, "cut": "1 3 1"}
    quick, late = workers.run("train", **case), workers.run("train", **case, late=0.004)
    assert quick == late
    assert [sum(".inner." in name for name in each["weights"]) for each in quick] == [0, 6, 2]


@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((2, 2), {}),
        pytest.param((1, 2), {"order": "gpipe", **KEEP}, marks=pytest.mark.thorough),
        pytest.param((2, 2), {"order": "interleaved"}, marks=pytest.mark.thorough),
    ],
)
def test_batchnorm_and_its_statistics_are_plain_trainings(workers, torchs, shape, how):
    stages, replicas = shape
    case = {"stages": stages, "replicas": replicas, "batch": 7, "chunk": 2, "batchnorm": True}
    wanted = torchs(7, double=True, batchnorm=True, micros=PAIRS)
    check(workers.run("train", steps=STEPS, double=True, **case, **how), wanted, rel=1e-10)


@pytest.mark.parametrize(
    ("optimizer", "shape", "batchnorm"),
    [
        ("sgd", (3, 1), True),
        ("adamw", (1, 2), False),
        pytest.param("adamw", (1, 1), False, marks=pytest.mark.thorough),
    ],
)
def test_what_one_shape_saved_goes_on_under_another(
    workers, torchs, tmp_path, optimizer, shape, batchnorm
):
    case = {"batch": 7, "chunk": 2, "steps": STEPS, "optimizer": optimizer, "batchnorm": batchnorm}
    by = {"stages": 2, "replicas": 1 if batchnorm else 2}
    saved = workers.run("train", **by, save=str(tmp_path), save_at=3, **case)
    wanted = torchs(7, optimizer, batchnorm=batchnorm, micros=PAIRS)
    check(saved, wanted)
    stages, replicas = shape
    went_on = workers.run(
        "train", stages=stages, replicas=replicas, load=str(tmp_path), save_at=3, **case
    )
    assert len(went_on[0]["losses"]) == STEPS - 3
    check(went_on, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("order", "how", "kinds"),
    [
        ("1f1b", {}, [["checkpoint", "forward"], ["backward", "keep"]]),
        ("varuna", {}, [["backward", "forward", "keep"], ["backward", "keep"]]),
        ("1f1b", {"activations": "keep"}, [["backward", "keep"]] * 2),
        (
            "interleaved",
            {},
            [["checkpoint", "forward"], ["backward", "checkpoint", "forward", "keep"]],
        ),
        ("1f1b", {"drop": 0.2}, [[], []]),
    ],
)
def test_recorded_passes_are_those_of_autograd(workers, order, how, kinds):
    """Two processes on one GPU; the last micro-batch of a step is a smaller one. The cut is given:
    a measured one may differ between the two runs."""
    case = {"stages": 2, "replicas": 1, "batch": 7, "chunk": 2, "steps": STEPS, "order": order}
    case["cut"] = "1 1 1 2" if order == "interleaved" else "2 3"
    case |= {"device": "cuda:0", "transport": "gloo", "bf16": True, "drop": 0.0, **how}
    replayed, launched = (workers.run("train", **case, replay=on) for on in (True, False))
    assert [each.pop("recorded") for each in replayed] == kinds
    assert [each.pop("recorded") for each in launched] == [[], []]
    assert replayed == launched


def test_half_precision_skips_an_overflow_everywhere_once(workers):
    case = {"stages": 2, "replicas": 2, "batch": 8, "chunk": 2, "steps": 4, "fp16": True}
    results = workers.run("train", **case, scale=2.0**40)
    assert len({result["scale"] for result in results}) == 1
    assert results[0]["scale"] < 2.0**40


def test_modules_are_made_at_once_where_the_host_has_room(workers, tmp_path):
    alone = ["begins", "ends"]
    for name, side, wanted in (
        ("room", 1, [*alone, *["begins"] * 2, "first takes", *["ends"] * 2, *["told takes"] * 2]),
        ("none", 1 << 28, [*alone, "first takes", *[*alone, "told takes"] * 2]),
    ):
        (tmp_path / name).mkdir()
        told = workers.run("take_turns", stages=3, folder=str(tmp_path / name), side=side)
        lines = max(told, key=len)
        middle = sorted(lines[2:5]) if name == "room" else lines[2:5]
        assert [*lines[:2], *middle, *lines[5:]] == wanted
