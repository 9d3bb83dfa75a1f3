"""What cannot be trained is refused with one sentence, by all processes; a death ends them all."""

from __future__ import annotations

import re
import signal
import socket
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from tests.varuna import net
from tests.varuna.workers import Workers
from workbench.core.stage_map import StageMap
from workbench.elastic.worker import Worker
from workbench.methods.pipeline.as_written import check_written
from workbench.methods.varuna import CutPoint, get_this_rank_config_varuna
from workbench.methods.varuna.lifeline import Lifeline
from workbench.model.slices import Slices


@pytest.fixture(scope="module")
def workers():
    with Workers() as found:
        yield found


class Small(nn.Module):
    """Two layers and two cut points, which `through` calls as it likes."""

    def __init__(self, through, loss) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.cut, self.end = CutPoint(), CutPoint()
        self.passes: list[int] = []
        self.through, self.loss = through, loss

    def forward(self, x):
        return self.loss(self.through(self, x))


def cut(through, loss=torch.mean) -> None:
    """Cut the module into three slices, for a stage of each."""
    module = Small(through, loss)
    slices = Slices(module, lambda rows: {"x": torch.arange(4.0 * rows).view(rows, 4) / 8})
    check_written(slices, torch.device("cpu"))
    for units in slices.stages(3):
        slices.learning(units)


def counted(m: Small, x):
    m.passes.append(1)
    return m.b(m.end(m.cut(m.a(x)) * len(m.passes)))


NO_STACK = "cannot be cut at 'cut': what crosses it must be stacks of samples .* is "


@pytest.mark.parametrize(
    ("sentence", "through"),
    [
        ("'cut' is called 2 times in .*; call .* once", lambda m, x: m.b(m.cut(m.cut(m.a(x))))),
        ("'end' is called never in .*; call .* once", lambda m, x: m.b(m.cut(m.a(x)))),
        (NO_STACK + r"\[4\]", lambda m, x: m.end(m.b(m.cut(m.a(x).mean(0))))),
        (NO_STACK + r"\[4\]$", lambda m, x: m.end(m.b(m.cut(m.a(x).mean(0))) * x)),
        (NO_STACK + r"\[B\+1, 4\]", lambda m, x: m.end(m.b(m.cut(torch.cat([m.a(x), x[:1]]))))),
        ("nothing .* before the cut at 'cut'; move it", lambda m, x: m.end(m.b(m.a(m.cut(x))))),
        ("slices 1 to 1 of 3 have no weights .*; use", lambda m, x: m.b(m.end(m.cut(m.a(x)) * 2))),
        (r"leaves something behind that the next one reads: its attribute 'passes\[1\]'", counted),
    ],
)
def test_modules_that_are_cut_where_they_cannot_be(sentence, through):
    with pytest.raises(ValueError, match=f"^[^\n]*{sentence}[^\n]*$"):
        cut(through)


@pytest.mark.parametrize(("share", "refused"), [(1e-4, True), (float("nan"), True), (1e-7, False)])
def test_slices_with_the_modules_loss_and_other_gradients(share, refused):
    module = Small(lambda m, x: m.b(m.end(m.cut(m.a(x)))), torch.mean)
    slices = Slices(module, lambda rows: {"x": torch.arange(4.0 * rows).view(rows, 4) / 8})
    forward, ran = slices.model.forward, []

    def other(unit, layer, x, ctx):
        found = forward(unit, layer, x, ctx)
        (y,) = found if isinstance(found, tuple) else (found,)
        if unit == 0:
            ran.append(unit)
            y.register_hook(lambda gradient: gradient * (1 + share))
        return found

    slices.model.forward = other
    sentence = "into slices the module would train otherwise than by itself: 'a.weight' differs"
    with pytest.raises(ValueError, match=sentence) if refused else nullcontext():
        check_written(slices, torch.device("cpu"))
    assert ran


@pytest.mark.parametrize(
    ("sentence", "call"),
    [
        (r"its mean loss, one .* of \(2, 4\)", lambda: cut(counted, loss=torch.exp)),
        ("6 stages .* into 5 slices; use 1 to 5", lambda: Slices(net.net(), net.batch).stages(6)),
        ("is '5 0'; .* 5 in all, .* '3 2'", lambda: Slices(net.net(), net.batch).stages(2, "5 0")),
        ("'0,1;1,2;' repeats rank 1", lambda: StageMap.parse("0,1;1,2;")),
        ("rank 8 is not in .* 2 ranks", lambda: get_this_rank_config_varuna("0;1;", 8)),
        ("'0,2;1,4;' lacks rank 3", lambda: StageMap.parse("0,2;1,4;")),
        (r"stages of \[1, 2\] ranks; each .* as many", lambda: StageMap.parse("0,1;2;")),
        ("is '0;1'; .* end each stage with a semicolon, as in", lambda: StageMap.parse("0;1")),
    ],
)
def test_numbers_that_do_not_fit(sentence, call):
    with pytest.raises(ValueError, match=f"^[^\n]*{sentence}[^\n]*$"):
        call()


