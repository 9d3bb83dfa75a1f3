"""One job on four hosts of this machine goes through what may happen to it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psutil
import pytest

from tests.elastic import hosts
from tests.runs.helpers import living, wait_for, workbench
from workbench.cli import varuna as cli_varuna

TOY = Path(__file__).with_name("toy.py")
HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4", "far"]
"""Agents of the first three are started here, that of the last one by a command."""


NOTHING = {"step": None, "ranks": {}, "events": [], "committed": None}
"""State before there is one."""


class Run(hosts.Launched):
    """A job of the toy, as a user starts it."""

    def start(self, *flags: str, inside: tuple[str, ...] = (), every: int = 10) -> None:
        self.launch(
            "--gpus_per_node", 2, "--batch_size", 9, "--nstages", 2, "--preload", "",
            "--chunk_size", 1, "--manager_ip", "127.0.0.1", "--connect",
            "env AT={host} {command}", *flags, TOY, "--steps", 100_000, "--to", self.to,
            "--every", every, inside=inside,
        )  # fmt: skip

    def state(self) -> dict:
        path = self.folder / "state.json"
        return json.loads(path.read_text()) if path.exists() else NOTHING

    def gets_on(self, *hosts: str, after: int) -> int:
        """Wait for a round after that one in which these hosts count steps; its number."""

        def counts() -> bool:
            state = self.state()
            self.remember()
            if state["step"] is None or sorted(state["ranks"]) != sorted(hosts):
                return False
            ranks = sum(map(len, state["ranks"].values()))
            there = all((self.to / f"{state['round']}-{r}.json").exists() for r in range(ranks))
            return there and state["phase"] == "running" and state["round"] > after

        wait_for(counts)
        return self.state()["round"]

    def worker(self, round: int, rank: int) -> dict:
        return json.loads((self.to / f"{round}-{rank}.json").read_text())

    def agent(self, host: str) -> int:
        """Its process: the one that was started with this output file."""
        for process in living(self.seen.values()):
            with suppress(OSError, psutil.Error):
                out = os.readlink(f"/proc/{process.pid}/fd/1")
                ours = "workbench.elastic.agent" in process.cmdline()
                if ours and out.endswith(f"agent-{host}.out"):
                    return process.pid
        raise AssertionError(f"no agent on {host}")

    def told(self, text: str) -> bool:
        return any(text in event for _, event in self.state()["events"])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.end()


def test_a_job_survives_what_happens_to_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.hosts(*HOSTS)
    run.start()
    first = run.gets_on(*HOSTS, after=0)
    about = [run.worker(first, rank) for rank in range(8)]
    assert [each["share"] for each in about] == [3, 3, 2, 2, 2, 2, 2, 2]
    assert {each["map"] for each in about} == {"0,2,4,6;1,3,5,7;"}
    assert {each["resume"] for each in about} == {None}

    os.kill(run.worker(first, 5)["pid"], signal.SIGKILL)
    second = run.gets_on(*HOSTS, after=first)
    assert run.told("rank 5 on 127.0.0.4 died")

    os.kill(run.worker(second, 2)["pid"], signal.SIGSTOP)
    third = run.gets_on(*HOSTS, after=second)
    assert run.told("rank 2 on 127.0.0.3 is stopped")

    run.hosts(*HOSTS[:3])
    fourth = run.gets_on(*HOSTS[:3], after=third)
    assert run.state()["shape"] == "2x3"
    run.hosts(*HOSTS)
    fifth = run.gets_on(*HOSTS, after=fourth)
    assert run.worker(fifth, 0)["from"] == run.worker(fifth, 0)["resume"], "a save was asked for"

    os.kill(run.agent("127.0.0.3"), signal.SIGKILL)
    left = [host for host in HOSTS if host != "127.0.0.3"]
    sixth = run.gets_on(*left, after=fifth)
    run.hosts(*left)  # else it would come back after half a minute

    folder = ("--folder", str(run.folder))
    assert workbench("varuna", "notice", "127.0.0.9", *folder).returncode == 2
    assert cli_varuna.main(["notice", "127.0.0.4", *folder]) == 0
    seventh = run.gets_on("127.0.0.2", "far", after=sixth)
    assert cli_varuna.main(["status", *folder]) == 0
    assert "shape 2x2" in capsys.readouterr().out

    saved = run.state()["committed"]
    run.manager.kill()
    run.manager.wait()
    wait_for(lambda: not living(run.seen.values()))
    kept = len(json.loads((run.to / "checkpoint.json").read_text()))
    assert kept > saved, "workers saved when the manager was gone"
    with pytest.raises(ValueError, match="no manager serves"):
        cli_varuna.main(["stop", *folder])
    run.hosts(*HOSTS)
    run.start("--resume")
    last = run.gets_on(*HOSTS, after=seventh)
    assert run.worker(last, 0)["from"] == kept

    (run.to / "enough").touch()
    assert run.manager.wait(240) == 0
    counted = json.loads((run.to / "checkpoint.json").read_text())
    assert counted == [*range(len(counted))], "each step counts once"
    resumed = (run.folder / "varuna_loss.log").read_text().splitlines()
    assert resumed[0] == "resumed to config 2x4 at step 0"
    assert len(resumed) == last


def test_a_worker_that_hangs_before_its_first_step_ends_the_round(run: Run) -> None:
    (run.to / "hang").touch()
    run.hosts("127.0.0.2")
    run.start("--start_limit", "1")
    wait_for(lambda: run.remember() or run.told("has not got on for"))
    wait_for(lambda: run.remember() or run.told("round 2: "))


def test_a_job_that_is_stopped_saves_and_ends_at_once_if_it_is_to(run: Run) -> None:
    run.hosts("127.0.0.2")
    run.start(every=10**9)
    run.gets_on("127.0.0.2", after=0)
    (run.to / "deaf-1").touch()
    stop = ["stop", "--folder", str(run.folder)]
    waits = Thread(target=cli_varuna.main, args=(stop,))
    waits.start()
    saved = wait_for(lambda: run.remember() or run.state()["committed"])
    assert len(json.loads((run.to / "checkpoint.json").read_text())) == saved
    assert run.told("all save: the job is stopped")
    assert run.manager.poll() is None, "rank 1 has not left"
    assert cli_varuna.main([*stop, "--now"]) == 0
    assert run.manager.wait(240) == 130
    waits.join()


def test_a_script_that_takes_no_profiling_is_told_so(run: Run) -> None:
    run.hosts("127.0.0.2")
    run.start("--profiling")
    assert run.manager.wait(240) == 2
    assert run.told("status 2: given --profiling=DIR, the script must run a Profiler into DIR")


@pytest.fixture
def there() -> Iterator[hosts.Hosts]:
    with hosts.some_hosts(3) as found:
        yield found


@pytest.mark.thorough
@pytest.mark.skipif(not hosts.ROOT, reason="networks of their own need root")
def test_a_host_whose_link_is_down_is_lost_and_comes_back(there: hosts.Hosts, run: Run) -> None:
    run.hosts(*there.names)
    run.start(*there.flags, inside=there.inside)
    first = run.gets_on(*there.names, after=0)
    there.link(there.names[1], "down")
    second = run.gets_on(there.names[0], there.names[2], after=first)
    assert run.told(f"{there.names[1]} is lost: silent")
    there.link(there.names[1], "up")
    run.gets_on(*there.names, after=second)
    (run.to / "enough").touch()
    assert run.manager.wait(240) == 0
    counted = json.loads((run.to / "checkpoint.json").read_text())
    assert counted == [*range(len(counted))]
