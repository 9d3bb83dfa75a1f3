"""Plans of two GPUs beside their predictions; two processes of a CPU play them at smoke size.

    python -m benchmarks.aceso --only two-gpus --size smoke --out FOLDER
    python -m benchmarks.aceso --only two-gpus-choose --database PROFILES --plans PLANS --out FOLDER
    python -m benchmarks.aceso --only two-gpus-gpt --database PROFILES --plans PLANS --out FOLDER

PROFILES are this machine's, by ``workbench aceso profile-comm`` and then ``profile-ops``, both with
all GPUs visible: else times of operators lack their exchanges. Without them costs are
the published ones of V100s, whose order of plans can be judged, and whose milliseconds cannot.
Parts: choose (plans of all kinds of each model, into PLANS, on any machine: so no GPU waits for a
search), gpt, t5 and resnet (errors, rank order, ours beside comparators and the best of eight),
megatron (the grid's shapes by the real megatron-core), uniform (beside ``1f1b``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import correlation, fmean, median
from typing import Any

from benchmarks.aceso_steps import series
from benchmarks.rows import Row, Rows, measured_lines, pairs_file
from workbench.core import host
from workbench.core.files import write_whole
from workbench.core.methods import imported, lookup
from workbench.core.model_spec import BOTTLENECKS, T5_LIKE_GPT, ModelSpec
from workbench.core.reporter import Untold
from workbench.core.spec import RunSpec
from workbench.methods.aceso.alpa import layered
from workbench.methods.aceso.ask import Ask, check_plan
from workbench.methods.aceso.grid import as_megatron, grid, points
from workbench.methods.aceso.options import keep, model_of
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.plan import Plan, Stage, load_plan, subject_of
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.searches import Outcome, file_name
from workbench.methods.aceso.space import Cluster, Rated, Space
from workbench.model.operators.sizes import CLASSES, PICTURE, VOCABULARY
from workbench.published.aceso import DATABASE
from workbench.ranks.failures import RankFailed
from workbench.runtime.memory.tiers import OutOfMemory

GPUS, CAP_MB, COUNTS = 2, 24000.0, range(1, 3)
TRIES, BEST = 400, 8
"""Plans drawn by lot, and how many of the fastest are compared with ours."""
MODELS = {"gpt": "1_3B", "t5": "770M", "resnet": "1B"}
PREFIX, WHO = "two-gpus", ("ours", "grid", "alpa")
Part = Callable[["Bench"], Iterator[Row]]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Models and runs of all parts."""

    batch: dict[str, int]
    plans: int = 12
    """Plans of a model: half are searches' and the grid's fastest, the others by lot."""
    steps: int = 5
    layers: dict[str, int] = field(default_factory=dict)
    narrow: dict[str, int] = field(default_factory=dict)
    """Sizes that are trained in place of the published ones; costs are of the published ones."""


