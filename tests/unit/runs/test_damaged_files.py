"""However a file in the results folder is damaged, nobody sees a traceback: what does not fit is
named, left where it is, and passed over. Damage is drawn by a seed."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.unit.figures.records import record
from tests.unit.runs.test_logs import NAME, log_of
from workbench import cli
from workbench.core.sealed import read_sealed, write_sealed
from workbench.core.spec import RunSpec
from workbench.exhibits import open_exhibit
from workbench.exhibits.harmony.fig8 import busy_shares
from workbench.profile.files import stored, write
from workbench.profile.machine import this_machine
from workbench.profile.profile import Hardware, UnitCost, Wires
from workbench.profile.store import UnitCosts, folder_of, path_of
from workbench.profile.table import Ceilings
from workbench.report.evidence import loss_table, prediction_table
from workbench.report.outcomes import Outcome, how_it_ended, load_outcomes, save_outcomes
from workbench.report.timeline import draw_gantt
from workbench.runs.campaign import Campaign, Status
from workbench.runs.events import EventLog, EventReader, steps_of
from workbench.runs.index import Index
from workbench.runs.jobfile import JobFile
from workbench.runs.logs import parse_log
from workbench.runs.overrides import make_spec
from workbench.runs.progress import Progress, describe_record
from workbench.runs.resolve import key_of, resolve
from workbench.runs.store import Store
from workbench.runs.timeline import load_timeline
from workbench.schedule.simulate import Event, Occupied
from workbench.ui.timeline.run import run_timeline
from workbench.ui.watch import SweepWatch

PARTS = [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, 10))]
SHAPE = {"layers": 4, "hidden": 32, "heads": 2, "seq": 16, "vocab": 64}
VALUES = (
    None, True, "", "x", "nan", -1, 0, 0.5, 2**70, 10**400, 1e308, float("nan"), [], [None], [1],
    {}, {"x": None}, json.loads("[" * 90 + "]" * 90), "\ud800",
)  # fmt: skip
EVENTS = (
    ("phase", {"text": "profiling"}), ("plan", {"settings": {"forward_packs": "4"}}),
    ("step", {"step": 0, "loss": 2.0, "seconds": 1.0}), ("saved", {"path": "x", "next_step": 1}),
    ("exit", {"returncode": 0, "reason": None, "oom_kills": 0}),
    ("point", {"index": 0, "key": "k", "where": "here"}),
    ("point_ended", {"index": 0, "key": "k", "status": "ok"}),
)  # fmt: skip


def damaged(text: bytes, draw: Random) -> bytes:
    """The file with one thing wrong: in its bytes, or in the JSON of it or of one of its lines."""
    at = draw.randrange(len(text))
    bit = bytes([text[at] ^ 1 << draw.randrange(8)])
    torn = [text[:at], b"", b"\xff" + text, b"[" * 100_000, text.decode("latin-1").encode("utf-16")]
    in_bytes = draw.choice([text[:at] + bit + text[at + 1 :], draw.choice(torn)])
    lines = text.splitlines() if text.count(b"\n{") > 1 else [text]
    at = draw.randrange(len(lines))
    if draw.random() < 0.3 or not lines[at].startswith(b"{"):
        return in_bytes
    inner = data = json.loads(lines[at])
    while True:
        key = draw.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        if not (isinstance(inner[key], dict | list) and inner[key]) or draw.random() < 0.2:
            break
        inner = inner[key]
    what, value, twice = draw.randrange(9), inner[key], ""
    if what < 2:
        del inner[key]
    elif what < 4 and isinstance(key, str) and key:
        inner[key[:-1] + chr(ord(key[-1]) ^ 1)] = inner.pop(key)
    elif what == 4 and isinstance(key, str):
        twice = json.dumps({key: value})[1:-1]
    else:
        number = isinstance(value, int | float) and what == 5
        inner[key] = -value if number else draw.choice(VALUES)
    data.pop("sha256", None)  # as of a version that had none: else its checksum says it all
    text = json.dumps(data)
    lines[at] = (text.replace(twice, f"{twice}, {twice}") if twice else text).encode()
    return b"\n".join(lines) + b"\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A results folder with a file of each format."""
    store = Store(tmp_path_factory.mktemp("damaged") / "results")
    session = open_exhibit("8b", "smoke", store.root)
    for spec in map(resolve, session.exhibit.specs(session.size)[:3]):
        store.write(replace(record(spec), key=key_of(spec)))
    run, spec = store.folder(key_of(spec)), make_spec({"method": "l2l", "device": "cpu", **SHAPE})
    Index(store).refresh()
    ended = Outcome(ok=False, message="no", seconds=2.0, started="2026", notebook="x.ipynb")
    save_outcomes(store, "smoke", {"8b": ended})
    campaign = Campaign.create(store, {"name": "one", "base": {"method": "l2l"}})
    campaign.go_on()
    running = {"index": 0, "key": "k", "where": "", "step": 1, "steps": 3, "loss": float("nan")}
    campaign.say(Status(state="running", running=[running], counts={"running": 1}))
    assert campaign.status().state == "interrupted"
    log = EventLog(run / "events.jsonl")
    for kind, values in EVENTS:
        log.write(kind, **values)
    assert len(EventReader(run / "events.jsonl").read()) == len(EVENTS)
    event = asdict(Event("F0.0", "F", 0, 0, 0, "compute", 5, 1.0, 1.5))
    told = {"schedule": "s", "source": "measured", "events": [event, event], "predicted": [event]}
    moving = [("device", 0, {"F0.0": (1, 1)})]
    memory = Occupied(budgets={}, always=[("host", 0, 1)], changes=moving)
    told["memory"] = asdict(memory)
    write_sealed(run / "timeline.json", told)
    write_sealed(run / "spec.json", spec.to_dict())
    JobFile(key="k", module="m", started="now", mark="x", timeout_s=3.0, resume=False,
            provenance={"command": ["a"]}).save(run)  # fmt: skip
    machine, rates = this_machine("cpu"), ("h2d", "d2h", "host_adam_params", "device_adam_params")
    hardware = Hardware(
        name="made up", source="measured", device="cpu", cores=4, device_bytes=2**33,
        host_bytes=2**34, matmul_flops_per_s=1e11, slowdowns={"compute|h2d": 1.2},
        **{f"{rate}_bytes_per_s".replace("params_bytes", "params"): 1e9 for rate in rates},
        wires=Wires(ranks=2, load_bytes_per_s=1e9, store_bytes_per_s=1e9, message_bytes_per_s=1e9,
                    reduce_bytes_per_s=1e9, message_latency_s=1e-4, slowdowns={"h2d|d2h": 1.5}),
    )  # fmt: skip
    unit = UnitCost(kind="block", parameters=1, forward_s=1e-3, recompute_s=1e-3, backward_s=2e-3)
    kinds = {kind: replace(unit, kind=kind) for kind in ("embedding", "block", "head")}
    order = ("embedding", *["block"] * 4, "head")
    measured = {
        folder_of(store.root, machine) / "hardware.json": Ceilings(machine=machine, figures=(),
            hardware=hardware, measured="", seconds=1.0, others=0.0),
        path_of(spec, store.root, machine, "units", 4, "fp32", "auto"): UnitCosts(machine=machine,
            costs=kinds, order=order, measured="", probe_s=1.0, library_bytes=0),
    }  # fmt: skip
    for path, found in measured.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, asdict(found))
    (run / NAME).write_text(log_of(3.0, None, 2.5))
    mine = ("record.json", "events.jsonl", "timeline.json", "spec.json", "job.json")
    return {path.name: path for path in (
        *measured, store.root / ".index.sqlite", store.root / "reports/smoke/exhibits.json",
        *(campaign.folder / f"{name}.json" for name in ("state", "order", "sweep")), run / NAME,
        *(run / name for name in mine))}  # fmt: skip


