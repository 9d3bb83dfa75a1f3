"""Trained weights of an engine in a user's loop, for others: in memory, and in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from workbench.core.mistakes import in_a_sentence
from workbench.model.objective import PREFIX
from workbench.model.unchanged import Unchanged
from workbench.model.weights.folder import new_folder, write_folder
from workbench.model.weights.given import Given
from workbench.model.weights.outgoing import Weights
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.transport.groups import as_one
from workbench.training.failing import Failing
from workbench.training.loop import whole_state

AUTO = "auto"


class WeightsOut(Failing):
    """Part of an engine that gives weights away."""

    _given: Given
    _unchanged: Unchanged

    @in_a_sentence()
    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the weights in fp32, and of all else that the module's own `state_dict` has, on
        the CPU, by the names there. Of several processes each calls it."""
        self._check_open()
        self._taken_up()
        trained: Mapping[str, Tensor] = {}
        if self._steps:
            with self._peers.together("in state_dict"):
                self._settle()
                trained = self._steps.tensors()
        found = self._state(trained)
        if self._steps:
            self._unchanged.handed_out(found)
        return found

    @in_a_sentence()
    def export(self, folder: str | Path, *, dtype: str = AUTO) -> Path:
        """Write the weights into a new folder as `workbench.export` does, a unit at a time: of a
        model of Hugging Face's one that its `from_pretrained` takes, with the tokenizer of the
        folder that was given as `weights`; of any other module safetensors for `load_state_dict`.
        `dtype` is ``fp32``, ``bf16``, or that of the weights that came in. Of several processes
        each calls it, and the first one writes. Raises ValueError for a folder that is not empty,
        and a disk without room; OSError if it refuses."""
        self._check_open()
        if self._steps is None:
            raise ValueError("nothing has been trained yet; export after a step")
        if dtype not in (AUTO, *DTYPES):
            raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join((AUTO, *DTYPES))}")
        with self._peers.together("in export"):
            self._settle()
            groups, read = self._steps.weights()
        word = self._given.dtype if dtype == AUTO else dtype

        def write() -> str:
            target, module = new_folder(folder), self._shape()
            own, named = module.state_dict(), [[*map(_own, group)] for group in groups]
            buffers = module.named_buffers(remove_duplicate=False)
            types = {name: buffer.dtype for name, buffer in buffers}
            weights = Weights(
                shapes={name: own[name].shape for group in named for name in group},
                parameters=sum(p.numel() for p in module.parameters()), groups=named,
                read=lambda names: {
                    _own(n): t.to(types.get(_own(n), t.dtype))
                    for n, t in read([*map(_whole, names)], dtype=DTYPES[word]).items()
                },
                types=types,
            )  # fmt: skip
            how = {"came_from": self._given.folder, "tokenizer": self._given.folder}
            write_folder(target, weights, module, DTYPES[word], **how)
            return str(target)

        with self._peers.watched("in export"):
            return Path(as_one(write if self._peers.rank == 0 else str, self._peers.group)[0])

    def _shape(self) -> nn.Module:
        """The module, of which layers are made: the user's own, or its twin without values."""
        return self._given.twin() if self._given.apart else self._module

    def _state(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All that the module's `state_dict` has; the first weights, where none are `trained`."""
        if self._given.apart and self._steps is None:
            trained = {name: tensor.float() for name, tensor in self._given.items()}
        return whole_state(self._shape(), trained)

    def _taken_up(self) -> dict[str, Any]:
        """Raise ValueError where weights wait for a step."""
        raise NotImplementedError

    def _check_open(self, *, loads: bool = False) -> None:
        """Raise ValueError where weights are gone, or half updated."""
        raise NotImplementedError


def _own(name: str) -> str:
    """A name in the user's module."""
    return name.removeprefix(PREFIX)


def _whole(name: str) -> str:
    """A name of the user's in the `Objective`."""
    return PREFIX + name
