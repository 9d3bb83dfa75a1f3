"""Measures what this machine can do at best, with real work: the ceilings of every plan.

Rates of each lane alone (the link, AdamW on either side, the matrix product, the disk); what it
costs to start a transfer or an action, the latter taken from the runtime's own executor on a chain
of actions that do nothing; and the interference table (interference.py).

Without a GPU the link is a copy from one place of host memory to another by the lane's thread, both
directions being the same work, and compute gets half of the cores (runtime/executor/threads.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from workbench.profile.bench import torch_device
from workbench.profile.interference import crowd, interference, sharing
from workbench.profile.loads import (
    Copy,
    Disk,
    Layer,
    Load,
    Product,
    device_adam_load,
    host_adam_load,
)
from workbench.profile.machine import this_machine
from workbench.profile.profile import Hardware
from workbench.profile.table import Ceilings, Echo, Table
from workbench.profile.timing import (
    BRIEF,
    Sample,
    brief,
    quietest,
    repeat_together,
    sample,
    summarize,
)
from workbench.runtime.executor.executor import Executor
from workbench.runtime.executor.threads import cpu_threads, use_device_threads
from workbench.runtime.memory.disk import DiskStore
from workbench.runtime.updates import host_adam
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST, Action, Kind
from workbench.schedule.schedule import Schedule

BETTER = 1.05
"""Fewer threads than the rule allows do host updates when they are faster by this factor."""

HOST_COPY = "host memory copy, all host threads"
FEW = 16
"""Tokens of a product that takes long."""
UNSTEADY_STEPS, STEADY_STEPS = 2, 4
"""Steps of a chain of actions: not timed, and timed."""


def measure_ceilings(
    device: str = "auto",
    *,
    folder: Path,
    echo: Echo = lambda line: None,
    seconds: float = 0.25,
    disk: bool = True,
) -> Ceilings:
    """Measure everything; `folder` is where the disk tier would lie, a timing takes `seconds`.
    Without `disk` it is measured alone and not beside other lanes, which is most of the pairs.

    Raises ValueError for a device that is not there, or a folder that cannot hold a file.
    """
    machine = this_machine(device)
    target = torch_device(machine.device)
    begin = time.perf_counter()
    table = _table(echo, seconds)
    device_bytes, host_bytes = machine.tiers()
    with ExitStack() as stack:
        lanes = _lanes(target, folder, stack, table)
        h2d, d2h = _link(target, lanes, table)
        adam_threads, host_adam_rate = _host_adam(target, table)
        device_adam_rate = _device_adam(target, table)
        flops = {dtype: _product(target, dtype, table) for dtype in (torch.float32, torch.bfloat16)}
        hardware = Hardware(
            name=machine.name,
            source="measured",
            device=machine.device,
            cores=machine.cores,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            h2d_bytes_per_s=h2d,
            d2h_bytes_per_s=d2h,
            host_adam_params_per_s=host_adam_rate,
            device_adam_params_per_s=device_adam_rate,
            matmul_flops_per_s=flops[torch.float32 if target.type == "cpu" else torch.bfloat16],
            host_copy_bytes_per_s=table.value(HOST_COPY),
            disk_write_bytes_per_s=_rate("disk write", lanes[DISK_OUT], "B/s", table),
            disk_read_bytes_per_s=_rate("disk read", lanes[DISK_IN], "B/s", table),
            adam_threads=adam_threads,
            link_latency_s=_latency(target, table),
            action_overhead_s=_overhead(target, table),
            slowdowns=_slowdowns(target, lanes if disk else _no_disk(lanes), adam_threads, table),
        )
    use_device_threads(machine.device)
    return Ceilings(
        machine=machine,
        hardware=hardware,
        figures=tuple(table.figures),
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.perf_counter() - begin,
        others=table.others,
        notes=tuple(table.notes),
    )


def with_disk(found: Ceilings, *, folder: Path, echo: Echo, seconds: float) -> Ceilings:
    """Return `found` and how its disk and other lanes slow each other. Nothing else is measured
    again: each factor is of rates of a moment before. Raises ValueError as `measure_ceilings`."""
    target, hardware = torch_device(found.machine.device), found.hardware
    begin, table = time.perf_counter(), _table(echo, seconds)
    with ExitStack() as stack:
        lanes, known = _lanes(target, folder, stack, table), hardware.slowdowns
        slowdowns = known | _slowdowns(target, lanes, hardware.adam_threads, table, known)
    use_device_threads(found.machine.device)
    return replace(
        found,
        hardware=replace(hardware, slowdowns=slowdowns),
        figures=(*found.figures, *table.figures),
        seconds=found.seconds + time.perf_counter() - begin,
        others=max(found.others, table.others),
        notes=tuple(dict.fromkeys((*found.notes, *table.notes))),
    )


def _table(echo: Echo, seconds: float) -> Table:
    return Table(
        echo=echo,
        seconds=seconds,
        notes=[f"timings were brief: {BRIEF} was set"] if brief() else [],
    )


def _no_disk(lanes: dict[str, Load]) -> dict[str, Load]:
    return {lane: load for lane, load in lanes.items() if lane not in (DISK_IN, DISK_OUT)}


def _rate(name: str, load: Load, unit: str, table: Table) -> float:
    """Enter and return the rate of a load alone."""
    return table.enter(name, sample(load.once, seconds=table.seconds), unit, load.amount)


def _lanes(device: torch.device, folder: Path, stack: ExitStack, table: Table) -> dict[str, Load]:
    """The work of every lane but the host's, whose threads are not chosen yet."""
    store = stack.enter_context(DiskStore(folder))
    if not store.direct:
        table.notes.append("the disk has no direct I/O: its figures are the page cache's")
    lanes = {
        COMPUTE: Layer(device),
        H2D: Copy(device, to_device=True),
        D2H: Copy(device, to_device=False),
        DISK_OUT: Disk(store, write=True),
        DISK_IN: Disk(store, write=False),
    }
    for load in lanes.values():
        stack.enter_context(load)
    return lanes


