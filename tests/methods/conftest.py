"""Every test of the runtime runs on the CPU, and again on a GPU where there is one."""

from __future__ import annotations

from functools import partial

import pytest

from tests.methods import plain


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def spec_for(request):
    """`plain.spec_for` on one device."""
    return partial(plain.spec_for, device=request.param)
