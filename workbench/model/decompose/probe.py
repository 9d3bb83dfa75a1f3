"""A model's calls at any batch size and in both modes, from a few runs that cost nothing.

The model runs in a copy whose tensors have shapes but no memory (fake tensors), so its forward code
may be any Python that does not ask for the value of a tensor. Symbolic tracing (torch.fx) hands
proxies to that code, which Hugging Face models refuse, and torch.export breaks blocks into
operators and takes minutes for large models; both see no more than this.

What follows the batch size is found by running three times, with three sizes: a number that differs
is a function of the batch, and a call that differs cannot be cut. One of these runs is in the other
of the modes train and eval; when it differs, a fourth tells what follows the mode.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)

from workbench.core.mistakes import line_of_users
from workbench.model.decompose.blocks import has_weights
from workbench.model.decompose.layer import local_tensors
from workbench.model.decompose.merge import BATCHES, add_modes, merged, of_batch
from workbench.model.decompose.plan import build, flatten, labels
from workbench.model.decompose.record import Overwritten, Recorder, Refusal, Trace, storage_of

ASKS = (DataDependentOutputException, DynamicOutputShapeException)


class Undecomposed(ValueError):
    """A model's calls cannot be found: `reason`, and what who calls `decompose` can do."""

    def __init__(self, reason: str, error: Exception) -> None:
        super().__init__(f"{reason}; give all modules in order to `from_list`")
        self.reason = reason
        self.asks = isinstance(error, ASKS)
        """Whether it asks for values of tensors."""
        self.failed = not self.asks and not isinstance(error, Refusal)
        """Whether the model's own code failed; it may fail on tensors without values only."""