def _link(device: torch.device, lanes: dict[str, Load], table: Table) -> tuple[float, float]:
    """Host to device and back, alone; then both at once, and from memory that is not pinned."""
    up, down = lanes[H2D], lanes[D2H]
    h2d = _rate("host to device", up, "B/s", table)
    d2h = _rate("device to host", down, "B/s", table)
    samples, others = quietest(lambda: repeat_together(up.once, down.once, seconds=table.seconds))
    there, back = (summarize(way, others) for way in samples)
    both = up.amount / there.seconds + down.amount / back.seconds
    spread = max(there.spread, back.spread)
    table.add("both ways at once", both, "B/s", spread=spread, others=others)
    if device.type == "cuda":
        with Copy(device, to_device=True, pin=False) as load:
            _rate("host to device, pageable", load, "B/s", table)
    with Copy(torch.device("cpu"), to_device=True) as load:
        load.threads = cpu_threads(device.type).host
        _rate(HOST_COPY, load, "B/s", table)
    return h2d, d2h


def _host_adam(device: torch.device, table: Table) -> tuple[int, float]:
    """The number of threads for a host update, and its rate with them."""
    most = cpu_threads(device.type).host
    rates = {}
    with host_adam_load(device, most) as load:
        for threads in sorted({*(2**k for k in range(most.bit_length())), most}):
            name = f"host AdamW, {host_adam.backend()}, {threads} thread{'s' * (threads > 1)}"
            rates[threads] = _rate(name, load.by(threads), "params/s", table)
    best = max(rates, key=rates.__getitem__)
    if rates[best] < BETTER * rates[most]:
        best = most
    return best, rates[best]


def _device_adam(device: torch.device, table: Table) -> float:
    with device_adam_load(device, cpu_threads(device.type).compute) as load:
        return _rate("device AdamW", load, "params/s", table)


def _product(device: torch.device, dtype: torch.dtype, table: Table) -> float:
    """The rate; of a few tokens where a processor lacks the dtype and takes 100 times as long."""
    with Product(device, dtype, FEW) as load:
        load.once()
        slow = load.once().wall > table.seconds / 5
    with Product(device, dtype, FEW if slow else 0) as load:
        return _rate(f"matrix product, {str(dtype).removeprefix('torch.')}", load, "FLOP/s", table)


def _latency(device: torch.device, table: Table) -> float:
    """Seconds that a transfer of one page takes."""
    with Copy(device, to_device=True, nbytes=4096) as load:
        return table.enter("latency of a transfer", sample(load.once, seconds=table.seconds / 2))


def _overhead(device: torch.device, table: Table, length: int = 100) -> float:
    """Seconds per action of a chain that goes back and forth between two lanes of the executor.

    Of steps that follow on others: the first has threads to start, and the executor has garbage
    collected after it, which costs a second and belongs to no action.
    """
    actions: list[Action] = []
    for unit in range(length):
        for kind, lane, micro in ((Kind.LOAD, H2D, None), (Kind.FORWARD, COMPUTE, 0)):
            after = (actions[-1].name,) if actions else ()
            actions.append(Action(kind=kind, unit=unit, lane=lane, microbatch=micro, after=after))
    chain = Schedule(name="chain", num_units=length, num_microbatches=1, actions=tuple(actions))

    def once() -> Sample:
        ends: list[float] = []
        executor = Executor(
            chain, lambda *_: None, device, on_step_end=lambda _, end_s: ends.append(end_s)
        )
        executor.run(0, UNSTEADY_STEPS + STEADY_STEPS)
        seconds = (ends[-1] - ends[UNSTEADY_STEPS - 1]) / STEADY_STEPS / len(actions)
        return Sample(seconds, seconds)

    return table.enter("overhead of an action", sample(once, seconds=table.seconds / 2))


def _slowdowns(
    device: torch.device,
    lanes: dict[str, Load],
    threads: int,
    table: Table,
    known: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The interference table, with one host worker and with two, and on a GPU of all that meets at
    the host's memory; of a table that is `known`, the pairs that it lacks."""
    halves = max(1, threads // 2)
    with host_adam_load(device, threads) as alone, host_adam_load(device, halves) as second:
        twins = {H2D: D2H} if device.type == "cpu" else {}
        slowdowns = interference({**lanes, HOST: alone}, table, twins=twins, known=known or ())
        if known:
            return slowdowns
        slowdowns[f"{HOST}|{HOST}"] = sharing(alone, alone.by(halves), second, table)
        if device.type != "cpu":  # without a GPU the device is in the same memory
            slowdowns |= crowd({HOST: alone, H2D: lanes[H2D], D2H: lanes[D2H]}, table)
    return slowdowns
