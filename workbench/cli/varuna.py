"""``workbench varuna``: a script on all slots of a list of hosts, which may come and go.

Exit codes: 0 training is done; 2 the input is wrong, and nothing was written before workers saw
that; 3 it failed; 130 it was stopped.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import isfinite
from pathlib import Path

from workbench.cli.spec import Parser
from workbench.core.files import read_whole
from workbench.core.paths import user_path
from workbench.elastic.folder import DOOR, Door, State, read_file
from workbench.elastic.manager import HostsJob, serve
from workbench.elastic.messages import LONGEST, Message, Order, pack
from workbench.elastic.placement import Shape, address_towards, fixed, in_thread, read_list
from workbench.elastic.rounds import Terms
from workbench.profile.slices import load
from workbench.runtime.checkpoint.manifest import newest_of_job

ASKS = {
    "status": "Tell how a job gets on.",
    "stop": "End a job: its workers save after the step that runs, and --resume goes on with the "
    "next one. Asked twice, they end at once.",
    "notice": "Tell a job that a host goes: all save in time, and go on without it.",
}
CODES = {"done": 0, "stopped": 130}
FAILED = 3
MOST = {"gpus_per_node": 9999, "batch_size": 10**9, "nstages": 10**6, "chunk_size": 10**9}
ANSWER_S = 60.0
"""For a manager to answer."""
CONNECT = "ssh {host} {command}"
ENV_FILE = "varuna.env"
PRELOAD = "workbench.methods.varuna.pipeline,torch._dynamo"
"""What each worker would else import to make its stage, which takes longer than the making."""
LISTED, FOLDER, PROFILES = map(Path, ("available_machines.out", "varuna-run", "profiles"))


def main(words: Sequence[str]) -> int:
    """Returns the exit code. Raises ValueError for a user's mistake."""
    if words and words[0] in ASKS:
        return _ask(words)
    return _train(make_parser().parse_args(words))


def make_parser() -> argparse.ArgumentParser:
    """Flags of a job."""
    parser = Parser(
        prog="workbench varuna",
        description="Train a script over a list of hosts that come and go, a process a slot. "
        "`workbench varuna status | stop | notice` ask a job that runs.",
    )
    add = parser.add_argument
    listed = f"a line ADDRESS or ADDRESS:SLOTS a host; changes are followed (default {LISTED})"
    add("--machine_list", type=Path, default=LISTED, metavar="FILE", help=listed)
    slots = "slots of a host whose line has no number (default 4)"
    add("--gpus_per_node", type=int, default=4, metavar="G", help=slots)
    add("--batch_size", type=int, required=True, metavar="B", help="samples of a step, in all")
    add("--nstages", type=int, metavar="P", help="pipeline stages (default: chosen by a profile)")
    micro = "samples of a micro-batch; goes with --nstages"
    add("--chunk_size", type=int, metavar="M", help=micro)
    shared = f"folder of the profile, which all hosts share (default {PROFILES})"
    add("--profiles", type=Path, default=PROFILES, metavar="DIR", help=shared)
    add("--profiling", action="store_true", help="have the script profile itself, and no more")
    add("--code_dir", type=Path, default=Path(), metavar="DIR", help="folder of the script")
    variables = f"file of lines NAME=VALUE, for workers (default {ENV_FILE}, if it is there)"
    add("--env_file", type=Path, metavar="FILE", help=variables)
    loaded = "modules that are imported once, before workers are forked"
    add("--preload", default=PRELOAD, metavar="M,M", help=loaded)
    own = "address of this machine for the hosts (default: of the interface towards them)"
    add("--manager_ip", metavar="A", help=own)
    how = f"words that run a COMMAND on a HOST, without a shell (default {CONNECT!r})"
    add("--connect", default=CONNECT, metavar="WORDS", help=how)
    when = "change stages x replicas while no host is lost: where it gains (default), always, never"
    add("--morph", choices=("always", "gain", "never"), default="gain", help=when)
    add("--no_morphing", action="store_true", help="the same as --morph never")
    gains = "seconds in which a change must pay (default: mean time between changes of hosts)"
    add("--horizon", type=float, metavar="S", help=gains)
    least = f"seconds that a worker may take to its first step (default {Order.start_limit_s:.0f})"
    add("--start_limit", type=float, default=Order.start_limit_s, metavar="S", help=least)
    add("--resume", action="store_true", help="go on with the job in --folder")
    saved = f"folder for logs, state and checkpoints, which hosts share (default {FOLDER})"
    add("--folder", type=Path, default=FOLDER, metavar="DIR", help=saved)
    script = "Python script that each worker runs, with flags such as --rank"
    add("script", type=Path, help=script)
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    return parser