def read_records(store: Store, path: Path, run: Path) -> None:
    """As tables, the page and exhibits do."""
    listed = [found.key for found in store.records()]
    named = {path} if path.name == "record.json" and path.parent.name not in listed else set()
    index = Index(store)
    assert [row["key"] for row in index.rows()] == listed == list(store.table()["key"])
    assert index.problems.keys() == store.problems.keys() == named
    for found in store.records():
        assert describe_record(found)
        assert found.to_json()
    if len(path.read_bytes()) % 4:  # every fourth time, since that takes longer
        return
    session = open_exhibit("8b", "smoke", store.root)
    records = session.records()
    session.exhibit.rows(records), loss_table(records), prediction_table(records)


def read_others(store: Store, path: Path, run: Path) -> None:
    """As sweeps, reports and plans do; readers whose ValueError somebody shows may raise one."""
    for outcome in load_outcomes(store, "smoke").values():
        assert how_it_ended(outcome, "none")
    watch = SweepWatch(Campaign(store, "one"))
    watch.look(), watch.campaign.orders(), watch._mark_running()
    events = EventReader(run / "events.jsonl").read()
    steps_of(events)
    progress = Progress(io.StringIO(), RunSpec(method="l2l"))
    for event in events:
        progress.on_event(event)
    found = store.find(run.name)
    busy_shares(found, store), draw_gantt([found], store)
    for read in (
        lambda: RunSpec.from_dict(read_sealed(run / "spec.json", "it")), lambda: JobFile.load(run),
        lambda: run_timeline(store, run.name),
        lambda: parse_log((run / NAME).read_text(errors="replace"), NAME),
    ):  # fmt: skip
        with suppress(ValueError):
            read()
    if "profiles" not in path.parts:
        return
    words = [word for name, value in SHAPE.items() for word in (f"--{name}", str(value))]
    words += ["-m", "l2l", "--device", "cpu", "--results", str(store.root)]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert cli.main(["plan", *words]) in (0, 1, 2)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("read", "count"), [(read_records, 180), (read_others, 40)])
