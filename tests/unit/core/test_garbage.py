"""Nobody looks for garbage within, however it ends; who had turned the collector off keeps that."""

import gc

import pytest

from workbench.core.garbage import uncollected
from workbench.core.methods import imported


def test_the_collector_rests_until_the_block_ends(monkeypatch):
    with pytest.raises(ValueError, match="literal"), uncollected():
        int(f"the collector works: {gc.isenabled()}")
    assert gc.isenabled()
    monkeypatch.setattr("workbench.core.methods.import_module", lambda _: gc.isenabled())
    assert not imported("torch")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