def _train(given: argparse.Namespace) -> int:
    for name, most in MOST.items():
        if (value := getattr(given, name)) is not None and not 1 <= value <= most:
            raise ValueError(f"--{name} is {value}; it must be from 1 to {most}")
    for name in ("horizon", "start_limit"):
        if (value := getattr(given, name)) is not None and not 0 < value < 1e9:
            raise ValueError(f"--{name} is {value}; it must be a number of seconds over 0")
    hosts = read_list(_text(given.machine_list, "--machine_list"), given.gpus_per_node)
    if (given.nstages is None) != (given.chunk_size is None):
        raise ValueError("give both --nstages and --chunk_size, or neither")
    profiles = user_path(given.profiles).resolve()
    if given.nstages is not None:
        choose = fixed(given.nstages, given.chunk_size, given.batch_size)
        choose(sum(hosts.values()), given.gpus_per_node)  # of all hosts, one must be possible
    else:
        choose = in_thread(partial(_fastest, given.batch_size, profiles))
    try:
        connect = tuple(shlex.split(given.connect))
    except ValueError as error:
        raise ValueError(f"--connect is {given.connect!r}: {error}") from None
    if "{command}" not in connect or not any("{host}" in word for word in connect):
        raise ValueError(f"--connect is {given.connect!r}; it must hold {{host}} and {{command}}")
    code_dir = user_path(given.code_dir).resolve()
    script = code_dir / user_path(given.script)
    if not script.is_file():
        raise ValueError(f"there is no script {script}")
    order = Order(
        address=given.manager_ip or address_towards(hosts, given.machine_list, print),
        port=0, token="", host="",
        folder=str(user_path(given.folder).resolve()), code_dir=str(code_dir), script=str(script),
        arguments=tuple(given.arguments), variables=_variables(given.env_file),
        batch=given.batch_size, preload=tuple(filter(None, given.preload.split(","))),
        start_limit_s=given.start_limit,
    )  # fmt: skip
    terms = Terms(
        hosts=hosts, per_host=given.gpus_per_node, batch=given.batch_size,
        choose=None if given.profiling else choose, horizon_s=given.horizon,
        morph="never" if given.no_morphing else given.morph,
        profiling=str(profiles) if given.profiling or given.nstages is None else "",
    )  # fmt: skip
    job = HostsJob(
        machine_list=user_path(given.machine_list).resolve(), terms=terms, connect=connect,
        order=order, newest=newest_of_job,
    )  # fmt: skip
    outcome = serve(job, resume=given.resume)
    if given.profiling and outcome == "done":
        load(profiles)  # the script may have written none
    return CODES.get(outcome, FAILED)


def _fastest(batch: int, profiles: Path, slots: int, per_host: int) -> Shape:
    """The fastest shape by the profile. Raises ValueError where none fits, and OSError where there
    is no profile."""
    from workbench.methods.pipeline.slice_sizes import cut_of
    from workbench.methods.varuna.autoconfig import AutoConfig

    try:
        found = AutoConfig(slots, per_host, batch, profiles, verbose=False)
    except ValueError as error:
        raise OSError(error) from None
    stages, chunk, seconds = found.get_min()
    return Shape(
        stages=stages, replicas=found.candidates[0].replicas, chunk=chunk, seconds=seconds,
        cut=cut_of(found.stages),
    )  # fmt: skip


