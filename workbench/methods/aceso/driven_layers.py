"""A plan for any module's layers in a user's own loop, with the rows of stages divided as it says.

The module and the loss function are cut into layers, which the first process compares with the two
as they are written. Rows count as in the loss, so losses are those of the whole batch.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from torch import Tensor

from workbench.core.division import divide, even_share
from workbench.methods.aceso.layer_stepping import LayerStepping
from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.plan_steps import PlanSteps, check_alike
from workbench.methods.aceso.stepping import StepRows
from workbench.model.draws import Draws
from workbench.model.objective import PREFIX, Batch, Handed, Layered
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.transport.groups import as_one
from workbench.training.history import History
from workbench.training.loop import Task, check_layers


def layers_named(name: str, model: Layered, first: Batch) -> str:
    """Name of a module's layers, which a plan for them has as its size: the class, and a digest of
    the shapes of all weights by layer."""
    return f"{name}-{Handed(first, model).digest[:12]}"


class LayerSteps(PlanSteps):
    """Steps of a module cut into layers."""

    def __init__(self, task: Task, plan: Plan) -> None:
        """Raises ValueError for what cannot be trained so."""
        spec, peers, objective = task.spec, task.peers, task.objective
        task.report.phase("cutting the module into layers")
        model, weights = objective.layered()
        _check_model(plan, model, layers_named(objective.name, model, task.first))
        buffers = dict(objective.named_buffers(remove_duplicate=False))
        for name in buffers:
            stages = {bisect_right(plan.starts, unit) for unit in model.norms_named(name)}
            if len(stages) > 1:
                norm = name.removeprefix(PREFIX).rpartition(".")[0]
                raise ValueError(f"BatchNorm {norm!r} is called in two stages, which would each "
                                 "keep statistics of their own; cut elsewhere")  # fmt: skip
        self._micros = [range(*span) for span in divide((0, plan.subject.batch), plan.micro)]
        self._parts = plan.stages[-1].gpus
        self._norms = model.normalizes and self._parts > 1
        if divided := len(self._micros) > 1 or plan.gpus > len(plan.stages):
            model.divide()
        check_alike(task, task.first.tensors)
        as_one(
            lambda: peers.rank or check_layers(
                task.report, spec, model, task.first, task.again, divided=divided
            ), peers.group,
        )  # fmt: skip
        task.report.phase("making the stages")
        shape = replace(spec.model, layers=max(1, model.layers))
        spec = replace(spec, model=shape, ranks=plan.gpus, microbatches=len(self._micros))
        self._spec, owned = spec, [(u, n) for u in range(model.num_units) for n in model.shapes(u)]
        self._stepping = LayerStepping(
            spec, plan, model, lambda key: weights[model.state_name(*key)].float(),
            device=peers.device, dtype=DTYPES[spec.dtype],
            still={model.state_name(*key) for key in owned if not model.decays(*key)},
        )  # fmt: skip
        peers.stops.append(self._stepping.stop)
        self._stepping.take_up(buffers)
        weights.clear()  # they have been copied
        data = Draws(Handed(task.first, model), spec.batch)
        self._history = History(spec, task.folder, data, model=model)

    def step(self, batch: Batch) -> float:
        self._check_counts(batch.weights)
        return self._step(batch, StepRows(batch.tensors, batch.weights, batch.weights.tolist()))

    def _check_counts(self, counts: Tensor) -> None:
        """Raise ValueError for rows of one process of the last stage that do not count, where
        others wait for its part of BatchNorm's statistics."""
        for span in self._micros if self._norms else ():
            for part in range(self._parts):
                first, end = even_share(len(span), part, self._parts)
                here = counts[span.start + first : span.start + end]
                if not here.sum():
                    raise ValueError(
                        f"no label counts in rows {span.start + first} to {span.start + end - 1}, "
                        "a process's part of a micro-batch, whose rows BatchNorm joins; mix rows "
                        "without labels among others"
                    )


def _check_model(plan: Plan, model: Layered, name: str) -> None:
    """Raise ValueError for a plan of another module."""
    subject = plan.subject
    if subject.layers != model.num_units:
        raise ValueError(f"num_layers is {subject.layers}; {name} has {model.num_units} layers")
    if subject.size != name:
        raise ValueError(f"the plan is for the layers of {subject.size}; these are {name}")
    most = max(stage.gpus for stage in plan.stages)
    if (rest := subject.batch % plan.micro) and rest < most:
        raise ValueError(
            f"the last micro-batch has {rest} rows of a batch of {subject.batch}, and a stage has "
            f"{most} processes; give micro-batches of another size"
        )
