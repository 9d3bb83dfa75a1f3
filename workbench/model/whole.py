"""A layered model as one ordinary module, for plain training and for libraries."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from workbench.model.base import Context, LayeredModel
from workbench.model.checkpointed import stops_early


class Whole(nn.Module):
    """A layered model as one ordinary module, for plain training, FSDP and DeepSpeed.

    `state_dict` has the names of `LayeredModel.state_name`. The units stay reachable in order as
    `units`; they share their submodules with the named tree that is registered here.
    """

    def __init__(
        self,
        model: LayeredModel,
        units: list[nn.Module],
        *,
        seed: int,
        checkpoint: bool,
        undivided: bool = False,
    ) -> None:
        super().__init__()
        self.layered = model
        self.units = units
        self.seed = seed
        self.checkpoint = checkpoint
        self.written = model.as_written(units, checkpoint=checkpoint) if undivided else None
        for unit, module in enumerate(units):
            for path, part in model.parts(unit, module).items():
                _graft(self, path, part)
        names = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        assert names == {
            model.state_name(unit, name)
            for unit, module in enumerate(units)
            for name, _ in module.named_parameters(remove_duplicate=False)
        }

    @property
    def blocks(self) -> list[nn.Module]:
        """The modules of units 1 to n, for wrapping policies."""
        return self.units[1:-1]

    def forward(
        self,
        tokens: Tensor | tuple[Tensor, ...],
        targets: Tensor | None = None,
        *,
        step: int = 0,
        samples: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Mean loss of token ids [B, S] against targets [B, S]; without targets, logits [B, S, V].
        A decomposed module takes what it takes, several tensors as a tuple.

        `samples` are the rows' global numbers, by default those of an undivided batch: step * B
        onwards. Nothing is dropped in `eval` mode.
        """
        rows = len(tokens[0] if isinstance(tokens, tuple) else tokens)
        if samples is None:
            samples = tuple(range(step * rows, (step + 1) * rows))
        first = Context(seed=self.seed, step=step, unit=0, samples=samples, training=self.training)
        if self.written is not None:
            return self.written(tokens, targets, first)
        x = tokens
        for unit, module in enumerate(self.units):
            ctx = replace(first, unit=unit)
            if unit == self.layered.head:
                x = self.layered.forward(unit, module, x, ctx, targets)
            elif self.checkpoint and unit:
                x = checkpointed(
                    self.layered.forward,
                    unit,
                    module,
                    x,
                    ctx,
                    use_reentrant=False,
                    preserve_rng_state=False,  # random numbers are keyed: the same the second time
                    early_stop=stops_early(self.layered),
                )
            else:
                x = self.layered.forward(unit, module, x, ctx)
        return x


def make_whole(
    model: LayeredModel,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    checkpoint: bool = False,
    undivided: bool = False,
    there: bool = False,
) -> Whole:
    """All units as one module, with the weights `build` gives each, `there` or not; `undivided`
    runs what its author wrote in their place."""
    how = {"seed": seed, "device": device, "dtype": dtype, "there": there}
    units = [model.build(unit, **how) for unit in range(model.num_units)]
    model.tie(units)
    return Whole(model, units, seed=seed, checkpoint=checkpoint, undivided=undivided)


def _graft(root: nn.Module, path: str, part: nn.Module | Tensor) -> None:
    """Register `part` under a dotted path, making the modules on the way.

    A name of the model's may be one of `Whole`'s own too (``blocks``), which `add_module` refuses.
    """
    *way, leaf = path.split(".")
    for name in way:
        if name not in root._modules:
            root._modules[name] = nn.Module()
        root = root._modules[name]
    if isinstance(part, nn.Module):
        root._modules[leaf] = part
    elif isinstance(part, nn.Parameter):
        root._parameters[leaf] = part
