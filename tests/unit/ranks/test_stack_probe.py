"""Which rank hangs, read from the stacks of all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workbench.ranks import stack_probe

ANSWER = """Current thread 0x00007f (most recent call first):
  File "{}", line 12 in innermost
  File "/home/me/baselines/pipeline.py", line 90 in _step
"""
ASKED = """
import sys, time
from pathlib import Path
from workbench.ranks.stack_probe import answer_from
answer_from(Path(sys.argv[1]), int(sys.argv[2]))
def waits_a_while():
    print("ready", flush=True); time.sleep(60)
waits_a_while()
"""


@pytest.mark.parametrize(
    ("path", "suspicion", "words"),
    [
        ("/lib/torch/distributed/c10d.py", 0, "waits in innermost (c10d.py, line 12)"),
        ("/lib/torch/autograd/graph.py", 1, "is in innermost (graph.py, line 12)"),
        ("/home/me/model.py", 2, "is in innermost (model.py, line 12)"),
    ],
)
def test_who_waits_for_others_is_less_suspect(path, suspicion, words):
    state = stack_probe.state_of(ANSWER.format(path))
    assert (state.suspicion, state.words) == (suspicion, words)


def test_who_does_not_answer_is_most_suspect():
    assert stack_probe.state_of("") == stack_probe.RankState(3, "does not answer")


def test_who_cannot_answer_yet_is_not_ended_by_the_question(tmp_path: Path):
    with subprocess.Popen(["sleep", "60"]) as importing:
        told = stack_probe.where(tmp_path, [importing])
        assert importing.poll() is None
        importing.kill()
    assert told == "rank 0 hangs: it is still importing"


def test_processes_answer_where_they_are(tmp_path: Path, root: Path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ASKED, str(tmp_path), str(rank)], cwd=root,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout.readline() == b"ready\n"
        told = stack_probe.where(tmp_path, ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert told == (
        "rank 0 hangs: it is in waits_a_while (<string>, line 7); "
        "rank 1 is in waits_a_while (<string>, line 7)"
    )
