"""A rank's device memory where its schedule lays it out: what comes, goes and stays, and modules.

Places never change, so each visit of a layer's weights has its module from the beginning, a view of
the place; visits of a layer to the same place share one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workbench.runtime.memory.storage import States
from workbench.runtime.memory.visits import VisitLayout
from workbench.runtime.passes.links import placed
from workbench.runtime.passes.rank_context import RankContext
from workbench.schedule import buffers as name
from workbench.schedule.schedule import DEVICE


class PackMemory:
    """Memory and modules of one rank, by the schedule's names."""

    def __init__(self, context: RankContext) -> None:
        schedule, layouts, rank = context.schedule, context.layouts, context.board.position
        meter = context.meter
        self._schedule, self._layouts, self._dtype = schedule, layouts, context.dtype
        sizes = schedule.slot_bytes(DEVICE, rank)
        sizes.pop("inbox", None)  # which others map (inbox.py)
        for label, buffer in schedule.buffers.items():
            if buffer.permanent and placed(label, buffer, rank):
                sizes[label] = buffer.nbytes
        self._arenas = {k: meter.zeros(nbytes, torch.uint8) for k, nbytes in sizes.items()}
        """One piece for each slot, and for each layer that stays."""
        self.modules: dict[str, nn.Module] = {}
        """For the weights of visits, by their buffers."""
        self.parameters: dict[nn.Module, list[nn.Parameter]] = {}
        self.gradients: dict[str, list[Tensor]] = {}
        """Views for those of the parameters, by their buffers."""
        self.resident: dict[int, States] = {}
        """The layers whose states are here."""
        shared: dict[tuple[int, int], nn.Module] = {}
        for label, buffer in schedule.buffers.items():
            what, unit = placed(label, buffer, rank) or (None, None)
            if what is None:
                continue
            layout = layouts[unit]
            if what == "states":
                weights = self.place(name.on_rank(rank, name.weights(unit)), layout.flat.numel)
                self.resident[unit] = States.within(weights, self._arenas[label])
                continue
            place = self.place(label, layout.numel)
            if what == "gradients":
                self.gradients[label] = layout.views(place)
                continue
            if (unit, place.data_ptr()) not in shared:
                module = context.model.empty_module(
                    unit, device=context.device, dtype=context.dtype
                )
                shared[unit, place.data_ptr()] = module
                self.parameters[module] = layout.point(module, place)
            self.modules[label] = shared[unit, place.data_ptr()]

    def place(self, label: str, numel: int) -> Tensor:
        """The first elements of a buffer."""
        buffer = self._schedule.buffers[label]
        whole = self._arenas[buffer.slot or label]
        end = buffer.offset + numel * self._dtype.itemsize
        return whole[buffer.offset : end].view(self._dtype)  # [numbers of the buffer]

    def share(self, label: str, layout: VisitLayout, number: int, share: int) -> Tensor:
        """A part of a layer's gradients: all of them, or the share of that number."""
        whole = self.place(label, layout.numel)
        if share >= layout.numel:
            return whole
        return whole[number * share : (number + 1) * share]

    def clear(self) -> None:
        """Let go of all memory."""
        for held in (self.gradients, self.modules, self.parameters, self.resident, self._arenas):
            held.clear()
