"""Profiles of this machine in the form of Aceso's artifact (EuroSys'24), which searches read.

`read_database` reads the files that are written here. Times are of shards (profile/shards.py), and
of the exchanges that their operators need, where collectives (profile/collectives.py) were measured
among as many devices. Exchanges between operators whose layouts differ are not in them: costs read
these from files of collectives, which have a row for each size that they ask for. An operator's
activations are what it leaves for its backward pass: a tensor that only its reader keeps is there
once, and one that nobody keeps is not. The published cost model corrects some operators' by a
factor, for its own implementation; so they are written divided by it, and its sums are right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench.core.files import write_whole
from workbench.core.model_spec import ModelSpec
from workbench.methods.aceso.database import (
    BILLION,
    COLLECTIVE_HEAD,
    COLUMNS,
    OUT_OF_MEMORY,
    UPDATES,
    UPDATES_HEAD,
)
from workbench.methods.aceso.plan import Subject
from workbench.model.named import LISTS, SHAPE, bottlenecks_of
from workbench.model.operators.places import Form
from workbench.profile.collectives import Collectives, powers
from workbench.profile.shard_store import ShardCosts
from workbench.profile.shards import Chain, Exchange, ShardCost, Variant, kept_bytes

MB = 1 << 20
US = 1e6
VALUE_BYTES = {"bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class Exchanges:
    """Seconds of the exchanges that operators need."""

    known: Collectives | None
    unknown: set[int] = field(default_factory=set)
    """Numbers of devices that were asked for and are not measured."""

    def seconds(self, exchange: Exchange, tp: int) -> float:
        """Of an exchange among the devices of a row; 0 where it is not measured."""
        found = self.known and self.known.of(exchange.kind, tp)
        if not found:
            self.unknown.add(tp)
            return 0.0
        return found.at(exchange.bytes)


def chain_of(subject: Subject, model: ModelSpec, *, fused: bool) -> Chain:
    """A layer of each kind of a plan's model; `model` has its vocabulary, dropout and ties. Raises
    ValueError."""
    sizes = {SHAPE[key]: value for key, value in subject.shape if key in SHAPE}
    layers, count = subject.layers, 1
    if isinstance(layers, tuple):
        if layers != bottlenecks_of(sum(layers)):
            raise ValueError(f"num_layers is {[*layers]}; of so many blocks profiled are "
                             f"{[*bottlenecks_of(sum(layers))]}")  # fmt: skip
        count, sizes["heads"], sizes["tied"] = sum(layers), 1, False
    one = replace(subject, layers=layers if isinstance(layers, tuple) else 1)
    family = next(each for each, name in LISTS.items() if name == subject.model)
    return Chain(
        operators=one.operators(), spec=replace(model, family=family, layers=count, **sizes),
        dtype="bf16" if subject.half else "fp32", fused=fused,
    )  # fmt: skip


def variants_of(chain: Chain, samples: Iterable[int], tps: Iterable[int]) -> list[Variant]:
    """All that a search asks for."""
    algos = range(chain.operators.partitions)
    return [Variant(samples=m, tp=tp, algo=a) for m in samples for tp in tps for a in algos]


def write_profiles(
    folder: Path, name: str, chain: Chain, costs: ShardCosts, variants: Iterable[Variant],
    exchanges: Exchanges,
) -> list[Path]:  # fmt: skip
    """A file of each variant, by the published names; and one of updates, which has none."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    write_whole(folder / UPDATES, f"{UPDATES_HEAD}\n{costs.updated_per_s / BILLION:.3f}\n")
    for variant in variants:
        path = folder / file_of(name, variant)
        found = {call: costs.costs[chain.key(call, variant)] for call in chain.calls()}
        lines = [",".join(("op_name", *COLUMNS))]
        for row, numbers in enumerate(rows_of(chain, variant, found, exchanges)):
            lines.append(",".join((chain.operators.row_names[row], *(f"{n:.3f}" for n in numbers))))
        write_whole(path, "\n".join(lines) + "\n")
        written.append(path)
    return written


def file_of(name: str, variant: Variant) -> str:
    """The published name of a variant's file."""
    return f"{name}_mbs{variant.samples}_tp{variant.tp}_algo{variant.algo}.csv"


