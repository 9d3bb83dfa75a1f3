"""One compiled template: a graph for each number of samples, however many there are."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from workbench.core.model_spec import ModelSpec
from workbench.model import make_model
from workbench.runtime.memory.storage import Flat
from workbench.runtime.passes.template import Template, compiles

SPEC = ModelSpec(layers=2, hidden=16, heads=2, seq=8, vocab=64)


def test_no_size_runs_eagerly_after_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    model = make_model(SPEC)
    block = model.empty_module(1, device=torch.device("cpu"), dtype=torch.float32)
    flat = Flat.of(model, 1)
    flat.point_weights(block, torch.randn(flat.numel))
    template = Template(model, compiled=True)
    for rows in range(2, 11):
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                template.block("block", block, torch.randn(rows, SPEC.seq, SPEC.hidden))
    torch.compiler.reset()
    assert counter.frame_count == 18


def test_blocks_that_torch_cannot_compile_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such kernel")

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    model = make_model(SPEC)
    block = model.build(1, seed=0)
    x = torch.randn(2, SPEC.seq, SPEC.hidden)
    template = Template(model, compiled=True)
    with pytest.warns(UserWarning, match="blocks run uncompiled: .*"):
        assert torch.equal(template.block("block", block, x), block(x))
    assert torch.equal(template.checkpointed_block("block", block, x), block(x))
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("choice", "device", "dtype", "expected"),
    [
        ("auto", "cuda", torch.bfloat16, True),
        ("auto", "cuda", torch.float32, False),
        ("auto", "cpu", torch.bfloat16, False),
        ("on", "cuda", torch.float32, True),
        ("off", "cuda", torch.bfloat16, False),
    ],
)
def test_where_blocks_are_compiled(choice, device, dtype, expected) -> None:
    assert compiles(choice, device, dtype) is expected


def test_compiling_without_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="the device is cpu; it must be cuda, or off"):
        compiles("on", "cpu", torch.bfloat16)
