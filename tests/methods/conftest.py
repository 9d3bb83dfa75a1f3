"""Every test of the runtime runs on the CPU, and again on a GPU where there is one."""

from __future__ import annotations

import shutil
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from tests.methods import loops, plain
from workbench.runtime.passes import unit_passes

STEPS = 6
"""Steps of a training that is compared with plain training: the learning rate has risen and falls,
some steps are clipped, and every ring has come round. With --thorough there are more."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def spec_for(request):
    """`plain.spec_for` on one device."""
    few = {} if request.config.getoption("--thorough") else {"steps": STEPS}
    return partial(plain.spec_for, device=request.param, **few)


@pytest.fixture(scope="module")
def engine(tmp_path_factory, measured):
    """Makes an engine in a user's loop, on a machine that has been measured."""
    results = tmp_path_factory.mktemp("results")
    shutil.copytree(measured, results / "profiles")
    return partial(loops.made_in, results)


@pytest.fixture
def counter(monkeypatch):
    """Counts what a compiler compiles that rounds nowhere; blocks are compiled on the CPU, too."""
    from torch._dynamo.testing import CompileCounterWithBackend  # its imports take a second

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    whole = partial(torch.compile, backend=counter, fullgraph=True)

    def unmetered(function, **how):
        made = whole(function, **how)

        def run(*args):
            with _disable_current_modes():  # a meter of the CPU cannot be compiled
                return made(*args)

        return run

    monkeypatch.setattr(torch, "compile", unmetered)
    monkeypatch.setattr(unit_passes, "compiles", lambda *asked: True)
    yield counter
    torch.compiler.reset()