SIZES = {
    "full": Size(batch={"gpt": 32, "t5": 32, "resnet": 96}),
    "smoke": Size(
        batch={"gpt": 8, "t5": 8, "resnet": 32}, plans=4, steps=3,
        layers={"gpt": 2, "t5": 2},
        narrow={
            "hidden_size": 16, "num_attention_heads": 4, "seq_length": 8, "kv_channels": 4,
            "encoder_seq_length": 8, "decoder_seq_length": 4, "ffn_hidden_size": 24,
            "in_channels": 4, "width_factor": 2, "max_position_embeddings": 8,
        },
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The setting of a part."""

    size: Size
    database: Path
    plans: Path | None
    """A folder of plans, which are searched now unless they are there."""
    out: Path
    work: Path
    device: str

    def space(self, model: str) -> Space:
        """Plans of a model on two devices under the cap."""
        subject = subject_of(model, MODELS[model], self.size.batch[model])
        subject = replace(subject, layers=self.size.layers.get(model, subject.layers))
        cluster = Cluster(nodes=1, per_node=GPUS, memory=CAP_MB)
        return Ask(subject=subject, cluster=cluster, database=self.database,
                   cost="ours").space()  # fmt: skip

    def trained(self, plan: Plan) -> tuple[Plan, ModelSpec]:
        """A plan of the widths that are trained, and its model."""
        subject, narrow = plan.subject, self.size.narrow
        shape = tuple((key, narrow.get(key, value)) for key, value in subject.shape)
        words = 258 if narrow else VOCABULARY.get(subject.model, CLASSES)
        plan = replace(plan, subject=replace(subject, shape=shape))
        side = 32 if narrow else PICTURE
        return plan, model_of(plan, ModelSpec(vocab=words, dropout=0.0, seq=side))

    def spec(self, method: str, model: ModelSpec, **values: Any) -> RunSpec:
        """A run on both devices. Raises ValueError."""
        if model.family == T5_LIKE_GPT:
            values["text"] = pairs_file(self.work)
        exact = model.family == BOTTLENECKS or self.device == "cpu"
        values |= {"steps": self.size.steps, "device": self.device, "ranks": GPUS,
                   "dtype": "fp32" if exact else "bf16"}  # fmt: skip
        return RunSpec.of(method=method, model=model, device_memory=int(CAP_MB) << 20, **values)

    def run(self, label: str, method: str, model: ModelSpec, **values: Any) -> Row:
        """Train; milliseconds of a step after the first and the largest peak, or why not."""
        folder = self.work / "results" / "runs" / label.replace(" ", "-")
        told = {"what": label, "source": "measured"}
        try:
            spec = self.spec(method, model, **values)
            found = imported(lookup(method).module).train(spec, Untold(), folder)
        except (ValueError, OutOfMemory, RankFailed) as error:
            return told | {"failed": str(error)}
        step_ms = median(found.step_seconds[1:]) * 1e3
        return told | {
            "step_ms": step_ms, "samples_per_s": spec.batch / step_ms * 1e3,
            "peak_mb": (found.peak_bytes["device"] or 0) / 2**20, "engine": found.engine,
            "losses": found.losses,
        }  # fmt: skip

    def run_plans(self, rated: dict[str, Rated]) -> Iterator[Row]:
        """Train plans of one model by their labels, beside what is predicted of each; their files
        are kept."""
        plans = {label: self.trained(each.plan) for label, each in rated.items()}
        first, model = next(iter(plans.values()))
        work, micros = self.work / "results", -(-first.subject.batch // first.micro)
        spec = self.spec("aceso", model, batch=first.subject.batch, microbatches=micros,
                         plan=keep(first, work))  # fmt: skip
        for row in series(spec, {label: plan for label, (plan, _) in plans.items()}, work):
            plan, cost = rated[row["what"]]
            write_whole(self.out / "plans" / file_name(plan), plan.to_json())
            if "step_ms" in row:
                row["samples_per_s"] = plan.subject.batch / row["step_ms"] * 1e3
            yield row | {
                "plan": file_name(plan), "predicted_ms": cost.time,
                "predicted_mb": max(stage.tensors for stage in cost.stages),
                "predicted_whole_mb": cost.memory, "micro": plan.micro,
                "stages": [len(stage.tp) for stage in plan.stages], "costs": self.database.name,
            }  # fmt: skip

    def run_plan(self, label: str, rated: Rated) -> Row:
        """Train one plan."""
        return next(self.run_plans({label: rated}))


# -- plans ---------------------------------------------------------------------------------------


def ours(space: Space) -> Outcome:
    """Plans of our own search."""
    outcome = Outcome(space=space)
    tunes = space.subject.model == "resnet"
    search_ours(outcome, COUNTS, Effort(seconds=60.0), finetunes=tunes)
    return outcome


def of_grid(space: Space) -> list[Rated]:
    """Points of the grid that fit, the fastest first."""
    rated = [space.rated(*point) for count in COUNTS for point in points(space, count)]
    return sorted((r for r in rated if space.fits(r.cost)), key=lambda r: r.cost.time)


def drawn(space: Space, count: int, seed: int = 0) -> list[Rated]:
    """Plans by lot that are said to fit, spread evenly over their times: uneven cuts; tp, dp and
    partition that change inside a stage; any operators recomputed."""
    lot, total, found = Random(seed), len(space.costs.operators), {}
    for _ in range(TRIES):
        if lot.random() < 0.5:
            stages: tuple[Stage, ...] = (_stage(space, lot, GPUS, total),)
        else:
            cut = lot.randrange(total // 4, 3 * total // 4)
            stages = tuple(_stage(space, lot, 1, size) for size in (cut, total - cut))
        micro = lot.choice(space.micros)
        if not space.legal(micro, stages):
            continue
        rated = space.rated(micro, stages)
        with suppress(ValueError):  # not profiled
            check_plan(rated.plan, space.costs, space.cluster)
            if space.fits(rated.cost):
                found[file_name(rated.plan)] = rated
    ordered = sorted(found.values(), key=lambda rated: rated.cost.time)
    count = min(count, len(ordered))
    return [ordered[i * (len(ordered) - 1) // max(1, count - 1)] for i in range(count)]


def chosen(bench: Bench, model: str) -> dict[str, Rated]:
    """Plans of all kinds, by labels that say whose each is; those of the bench's folder, where it
    has some of the model."""
    space, count = bench.space(model), bench.size.plans
    if bench.plans and (there := sorted(bench.plans.glob(f"{model} *.json"))):
        plans = {file.stem: load_plan(file) for file in there}
        return {label: Rated(plan, space.costs.plan(plan)) for label, plan in plans.items()}
    found = {"ours": ours(space), "grid": grid(space, COUNTS), "alpa": layered(space, COUNTS)}
    named = {name: each.best for name, each in found.items() if each.fits}
    wanted = {file_name(each.plan): each for each in (*named.values(), *of_grid(space))}
    fast = [*wanted][: max(len(named), count // 2)]
    wanted = {name: wanted[name] for name in fast}
    for each in drawn(space, count):
        if len(wanted) < count:
            wanted.setdefault(file_name(each.plan), each)
    labels = {}
    for number, each in enumerate(wanted.values()):
        who = " ".join(name for name, one in named.items() if one.plan == each.plan)
        labels[f"{model} {number:02} {who}".strip()] = each
    if bench.plans:
        bench.plans.mkdir(parents=True, exist_ok=True)
        for label, each in labels.items():
            write_whole(bench.plans / f"{label}.json", each.plan.to_json())
    return labels


def of(who: str, labels: Iterable[str]) -> str | None:
    """The label of a search's plan."""
    return next((label for label in labels if who in label.split()), None)


def _stage(space: Space, lot: Random, gpus: int, size: int) -> Stage:
    """A stage of two runs of operators that are divided alike, and of some that are recomputed."""
    cut, share = lot.randrange(1, size), lot.choice((0.0, 0.3, 0.6, 1.0))
    tp, algo = bytearray(), bytearray()
    for length in (cut, size - cut):
        tp += bytes([lot.choice([t for t in (1, 2) if t <= gpus])]) * length
        algo += bytes([lot.randrange(space.costs.operators.partitions)]) * length
    again = bytes(lot.random() < share for _ in range(size))
    return Stage(gpus, bytes(tp), bytes(gpus // each for each in tp), bytes(algo), again)


# -- parts ---------------------------------------------------------------------------------------


def choose(bench: Bench) -> Iterator[Row]:
    """Choose plans of all models that the database has."""
    for model in MODELS:
        with suppress(ValueError):
            for label, (plan, cost) in chosen(bench, model).items():
                yield {"what": label, "source": "predicted", "plan": file_name(plan),
                       "predicted_ms": cost.time, "predicted_whole_mb": cost.memory}  # fmt: skip


def plans(model: str) -> Part:
    """The part of a model: plans of all kinds, and what follows from them."""

    def part(bench: Bench) -> Iterator[Row]:
        rows = {}
        for row in bench.run_plans(chosen(bench, model)):
            yield row
            rows[row["what"]] = row
        own = {who: rows[label] for who in WHO if (label := of(who, rows))}
        yield summary(model, [*rows.values()], own)

    return part


def summary(model: str, rows: Rows, named: dict[str, Row]) -> Row:
    """Errors of predictions, rank order, and speeds of our plan over others'; `named` are the plans
    that searches chose."""
    ran = [row for row in rows if "failed" not in row]
    told: Row = {
        "what": f"{model}, {len(rows)} plans", "source": "from the rows above",
        "failed": len(rows) - len(ran),
    }  # fmt: skip
    if len(ran) > 1:
        pairs = [(row["predicted_ms"], row["step_ms"]) for row in ran]
        for name, errors in (
            ("time", [abs(a / b - 1) for a, b in pairs]),
            ("peak", [abs(row["predicted_mb"] / row["peak_mb"] - 1) for row in ran]),
        ):
            told |= {f"{name}_error_mean": fmean(errors), f"{name}_error_worst": max(errors)}
        said, took = zip(*pairs, strict=True)
        told["spearman"] = correlation(ranked(said), ranked(took))
        told["spread"] = max(took) / min(took)
    if "step_ms" in (mine := named.get("ours", {})):
        best = sorted(ran, key=lambda row: row["predicted_ms"])[:BEST]
        others = named | {f"best of {len(best)}": min(best, key=lambda row: row["step_ms"])}
        for name, row in others.items():
            if name != "ours" and "step_ms" in row:
                told[f"ours over {name}"] = row["step_ms"] / mine["step_ms"]
    return told


def ranked(values: Sequence[float]) -> list[float]:
    """Ranks from 0 on, of equal values their mean.

    >>> ranked([3.0, 1.0, 3.0])
    [1.5, 0.0, 1.5]
    """
    return [fmean(i for i, other in enumerate(sorted(values)) if other == v) for v in values]


def megatron(bench: Bench) -> Iterator[Row]:
    """Each shape of the grid by megatron-core, with its fastest micro-batch that fits, between two
    runs of our plan."""
    found = chosen(bench, "gpt")
    best, core, shapes = found[of("ours", found)], [], {}
    for rated in of_grid(bench.space("gpt")):
        told = as_megatron(rated.plan)
        shapes.setdefault((told["tp"], told["pp"], told["activations"]), (told, rated))
    yield (first := bench.run_plan("ours first", best))
    for (tp, pp, kept), (told, rated) in shapes.items():
        for sharded in (False, True)[: 1 + (tp * pp < GPUS)]:
            core.append(bench.run(
                f"megatron-core tp {tp} pp {pp} {kept}{' sharded' * sharded}", "megatron-parallel",
                model=bench.trained(rated.plan)[1], distributed_optimizer=sharded, **told,
            ))  # fmt: skip
            yield core[-1]
    yield (last := bench.run_plan("ours last", best))
    yield from _ratio("megatron-core's best", [first, last], core, min)


def uniform(bench: Bench) -> Iterator[Row]:
    """A plan of two equal stages and the pipeline ``1f1b`` of these stages, in turn."""
    rated = next(r for r in of_grid(bench.space("gpt")) if len(r.plan.stages) == GPUS)
    values, both = as_megatron(rated.plan), ([], [])
    del values["tp"], values["pp"]
    values["stages"] = " ".join([str(rated.plan.subject.layers // GPUS + 1)] * GPUS)
    for turn in ("first", "second"):
        both[0].append(bench.run_plan(f"plan {turn}", rated))
        yield both[0][-1]
        model = bench.trained(rated.plan)[1]
        both[1].append(bench.run(f"1f1b {turn}", "1f1b", model=model, **values))
        yield both[1][-1]
    yield from _ratio("1f1b", *both, median)


def _ratio(who: str, own: Rows, others: Rows, of: Callable[[list[float]], float]) -> Iterator[Row]:
    """Speed of our rows over others', where both ran."""
    mine, theirs = ([row["step_ms"] for row in rows if "step_ms" in row] for rows in (own, others))
    if mine and theirs:
        yield {"what": f"speed over {who}", "source": "from the rows above",
               "ratio": of(theirs) / median(mine)}  # fmt: skip


PARTS: dict[str, Part] = {
    f"{PREFIX}-choose": choose,
    **{f"{PREFIX}-{model}": plans(model) for model in MODELS},
    f"{PREFIX}-megatron": megatron, f"{PREFIX}-uniform": uniform,
}  # fmt: skip


def lines(
    part: str, size: str, out: Path, database: Path | None = None, plans: Path | None = None
) -> Iterator[str]:
    """A part's lines, measured now unless its file is there."""
    device = host.resolve_device("auto")

    def measure(work: Path) -> Iterator[Row]:
        (out / "plans").mkdir(exist_ok=True)
        return PARTS[part](Bench(size=SIZES[size], out=out, work=work, device=device,
                                 database=database or DATABASE, plans=plans))  # fmt: skip

    return measured_lines(part, size, out, device, measure)
