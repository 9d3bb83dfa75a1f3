"""A user's own module, trained by a method in the user's own loop.

    engine = workbench.Engine(model, {"lr": 1e-3}, method="stronghold", device_memory="24GiB")
    scheduler = torch.optim.lr_scheduler.LinearLR(engine.optimizer)
    for batch in loader:
        loss = engine.step(batch, lambda outputs, batch: F.cross_entropy(outputs, batch[1]))
        scheduler.step()
    model.load_state_dict(engine.state_dict())

With the first batch the module and the loss function are cut into layers, which are compared with
the two as they are written; then the method plans, and lays out its memory. Any method can do that
whose row in the table says how (methods/table.toml, `driven`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from workbench.core import methods
from workbench.core.bytesize import parse_bytes
from workbench.core.files import TemporaryFolder
from workbench.core.habits import Habits, Loss
from workbench.core.mistakes import in_a_sentence
from workbench.core.model_spec import ENGINE, MOST, ModelSpec
from workbench.core.options import choose
from workbench.core.paths import as_text, user_path
from workbench.core.reporter import Lines, Untold
from workbench.model.drawn import generators
from workbench.model.objective import PREFIX, Batch, LossFunction, Objective, Weigh
from workbench.model.unchanged import Unchanged
from workbench.model.weights.given import Given
from workbench.ranks.alike import RATE, code_of, training
from workbench.ranks.peers import Peers
from workbench.runs.store import REPOSITORY_RESULTS
from workbench.runtime.checkpoint.continues import OtherTraining
from workbench.runtime.checkpoint.manifest import Saved, newest, step_name, steps_in
from workbench.runtime.memory.storage import DTYPES
from workbench.schedule.plan import Plan
from workbench.training.loop import OutsideRate, Steps, Task
from workbench.training.optimizer_settings import settings_of
from workbench.training.run import resolve_device
from workbench.training.streams import Streams

TOKEN_BYTES = 16
"""Bytes of a token and its target, in which plans count what a batch takes."""
MANY_STEPS = 1 << 40
"""More than any loop makes: an engine does not know when the last one comes."""
FOLLOWS = (
    "{}, which blocks read, is another than when their passes were recorded: they are launched "
    "from here on, one kernel after the other, and follow it"
)


class Engine(Streams, Habits):
    """Trains a module of torch's, whose own weights stay as they are."""

    @in_a_sentence()
    def __init__(
        self,
        model: nn.Module,
        optimizer_config: Mapping[str, Any],
        method: str = "stronghold",
        *,
        clip: float | None = None,
        microbatches: int | None = 1,
        dtype: str = "fp32",
        device: str = "auto",
        activations: str = "auto",
        device_memory: str | int | None = None,
        host_memory: str | int | None = None,
        disk_memory: str | int | None = None,
        seed: int = 0,
        stages: int | None = None,
        weight_of: Weigh | None = None,
        weights: str | Path | None = None,
        release: bool = False,
        results: str | Path = REPOSITORY_RESULTS,
        quiet: bool = False,
        **options: Any,
    ) -> None:
        """`optimizer_config`: arguments of `torch.optim.AdamW`, such as ``{"lr": 1e-3}``; its
        ``params`` may be groups of the module's parameters, one with and one without weight decay.
        Gradients are clipped by their global norm to `clip`. A batch is computed in `microbatches`
        equal parts, whose rows count as the operations of the loss count them; with None a method
        that plans for one device has as many as are the fastest. Where operations do not
        tell, `weight_of(batch)` gives a tensor of how many labels of each row count. Budgets are
        bytes, or text such as ``24GiB``. `seed` is that of random numbers in forward passes.
        `weights` names a folder, a file, a run or a checkpoint to begin from; the model may be on
        the meta device then. With `release` the model's own parameters are there from the first
        step on, without values, and their memory is given back.
        `results` is where measurements of this machine are kept. What goes on before the first
        step is told on the standard error stream, by the first process of several, unless `quiet`.
        `options` are the method's own; a method whose stages are updated by themselves takes a
        function of parameters as `optimizer`, which makes theirs. Where torchrun has started
        several processes, each makes an engine and passes its rows; `stages` of them in turn are a
        pipeline, by default all, and pass equal rows. Harmony, the swapping methods and fsdp divide
        it themselves.

        Raises ValueError, one sentence, for what cannot be trained so."""
        self._row = methods.driven(method, int(os.environ.get("WORLD_SIZE", 1)))
        if not isinstance(model, nn.Module):
            raise ValueError(f"model is a {type(model).__name__}; give a torch module")
        self._module, self._stages, self._results = model, stages, user_path(results)
        self._weight_of, self._microbatches, self._release = weight_of, microbatches, release
        self._given = Given(model, weights, PREFIX)
        self._own = options.pop("optimizer") if callable(options.get("optimizer")) else None
        if self._own is not None and not self._row.asynchronous:
            raise ValueError(f"optimizer is a function; {method} has AdamW alone, leave it out")
        self.optimizer, self._no_decay = settings_of(model, optimizer_config, self._own)
        """Knows the learning rate, for schedulers of torch's; it updates nothing itself."""
        (group,) = self.optimizer.param_groups
        memory = {"device": device_memory, "host": host_memory, "disk": disk_memory}
        self._fields: dict[str, Any] = {
            f"{tier}_memory": parse_bytes(given) if isinstance(given, str) else given
            for tier, given in memory.items()
        } | {
            "method": method, "options": choose(method, as_text(options)), "dtype": dtype,
            "device": device, "seed": seed, "clip": clip, "lr": 1.0, "activations": activations,
            "lr_schedule": "constant", "steps": MANY_STEPS, "save_every": MANY_STEPS,
            "beta1": group["betas"][0], "beta2": group["betas"][1], "eps": group["eps"],
            "weight_decay": group["weight_decay"], "optimizer": self.optimizer,
        }  # fmt: skip
        count = 1 if microbatches is None else microbatches
        parts = {"batch": count, "microbatches": count}
        OutsideRate(**self._fields | parts | {"method": "plain", "options": None})  # may refuse
        self._folder = TemporaryFolder("workbench-engine")
        self._peers = Peers(self._folder.path)
        self._steps: Steps | None = None
        self._closed = False
        self.skipped = 0
        """Steps that this engine has left out, since their gradients were not finite."""
        self._failure = ""
        """Of the last step or load that failed."""
        self._load_from: tuple[Path, int] | None = None
        """Checkpoints to go on from with the first step, and the steps of the newest."""
        first = os.environ.get("RANK", "0") == "0"
        self._report = Lines() if first and not quiet else Untold()

    @property
    def steps(self) -> int:
        """Steps done, those before the checkpoint that was loaded among them."""
        before = self._load_from[1] if self._load_from else 0
        return self._steps.steps if self._steps else before

    @property
    def grad_norm(self) -> float | None:
        """Global norm of the last step's gradients before they were clipped, where it is known."""
        return self._steps.grad_norm if self._steps else None

    @property
    def plan(self) -> Plan | None:
        """The plan that the method has made with the first batch: seconds of a step, bytes of each
        tier, and the constraint that binds. None before the first step, of methods that do not
        plan, and in other processes than the first."""
        return self._steps.plan if self._steps else None

    @in_a_sentence(calls_users=True)
    @torch.inference_mode(False)
    @torch.enable_grad()
    def step(self, batch: Any, loss_fn: LossFunction) -> Loss:
        """One optimizer step on a batch; returns its mean loss. `batch`: a tensor, or a tuple, list
        or dictionary of tensors, of as many rows each; `loss_fn(outputs, batch)` is their mean
        loss, by one function in all steps. The module takes of a dictionary what its forward pass
        names, of a tuple as many of the first tensors as it needs.

        A step whose gradients are not finite changes nothing, and is told on the standard error
        stream unless `quiet`. Without `clip`, a method that updates layers before it can know
        raises ValueError instead.

        Raises ValueError for what cannot be trained, OutOfMemory where a budget is exceeded. A step
        that raises has changed nothing, or the next call raises ValueError until a checkpoint is
        loaded."""
        if self._row.asynchronous:
            raise ValueError(
                f"{self._row.name} updates stages at different times, so a step has no end of its "
                "own; use engine.stream(loader, loss_fn), which takes batches ahead"
            )
        return self._take(batch, loss_fn)[0]

    @in_a_sentence(calls_users=True)
    @torch.inference_mode(False)
    @torch.enable_grad()
    def _take(self, batch: Any, loss_fn: LossFunction) -> list[Loss]:
        """Do a step, or begin one; the losses of steps that have ended."""
        self._check_open()
        taken: list[Batch] = []

        def check() -> dict[str, Any]:
            taken.append(self._checked(batch, loss_fn))
            return self._alike(loss_fn)

        with self._telling():
            if self._steps is None:
                if self._row.parallel or self._row.sharded:
                    self._peers.meet(resolve_device(self._fields["device"]).type)
                with (
                    self._peers.together("in planning the first step", check),
                    generators(self._fields["seed"]),  # the user's are left as they were
                ):
                    self._begin(taken[0], loss_fn)
            number = self.steps
            if self._row.asynchronous:  # who waits for nobody else is not made to
                check()
                here = self._peers.watched(f"in step {number}")
            else:
                here = self._peers.together(f"in step {number}", check)
            with here:
                self._steps.whole = False
                losses = [*map(Loss, self._steps.begin(taken[-1]))]
            self._steps.whole = True
        self._tell_skipped(number)
        self.optimizer.stepped()
        return losses

    def _alike(self, loss_fn: LossFunction) -> dict[str, Any]:
        """Values that all processes must have alike in the next step."""
        told = {RATE: float(self.optimizer.param_groups[0]["lr"])}
        if self._steps is None and self._peers.group is not None:
            told |= training(
                self._module, loss_fn, self._weight_of, self._no_decay,
                {name: self._fields[name] for name in self._fields.keys() - {"lr", "optimizer"}}
                | {"microbatches": self._microbatches, "stages": self._stages}
                | {"the digest of weights": self._given.digest}
                | {"the code of optimizer": code_of(self._own)},
            )  # fmt: skip
        return told

    def _checked(self, batch: Any, loss_fn: LossFunction) -> Batch:
        """Raise ValueError for a batch that cannot be trained, or not as those before."""
        if not callable(loss_fn):
            raise ValueError(f"loss_fn is {loss_fn!r}; give a function of outputs and batch")
        taken = Batch(batch, self._weight_of, DTYPES[self._fields["dtype"]])
        if self._steps is None:
            return taken
        taken.check_like(self._first, shorter=self._steps.shorter)
        self.optimizer.check(self._fields)
        if _identity(loss_fn) != _identity(self._loss):
            raise ValueError("loss_fn is another function than in the first step; give one alone")
        self._unchanged.check(loss_fn)
        if (what := self._unchanged.changed_inside()) and self._steps.launch():
            self._report.say(FOLLOWS.format(what))
        self._objective.again.check(loss_fn, partial(self._first.filled, exact=True))
        (self._steps.objective(taken, self._again) or self._objective).weigh(taken)
        taken.check_parts(self._microbatches or self._steps.parts, each=self._row.sharded)
        return taken

    def _begin(self, first: Batch, loss_fn: LossFunction) -> None:
        """Make all that waits for a batch."""
        sample = sum(tensor.nbytes for tensor in first.tensors) // first.rows + 4
        self._first, self._loss = first, loss_fn
        self._objective = objective = self._objective_for(first)
        shape = ModelSpec(  # how many layers there are, nobody knows yet
            family=f"{ENGINE}{objective.name}", layers=MOST["layers"], hidden=1, heads=1, vocab=1,
            seq=-(-sample // TOKEN_BYTES),
        )  # fmt: skip
        chosen = self._microbatches is None and self._row.driven == methods.PLANNED
        task = Task(
            spec=OutsideRate(**self._fields, batch=first.rows, model=shape),
            microbatches=None if chosen else self._microbatches or 1,
            objective=objective, first=first,
            results=self._results, folder=self._folder.path, stages=self._stages,
            weight_of=self._weight_of, peers=self._peers, report=self._report, again=self._again,
            optimizer=self._own,
        )  # fmt: skip
        steps = methods.imported(self._row.driven)(task)
        try:
            if self._load_from is not None:
                self._report.phase("taking up the checkpoint")
                folder, told = self._load_from
                if (found := steps.load(folder)) is None:
                    raise ValueError(f"the checkpoints in {folder} are gone since load was called")
                if found != told:  # the newest one is damaged
                    self._take_up(folder, found)
            if self._release:
                self._given.release()
            self._unchanged = Unchanged(self._module, loss_fn)
            self._objective.again.begin(loss_fn, partial(first.filled, exact=True))
        except BaseException:
            steps.close()
            self.close()  # another step would begin anew
            raise
        self._steps, self._load_from = steps, None
        self._report.phase("first step")

    def _objective_for(self, batch: Batch) -> Objective:
        return self._made_of(batch, Objective, weighs=self._weight_of is not None)

    def _made_of(self, batch: Batch, kind: type[Objective], **how: Any) -> Objective:
        how |= {"no_decay": self._no_decay, "values": self._given if self._given.apart else None}
        return kind(self._shape(), self._loss, batch, **how)

    def _again(self, tensors: Sequence[Tensor]) -> Objective:
        """The objective for batches of these tensors' shapes."""
        dtype = DTYPES[self._fields["dtype"]]
        return self._objective_for(Batch(self._first.filled(tensors), self._weight_of, dtype))

    def _check_open(self, *, loads: bool = False) -> None:
        if self._closed:
            raise ValueError("the engine is closed, and its weights are gone; make another engine")
        if not (loads or self._steps is None or self._steps.whole):
            raise ValueError(
                f"{self._failure}, and weights may be half updated; load a checkpoint, several "
                "processes after they are started again"
            )

    @in_a_sentence()
    def save(self, folder: str | Path) -> Path:
        """Write ``step-N`` in a folder, weights and moments; an engine of this module goes on from
        it under any method and number of processes, of pipelines under any pipeline. Of several
        processes each calls it. Raises OSError if the disk refuses."""
        self._check_open()
        if self._steps is None:
            raise ValueError("nothing has been trained yet; save after a step")
        with self._peers.together("in save"):
            self._settle()
            return self._steps.save(user_path(folder))

    @in_a_sentence()
    def load(self, folder: str | Path) -> int | None:
        """Take up the newest sound checkpoint of a folder, and the learning rate with all that
        schedulers keep in the optimizer; returns the steps done by it, None where there is none.
        Before the first step it is taken up with that step. Raises ValueError for
        one of another module, seed, optimizer or clipping, and for a path that is no folder."""
        self._check_open(loads=True)
        path = user_path(folder)
        if path in steps_in(path.parent) or (path.exists() and not path.is_dir()):
            raise ValueError(f"{path} holds no checkpoints; give the folder that has its step-N")
        if self._steps is not None:
            try:
                with self._peers.together("in load"):
                    if not self._steps.whole:
                        self._steps.forget()
                    else:
                        with suppress(Exception):  # of weights that are there no more
                            self._settle()
                    found = self._steps.load(path)
            except OtherTraining:  # which nobody has begun to take up
                raise
            except BaseException as error:
                self._fail("load", error)
                raise
            self._steps.whole |= found is not None
        else:
            saved, _ = newest(path)
            found = None if saved is None else saved.manifest.next_step
            self._load_from = None if found is None else (path, found)
        if found is not None:
            self._take_up(path, found)
        return found

    def _take_up(self, folder: Path, steps: int) -> None:
        """Have the settings of the optimizer that a checkpoint has."""
        self.optimizer.take_up(Saved.read(folder / step_name(steps)).manifest.settings)

    def close(self) -> None:
        """Give all memory back; ask for `state_dict` before."""
        self._closed = True
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        self._peers.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if error is not None:
            self._peers.say(error)
        self.close()


def _identity(function: LossFunction) -> Any:
    """Equal for a function that is made again in each step, as a lambda in a loop is."""
    return getattr(function, "__code__", function)
