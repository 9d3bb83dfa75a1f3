"""A search of plans from Python: which tp, dp, stages and recomputation a model is to have.

    plan = workbench.search(model="gpt", size="1_3B", ranks=4, device_memory="12000MiB")
    record = workbench.run(method="aceso", plan=plan)

It does what ``workbench aceso search`` does. A plan that was found is a file among the results, so
it may be given wherever a plan's file may be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.aceso.asked import BATCHES, COSTS, SIZES
from workbench.cli.aceso.search import SEARCHES
from workbench.core.bytesize import parse_bytes
from workbench.core.files import replacing
from workbench.core.mistakes import in_a_sentence
from workbench.core.paths import user_path
from workbench.core.reporter import Untold
from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.bound import least_time
from workbench.methods.aceso.costs import PlanCost
from workbench.methods.aceso.plan import Plan, subject_of
from workbench.methods.aceso.search import Effort, Found
from workbench.methods.aceso.searches import Outcome, file_name
from workbench.methods.aceso.show import cost_dict, headline, shape
from workbench.methods.aceso.space import Cluster
from workbench.published.aceso import DATABASE
from workbench.runs.store import REPOSITORY_RESULTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from workbench.shown import Shown

MB = 1 << 20
USUAL_BATCH = 512
HEIGHT_IN = 1.9
"""Of a plan's picture, without its legend."""


@dataclass(frozen=True)
class SearchedPlan:
    """A plan that a search found. It may be given wherever the file of a plan may be."""

    plan: Plan
    cost: PlanCost
    bound_ms: float
    """No plan of this model on these devices takes less, by the same costs."""
    limit_mb: float
    """Memory of a device that the search was given."""
    file: Path
    """The plan as a file among the results."""
    explored: int
    """Plans that the search rated."""

    @property
    def iteration_ms(self) -> float:
        """Estimated milliseconds of an iteration, which trains the global batch once."""
        return self.cost.time

    @property
    def memory_mb(self) -> float:
        """Estimated memory of the fullest device, in MB of 2^20 bytes."""
        return self.cost.memory

    @property
    def gap(self) -> float:
        """Part by which the plan takes more than the best possible one, at most."""
        return self.iteration_ms / self.bound_ms - 1

    @property
    def stages(self) -> list[dict[str, Any]]:
        """Each stage's devices, operators, tp x dp and recomputed operators, with its estimated
        milliseconds of an iteration and MB of a device."""
        told = cost_dict(self.plan, self.cost)["stages"]
        return [
            {
                "gpus": stage.gpus,
                "operators": len(stage.tp),
                "tp_x_dp": shape(stage),
                "recomputed": sum(stage.recompute),
                **each,
            }
            for stage, each in zip(self.plan.stages, told, strict=True)
        ]

    def save(self, path: str | Path) -> Path:
        """Write the plan's file, in the form of Aceso's artifact. Raises OSError if the disk
        refuses."""
        path = user_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(self.plan.to_json())
        return path

    def table(self) -> Shown:
        """`stages` as a DataFrame, a row a stage."""
        from workbench.shown import Shown

        return Shown(self.stages).rename_axis("stage").reset_index()

    def draw(self) -> Figure:
        """A figure: stages to scale in operators, tp x dp and recomputation by colour."""
        from matplotlib.figure import Figure

        from workbench.figures.draw import place_legend
        from workbench.figures.plans import draw_plan, keys
        from workbench.figures.style import PAGE_IN, styled

        told = self.plan.to_dict()
        with styled():
            figure = Figure(figsize=(PAGE_IN, HEIGHT_IN), layout="constrained")
            cost = cost_dict(self.plan, self.cost)
            draw_plan(figure.subplots(), told, cost, limit_mb=self.limit_mb)
            place_legend(figure, keys([told]))
        return figure

    def __fspath__(self) -> str:
        return str(self.file)

    def _repr_html_(self) -> str:
        from workbench.figures.style import as_svg

        told = f"{headline(self.plan, self.cost)}; at most {self.gap:.1%} over the best plan"
        picture = as_svg(self.draw())
        return f"<p>{told}</p>{picture[picture.index('<svg') :]}{self.table()._repr_html_()}"