def _text(path: Path, flag: str) -> str:
    try:
        return read_whole(user_path(path), f"{flag} is {path}, which").decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise ValueError(f"{flag} is {path}, which cannot be read: {why}") from None


def _variables(path: Path | None) -> dict[str, str]:
    """Of the file, all its lines."""
    if path is None and not (path := Path(ENV_FILE)).exists():
        return {}
    found = {}
    for line in _text(path, "--env_file").splitlines():
        if (line := line.strip()) and not line.startswith("#"):
            name, equals, value = line.removeprefix("export ").partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(f"{path} has the line {line!r}; it must be NAME=VALUE")
            found[name] = value
    return found


def _ask(words: Sequence[str]) -> int:
    verb, *words = words
    parser = Parser(prog=f"workbench varuna {verb}", description=ASKS[verb])
    if verb == "stop":
        parser.add_argument("--now", action="store_true", help="end at once, without saving")
    elif verb == "notice":
        parser.add_argument("host", metavar="HOST", help="address of the host, as it is listed")
        parser.add_argument(
            "at", nargs="?", default="+0", metavar="AT",
            help="when it goes: +SECONDS, or a time such as 2026-11-27T15:30Z (default: now)",
        )  # fmt: skip
    parser.add_argument("--folder", type=Path, default=FOLDER, metavar="DIR", help="of the job")
    given = parser.parse_args(words)
    folder = user_path(given.folder).resolve()
    if verb == "status":
        _show(folder)
        return 0
    door = _door(folder)
    if door is None:
        raise ValueError(f"no manager serves {folder}")
    ask = Message(kind=verb, token=door.token)
    if verb == "notice":
        ask = replace(ask, host=given.host, at=_unix(given.at))
    elif given.now:
        ask = replace(ask, kind="end")
    try:
        with socket.create_connection((door.address, door.port), timeout=ANSWER_S) as line:
            line.sendall(pack(ask))
            refused = line.makefile("rb").read(LONGEST).decode(errors="replace")
    except (OSError, ValueError) as error:  # the second is of an address that can be none
        why = getattr(error, "strerror", None) or error
        raise ValueError(
            f"no manager serves {folder}: its {DOOR} names port {door.port} of {door.address}, "
            f"which does not answer ({why})"
        ) from None
    if refused:
        raise ValueError(refused)
    if verb == "stop":
        while _door(folder) is not None:
            time.sleep(0.05)
        _show(folder)
    return 0


def _door(folder: Path) -> Door | None:
    """Of the manager that serves a folder, where one does."""
    door = read_file(Door, folder)
    try:
        if door is not None:
            os.kill(door.pid, 0)
    except PermissionError:  # somebody else's process has that number
        return door
    except ProcessLookupError:
        return None
    return door


def _unix(text: str) -> float:
    """Unix time of ``+SECONDS`` or of an ISO time with its zone."""
    try:
        if text.startswith("+") and isfinite(seconds := float(text)):
            return time.time() + seconds
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write +SECONDS or 2026-11-27T15:30Z") from None
    if at.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone; write {text}Z, if it is UTC")
    return at.timestamp()


def _show(folder: Path) -> None:
    state = read_file(State, folder)
    if state is None:
        raise ValueError(f"{folder} holds no job")
    served = "" if _door(folder) else "; no manager serves it"
    print(f"round {state.round}, {state.phase}{served}")
    newest = state.committed or "none"
    print(f"shape {state.shape or 'none'}, step {state.step or 'none'}, newest checkpoint {newest}")
    for host, phase in state.hosts.items():
        ranks = ", ".join(map(str, state.ranks.get(host, ())))
        print(f"{host}  {phase}  ranks {ranks or 'none'}  spare {state.spare.get(host, 0)}")
    for at, text in state.events[-10:]:
        print(f"{time.strftime('%H:%M:%S', time.localtime(at))} {text}")
