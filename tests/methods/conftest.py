"""Every test of the runtime runs on the CPU, and again on a GPU where there is one."""

from __future__ import annotations

import shutil
from functools import partial

import pytest

from tests.methods import loops, plain

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
