"""The timer behind the widgets."""

from __future__ import annotations

import asyncio

import pytest

from workbench.ui.ticker import Ticker


def test_it_ticks_in_a_running_loop_until_there_is_nothing_to_do() -> None:
    seen = []

    async def watch() -> None:
        ticker = Ticker(0.001, lambda: seen.append(1) or len(seen) < 3)
        ticker.start()
        ticker.start()
        while ticker.ticking:
            await asyncio.sleep(0.001)

    asyncio.run(watch())
    assert len(seen) == 3


def test_stopped_it_ticks_no_more() -> None:
    seen = []

    async def watch() -> None:
        ticker = Ticker(0.001, lambda: seen.append(1))
        ticker.start()
        await asyncio.sleep(0.02)
        ticker.stop()
        count = len(seen)
        await asyncio.sleep(0.02)
        assert len(seen) == count > 0

    asyncio.run(watch())


def test_without_a_loop_it_is_ticked_by_hand() -> None:
    seen = []
    ticker = Ticker(0.001, lambda: seen.append(1))
    ticker.start()
    assert not ticker.ticking
    assert ticker.tick()
    assert seen == [1]


def test_an_error_is_told_once_and_ends_it() -> None:
    told = []

    def broken() -> None:
        raise OSError("the disk is gone")

    async def watch() -> None:
        ticker = Ticker(0.001, broken, told.append)
        ticker.start()
        await asyncio.sleep(0.02)
        assert not ticker.ticking

    asyncio.run(watch())
    assert [str(error) for error in told] == ["the disk is gone"]
    with pytest.raises(OSError, match="the disk is gone"):
        Ticker(1, broken).tick()