def record(
    model: nn.Module, args: tuple, kwargs: dict, blocks: set[str], *, grow: bool,
    dice: bool = False,
) -> tuple[Trace, bool | None]:  # fmt: skip
    """The model's calls, and the value of `training` they are right for (None: both).

    `blocks` and modules without children are noted as one call each. With `grow`, a module whose
    own code cannot be followed is added to the blocks, if at most half of them are in it. With
    `dice`, blocks with weights are watched for random numbers, too, which takes time. Raises
    ValueError, one sentence, for a model whose calls cannot be found.
    """
    if not any(map(_is_batch, flatten((args, kwargs))[0])):
        raise ValueError("the example arguments hold no batch: no tensor has a dimension")
    while True:
        runner = None
        try:
            runner = _Runner(model, args, kwargs, blocks, dice)
            with torch.inference_mode(False), torch.random.fork_rng(devices=[]), _quiet():
                try:
                    return _record(runner, model.training)
                except Overwritten:
                    runner.compute = False
                    return _record(runner, model.training)
        except Exception as error:  # a refusal, or whatever the model's own code raises
            path, place = _place(error, runner.opened if runner else {})
            inside = [block for block in blocks if block.startswith(f"{path}.")]
            if not (grow and path and 2 * len(inside) <= len(blocks)):
                raise Undecomposed(_sentence(model, place, error), error) from error
            blocks.add(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's own messages about what fake tensors cannot do: it is reported, or helped."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _record(runner: _Runner, mode: bool) -> tuple[Trace, bool | None]:
    runs = [runner.once(batch, mode) for batch in BATCHES[:2]]
    other = None
    try:
        other = runner.once(BATCHES[2], not mode)
        whole = merged([*runs, other], of_batch)  # so the mode makes no difference
    except Overwritten:
        raise
    except Exception:  # it does, or the model cannot be run in the other mode
        runs.append(runner.once(BATCHES[2], mode))
        whole = merged(runs, of_batch)
        try:
            add_modes(whole, runs[2], other, mode)
        except Refusal:
            return whole, mode
    whole.aliasing.append(other.aliasing[0])
    whole.random = [one or two for one, two in zip(whole.random, other.random, strict=True)]
    return whole, None


class _Runner:
    """Runs copies of a model whose tensors have shapes but no memory."""

    def __init__(
        self, model: nn.Module, args: tuple, kwargs: dict, blocks: set[str], dice: bool
    ) -> None:
        self.model, self.blocks, self.dice = model, blocks, dice
        self.leaves, self.form = flatten((args, kwargs))
        self.names = _input_names(model, args, kwargs)
        self.compute = True
        """Whether constants have values; see `Recorder`."""
        self.opened: dict[str, nn.Module] = {}
        """Modules of the latest copy that are not blocks."""
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self.fake_of: dict[int, Tensor] = {}
        self.states: dict[int, tuple[str, Tensor]] = {}
        for key, tensor in _tensors(model).items():
            if id(tensor) not in self.fake_of:
                fake = self._fake(tensor.size(), tensor.stride(), tensor.dtype)
                if isinstance(tensor, nn.Parameter):
                    fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
                self.fake_of[id(tensor)] = fake
                self.states[id(fake)] = key, tensor

    def _fake(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        with self.fakes:
            return torch.empty_strided(size, stride, dtype=dtype, device="cpu")

    def once(self, batch: int, training: bool) -> Trace:
        """The calls of one run."""
        clone = copy.deepcopy(self.model, dict(self.fake_of))
        if training != clone.training:
            clone.train(training)
        rows = next(leaf.shape[0] for leaf in self.leaves if _is_batch(leaf))
        leaves = list(self.leaves)
        inputs = {}
        for i, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor):
                shape = list(leaf.shape)
                if shape[:1] == [rows]:
                    shape[0] = batch
                meta = torch.empty(shape, device="meta")
                leaves[i] = self._fake(shape, meta.stride(), leaf.dtype)
                inputs[self.names[i]] = leaves[i].requires_grad_(leaf.requires_grad)
        recorder = Recorder(
            self.fakes, dict(self.states), inputs, compute=self.compute, dice=self.dice
        )
        self.opened = _listen(clone, "", self.blocks, recorder, self.model)
        args, kwargs = build(self.form, leaves)
        with self.fakes, torch.device("cpu"), torch.enable_grad(), recorder:
            out = clone(*args, **kwargs)
        recorder.put_out(out)
        for path, module in self.opened.items():
            for name, tensor in module.named_buffers(recurse=False):
                before = self.fake_of.get(id(getattr(self.model.get_submodule(path), name)))
                if before is None or storage_of(tensor) != storage_of(before):
                    where = f"{path}.{name}" if path else name
                    raise Refusal(f"it puts a new tensor in the place of {where!r}: write into it")
        return recorder.trace


def _is_batch(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers, and tensors that modules have as plain attributes."""
    plain = {
        f"constant {path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    }
    return {**local_tensors(model), **plain}


def _input_names(model: nn.Module, args: tuple, kwargs: dict) -> list[str]:
    """The names of the arguments, for each leaf in them."""
    names = [
        p.name
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names += [f"input{i}" for i in range(len(names), len(args))]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    return [label for name, arg in named.items() for label in labels(flatten(arg)[1], name)]


def _listen(
    module: nn.Module, path: str, blocks: set[str], recorder: Recorder, model: nn.Module
) -> dict[str, nn.Module]:
    """Have blocks below `module` report their calls; returns the modules above them by path."""
    children = list(module.named_children())
    if children and path not in blocks:
        opened = {path: module}
        for name, child in children:
            below = f"{path}.{name}" if path else name
            opened |= _listen(child, below, blocks, recorder, model)
        return opened
    if id(module) in recorder.listened:  # it is in two places
        return {}
    recorder.listened.add(id(module))
    kind, dice = type(module), recorder.dice or not has_weights(module)

    def plainly(*args: Any, **kwargs: Any) -> Any:
        try:
            return kind.__call__(module, *args, **kwargs)
        except Exception:
            return _really(model.get_submodule(path), module.training, args, kwargs, recorder)

    def call(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if recorder.inside:
            return kind.__call__(module, *args, **kwargs)
        return recorder.call(path, plainly, args, kwargs, dice=dice)

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    return {}


def _really(
    original: nn.Module, training: bool, args: tuple, kwargs: dict, recorder: Recorder
) -> Any:
    """Run a block that asks for values on made-up ones; what comes out is fake again.

    Called while its failure is handled, which is raised where a buffer has no values. Parameters
    without any are zeros.
    """
    if any(buffer.is_meta for buffer in original.buffers()):
        raise
    leaves, form = flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    fakes = [leaves[i] for i in places]
    device = next((p.device for p in original.parameters() if not p.is_meta), torch.device("cpu"))
    gpus = [device] if device.type == "cuda" else []
    with unset_fake_temporarily(), torch.random.fork_rng(devices=gpus):
        module = copy.deepcopy(original, _zeros_of(original))
        if module.training != training:
            module.train(training)
        for i, fake in zip(places, fakes, strict=True):
            make = torch.rand if fake.is_floating_point() else torch.zeros
            if fake.dtype == torch.bool:
                make = torch.ones
            real = make(tuple(fake.shape), dtype=fake.dtype, device=device)
            leaves[i] = real.requires_grad_(fake.requires_grad).clone()
        versions = [leaves[i]._version for i in places]
        real_args, real_kwargs = build(form, leaves)
        made, made_form = flatten(module(*real_args, **real_kwargs))
    with torch.no_grad():
        for i, fake, before in zip(places, fakes, versions, strict=True):
            if leaves[i]._version != before:
                fake.mul_(1)
    for i, real in enumerate(made):
        if isinstance(real, Tensor):
            bare = torch.empty(tuple(real.shape), dtype=real.dtype, device="cpu")
            made[i] = bare.requires_grad_(real.requires_grad).clone()
            for k, fake in zip(places, fakes, strict=True):
                if storage_of(leaves[k]) == storage_of(real):
                    recorder.share(made[i], fake)
    return build(made_form, made)


def _zeros_of(module: nn.Module) -> dict[int, nn.Parameter]:
    """Zeros for the parameters of a module that have no values, by their ids."""
    return {
        id(p): nn.Parameter(torch.zeros(p.shape, dtype=p.dtype), requires_grad=p.requires_grad)
        for p in module.parameters()
        if p.is_meta
    }


def _place(error: BaseException, opened: dict[str, nn.Module]) -> tuple[str, str]:
    """Where the error arose: the innermost opened module (its path), and the line in words."""
    paths = {id(module): path for path, module in opened.items()}
    path, place, trail = "", "", error.__traceback__
    while trail is not None:
        frame = trail.tb_frame
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and "/torch/" not in frame.f_code.co_filename:
            path = paths.get(id(module), path)
            place = f"in {type(module).__name__}.{frame.f_code.co_name}, line {trail.tb_lineno}, "
        trail = trail.tb_next
    if line := line_of_users(error):
        place = f"{place.removesuffix(', ') or 'in its call'} ({line}), "
    return path, place


def _sentence(model: nn.Module, place: str, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0]
    if isinstance(error, ASKS):  # in the words of torch's own operators
        sizes = isinstance(error, DynamicOutputShapeException)
        reason = "a size follows" if sizes else "the next call follows"
        reason += " the values of a tensor, which are not known before it runs"
    elif not isinstance(error, Refusal):
        reason = f"{type(error).__name__}: {reason}"
    return f"{type(model).__name__} cannot be decomposed: {place}{reason}"