@in_a_sentence(calls_users=True)
def search(
    model: str = "gpt",
    size: str | None = None,
    *,
    module: nn.Module | None = None,
    sample: Any = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    dtype: str = "fp32",
    device: str = "auto",
    ranks: int = 4,
    nodes: int = 1,
    device_memory: str | int = "28000MiB",
    database: str | Path | None = None,
    mode: str | None = None,
    cost: str | None = None,
    batch: int | None = None,
    microbatch_sizes: Sequence[int] = (),
    layers: int | None = None,
    seq: int | None = None,
    target_seq: int | None = None,
    max_tp: int = 0,
    stages: int | tuple[int, int] | None = None,
    plans: int = Effort.plans,
    seconds: float = Effort.seconds,
    results: str | Path | None = None,
    on_better: Callable[[int, float], object] | None = None,
) -> SearchedPlan:
    """The fastest plan that fits for a model of operators (`gpt`, `t5`, `resnet`, `scale-layer`)
    on `ranks` devices of `nodes` nodes.

    With a `module` of your own it is one of the module's layers: stages, dp by stage, micro-batches
    and recomputation by layer. `sample` is a batch as your loop has it, and `loss_fn` its loss; the
    layers are measured now, on this machine's `device`, in `dtype`; `mode` and `cost` are ``ours``.

    `database` is a folder of profiles in the form of Aceso's artifact, by default its small ones,
    of V100s. `mode` is ``faithful``, the published search and the default, or ``ours``, which finds
    better plans. `cost` is the published cost model, or ``ours``, which adds to it.
    `stages` are their number, or the fewest and the most; each number is searched for `seconds` at
    most, and rates `plans` at most. `on_better` hears of each better plan: stages, milliseconds.
    The plan's file is kept in `results`. Raises ValueError, one sentence, for what cannot be
    searched and where nothing fits; after an interruption the best plan so far is returned."""
    own = module is not None
    mode, cost = mode or ("ours" if own else "faithful"), cost or ("ours" if own else "published")
    if mode not in SEARCHES:
        raise ValueError(f"mode is {mode!r}; it must be {' or '.join(SEARCHES)}")
    if cost not in COSTS:
        raise ValueError(f"cost is {cost!r}; it must be {' or '.join(COSTS)}")
    if type(ranks) is not int or type(nodes) is not int or nodes < 1 or ranks % nodes:
        raise ValueError(f"ranks is {ranks!r}; it must be a multiple of the {nodes!r} nodes")
    if model not in SIZES:
        raise ValueError(f"model is {model!r}; it must be one of {', '.join(SIZES)}")
    if plans < 1 or not 0 < seconds < 1e9:
        raise ValueError(f"plans is {plans} and seconds is {seconds:g}; both must be over 0")
    memory = parse_bytes(device_memory) / MB
    root = REPOSITORY_RESULTS if results is None else user_path(results)
    cluster = Cluster(nodes=nodes, per_node=ranks // nodes, memory=memory)
    if own:
        given = {
            "model": model != "gpt", "size": size, "database": database, "layers": layers,
            "seq": seq, "target_seq": target_seq, "max_tp": max_tp, "mode": mode != "ours",
        }  # fmt: skip
        if wrong := [name for name, value in given.items() if value]:
            raise ValueError(f"{wrong[0]} is given, and so is a module, which says it; leave "
                             f"{wrong[0]} out")  # fmt: skip
        if sample is None or loss_fn is None:
            lacking = "loss_fn" if loss_fn is None else "sample"
            raise ValueError(f"{lacking} is missing; a module is measured with a batch, the "
                             "sample, and its loss, loss_fn(outputs, batch)")  # fmt: skip
        from workbench.methods.aceso.module_profile import profiled_module

        subject, measured = profiled_module(
            module, sample, loss_fn, batch=batch, micros=microbatch_sizes, dtype=dtype,
            device=device, results=root, report=Untold(),
        )  # fmt: skip
        ask = Ask(
            subject=subject, database=measured, cluster=cluster, micros=measured.samples,
            most_tp=1, cost=cost,
        )  # fmt: skip
    else:
        usual = BATCHES.get(model, USUAL_BATCH)
        subject = subject_of(
            model, size or SIZES[model], usual if batch is None else batch,
            layers=layers, seq=seq, target_seq=target_seq,
        )  # fmt: skip
        ask = Ask(
            subject=subject, database=DATABASE if database is None else database, most_tp=max_tp,
            cluster=cluster, micros=tuple(microbatch_sizes), cost=cost,
        )  # fmt: skip
    first, last = (stages, stages) if isinstance(stages, int) else stages or (None, None)
    counts, space = ask.stages(first, last), ask.space()
    outcome = Outcome(space=space, bound=least_time(space))

    def hear(count: int, found: Found) -> None:
        if on_better is not None and space.fits(found.best.cost):
            on_better(count, found.best.cost.time)

    try:
        SEARCHES[mode](
            outcome, counts, Effort(plans=plans, seconds=seconds), watch=hear,
            finetunes=model == "resnet",
        )  # fmt: skip
    except KeyboardInterrupt:
        if not outcome.fits:
            raise
    plan, rated = outcome.chosen()
    found = SearchedPlan(
        plan, rated, outcome.bound, memory, root / "aceso" / "plans" / file_name(plan),
        sum(each.explored for each in outcome.found.values()),
    )  # fmt: skip
    found.save(found.file)
    return found
