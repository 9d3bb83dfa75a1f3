"""Prints at the end of the tests how many processor seconds each folder took, its processes among
them: on two cores these, and no clock, say how long the tests take."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Generator

import pytest

BEGAN = pytest.StashKey[float]()
NAME = "processor seconds"


def _spent() -> float:
    """Seconds of this process, of its children that have ended, and of processes forked for it."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in both)
    if (server := sys.modules.get("tests.forks.server")) is not None:
        seconds += server.spent()
    return seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGAN] = _spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when == "teardown" and BEGAN in item.stash:
        item.user_properties.append((NAME, _spent() - item.stash[BEGAN]))
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    folders: Counter[str] = Counter()
    for report in (each for some in terminalreporter.stats.values() for each in some):
        if getattr(report, "when", "") == "teardown":
            folder = report.nodeid.partition("::")[0].rpartition("/")[0]
            folders[folder] += dict(report.user_properties).get(NAME, 0)
    if folders.total() > 60:
        terminalreporter.section(f"{NAME}: {folders.total():.0f}")
        for folder, seconds in folders.most_common():
            terminalreporter.write_line(f"{seconds:7.0f} {folder}")
