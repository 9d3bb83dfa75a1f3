"""A user's module and optimizer in the ordinary loop of torch, trained by a method::

    model, optimizer = workbench.wrap(model, optimizer, method="stronghold", clip=1.0)
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

A method's schedule is one step: loads, passes and updates over several lanes. It is cut once, where
its compute lane has its first backward pass:

* **forward**: a call of the module walks the compute lane up to the cut. The head's graph stays;
  its outputs are handed to the user, cut from it. Other lanes go on as far as dependencies allow.
* **backward**: gradients that come back at these outputs begin the head's backward pass
  (model/outputs.py), and the compute lane is walked to its end, in the thread in which torch's
  autograd asks. Updates begin here, as the schedule has them: each unit's as soon as its gradients
  are complete, or with `clip` as soon as the norm is known or guessed.
* **update**: `optimizer.step()` ends the step for the user. Updates that the schedule lets overlap
  with the next forward pass still do so. The learning rate is that of the forward pass.

Plain training is cut at the same place and has no lanes.

**Accumulation.** A call is one micro-batch. With `accumulate=n`, calls before the n-th are steps of
the schedule that *hold* their gradients: their updates do nothing, and the next call's gradients
are added to theirs (runtime/passes/gradients.py). That is the sum over micro-batches of
`Engine.step`, in the same order, but units are loaded for each call again. Where `step()` comes
after fewer calls, as at the end of an epoch, it is a step of the schedule that passes nothing.
Whoever knows better which call is the last says so by `no_sync()`, as with torch's
DistributedDataParallel.

Calls without gradients, or in evaluation mode, are the user's own module's, with the weights of
now: any method of it and any batch are possible, where the module lies.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from workbench.core import methods
from workbench.core.mistakes import in_a_sentence
from workbench.wrapped.module import Wrapped
from workbench.wrapped.optimizer import Steered, config_of
from workbench.wrapped.passes import Passes


@in_a_sentence()
def wrap(
    model: nn.Module, optimizer: torch.optim.Optimizer, method: str = "stronghold", *,
    clip: float | None = None, accumulate: int = 1, **arguments: Any,
) -> tuple[Wrapped, Steered]:  # fmt: skip
    """Model and optimizer for an ordinary loop: a call, ``loss.backward()``, ``optimizer.step()``.
    `optimizer` is a fresh `torch.optim.AdamW` of the model's parameters; schedulers are made of the
    one that is returned. Gradients of `accumulate` calls are added up for a step, and clipped by
    their global norm to `clip`. `arguments` are those of `Engine`: budgets, dtype, device, seed,
    options of the method.

    Raises ValueError, one sentence, for what cannot be trained so."""
    if isinstance(model, Wrapped):
        raise ValueError("the model is wrapped already; give the module and the optimizer inside")
    row = methods.driven(method, 1)
    if row.parallel or row.sharded or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        rows = [r for r in methods.known().values() if r.driven and not (r.parallel or r.sharded)]
        able = ", ".join(each.name for each in rows)
        raise ValueError(
            f"{method} in several processes has no calls of its own: give one of {able} in one"
        )
    for name in ("microbatches", "weight_of"):
        if name in arguments:
            raise ValueError(
                f"{name} has no place in workbench.wrap, where a call is computed whole and the "
                "loss is yours: call the model with fewer rows, and give accumulate=..."
            )
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(
            f"accumulate is {accumulate!r}; give the number of calls a step, from 1 on"
        )
    if hasattr(model, "save_pretrained"):  # which notes this, and layers are to see no change
        model.config.dtype = str(model.dtype).removeprefix("torch.")
    engine = Passes(model, config_of(optimizer), method, clip=clip, **arguments)
    wrapped = Wrapped(model, engine, accumulate)
    return wrapped, wrapped.steered(optimizer)
