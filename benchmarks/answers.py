"""How soon things answer: seconds, and their ratio to what people are promised.

    python -m benchmarks.answers [pytest's arguments, such as -k sliders]

What `make bench` runs. The questions are functions named ``bench_*`` beside the tests of the same
thing, whose fixtures they use; no test asks how long anything takes, since whatever else runs on
the machine decides that. Above 1 it took longer than promised. Rows are added to a file, one a
question, with how busy the machine was.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from workbench.runs import provenance

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "results" / "bench" / "answers.csv"
Answered = Callable[[str, float, float], None]
"""Enters a question, the seconds that were measured, and those that are promised."""


class Answers:
    """What pytest is asked with: the fixture `answered`, whose rows end in a table and a file."""

    def __init__(self) -> None:
        self._here = provenance.gather()
        self._rows: list[dict[str, Any]] = []

    @pytest.fixture
    def answered(self) -> Answered:
        return self._enter

    def _enter(self, question: str, seconds: float, goal_s: float) -> None:
        row = {
            "question": question, "seconds": round(seconds, 6), "goal_s": goal_s,
            "ratio": round(seconds / goal_s, 3), "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2), "commit": self._here["commit"],
            "host": self._here["host"], "when": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        self._rows.append(row)
        ROWS.parent.mkdir(parents=True, exist_ok=True)
        new = not ROWS.exists()
        with ROWS.open("a", newline="") as file:
            writer = csv.DictWriter(file, [*row], lineterminator="\n")
            writer.writerows([dict(zip(row, row, strict=True)), row] if new else [row])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, the worst first."""
        terminalreporter.section(f"seconds over those promised; rows are in {ROWS}")
        for row in sorted(self._rows, key=lambda row: -row["ratio"]):
            told = "{ratio:8.3f} {seconds:9.3f} s of {goal_s:g} s: {question}".format(**row)
            terminalreporter.write_line(told)


def main(arguments: list[str]) -> int:
    """pytest's exit status: a question that could not be asked is an error, a slow answer none."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    asking = [str(path) for path in files if "\ndef bench_" in path.read_text()]
    only = ["-o", "python_functions=bench_*", "-o", "timeout=900"]
    return pytest.main([*only, *arguments, *asking], plugins=[Answers()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