def test_a_damaged_file_is_no_traceback(files, part, read, count) -> None:
    draw, store = Random(part), Store(files["record.json"].parents[2])
    others = [name for name in files if name not in ("record.json", ".index.sqlite")]
    for _ in range(count):
        own = draw.choice(["record.json"] * 9 + [".index.sqlite"])
        path = files[own if read is read_records else draw.choice(others)]
        text = path.read_bytes()
        path.write_bytes(damaged(text, draw))
        try:
            read(store, path, files["record.json"].parent)
        finally:
            path.write_bytes(text)


def test_no_flipped_bit_is_taken_for_what_was_written(files) -> None:
    record_, run = files["record.json"], files["record.json"].parent
    draw, store, machine = Random(1), Store(run.parents[1]), this_machine("cpu")
    campaign, kinds = Campaign(store, "one"), {"hard": Ceilings, "unit": UnitCosts}
    reads = {
        "record.json": lambda: store.find(run.name), "timeline.json": lambda: load_timeline(run),
        "exhibits.json": lambda: load_outcomes(store, "smoke"), "order.json": campaign.orders,
        "state.json": lambda: vars(campaign.status()) | {"text": ""},
        "sweep.json": lambda: campaign.data, "job.json": lambda: JobFile.load(run),
        "events.jsonl": lambda: EventReader(run / "events.jsonl").read(),
    } | {
        name: partial(stored, path, machine, kinds[name[:4]], lambda line: None)
        for name, path in files.items() if name[:4] in kinds
    }  # fmt: skip
    for name, read in reads.items():
        whole, before = files[name].read_bytes(), read()
        assert before not in (None, {}, [])
        for at in draw.sample(range(len(whole)), 60):
            bit = bytes([whole[at] ^ 1 << draw.randrange(8)])
            files[name].write_bytes(whole[:at] + bit + whole[at + 1 :])
            with suppress(ValueError):
                found = read()
                if name == "events.jsonl" and len(before) - 2 <= len(found) < len(before):
                    found = None if all(event in before for event in found) else found
                assert found in (None, {}, vars(Status())), name
            assert name != "record.json" or record_ in store.problems
        files[name].write_bytes(whole)
