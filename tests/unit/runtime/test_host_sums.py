"""Sums on the host are torch's, and so are the norms of what they give."""

from __future__ import annotations

import math

import pytest
import torch

from workbench.core import native
from workbench.runtime.updates import host_sums


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("numel", [1, 15, 16, 17, 65_536, 200_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_and_squares_are_those_of_torch(dtype, numel, threads):
    draw = torch.Generator().manual_seed(numel)
    own, added = (torch.randn(numel, generator=draw).to(dtype) for _ in range(2))
    expected = own + added
    squares = host_sums.add(own, added, threads=threads)
    assert torch.equal(own, expected)
    assert squares == pytest.approx(float(expected.double().square().sum()), rel=1e-12)
    assert host_sums.add(own, None) == squares, "in the same order, whatever the threads"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_stays_none(dtype):
    own = torch.tensor([math.nan, 1.0, math.inf], dtype=dtype)
    assert math.isnan(host_sums.add(own, torch.ones(3, dtype=dtype)))
    assert own.isnan().tolist() == [True, False, False]
    assert own[1:].tolist() == [2.0, math.inf]
    assert host_sums.add(own[1:], None) == math.inf


def test_parts_of_larger_slabs_are_left_alone_outside():
    own = torch.zeros(10)
    host_sums.add(own[3:5], torch.ones(2))
    assert own.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]


def test_tensors_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"\(3,\) torch.float32 cannot be added to \(2,\)"):
        host_sums.add(torch.ones(2), torch.ones(3))


def test_without_a_compiler_torch_does_it(monkeypatch):
    def none(*args, **kw):
        raise native.CannotBuild("there is no compiler")

    monkeypatch.setattr(native, "load", none)
    host_sums._kernel.cache_clear()
    try:
        own = torch.arange(4.0)
        assert host_sums.add(own, torch.ones(4)) == pytest.approx(1 + 4 + 9 + 16)
        assert own.tolist() == [1.0, 2.0, 3.0, 4.0]
    finally:
        host_sums._kernel.cache_clear()
