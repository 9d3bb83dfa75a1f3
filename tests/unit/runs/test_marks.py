"""Processes of a run are known by their environment, which is not there from their beginning."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from workbench.runs import processes
from workbench.runs.processes import MARK, environment_of, kill_marked, marked

FACTS = "7 (a (strange) name) S 1 " + " ".join(str(n) for n in range(5, 53))
"""Each field but the first four is its own number."""


@pytest.mark.parametrize(
    ("size", "end", "told", "found"),
    [
        ("4096", "0", b"", None),
        ("4096", "99", b"A=1\0", b"A=1\0"),
        ("4096", "99", b"", b""),
        ("0", "0", b"", b""),
    ],
    ids=["loading", "loaded", "nothing in it", "of the system"],
)
def test_a_program_that_is_being_loaded_is_told_from_one_without_an_environment(
    size, end, told, found, tmp_path
):
    facts = FACTS.replace(" 23 ", f" {size} ").replace(" 51 ", f" {end} ")
    (tmp_path / "stat").write_text(facts)
    (tmp_path / "environ").write_bytes(told)
    assert environment_of(tmp_path) == found


def test_it_is_asked_again_until_its_environment_is_there(monkeypatch):
    answers = [None, None]
    real = environment_of

    def slowly(process: Path) -> bytes | None:
        if process.name == str(child.pid) and answers:
            return answers.pop()
        return real(process)

    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: "slow"}) as child:
        monkeypatch.setattr(processes, "environment_of", slowly)
        found = marked("slow")
        child.kill()
    assert found == [child.pid]
    assert not answers


def test_what_was_started_at_this_very_moment_is_killed():
    for number in range(40):
        mark = f"just started {number}"
        command = ["sleep", "60"]
        with subprocess.Popen(command, env={**os.environ, MARK: mark}) as child:
            kill_marked(mark)
            assert child.wait() == -9, "it would end by itself"
