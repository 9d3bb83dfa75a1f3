"""How soon things answer: seconds, and their ratio to what people are promised.

    python -m benchmarks.answers [pytest's arguments, such as -k sliders]

What `make bench` runs. The questions stand in tests of the same thing, as ``with answered(question,
goal_s):`` around it, which in a test does nothing: whatever else runs on a machine decides how long
anything takes there, so no test asks. Here those tests run alone, and a ratio above 1 is longer
than promised. Rows are added to a file, one a question, with how busy the machine was.
"""

import csv
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from workbench.runs import provenance

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "results" / "bench" / "answers.csv"
CLOCKS = {"wall": time.monotonic, "process": time.process_time, "thread": time.thread_time}
COLUMNS = ("when", "commit", "cores", "load", "times", "goal_s", "median_s", "most_s", "ratio")


class Answers:
    """A plugin of pytest, which tests/conftest.py hands to tests as `answered`."""

    asked = True

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, float], list[float]] = {}

    @contextmanager
    def __call__(self, question: str, goal_s: float, clock: str = "wall") -> Iterator[None]:
        began = CLOCKS[clock]()
        yield
        self.enter(question, goal_s, CLOCKS[clock]() - began)

    def enter(self, question: str, goal_s: float, seconds: float) -> None:
        """Enter what something else has measured."""
        self._seconds.setdefault((question, goal_s), []).append(seconds)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list) -> None:
        """Leave out tests that ask nothing, and be there for the others."""
        config.answers = self
        items[:] = [item for item in items if "answered" in getattr(item, "fixturenames", ())]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a table of ratios, the largest first, and keep its rows."""
        here = time.time(), provenance.gather()["commit"], os.cpu_count(), os.getloadavg()[0]
        rows = []
        for (question, goal_s), took in self._seconds.items():
            middle = median(took)
            found = (*here, len(took), goal_s, middle, max(took), middle / goal_s)
            rows.append({"question": question, **dict(zip(COLUMNS, found, strict=True))})
        terminalreporter.section(f"what was promised, seconds: median and most; rows in {ROWS}")
        for row in sorted(rows, key=lambda row: -row["ratio"]):
            told = "{ratio:7.3f} of {goal_s:8.4g}: {median_s:9.4g} {most_s:9.4g}  {question}"
            terminalreporter.write_line(told.format(**row))
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        with ROWS.open("a", newline="") as file:
            writer = csv.DictWriter(file, ["question", *COLUMNS], lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    asking = [str(path) for path in tests if "answered" in path.read_text()]
    options = ["--thorough", "-o", "timeout=900"]
    sys.exit(pytest.main([*options, *sys.argv[1:], *asking], plugins=[Answers()]))
