"""Costs of the layers of a user's own module on this machine, measured when the loop begins."""

from __future__ import annotations

from pathlib import Path

from workbench.core.reporter import Reporter
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.model.modules import Decomposed
from workbench.model.objective import PREFIX
from workbench.profile.alone import Setting
from workbench.profile.measure import kind_costs
from workbench.profile.profile import Profile
from workbench.profile.store import hardware
from workbench.profile.variants import with_recorded
from workbench.training.compare import Rows
from workbench.training.run import resolve_device

LAUNCHED = "blocks are launched one kernel after the other, since one cannot be recorded: {}"


def profile_of(
    spec: RunSpec, model: Decomposed, rows: Rows, results: Path, report: Reporter,
    *, records: bool = False,
) -> Profile:  # fmt: skip
    """The profile of the layers for micro-batches of such rows. With `records` that of one device,
    which compiles and records passes where it can; its note says why it cannot record."""
    report.phase(f"profiling the layers in micro-batches of {len(rows[-1])}")

    def tell(done: int, count: int) -> None:
        report.event("part", done=done, count=count)

    *inputs, targets = rows
    device, nbytes = resolve_device(spec.device).type, VALUE_BYTES[spec.dtype]
    how = {"compile": spec.compile} if records else {}
    how |= {"seq": spec.model.seq, "dtype": spec.dtype, "device": device}
    setting, why = Setting.of(model, tuple(inputs), targets, **how), ""
    costs, library_bytes = kind_costs(setting, tell)
    if records and device == "cuda":
        costs, why = with_recorded(costs, setting)
    return Profile(
        hardware=hardware(spec, results, lambda text: report.event("profile", text=text)),
        units=tuple(costs[model.kind(unit)] for unit in range(model.num_units)),
        microbatch=len(targets), seq=spec.model.seq, weight_bytes=nbytes,
        library_bytes=library_bytes,
        note=why and LAUNCHED.format(why.replace(f"'{PREFIX}", "'")),
    )  # fmt: skip
