"""Measurements kept on disk, and used again only where they hold.

    RESULTS/profiles/<device class>/hardware.json      the ceilings of the machine
    RESULTS/profiles/<device class>/units-<key>.json   costs of a model's units at one micro-batch
    RESULTS/profiles/<device class>/limits-<key>.json  sizes of micro-batches (limits.py)
    RESULTS/profiles/<device class>/wires-<ranks>.json links of several ranks, all in use, and what
                                                       passes take where they share a processor;
                                                       a file for each setting of NCCL's variables

Unit costs do not depend on the depth of the model, so a sweep over layers measures once. Every
file says which machine it was measured on; on another one (another processor, GPU, number of cores
or version of torch) it is not used, and the caller hears why. Files are written whole or not at
all. One process measures at a time: two at once would measure each other.

Nothing here imports torch until something is measured, so a stored profile answers at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core.model_spec import DOCUMENTS
from workbench.core.others import read, shares
from workbench.core.record import BUSY
from workbench.core.sources import by_content
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.profile.files import FORMAT, kept, now, seconds_since, stored
from workbench.profile.machine import Machine, this_machine
from workbench.profile.match import check_profile
from workbench.profile.profile import Hardware, Profile, Wires
from workbench.profile.table import Ceilings, Echo
from workbench.profile.units import UnitCost

if TYPE_CHECKING:
    from workbench.profile.alone import Setting

DRIFT = 0.1
"""Change of the machine's speed past which costs are measured anew before a run."""
FRESH_S = 300.0
"""For so long costs hold whatever the machine's speed, longer than any start has taken. A GPU that
has rested is faster for a while (an H200 by 14 %): a start that chooses among micro-batches would
measure again what it has measured itself."""


def silent(line: str) -> None:
    """Hears and says nothing."""


@dataclass(frozen=True, kw_only=True)
class UnitCosts:
    """Costs of one model's kinds of units."""

    machine: Machine
    costs: dict[str, UnitCost]
    """By kind of unit."""
    order: tuple[str, ...]
    """The kind of every unit of the model."""
    measured: str
    probe_s: float
    """A matrix product, timed just before."""
    library_bytes: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class MeasuredWires:
    """Links of several ranks, and of what machine."""

    machine: Machine
    wires: Wires


def folder_of(results: Path, machine: Machine) -> Path:
    """Where the measurements of this class of device lie."""
    return results / "profiles" / machine.folder


def ceilings(
    results: Path,
    device: str = "auto",
    echo: Echo = silent,
    *,
    measure: bool = True,
    fresh: bool = False,
    seconds: float = 0.25,
    disk: bool = False,
) -> Ceilings | None:
    """The machine's ceilings: stored ones that hold here, else (`measure`) measured now and stored.

    `fresh` measures in any case; `seconds` is the length of one timing. `disk` asks for how the
    disk and other lanes slow each other: where stored ceilings lack that, it alone is measured, or
    still lacks where nothing may be measured. None when nothing is stored and nothing may be
    measured. Raises ValueError where results cannot be written.
    """
    machine = this_machine(device)
    path = folder_of(results, machine) / "hardware.json"

    def holds(found: Ceilings) -> bool:
        return not fresh and (found.hardware.knows_disk or not disk)

    found = None if fresh else stored(path, machine, Ceilings, echo)
    if not measure or (found is not None and holds(found)):
        return found

    def measured() -> Ceilings:
        from workbench.profile.ceilings import measure_ceilings, with_disk

        # Another process may have measured while this one waited.
        found = None if fresh else stored(path, machine, Ceilings, silent)
        if found is not None:
            echo(f"measuring the disk of {machine.name} beside its other lanes")
            return with_disk(found, folder=path.parent, echo=echo, seconds=seconds)
        echo(f"measuring the ceilings of {machine.name}{', with its disk' if disk else ''}")
        return measure_ceilings(device, folder=path.parent, echo=echo, seconds=seconds, disk=disk)

    return kept(path, machine, Ceilings, echo, measured, holds=holds)


def hardware(spec: RunSpec, results: Path, echo: Echo = silent) -> Hardware:
    """`ceilings` of the spec's device, measured now unless stored, as planners want them."""
    return ceilings(results, spec.device, echo, disk=spec.may_use_disk).hardware


