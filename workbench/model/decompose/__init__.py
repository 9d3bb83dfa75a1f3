"""Any module as a list of layers, each of which needs only what the one before it puts out.

    layers = decompose(model, (tokens,), {"attention_mask": mask}, criterion=loss_function)

The layers call the model's own submodules, which are not copied, and give its outputs and
gradients bit for bit at any batch size. `probe` finds the model's calls, `cut` says where layers
begin, `layer` and `program` are what comes out. `operators` has each call by itself, and
`call_stages` any sets of calls as layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.model.decompose.blocks import around, choose, has_weights
from workbench.model.decompose.cut import Piece, cut
from workbench.model.decompose.layer import Layer, Value, local_tensors
from workbench.model.decompose.plan import State
from workbench.model.decompose.probe import Undecomposed, record
from workbench.model.decompose.program import Program
from workbench.model.decompose.record import Trace

__all__ = [
    "UNREAD",
    "Layer",
    "ListOfLayers",
    "Undecomposed",
    "Value",
    "decompose",
    "from_list",
]

UNREAD = " unread"
"""Ends the key of a slot whose tensor no layer reads under that name: its path stands before it."""


def decompose(
    model: nn.Module,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    criterion: Callable[[Any, Any], Tensor] | None = None,
    at: Collection[str] | None = None,
) -> list[Layer]:
    """Cut a model, which may be on the meta device, into a strictly sequential list of layers.

    `args` and `kwargs` are an example of what the model is called with. Of its tensors only shapes,
    dtypes and whether they need gradients are read. Those whose first dimension is as long as that
    of the first tensor are batches of samples; that size is free later, all else is fixed.
    `blocks.choose` has the rule of what becomes a layer; where paths of modules are given as `at`,
    each layer but the first begins with the one call of one of them. With a criterion, the last
    layer puts out `criterion(output, targets)`, taken to be one fp32 number, instead of the model's
    output.

    Raises ValueError when the calls the model makes between its blocks cannot be found, or are
    others at another batch size, with the reason and what to do.
    """
    kwargs = dict(sorted((kwargs or {}).items(), key=lambda item: _rank(*item)))
    if not isinstance(args, tuple):
        raise ValueError(f"the example arguments must be a tuple, not a {type(args).__name__}")
    blocks = choose(model) if at is None else around(model, at)
    return _decompose(model, args, kwargs, blocks, criterion, grow=True, at=at)


def _rank(name: str, value: Any) -> tuple[bool, str]:
    """Arguments by name, but tensors of one row last: the first tensor tells the batch's size."""
    return isinstance(value, Tensor) and value.shape[:1] == (1,), name


def from_list(
    modules: Sequence[nn.Module],
    args: tuple = (),
    *,
    criterion: Callable[[Any, Any], Tensor] | None = None,
) -> list[Layer]:
    """The layers of a model that is these modules called one after another.

    A tuple that a module puts out becomes the arguments of the next; anything else is its one
    argument. Names in the state dict are those of `nn.Sequential(*modules)`. Raises ValueError as
    `decompose` does.
    """
    chain = ListOfLayers(*modules)
    paths = {name for name, _ in chain.named_children()}
    return _decompose(chain, args, {}, paths, criterion, grow=False)


class ListOfLayers(nn.Sequential):
    """Modules that are called one after another; a tuple is the arguments of the next."""

    def forward(self, *inputs: Any) -> Any:
        """Each layer over the outputs of the one before."""
        for module in self:
            out = module(*inputs)
            inputs = out if isinstance(out, tuple) else (out,)
        return out


def _decompose(
    model: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    blocks: set[str],
    criterion: Callable | None,
    *,
    grow: bool,
    at: Collection[str] | None = None,
) -> list[Layer]:
    trace, mode = record(model, args, kwargs, blocks, grow=grow)
    return layers_of(model, trace, mode, cut(trace, blocks, model, at), criterion)


def layers_of(
    model: nn.Module, trace: Trace, mode: bool | None, pieces: list[Piece],
    criterion: Callable | None,
) -> list[Layer]:  # fmt: skip
    """Layers of the pieces into which a module's calls were cut. Raises ValueError for a criterion
    with parameters."""
    if isinstance(criterion, nn.Module) and has_weights(criterion):
        raise ValueError("a criterion with parameters cannot be added: make it part of the model")
    programs, modes = [], _modes(model)
    for piece in pieces:
        piece.plan.mode = mode
        targets = [call.target for call in piece.plan.calls if isinstance(call.target, str)]
        keys = [leaf.key for leaf in piece.plan.leaves() if isinstance(leaf, State)]
        program = Program(
            piece.plan,
            {path: model.get_submodule(path) for path in targets},
            {key: trace.tensors[key] for key in keys},
        )
        program.training = model.training
        program.modes = {
            path: modes[part] for path, part in program.named_modules() if part in modes
        }
        programs.append(program)
    if criterion is not None:
        programs[-1].criterion = criterion
        pieces[-1].outputs = (Value("loss", (), torch.float32, True, None),)
    return _named(pieces, programs, model)


def _modes(model: nn.Module) -> dict[nn.Module, tuple[bool, bool]]:
    """Modules that are in another mode than the model after its own `train` and `eval`, and in
    which; both are called."""
    before = {part: part.training for part in model.modules()}
    training = {part: part.training for part in model.train().modules()}
    evaluating = {part: part.training for part in model.eval().modules()}
    for part, mode in before.items():
        part.training = mode
    both = {part: (training[part], evaluating[part]) for part in before}
    return {part: pair for part, pair in both.items() if pair != (True, False)}


def _named(pieces: list[Piece], programs: list[Program], model: nn.Module) -> list[Layer]:
    """Layers whose tensors have the names they have in the model, and know their owners."""
    paths = {id(module): path for path, module in model.named_modules()}
    unseen = {n: t for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    names: dict[int, list[str]] = {}
    for name, tensor in unseen.items():
        names.setdefault(id(tensor), []).append(name)
    states: list[dict[str, str]] = [{} for _ in programs]
    shared: list[dict[str, tuple[int, str]]] = [{} for _ in programs]
    owners: dict[int, tuple[int, str]] = {}

    def enter(index: int, local: str, tensor: Tensor, likely: str) -> None:
        known = names.get(id(tensor), [])
        if known:
            states[index][local] = likely if likely in known else known[0]
            unseen.pop(states[index][local], None)
        owner = owners.setdefault(id(tensor), (index, local))
        if owner != (index, local):
            shared[index][local] = owner

    for index, program in enumerate(programs):
        for key, slot in program.slots.items():
            part = getattr(program, slot)
            if isinstance(part, Tensor):
                enter(index, slot, part, key)
                continue
            path = paths.get(id(part), "")
            for name, tensor in local_tensors(part).items():
                enter(index, f"{slot}.{name}", tensor, f"{path}.{name}" if path else name)
    for name, tensor in list(unseen.items()):
        index, _ = owners.get(id(tensor), (len(programs) - 1, ""))
        local = programs[index].keep(name + UNREAD, tensor)
        enter(index, local, tensor, name)
    return [
        Layer(
            index=index,
            name=_path(program, piece, paths),
            module=program,
            inputs=piece.inputs,
            outputs=piece.outputs,
            state=states[index],
            shared=shared[index],
        )
        for index, (piece, program) in enumerate(zip(pieces, programs, strict=True))
    ]


def _path(program: Program, piece: Piece, paths: dict[int, str]) -> str:
    slot = program.slots.get(piece.name)
    return piece.name if slot is None else paths.get(id(getattr(program, slot)), piece.name)