def write_collectives(
    folder: Path, name: str, chain: Chain, variants: Iterable[Variant], known: Collectives
) -> list[Path]:
    """A file of each collective of so many devices, by the published names: of groups of
    neighbours, all at work at once; sums also of devices a stride apart, as replicas are. Rows are
    the sizes of tensors between operators, which costs look up, and powers of two up to the largest
    that was measured, between which `ours` draws lines."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds, value = range(len(chain.operators) + 1), VALUE_BYTES[chain.dtype]
    asked = {round(crossing_bytes(chain, at, v, value) / MB) for v in variants for at in bounds}
    written = []
    for devices, stride, kind in dict.fromkeys(each.setting.among for each in known.found):
        if stride > 1 and kind != "all_reduce":
            continue
        one = known.of(kind, devices, stride)
        lines = [",".join(COLLECTIVE_HEAD)]
        for size in sorted({0, *asked, *powers(1, one.bytes[-1] // MB)}):
            lines.append(f"{size},{one.at(size * MB) * 1e3:.3f}")
        apart = f"_stride{stride}" if stride > 1 else ""
        written.append(folder / f"prim_{name}_{kind}_{devices}gpus{apart}.csv")
        write_whole(written[-1], "\n".join(lines) + "\n")
    return written


def rows_of(
    chain: Chain, variant: Variant, found: dict[range, ShardCost | None], exchanges: Exchanges
) -> list[tuple[float, ...]]:
    """Numbers of each operator, as `COLUMNS` names them. Of a call of several operators the first
    has the cost."""
    rows: dict[int, tuple[float, ...]] = {}
    known = {call: cost or _ABSENT for call, cost in found.items()}
    kept, carried = kept_bytes(chain, known), 0.0
    value, seconds = VALUE_BYTES[chain.dtype], exchanges.seconds
    for call, cost in found.items():
        for at in call:
            sizes = [crossing_bytes(chain, at + side, variant, value) / MB for side in (0, 1)]
            factor = chain.operators.operators[at].kept
            if cost is None:
                rows[at] = (OUT_OF_MEMORY,) * len(COLUMNS)
                continue
            if at > call.start:
                rows[at] = (0.0, 0.0, *sizes, 0.0, 0.0, 0.0, 0.0)
                continue
            passes = [
                (own + sum(seconds(e, variant.tp) for e in cost.exchanges if e.backward == back))
                * US for own, back in ((cost.forward_s, False), (cost.backward_s, True))
            ]  # fmt: skip
            own = kept[call] / MB
            carried, activations = (carried + own, own) if not factor else (
                0.0, (carried + own) / factor)  # fmt: skip
            rows[at] = (
                *passes, *sizes, cost.parameters * value / MB, activations,
                cost.forward_scratch_bytes / MB, cost.backward_scratch_bytes / MB,
            )  # fmt: skip
    return [rows[at] for at in sorted(rows)]


_ABSENT = ShardCost(
    forward_s=0, forward_spread=0, backward_s=0, backward_spread=0, launch_s=0, inner_bytes=0,
    made_bytes=0, keeps=(False,) * 9, forward_scratch_bytes=0, backward_scratch_bytes=0,
    parameters=0,
)  # fmt: skip


def crossing_bytes(chain: Chain, boundary: int, variant: Variant, value: int) -> int:
    """Bytes that a device has of all tensors between two operators, `value` each number."""

    def size(form: Form, *, sharded: bool) -> int:
        numbers = value * variant.samples
        for each in form.tail:
            numbers *= each
        return numbers // (variant.tp if sharded else 1)

    count, algo = len(chain.operators), variant.algo
    if not 0 < boundary < count:  # numbers of words, or a loss
        return 8 * variant.samples * chain.spec.seq if boundary == 0 else value
    before = boundary - 1
    total = size(chain.places[before].form, sharded=chain.sharded(before, 1, algo))
    for each in chain.extras:
        made = each.extra.made_by
        if made < boundary <= each.extra.read_by[-1]:
            side = 0 if each.what == "input" else 1
            total += size(each.form, sharded=chain.sharded(made, side, algo))
    return total
