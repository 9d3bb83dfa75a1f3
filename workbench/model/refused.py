"""Modules that layers would train otherwise than torch does: refused before anything is made of
them, by the name of the part that stands in the way."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.model.overlap import hidden, overlapping

WRAPPERS = {
    "OptimizedModule": "torch.compile",
    "DataParallel": "nn.DataParallel",
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "FSDPModule": "fully_shard",
    "AveragedModel": "AveragedModel",
    "ScriptModule": "torch.jit",
    "DeepSpeedEngine": "DeepSpeed",
}
"""Classes of libraries that stand around a module, and their names for people."""


def refuse(model: nn.Module, name: str) -> None:
    """Raise ValueError, one sentence, for what no layer can do as the module does. Tensors that a
    module computes from its weights before each pass, as weight norm does, are cut from them."""
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{name}: {path!r} has no shape yet; call the model with a batch once before"
            )
    for path, part in model.named_modules():
        where = f"{name}: {path!r}" if path else name
        if wrapper := _wrapper(part):
            raise ValueError(
                f"{where} is wrapped by {wrapper}, which layers cannot be made of; leave {wrapper} "
                "out, and give the module that is inside"
            )
        if "forward" in vars(part):
            raise ValueError(
                f"{where} had its forward replaced on the instance, which a copy of it does not "
                "know; give it a class whose forward does that"
            )
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise ValueError(
                f"{where} is a sparse {type(part).__name__}, and AdamW takes no sparse gradients; "
                "use sparse=False"
            )
        if part._backward_hooks or part._backward_pre_hooks:
            raise ValueError(
                f"{where} has a hook on its backward pass, which layers would call at other times; "
                "put what it does into the module's forward pass"
            )
        for attribute, value in vars(part).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                setattr(part, attribute, value.detach())
    if found := overlapping(model):
        one, other = found
        raise ValueError(
            f"{name}: {one!r} and {other!r} share memory and are two tensors, which layers would "
            "train apart; make them one parameter (head.weight = words.weight), or give each "
            "memory of its own by clone()"
        )
    if found := hidden(model):
        place, parameter = found
        raise ValueError(
            f"{name}: {place!r} holds the parameter {parameter!r} beside its own place, where "
            "layers would leave it as it is now; read it from its module in the forward pass"
        )
    for path, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ValueError(
                f"{name}: parameter {path!r} has a hook on its gradient, which copies of it would "
                "not have; put what it does into the module's forward pass, as by a mask on the "
                "weight"
            )
    if model.training and (part := _kept_from_training(model)):
        raise ValueError(
            f"{name}: {part!r} is in evaluation mode, which the module's own train() would end; "
            "override train() so that it stays in that mode"
        )


def _wrapper(part: nn.Module) -> str:
    """Name of a library's wrapper around a module, or around its forward pass."""
    around = vars(part).get("forward"), part._compiled_call_impl
    if any(hasattr(each, "_torchdynamo_orig_callable") for each in around):
        return WRAPPERS["OptimizedModule"]
    found = (WRAPPERS.get(kind.__name__) for kind in type(part).__mro__)
    return next(filter(None, found), "")


def _kept_from_training(model: nn.Module) -> str:
    """Path of a part that somebody has set to evaluation mode by hand."""
    modes = {part: part.training for part in model.modules()}
    model.train()
    found = [path for path, part in model.named_modules() if part.training and not modes[part]]
    for part, mode in modes.items():
        part.training = mode
    return next(iter(found), "")