def profile_for(spec: RunSpec, results: Path, echo: Echo = silent) -> Profile:
    """The profile of the spec's model on this machine, for a run that is about to start.

    Measured now unless it is stored, and measured anew when the machine has become faster or slower
    by more than DRIFT since, and that was not just now (FRESH_S).
    """
    machine = this_machine(spec.device)
    hardware_ = hardware(spec, results, echo)
    path = _costs_path(spec, results, machine)
    found = kept(
        path, machine, UnitCosts, echo, lambda: _measure_costs(spec, machine, hardware_, echo),
        holds=lambda found: _serves(found, spec)
        and (
            seconds_since(found.measured) <= FRESH_S
            or not drifted(machine, found.probe_s, spec.dtype, echo)
        ),
    )  # fmt: skip
    return _assemble(spec, replace(hardware_, wires=wires_for(spec, results, echo)), found, path)


def wires_for(
    spec: RunSpec, results: Path, echo: Echo = silent, *, measure: bool = True
) -> Wires | None:
    """Rates of the spec's ranks while all of them transfer, stored or measured now; None for a
    single rank, and where nothing is stored and nothing may be measured."""
    if spec.ranks == 1:
        return None
    machine = this_machine(spec.device)
    path = _wires_path(spec.ranks, results, machine)
    found = stored(path, machine, MeasuredWires, echo)

    def measured() -> MeasuredWires:
        from workbench.profile.wires import measure as measure_wires

        echo(f"measuring the links of {spec.ranks} ranks")
        return MeasuredWires(machine=machine, wires=measure_wires(spec.ranks, machine.device))

    if found is None and measure:
        found = kept(path, machine, MeasuredWires, echo, measured)
    return None if found is None else found.wires


def rehearsed(
    wires: Wires, results: Path, device: str, echo: Echo, measure: Callable[[], dict[str, float]]
) -> Wires:
    """Return `wires` with the cost of passes where all ranks train. It is kept beside the links,
    and measured now unless another process did so while this one waited."""
    machine = this_machine(device)
    path = _wires_path(wires.ranks, results, machine)
    return kept(
        path, machine, MeasuredWires, echo,
        lambda: MeasuredWires(machine=machine, wires=replace(wires, **measure())),
        holds=lambda found: found.wires.pass_overhead_s is not None,
    ).wires  # fmt: skip


def _wires_path(ranks: int, results: Path, machine: Machine) -> Path:
    return folder_of(results, machine) / f"wires-{ranks}{nccl_key()}.json"


def nccl_key() -> str:
    """Part of the name of what NCCL was measured at: its settings decide whether sums go by NVLink
    or by sockets."""
    settings = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG")
    }
    return f"-{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]}" if settings else ""


def stored_profile(spec: RunSpec, results: Path, echo: Echo = silent) -> Profile | None:
    """The profile of the spec's model on this machine, if it is stored; nothing is measured.

    Raises ValueError where what is stored under its name is of another model."""
    machine = this_machine(spec.device)
    known = ceilings(results, machine.device, echo, measure=False)
    if known is None:
        return None
    path = _costs_path(spec, results, machine)
    found = stored(path, machine, UnitCosts, echo)
    if found is None or not _serves(found, spec):
        return None
    wires = wires_for(spec, results, echo, measure=False)
    return _assemble(spec, replace(known.hardware, wires=wires), found, path)


# -- the costs of a model's units -----------------------------------------------------------------


def drifted(machine: Machine, probe_s: float, dtype: str, echo: Echo) -> bool:
    """Whether the machine computes at another speed than when costs were measured, by `probe_s`, a
    matrix product that was timed then, in three looks: in one of them it may have done something
    else. Where others use it, costs that were measured before are nearer to those of the machine
    than any of now."""
    from workbench.profile.measure import probe

    begin = read()
    for _ in range(3):
        change = probe(machine.device, dtype) / probe_s - 1
        if abs(change) <= DRIFT:
            return False
    gpus = int(machine.device == "cuda")
    if change > 0 and max(shares([begin, read()], gpus).values(), default=0.0) > BUSY:
        echo("other processes use this machine, so what was measured stays")
        return False
    word = "slower" if change > 0 else "faster"
    echo(f"this machine computes {abs(change):.0%} {word} than when that was measured")
    return True


