"""No test asks how long anything takes: `make bench` does (benchmarks/answers.py)."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time")
LIMIT = {"wait_for": 2, "wait": 1, "join": 1, "communicate": 2, "wait_procs": 2}
"""Calls that wait, and with how many arguments the last one says for how long."""
LEAST_S = 60
"""A limit that only ends a hang may be as long as this: longer than a busy machine does."""


def reads_a_clock(node: ast.AST) -> bool:
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(ast.unparse(function).endswith(CLOCKS) for function in calls)


def asked(code: str) -> Iterator[int]:
    """Lines that assert what a clock told, or give up too early."""
    nodes, took = [*ast.walk(ast.parse(code))], set()
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            took |= {ast.unparse(node.targets[0])} if reads_a_clock(node.value) else set()
    for node in nodes:
        if isinstance(node, ast.Assert):
            names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
            if reads_a_clock(node.test) or names & took:
                yield node.lineno
        elif isinstance(node, ast.Call):
            count = LIMIT.get(ast.unparse(node.func).rpartition(".")[2])
            given = node.args[-1:] if len(node.args) == count else []
            given = [*given, *(k.value for k in node.keywords if count)]
            for limit in (n.value for n in given if isinstance(n, ast.Constant)):
                if type(limit) in (int, float) and 0 < limit < LEAST_S:
                    yield node.lineno


def test_no_test_asks() -> None:
    for code in ("assert monotonic() - a < 2", "wait_for(lambda: b, 20)", "p.wait(timeout=5)"):
        assert [*asked(code)], "else this test could not fail"
    assert [*asked("a = monotonic() - b\nassert a < 2")]
    files = {*TESTS.rglob("*.py")} - {TESTS / "runs" / "helpers.py"}  # which ends what hangs
    found = {path: [*asked(path.read_text())] for path in files}
    assert not {path: lines for path, lines in found.items() if lines}
