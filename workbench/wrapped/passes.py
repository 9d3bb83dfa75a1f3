"""An engine whose step is asked for in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.habits import instead
from workbench.core.mistakes import in_a_sentence
from workbench.engine import Engine
from workbench.model.drawn import generators
from workbench.model.objective import COUNT, Batch
from workbench.model.outputs import Called, Ends, given_out
from workbench.training.run import resolve_device


class Passes(Engine):
    """An engine whose step is asked for in parts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ends = Ends()
        self.waits = False
        """Whether a forward pass waits for its backward pass."""
        self.failed = False
        """Whether a part of a step has failed, with which gradients that were held are gone."""
        self._cast: torch.dtype | None = None
        """Autocast's dtype in the last forward pass, where it was on."""

    def _objective_for(self, batch: Batch) -> Called:
        return self._made_of(batch, Called, ends=self.ends)

    @in_a_sentence(calls_users=True)
    @torch.inference_mode(False)
    @torch.enable_grad()
    def forward_pass(self, args: tuple, kwargs: Mapping[str, Any], *, holds: bool) -> Any:
        """Outputs of the module on a batch, cut from their graph."""
        if (count := kwargs.get(COUNT, 1)) != 1:
            raise ValueError(
                f"the call has the {COUNT} {count}, which would have to be alike in all calls: "
                "give 1, with which the loss is a sum, and divide it by that number"
            )
        self._check_open()
        self.drop()
        self._catch_up()
        with self._telling():
            taken = self._checked({"args": args, "kwargs": dict(kwargs)}, given_out)
            if self._steps is None:
                with generators(self._fields["seed"]):
                    self._begin(taken, given_out)
            kind = self.device.type
            self._cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            with self._part():
                self._steps.forward(taken, holds=holds)
            self.waits = True
        return self.ends.outputs

    @torch.inference_mode(False)
    @torch.enable_grad()
    def backward_pass(self, gradients: Sequence[Tensor]) -> None:
        """The rest of the step, from the gradients of the outputs."""
        self.waits, number = False, self.steps
        with self._telling(), self._part(), self._again_cast():
            self.ends.gradients = [gradient.to(self.device) for gradient in gradients]
            self._catch_up()
            self._steps.backward()
        self._tell_skipped(number)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def update_pass(self) -> None:
        """A step from gradients that calls before have left."""
        self.drop()
        number = self.steps
        with self._telling(), self._part():
            self._steps.update()
        self._tell_skipped(number)

    @contextmanager
    def _part(self) -> Iterator[None]:
        """A part of a step, after which weights are whole or wait for the other part."""
        self.ends.live, self._steps.whole = True, False
        try:
            yield
            self._steps.whole = True
        except BaseException:
            self.failed = True
            raise
        finally:
            self.ends.live, self.ends.gradients = False, ()

    def _again_cast(self) -> AbstractContextManager:
        """For layers that pass forward once more; memory of weights has others meanwhile."""
        if self._cast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._cast, cache_enabled=False)

    def _catch_up(self) -> None:
        """Wait for what the user's own stream does with outputs and gradients."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def drop(self) -> None:
        """Let go of a forward pass for which no backward pass has come."""
        if self.waits:
            self.waits, self.ends.outputs = False, None
            self._steps.drop()

    def discard(self) -> None:
        """Let go of gradients that are held."""
        self.drop()
        self.failed = False
        if self._steps is not None:
            self._steps.discard()

    @property
    def fresh(self) -> bool:
        """Whether no step was asked for yet."""
        return self._steps is None

    @property
    def device(self) -> torch.device:
        """Where passes are."""
        return resolve_device(self._fields["device"])

    def twin(self) -> nn.Module:
        """The module's structure, without values of parameters."""
        return self._given.twin()

    step = stream = evaluate = instead(
        "call the model itself, for evaluation under torch.no_grad()"
    )

    def _settle(self) -> None:
        self.drop()
        super()._settle()