def _measure_costs(spec: RunSpec, machine: Machine, hardware_: Hardware, echo: Echo) -> UnitCosts:
    from workbench.profile.measure import kind_costs, probe, unit_costs
    from workbench.profile.variants import with_variants

    setting, note = _setting(spec, machine.device), ""
    echo(f"measuring the layers of the model at a micro-batch of {spec.microbatch}")
    probe_s = probe(machine.device, spec.dtype)
    if spec.model.decomposed:
        try:
            costs, library_bytes = kind_costs(setting)
        except ValueError as error:  # the model's own
            raise ValueError(
                f"micro-batches of {spec.microbatch} cannot be run: {error}"
            ) from error
    else:
        costs, library_bytes, note = unit_costs(setting, hardware_)
    options, model = spec.options, setting.model
    if options.halved or options.checkpointed or machine.device == "cuda":
        echo("measuring other ways to run their passes")
    return UnitCosts(
        machine=machine,
        costs=with_variants(
            costs, setting, halved=options.halved, checkpointed=options.checkpointed
        ),
        order=tuple(model.kind(unit) for unit in range(model.num_units)),
        measured=now(),
        probe_s=probe_s,
        library_bytes=library_bytes,
        note=note,
    )


def _setting(spec: RunSpec, device: str) -> Setting:
    """The first samples of the data; of a decoder's, made-up tokens."""
    from workbench.model import make_model
    from workbench.model.families import load_data
    from workbench.profile.alone import Setting

    model = make_model(spec.model)
    how = {"dtype": spec.dtype, "device": device, "compile": spec.compile}
    if not spec.model.decomposed:
        return Setting.of_tokens(model, (spec.microbatch, spec.model.seq), **how)
    data = load_data(
        spec.model, spec.text, spec.tokenizer, seed=spec.seed, cache=None, classes=model.classes
    )
    *inputs, targets = data.rows(range(spec.microbatch))
    return Setting.of(model, tuple(inputs), targets, seq=spec.model.seq, **how)


def _assemble(spec: RunSpec, hardware_: Hardware, found: UnitCosts, path: Path) -> Profile:
    """The profile of a model of the spec's depth; blocks of the stored one repeat. Raises
    ValueError, naming the file, where it is not of the spec's model."""
    order = found.order
    if not spec.model.decomposed and len(order) != spec.model.units:
        order = ("embedding", *["block"] * spec.model.layers, "head")
    if lacking := sorted({*order} - {*found.costs}):
        raise ValueError(
            f"{path} has no costs of {', '.join(lacking)}, which the model has; delete the file, "
            "and a run measures them again"
        )
    profile = Profile(
        hardware=hardware_,
        units=tuple(found.costs[kind] for kind in order),
        microbatch=spec.microbatch,
        seq=spec.model.seq,
        weight_bytes=VALUE_BYTES[spec.dtype],
        library_bytes=found.library_bytes,
        note=found.note,
        origin=str(path),
    )
    check_profile(profile, spec)
    return profile.with_link(spec.link_bytes_per_s)


def _serves(found: UnitCosts, spec: RunSpec) -> bool:
    """Whether costs of a model of another depth serve: if its blocks are all alike."""
    alike = {*found.order} == {"embedding", "block", "head"}
    return spec.model.decomposed or len(found.order) == spec.model.units or alike


def _costs_path(spec: RunSpec, results: Path, machine: Machine) -> Path:
    """Named by what unit costs depend on: the model without its depth, micro-batch, dtype, and
    whether blocks are compiled.
    """
    parts = (spec.microbatch, spec.dtype, spec.compile)
    # Measurements whose name does not say so are of the time when only our blocks were compiled.
    parts += ("compiled",) if spec.compile != "off" and not spec.model.ours else ()
    # And when those were not whose positions come with the batch.
    parts += ("positions",) if spec.compile != "off" and spec.model.rows == DOCUMENTS else ()
    parts += ("halves",) if spec.options.halved else ()
    parts += ("checkpoints",) if spec.options.checkpointed else ()
    return path_of(spec, results, machine, "units", *parts)


def path_of(spec: RunSpec, results: Path, machine: Machine, what: str, *parts: object) -> Path:
    """Where `what` was measured of the spec's model lies, named by it without its depth and by
    `parts`."""
    layers = spec.model.layers if spec.model.decomposed else 1  # kinds may depend on the depth
    shape = replace(spec.model, layers=layers, pretrained="").to_dict() | by_content(spec.model)
    text = json.dumps([FORMAT, shape, *parts], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return folder_of(results, machine) / f"{what}-{key}.json"
