"""Measures the units of a model on this machine: seconds and bytes of every compute action.

Units of one kind cost the same. Of a decoder a small step will do: the embedding, a few blocks, the
head, with the slabs that the engine of a single device has, so that each pass finds the caches full
of others' data, as it will. Any other model may have dozens of kinds of units: each runs alone, as
a rank would run it. Other ways to run a unit's passes are measured besides (variants.py).

A step that would take too long here (a published size on a laptop) is timed on fewer tokens,
twice, and the line through the two is drawn on to the size asked for: what depends on the weights
alone, such as adding up their gradients, does not grow with the tokens. The profile says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from workbench.profile.alone import Alone, Setting
from workbench.profile.bench import timed, torch_device
from workbench.profile.footprint import Standing, footprints, give_back_workspaces, library_bytes_of
from workbench.profile.loads import Product, device_adam_load
from workbench.profile.profile import Hardware
from workbench.profile.timing import TRIES, Sample, Timing, quietest, sample, summarize
from workbench.profile.units import UnitCost
from workbench.runtime.executor.threads import cpu_threads, use_device_threads
from workbench.runtime.memory.device_budget import DeviceMeter, device_meter
from workbench.runtime.memory.storage import DTYPES

BLOCKS = 6
"""Blocks in the small step."""
FEW_BLOCKS = 2
"""Blocks where more would take too long; a large one fills the caches by itself."""
STEP_SECONDS = 1.5
"""Longest small step that is timed at full size."""
REDUCED_STEP_SECONDS = 0.8
LEAST_TOKENS = 64
"""Fewest tokens a step is reduced to; half of them for the second timing."""
PROBE_SECONDS = 0.1
STEPS, REDUCED_STEPS = 4, 2
"""Fewest timed steps, after one that warms up."""
KIND_SECONDS, KIND_STEPS = 0.45, {"least": 3, "most": 50}
"""About what the timing of one kind by itself takes, and its rounds of passes."""

Timings = Mapping[tuple[str, str], Timing]
"""(kind, phase) -> timing."""


def unit_costs(
    setting: Setting, hardware: Hardware, seconds: float = 1.0
) -> tuple[dict[str, UnitCost], int, str]:
    """Cost by kind of a decoder's unit on this machine, the device bytes libraries keep, and a
    sentence on what was scaled (empty if nothing was); `seconds` is about what the timed steps take
    in all."""
    small, blocks = _affordable(setting, hardware)
    reduced = small is not setting
    least, tries = (REDUCED_STEPS, 1) if reduced else (STEPS, TRIES)
    timings: list[Timings] = []
    parts = [small, _half(small)] if reduced else [setting]
    with metered(setting.device) as meter:
        for part in parts:
            units = [Alone(part, unit, meter, slabs=True) for unit in setting.units(blocks)]
            timings.append(_timings(units, seconds, least=least, tries=tries))
            del units
    fake = setting.device.type == "cpu" and reduced  # else it has just been run for real
    nbytes, library_bytes = footprints(setting, fake=fake)
    costs = {
        kind: _cost(setting, unit, [*zip(parts, timings, strict=True)], nbytes[kind])
        for unit in setting.units()
        for kind in [setting.model.kind(unit)]
    }
    note = "" if not reduced else (
        f"compute was timed on {small.samples} x {small.seq} tokens and drawn on to "
        f"{setting.samples} x {setting.seq}, which would take too long to time on this machine"
    )  # fmt: skip
    return costs, library_bytes, note


def kind_costs(
    setting: Setting, tell: Callable[[int, int], None] = lambda done, count: None
) -> tuple[dict[str, UnitCost], int]:
    """Cost by kind of any model's unit, each kind by itself, and the bytes beside all units
    (`Standing`); `tell` is told how many kinds are measured, of how many."""
    costs: dict[str, UnitCost] = {}
    with metered(setting.device) as meter:
        standing = Standing(setting, meter)
        for unit in setting.units():
            alone = Alone(setting, unit, meter)
            nbytes = alone.weighed()
            timings = _timings([alone], KIND_SECONDS, tries=1, **KIND_STEPS)
            costs[alone.kind] = _cost(setting, unit, [(setting, timings)], nbytes)
            standing.see(alone)
            del alone
            tell(len(costs), len(setting.units()))
        return costs, standing.nbytes()


@contextmanager
def metered(device: torch.device) -> Iterator[DeviceMeter]:
    """The device's meter and threads for what is measured; libraries' workspaces are given back
    before, since what was timed earlier in this process took some, and after."""
    use_device_threads(device.type)
    with device_meter(device) as meter:
        library_bytes_of(meter)
        yield meter
        library_bytes_of(meter)


def _timings(units: Sequence[Alone], seconds: float, *, tries: int, **rounds: int) -> Timings:
    """Timings of steps over units in a row that go on for `seconds`."""
    phases = [(unit.kind, unit.phases()) for unit in units]
    steps = [(kind, "forward", actions.pop("forward")) for kind, actions in phases]
    steps += [(kind, *phase) for kind, actions in reversed(phases) for phase in actions.items()]
    actions, device = [action for *_, action in steps], units[0].device
    taken, others = quietest(lambda: timed(actions, device, seconds=seconds, **rounds), tries=tries)
    samples: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for (kind, phase, _), each in zip(steps, taken, strict=True):
        samples[kind, phase] += each
    return {key: summarize(values, others) for key, values in samples.items()}


def _cost(
    setting: Setting, unit: int, timings: Sequence[tuple[Setting, Timings]],
    nbytes: Mapping[str, int],
) -> UnitCost:  # fmt: skip
    """The cost of a unit, from timings of the whole micro-batch or of parts of it."""
    kind, flops, (_, first) = setting.model.kind(unit), setting.flops(unit), timings[0]

    def took(phase: str) -> float:
        points = [(part.flops(unit), own[kind, phase].seconds) for part, own in timings]
        return _extrapolated(points, flops)

    def once(phase: str) -> float:
        return first[kind, phase].seconds if (kind, phase) in first else 0.0

    return UnitCost(
        kind=kind,
        parameters=setting.model.unit_parameters(unit),
        forward_s=took("forward"),
        recompute_s=took("recompute" if (kind, "recompute") in first else "forward"),
        backward_s=took("backward"),
        gradient_s=once("gradient"),
        gradient_copy_s=once("copy"),
        spread=first[kind, "backward"].spread,
        flops=flops,
        **nbytes,
    )


def _extrapolated(points: list[tuple[float, float]], flops: float) -> float:
    """Seconds at `flops` on the line through (flops, seconds); a single point is at full size."""
    flops_1, seconds_1 = points[0]
    if len(points) == 1:
        return seconds_1
    flops_2, seconds_2 = points[1]
    slope = max(0.0, seconds_1 - seconds_2) / (flops_1 - flops_2)
    return seconds_1 + slope * (flops - flops_1)


def probe(device: str, dtype: str) -> float:
    """Seconds of one matrix product, which tell whether the machine still is what it was: shared
    ones are slower by a fifth for minutes when their neighbours are at work."""
    target = torch_device(device)
    with Product(target, DTYPES[dtype]) as load:
        seconds = sample(load.once, seconds=PROBE_SECONDS).seconds
    give_back_workspaces(target)
    use_device_threads(target.type)
    return seconds


def update_rate(device: str) -> float:
    """Parameters that AdamW updates in a second, where they stay on the device."""
    target = torch_device(device)
    with device_adam_load(target, cpu_threads(target.type).compute) as load:
        load.once()
        return load.amount / sample(load.once, seconds=PROBE_SECONDS).seconds


def _affordable(setting: Setting, hardware: Hardware) -> tuple[Setting, int]:
    """The setting, if a small step of it is short enough, else the largest part that is; and of how
    many blocks."""

    def seconds(part: Setting, blocks: int) -> float:
        # Forward, recomputation, and a backward pass of two forward passes.
        flops = sum(4 * part.flops(unit) for unit in part.units(blocks))
        return flops / hardware.matmul_flops_per_s

    for blocks in (BLOCKS, FEW_BLOCKS):
        if seconds(setting, blocks) <= STEP_SECONDS:
            return setting, blocks
    part = _half(setting)
    while seconds(part, 1) > REDUCED_STEP_SECONDS and part.samples * part.seq > LEAST_TOKENS:
        part = _half(part)
    return part, 1


def _half(setting: Setting) -> Setting:
    """Half the samples, or half the tokens of one."""
    rows, seq = setting.samples, setting.seq
    rows, seq = (rows // 2, seq) if rows > 1 else (1, seq // 2)
    *inputs, targets = (each[:rows, :seq] for each in (*setting.inputs, setting.targets))
    return replace(setting, inputs=tuple(inputs), targets=targets, seq=seq)
