"""A user's own module, trained by a method in the user's own loop.

    engine = workbench.Engine(model, {"lr": 1e-3}, method="stronghold", device_memory="24GiB")
    scheduler = torch.optim.lr_scheduler.LinearLR(engine.optimizer)
    for batch in loader:
        loss = engine.step(batch, lambda outputs, batch: F.cross_entropy(outputs, batch[1]))
        scheduler.step()
    model.load_state_dict(engine.state_dict())

With the first batch the module and the loss function are cut into layers, which are compared with
the two as they are written; then the method plans, and lays out its memory. Any method can do that
whose row in the table says how (core/methods.py, `driven`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import psutil
import torch
from torch import Tensor, nn

from workbench.core import methods
from workbench.core.bytesize import format_bytes, parse_bytes
from workbench.core.model_spec import ModelSpec
from workbench.core.options import choose
from workbench.core.paths import user_path
from workbench.core.reporter import Untold
from workbench.methods.compare import SAMPLES, compare
from workbench.methods.compared import COPIES
from workbench.methods.driven import Driven, OutsideRate
from workbench.model.base import LayeredModel
from workbench.model.objective import Batch, Handed, LossFunction, Objective, state_name
from workbench.runs.store import REPOSITORY_RESULTS
from workbench.runtime import checkpoint
from workbench.runtime.manifest import Saved, steps_in, take_newest

TOKEN_BYTES = 16
"""Bytes of a token and its target, in which plans count what a batch takes."""
MANY_STEPS = 1 << 40
"""More than any loop makes: an engine does not know when the last one comes."""


class Engine:
    """Trains a module of torch's, whose own weights stay as they are."""

    def __init__(
        self,
        model: nn.Module,
        optimizer_config: Mapping[str, Any],
        method: str = "stronghold",
        *,
        clip: float | None = None,
        microbatches: int = 1,
        dtype: str = "fp32",
        device: str = "auto",
        device_memory: str | int | None = None,
        host_memory: str | int | None = None,
        disk_memory: str | int | None = None,
        seed: int = 0,
        results: str | Path | None = None,
        **options: Any,
    ) -> None:
        """`optimizer_config`: arguments of `torch.optim.AdamW`, such as ``{"lr": 1e-3}``. Gradients
        are clipped by their global norm to `clip`. A batch is computed in `microbatches` equal
        parts, whose mean losses count alike. Budgets are bytes, or text such as ``24GiB``. `seed`
        is that of random numbers in forward passes. `results` is where measurements of this machine
        are kept, by default the folder of the command line. `options` are the method's own.

        Raises ValueError, one sentence, for what cannot be trained so."""
        row = methods.find(method)
        if not row.driven:
            able = ", ".join(each.name for each in methods.known().values() if each.driven)
            raise ValueError(f"{method} takes no steps of a loop of one's own; use one of {able}")
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ValueError(
                f"{os.environ['WORLD_SIZE']} processes run, and {method} trains in one; on several "
                "devices use workbench.methods.varuna.Varuna"
            )
        if not isinstance(model, nn.Module):
            raise ValueError(f"model is a {type(model).__name__}; give a torch module")
        self._row, self._module = row, model
        self.optimizer = _adamw(optimizer_config)
        """Knows the learning rate, for schedulers of torch's; it updates nothing itself."""
        (group,) = self.optimizer.param_groups
        memory = {"device": device_memory, "host": host_memory, "disk": disk_memory}
        self._fields: dict[str, Any] = {
            **{f"{tier}_memory": _bytes(given) for tier, given in memory.items()},
            "method": method, "options": choose(method, options), "microbatches": microbatches,
            "dtype": dtype, "device": device, "seed": seed, "clip": clip, "lr": 1.0,
            "lr_schedule": "constant", "steps": MANY_STEPS, "beta1": group["betas"][0],
            "beta2": group["betas"][1], "eps": group["eps"], "weight_decay": group["weight_decay"],
        }  # fmt: skip
        OutsideRate(**self._fields, batch=microbatches)  # raises for what is wrong in it
        self._results = REPOSITORY_RESULTS if results is None else user_path(results)
        self._folder = TemporaryDirectory(prefix="workbench-engine-")
        self._driven: Driven | None = None
        self._saved: Saved | None = None
        """A checkpoint to go on from, until the first step."""

    @property
    def steps(self) -> int:
        """Steps done, those before the checkpoint that was loaded among them."""
        if self._saved is not None:
            return self._saved.manifest.next_step
        return len(self._driven.history.losses) if self._driven else 0

    @property
    def grad_norm(self) -> float | None:
        """Global norm of the last step's gradients before they were clipped, where it is known."""
        return self._driven.history.grad_norms[-1] if self._driven and self.steps else None

    def step(self, batch: Any, loss_fn: LossFunction) -> float:
        """One optimizer step on a batch; returns its mean loss. `batch`: a tensor, or a tuple, list
        or dictionary of tensors, of as many rows each; `loss_fn(outputs, batch)` is their mean
        loss, by one function in all steps. The module takes of a dictionary what its forward pass
        names, of a tuple as many of the first tensors as it needs.

        Raises ValueError for what cannot be trained, OutOfMemory where a budget is exceeded."""
        taken = Batch(batch)
        if self._driven is None:
            self._begin(taken, loss_fn)
        taken.check_like(self._first)
        if _identity(loss_fn) != self._loss:
            raise ValueError("loss_fn is another function than in the first step; give one alone")
        self._batches.take(taken)
        self._driven.advance(self.steps)
        self.optimizer.step()  # of nothing, so that schedulers see it stepped
        return self._driven.history.losses[-1]

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the weights in fp32, and of all else that the module's own `state_dict` has, on
        the CPU, by the names there."""
        found = {n: t.detach().cpu().clone() for n, t in self._module.state_dict().items()}
        if self._driven is not None:
            trained = self._driven.parameters() | dict(self._driven.statistics())
        elif self._saved is not None:
            files = self._saved.manifest.files
            trained = {
                label.removeprefix("weight/"): tensor
                for label, tensor in checkpoint.tensors_of(self._saved, [*files]).items()
                if not label.startswith("exp_avg")
            }
        else:
            return found
        trained = {state_name(name): tensor for name, tensor in trained.items()}
        own = dict(self._module.named_parameters(remove_duplicate=False))
        alias = {id(own[name]): name for name in trained if name in own}
        for name in found:
            first = alias.get(id(own[name]), name) if name in own else name
            if first in trained:
                found[name] = trained[first].detach().cpu().clone()
        return found

    def save(self, folder: str | Path) -> Path:
        """Write ``step-N`` in a folder, weights and moments, which an engine of this module goes on
        from under any method; the two newest stay. Raises OSError if the disk refuses."""
        driven, folder = self._driven, user_path(folder)
        if driven is None:
            raise ValueError("nothing has been trained yet; save after a step")
        manifest = driven.history.manifest(self.steps, driven.done)
        manifest = replace(manifest, continues=self._continues())
        statistics = {name: t.cpu().clone() for name, t in driven.statistics().items()}
        return checkpoint.save(folder, driven.holder, manifest, statistics, [])

    def load(self, folder: str | Path) -> int | None:
        """Take up the newest sound checkpoint of a folder; returns the steps done by it, None where
        there is none. Raises ValueError for one of another module or clipping."""

        def take(saved: Saved) -> None:
            for name, here in self._continues().items():
                if (there := saved.manifest.continues.get(name)) != here:
                    raise ValueError(
                        f"the checkpoint {saved.path} was made with {name} {there}, and this "
                        f"engine has {here}: it would not be the same training"
                    )
            saved.check(saved.manifest.files)

        found, _ = take_newest(steps_in(user_path(folder)), take, Untold())
        if found is not None:
            self._saved = found
            if self._driven is not None:
                self._take_up()
        return None if found is None else found.manifest.next_step

    def close(self) -> None:
        """Give all memory back."""
        if self._driven is not None:
            self._driven.close()
            self._driven = None
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the first step -------------------------------------------------------------------------

    def _begin(self, first: Batch, loss_fn: LossFunction) -> None:
        objective = Objective(self._module, loss_fn, first)
        model, batches = objective.layered(), Handed(first)
        sample = sum(tensor.nbytes for tensor in first.tensors) // first.rows + 4
        shape = ModelSpec(
            family=f"engine:{type(self._module).__name__}", layers=max(1, model.layers),
            hidden=1, heads=1, seq=-(-sample // TOKEN_BYTES), vocab=1,
        )  # fmt: skip
        group = self.optimizer.param_groups[0]
        spec = OutsideRate.of_group(group, **self._fields, batch=first.rows, model=shape)
        _compare(model, batches, spec.seed)
        make: Callable[..., Driven] = methods.imported(self._row.driven)
        self._driven = make(spec, model, batches, self._results, Path(self._folder.name))
        objective.release()
        self._first, self._batches, self._loss = first, batches, _identity(loss_fn)
        if self._saved is not None:
            self._take_up()

    def _take_up(self) -> None:
        driven, saved = self._driven, self._saved
        driven.holder.restore(saved)
        driven.history.follow(saved.manifest)
        driven.history.statistics = checkpoint.statistics(saved)
        driven.restored()
        self._saved = None

    def _continues(self) -> dict[str, Any]:
        """Facts that decide how a checkpoint goes on."""
        shapes = [[n, list(p.shape), p.requires_grad] for n, p in self._module.named_parameters()]
        digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()
        return {"module": digest, "clip": self._fields["clip"], "seed": self._fields["seed"]}


def _compare(model: LayeredModel, batches: Handed, seed: int) -> None:
    """Compare the layers with the module as it is written, on the first samples, where the memory
    is there. Raises ValueError where they would train otherwise."""
    wanted, free = COPIES * 4 * model.parameters_count(), psutil.virtual_memory().available
    if wanted > free:
        raise ValueError(
            f"to compare the layers with the module takes {format_bytes(wanted)} of memory, and "
            f"{format_bytes(free)} are free"
        )
    compare(model, model, batches.rows(range(min(SAMPLES, batches.batch_size))), seed)


def _adamw(config: Mapping[str, Any]) -> torch.optim.AdamW:
    """Raises ValueError for what torch's AdamW does not take, or nobody here computes."""
    try:
        made = torch.optim.AdamW([nn.Parameter(torch.empty(0))], **config)
    except TypeError as error:
        raise ValueError(f"optimizer_config is {config!r}; AdamW says: {error}") from None
    for name in ("amsgrad", "maximize", "capturable", "differentiable"):
        if made.param_groups[0][name]:
            raise ValueError(f"{name} is on in optimizer_config, which no method here computes")
    return made


def _bytes(given: str | int | None) -> int | None:
    return parse_bytes(given) if isinstance(given, str) else given


def _identity(function: LossFunction) -> Any:
    """Equal for a function that is made again in each step, as a lambda in a loop is."""
    code = getattr(function, "__code__", None)
    if code is None:
        return function
    cells = getattr(function, "__closure__", None) or ()
    return code, tuple(id(cell.cell_contents) for cell in cells), function.__defaults__