WRONG = {
    "fp16 and bf16 are both on; give one": {"fp16": True, "bf16": True},
    "order is 'zigzag'; give one of gpipe, 1f1b, interleaved, varuna": {"order": "zigzag"},
    "order is 'zb-h1'; the backward pass of a stage .* without halves; give": {"order": "zb-h1"},
    "chunks is 2; with varuna a rank has one stage, leave it at 1": {"chunks": 2},
    "device_memory is 1 KiB, and the stages of position 0 need .* use more stages": {
        "device_memory": "1KiB"
    },
    "activations is 'some'; give keep or recompute": {"activations": "some"},
    "is 'keep'; with order varuna they are computed again": {"activations": "keep"},
    "stash is 2; with gpipe .* of 3 or more": {"order": "gpipe", "chunk": 1, "stash": 2},
    "stash is 0; with varuna .* of 1 or more": {"stash": 0},
    "transport is 'post'; give auto, nccl, gloo": {"transport": "post"},
    "transport is 'nccl', which needs a GPU; give gloo": {"transport": "nccl"},
    "a batch of 1 rows leaves some of 2 replicas .*; use a batch of 2": {"batch": 1},
    "chunk_size is 0; a micro-batch has a row at least": {"chunk": 0},
    "stages is '4'; give the slices of 1 stages, 5 in all, such as '5'": {"cut": "4"},
    "'0;1;2;' has 3 ranks, and 2 processes run": {"places": "0;1;2;"},
    "names 'none', which is no parameter": {"shared_weights": [["embed.weight", "none"]]},
    "one of 3 micro-batches empty: .*BatchNorm": {"batchnorm": True, "batch": 5, "chunk": 1},
}
CALLS = [
    "holds the optimizer's state; call set_optimizer first",
    r"a parameter of \(24, 16\) that is none of this stage's; make it of model.parameters",
    "str cannot be kept: it lacks state_dict",
    "'tokens' has 2 rows; 3 samples were asked for",
    "inputs are .*, more; the module takes tokens, mask,",
    "'flag' is False, and was True when the module was cut; flags stay",
]
OTHERS = {
    "step-00000001 is of batch 6; this run has 5": {"batch": 5},
    "step-00000001 is of another module, of parameters with other": {"blocks": 5},
}
USED = "step-00000001 is of another training, .* at step 0; give an empty folder, or call load_ch"


def test_a_job_that_goes_on_needs_the_checkpoint_that_it_goes_on_from(tmp_path):
    lifeline = object.__new__(Lifeline)
    for resume_step, refused in ((None, False), (20, True)):
        line, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline.worker = Worker(
            line, round=2, rank=0, batch=8, folder=tmp_path, resume_step=resume_step
        )
        lifeline.loaded(tmp_path, 20)
        with (
            pytest.raises(ValueError, match="no checkpoint.*one of step 20")
            if refused
            else (nullcontext())
        ):
            lifeline.loaded(tmp_path, None)


def test_a_job_goes_on_from_its_own_checkpoints_and_from_the_one_that_it_began_with(
    workers, tmp_path
):
    (found,) = workers.run("of_jobs", folder=str(tmp_path))
    assert found[:1] + found[2:-4] == [1, None, 2, 2, 3, 3, 2, 2, 3]
    assert found[-4].startswith("ValueError: the job goes on from step 3 (--resume_step), and this")
    assert found[-3].startswith("Damaged: the checkpoint step-00000003 cannot be read: unit-")
    assert found[-2:] == ["damaged-step-", "step-00000002"], "the next round takes the other one"
    assert re.match(r"\S*F/step-00000002 is of another training, .* at step 1; give", found[1])


def test_all_processes_refuse_and_train_nevertheless(workers, tmp_path):
    case = {"stages": 1, "replicas": 2, "batch": 6, "chunk": 3, "folder": str(tmp_path)}
    results = workers.run("misuse", wrong=[*WRONG.values()], others=[*OTHERS.values()], **case)
    for result in results:
        assert "error" not in result, result
        for sentence, said in zip([*WRONG, *CALLS, *OTHERS, USED], result["said"], strict=True):
            assert re.match(f"[^\n]*{sentence}[^\n]*$", said), said
    assert results[0]["loss"] == results[1]["loss"] > 0


@pytest.mark.parametrize(
    ("kind", "shape"), [("B", (3, 1)), pytest.param("REDUCE", (1, 3), marks=pytest.mark.thorough)]
)
def test_a_process_killed_in_a_step_ends_the_others_with_a_cause(workers, kind, shape):
    case = {"stages": shape[0], "replicas": shape[1], "batch": 6, "chunk": 1, "steps": 3}
    first, *others = workers.run("train", dies=[0, kind], **case)
    assert first == {"signal": signal.SIGKILL}
    for other in others:
        assert "peer" in other["error"]
        assert other["threads"] == ["MainThread"]
