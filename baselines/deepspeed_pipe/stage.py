"""Our units as DeepSpeed's pipeline takes them: layers of a `PipelineModule`.

DeepSpeed gives a layer its input and nothing else. What our units take besides, the numbers of the
samples and the targets, lies on the host of each rank: in 1F1B micro-batches pass every stage in
order, so a rank counts them itself. A pass that is computed again has the samples that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from baselines.stage_modules import Stages
from workbench.model.base import Context

Samples = tuple[int, ...]
"""Global numbers of a micro-batch's rows."""


class Pipe(PipelineModule):
    """The stage of this rank."""

    def __init__(self, whole: Stages, stages: Sequence[range]) -> None:
        """`whole` has the units of this rank's stage. Weights that two stages use lie in it on the
        rank of either; they begin as the owner's."""
        self.layered, self.seed = whole.layered, whole.seed
        layers, starts = self._layers(whole)
        self._parts = [*(starts[stage.start] for stage in stages), len(layers)]
        super().__init__(
            layers,
            num_stages=len(stages),
            activation_checkpoint_interval=int(whole.checkpoint),
            activation_checkpoint_func=self._checkpointed,
            checkpointable_layers=[Block.__name__],
        )
        self.step = 0
        self.coming: Iterator[Samples] = iter(())
        """Micro-batches of the step that have not passed this stage yet."""
        self.targets: Tensor | None = None
        """Targets of the micro-batch that is about to pass the last stage."""
        self._samples: Samples = ()
        for parameter in self.parameters():
            # What DeepSpeed's norm in fp32 leaves out on all stages but the first, unless it is
            # told that nobody else has it.
            parameter.model_parallel = not parameter.ds_pipe_replicated

    def forward(self, forward_input: Tensor) -> Tensor:
        """The next micro-batch through this stage."""
        self._samples = next(self.coming)
        return super().forward(forward_input)

    def _layers(self, whole: Stages) -> tuple[list[LayerSpec], dict[int, int]]:
        """All layers, and the first of each unit: those weights come first that it shares."""
        layers: list[LayerSpec] = []
        starts: dict[int, int] = {}
        shared = [pair for pair in whole.layered.tied().items() if pair[0][0] != pair[1][0]]
        for unit, module in enumerate(whole.units):
            starts[unit] = len(layers)
            for number, places in enumerate(shared):
                for at, name in places:
                    if at == unit:
                        key = f"shared {number}"
                        layers.append(TiedLayerSpec(key, Shared, module, name, forward_fn=_through))
            kind = Block if 0 < unit < whole.layered.head else Unit
            layers.append(LayerSpec(kind, self._pass, unit, module))
        return layers, starts

    def _partition_layers(self, method: str = "") -> None:
        """Where the stages are cut is given, and not left to DeepSpeed."""
        self.parts = self._parts
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    def _pass(self, unit: int, module: nn.Module, x: Tensor) -> Tensor:
        ctx = Context(seed=self.seed, step=self.step, unit=unit, samples=self._samples)
        targets = self.targets if unit == self.layered.head else None
        return self.layered.forward(unit, module, x, ctx, targets)

    def _checkpointed(self, run: Callable[..., Any], *inputs: Tensor) -> Any:
        """Run layers now, and again in the backward pass, on the samples that they had."""
        samples = self._samples

        def again(*inputs: Tensor) -> Any:
            passing, self._samples = self._samples, samples
            try:
                return run(*inputs)
            finally:
                self._samples = passing

        return checkpoint(again, *inputs, use_reentrant=False, preserve_rng_state=False)


class Unit(nn.Module):
    """A unit of the model as a layer."""

    def __init__(
        self, run: Callable[[int, nn.Module, Tensor], Tensor], unit: int, module: nn.Module
    ) -> None:
        super().__init__()
        self._run, self._unit, self.module = run, unit, module

    def forward(self, x: Tensor) -> Tensor:
        """One micro-batch; of the last unit its mean loss."""
        return self._run(self._unit, self.module, x)


class Block(Unit):
    """A unit whose activations may be computed again."""


class Shared(nn.Module):
    """A weight that two stages use, before the unit that has it."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.weight = module.get_parameter(name)


def _through(_: Shared, x: Tensor) -> Tensor:
    return x
