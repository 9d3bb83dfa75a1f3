"""All memory of a run, laid out before its first step from the buffers its schedule names.

The schedule says which units are resident, how many slots there are and in which tier states live;
this module allocates exactly that, one slab per kind and tier, and enters it in the tiers' ledgers.
Nothing of size is allocated later but activations. On a machine without a GPU the device tier is
ordinary memory that the device meter counts.

With a GPU, host memory that it copies from or to is page-locked. Moments and the rest of master
weights, five sixths of a bf16 model's bytes there, are the host's alone: threads bring their pages
while the first weights are written, and later, in case an update does not come first. New pages are
zeros, as moments begin, so nobody writes any.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from workbench.runtime.executor.threads import cpu_threads
from workbench.runtime.memory.device_budget import DeviceMeter
from workbench.runtime.memory.disk import DiskStore
from workbench.runtime.memory.pages import Bringing
from workbench.runtime.memory.storage import MOMENTS, Flat, States
from workbench.runtime.memory.tiers import Slab, Tier, slab
from workbench.schedule import buffers as name
from workbench.schedule.schedule import DEVICE, DISK, Schedule

ALIGNED = 8
"""Bytes of the widest numbers, at whose multiples they lie."""


class Memory:
    """Slabs of one run: find them by unit, or by the schedule's slot names."""

    def __init__(
        self,
        schedule: Schedule,
        flats: list[Flat],
        *,
        device: torch.device,
        dtype: torch.dtype,
        meter: DeviceMeter,
        host_budget: int | None = None,
        disk_budget: int | None = None,
        disk_folder: Path | None = None,
    ) -> None:
        """Raises OutOfMemory, with nothing left behind, where a tier has no room."""
        self.device, self.dtype, self.meter = device, dtype, meter
        self.host = Tier("host", host_budget)
        self.disk: DiskStore | None = None
        self._flats, self._schedule = flats, schedule
        self._slabs: list[Slab] = []
        self._bringing: Bringing | None = None
        units = range(len(flats))
        self.resident = frozenset(
            u
            for u in units
            if name.weights(u) in schedule.buffers and schedule.buffers[name.weights(u)].permanent
        )
        self.streamed = [u for u in units if u not in self.resident]
        self.pulled = frozenset(u for u in self.resident if name.host_states(u) in schedule.buffers)
        """Resident units whose states visit the device."""
        self._narrow = dtype != torch.float32
        self.weight_slots: dict[str, Tensor] = {}
        """Device slabs that streamed units share, by the slot's name in the schedule."""
        self.gradient_slots: dict[str, Tensor] = {}
        self._fetch_slots: dict[str, Tensor] = {}
        self._weights: dict[int, Tensor] = {}
        self._host_weights: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._states: dict[int, States] = {}
        self._host_gradients: dict[int, Tensor] = {}
        self._sums: dict[int, Tensor] = {}
        self._activations: dict[tuple[int, int], Tensor] = {}
        self._whole: dict[int, Tensor] = {}
        """All states of a unit in one piece of host memory: where those that visit the device live,
        and what those on the disk pass through."""
        self._state_slots: dict[str, Tensor] = {}
        self._seeding: dict[str, Lock] = {}
        """Locks of stagings: of units that pass through one, one is seeded at a time."""
        try:
            self._lay_out_host(disk_budget, disk_folder)
            self._lay_out_device()
        except BaseException:
            self.close()
            raise

    # -- laying out -----------------------------------------------------------------------------

    def _lay_out_device(self) -> None:
        for unit in self.resident:
            numel = self._flats[unit].numel
            weights = self._weights[unit] = self._on_device(numel, self.dtype)
            if unit in self.pulled:
                self._states[unit] = States.within(weights, self._whole[unit])
                continue
            self._states[unit] = States(
                weights=weights,
                rest=self._on_device(numel, torch.int16) if self._narrow else None,
                exp_avg=self._on_device(numel, torch.float32),
                exp_avg_sq=self._on_device(numel, torch.float32),
            )
        for unit, flat in enumerate(self._flats):
            if self._schedule.buffers[name.gradients(unit)].permanent:
                self._gradients[unit] = self._on_device(flat.numel, self.dtype)
        self.weight_slots = self._slots("weights", self.dtype)
        self.gradient_slots = self._slots("gradients", self.dtype)
        self._fetch_slots = self._slots("fetched", torch.uint8)
        self._state_slots = self._slots("states", torch.uint8)

    def _on_device(self, numel: int, dtype: torch.dtype) -> Tensor:
        return self.meter.zeros(numel, dtype)

    def _slots(self, kind: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """One device slab for every slot ``kind k`` of the schedule."""
        sizes: dict[str, int] = {}
        for buffer in self._schedule.buffers.values():
            if buffer.tier == DEVICE and (buffer.slot or "").startswith(kind + " "):
                sizes[buffer.slot] = max(sizes.get(buffer.slot, 0), buffer.nbytes)
        return {s: self._on_device(n // dtype.itemsize, dtype) for s, n in sorted(sizes.items())}

    def _lay_out_host(self, disk_budget: int | None, disk_folder: Path | None) -> None:
        flats, streamed, buffers = self._flats, self.streamed, self._schedule.buffers
        self._disk_units = frozenset(u for u in streamed if name.disk_states(u) in buffers)
        here = {unit: flats[unit].numel for unit in streamed if unit not in self._disk_units}
        moments = {unit: MOMENTS * numel for unit, numel in here.items()}
        both = self._host("moments", moments, torch.float32, pin=False)
        narrow = here if self._narrow else {}
        rests = self._host("master weights' rest", narrow, torch.int16, pin=False)
        ranges = [(owner.tensor.data_ptr(), owner.nbytes) for owner in self._slabs]
        self._bringing = Bringing(ranges, cpu_threads().host) if ranges else None
        working = self._host("working weights", {u: flats[u].numel for u in streamed}, self.dtype)
        self._host_weights = working
        slots = {unit: buffers[name.host_gradients(unit)].slot for unit in streamed}
        numels: dict[str, int] = {}
        for unit, slot in slots.items():
            numels[slot] = max(numels.get(slot, 0), flats[unit].numel)
        gradients = self._host("gradients", numels, self.dtype)
        self._host_gradients = {
            unit: gradients[slot][: flats[unit].numel] for unit, slot in slots.items()
        }
        stash = {
            (unit, micro): buffers[name.host_activation(unit, micro)].nbytes
            for unit in range(len(flats))
            for micro in range(self._schedule.num_microbatches)
            if name.host_activation(unit, micro) in buffers
        }
        odd = any(nbytes % ALIGNED for nbytes in stash.values())  # one behind another lies askew
        self._activations = self._host("stashed activations", stash, torch.uint8, apart=odd)
        if self._disk_units:
            self._lay_out_disk(disk_budget, disk_folder)
        for unit in here:
            exp_avg, exp_avg_sq = both[unit].view(MOMENTS, flats[unit].numel)
            self._states[unit] = States(
                weights=working[unit],
                rest=rests.get(unit),
                exp_avg=exp_avg,
                exp_avg_sq=exp_avg_sq,
            )
        whole = {unit: self._state_bytes(unit) for unit in sorted(self.pulled)}
        self._whole |= self._host("visiting states", whole, torch.uint8, apart=True)

    def _lay_out_disk(self, budget: int | None, folder: Path | None) -> None:
        if folder is None:
            raise ValueError("optimizer states on the disk need a folder to lie in")
        self.disk = DiskStore(
            folder,
            budget,
            host=self.host,
            staging_count=2,
            staging_nbytes=name.DISK_BOUNCE_BYTES // 2,
        )
        slots: dict[str, int] = {}
        for unit in sorted(self._disk_units):
            self.disk.allocate(name.disk_states(unit), self._state_bytes(unit))
            slot = self._schedule.buffers[name.host_states(unit)].slot
            slots[slot] = max(slots.get(slot, 0), self._state_bytes(unit))
        staging = self._host("disk staging slots", slots, torch.uint8, apart=True)
        self._seeding = {slot: Lock() for slot in slots}
        for unit in sorted(self._disk_units):
            slot = self._schedule.buffers[name.host_states(unit)].slot
            whole = self._whole[unit] = staging[slot][: self._state_bytes(unit)]
            self._states[unit] = States.within(self._host_weights[unit], whole)

    def _host(
        self, label: str, numels: dict, dtype: torch.dtype, *, apart: bool = False, pin: bool = True
    ) -> dict:
        """Host memory for a dict of sizes, which a GPU may copy (`pin`): one slab with views, or
        (`apart`) a slab each."""
        pin = pin and self.device.type == "cuda"
        if apart:
            owners = {
                key: slab(self.host, f"{label} {key}", numel, dtype, pin=pin)
                for key, numel in numels.items()
            }
            self._slabs += owners.values()
            return {key: owner.tensor for key, owner in owners.items()}
        total = sum(numels.values())
        if not total:
            return {}
        owner = slab(self.host, label, total, dtype, pin=pin)
        self._slabs.append(owner)
        return dict(zip(numels, owner.tensor.split(list(numels.values())), strict=True))

    def _state_bytes(self, unit: int) -> int:
        return self._flats[unit].numel * (4 * MOMENTS + 2 * self._narrow)

    # -- finding --------------------------------------------------------------------------------

    def weights(self, unit: int) -> Tensor:
        """Working weights of a resident unit on the device."""
        return self._weights[unit]

    def gradients(self, unit: int) -> Tensor | None:
        """Gradients of a unit on the device, if it has memory for them all the time."""
        return self._gradients.get(unit)

    def states(self, unit: int) -> States:
        """Where a unit is updated. For a unit on the disk: its staging, valid between read and
        write.
        """
        return self._states[unit]

    def visit(self, unit: int, turn: int) -> tuple[Tensor, Tensor]:
        """All states of a pulled unit as bytes: where they live on the host, and where they visit
        the device in one of a step's turns.
        """
        slot = self._schedule.buffers[name.states(unit, turn)].slot
        home = self._whole[unit]
        return home, self._state_slots[slot][: len(home)]

    def device_states(self, unit: int, turn: int) -> States:
        """Tensors that an update on the device changes; of a pulled unit, while its states
        visit."""
        if unit not in self.pulled:
            return self._states[unit]
        return States.within(self._weights[unit], self.visit(unit, turn)[1])

    def host_weights(self, unit: int) -> Tensor:
        """Working weights of a streamed unit: the source of its loads."""
        return self._host_weights[unit]

    def host_gradients(self, unit: int) -> Tensor:
        """The gradients of a unit on the host, flat, one number a parameter."""
        return self._host_gradients[unit]

    def sum_of_gradients(self, unit: int) -> Tensor:
        """Where a streamed unit's gradients wait on the host for those of further steps: where it
        has them all to itself there, or else in memory that is made when it is first asked for.
        Raises OutOfMemory where the host has none."""
        own = self._host_gradients[unit]
        slots = [self._schedule.buffers[name.host_gradients(u)].slot for u in self.streamed]
        if slots.count(self._schedule.buffers[name.host_gradients(unit)].slot) == 1:
            return own
        if unit not in self._sums:
            made = self._host("sum of gradients", {unit: len(own)}, self.dtype, apart=True)
            self._sums[unit] = made[unit]
        return self._sums[unit]

    def host_activation(self, unit: int, micro: int) -> Tensor:
        """The bytes of the stash of a unit's input."""
        return self._activations[unit, micro]

    def fetched(self, slot: str) -> Tensor:
        """The bytes of the device buffer a stashed input comes back to."""
        return self._fetch_slots[slot]

    def on_disk(self, unit: int) -> bool:
        """Whether a unit's optimizer states lie on the disk."""
        return unit in self._disk_units

    def seed(self, unit: int, master: Tensor) -> None:
        """Write the first states of a unit: its fp32 weights, and zero moments. Units may be seeded
        at the same time.
        """
        if unit not in self._disk_units:
            self._states[unit].set_master(master)
            return
        staging = self._whole[unit]
        with self._seeding[self._schedule.buffers[name.host_states(unit)].slot]:
            staging.zero_()
            self._states[unit].set_master(master)
            self.write_states(unit)

    def read_states(self, unit: int) -> int:
        """Disk to staging; returns the bytes read."""
        staging = self._whole[unit]
        self.disk.read(name.disk_states(unit), staging)
        return staging.nbytes

    def write_states(self, unit: int) -> int:
        """Staging to disk; returns the bytes written."""
        staging = self._whole[unit]
        self.disk.write(name.disk_states(unit), staging)
        return staging.nbytes

    def peak_bytes(self) -> dict[str, int]:
        """Largest bytes in use so far, per tier."""
        return {
            "device": self.meter.peak,
            "host": self.host.peak,
            DISK: self.disk.tier.peak if self.disk else 0,
        }

    def close(self) -> None:
        """Give everything back; no copy may be in flight. Does nothing the second time."""
        if self._bringing is not None:
            self._bringing.end()
        for tensors in (
            self._weights,
            self._gradients,
            self._states,
            self.weight_slots,
            self.gradient_slots,
            self._fetch_slots,
            self._host_weights,
            self._host_gradients,
            self._sums,
            self._activations,
            self._whole,
            self._state_slots,
        ):
            tensors.clear()
        for owner in self._slabs:
            owner.free()
        self._slabs.clear()
        if self.disk is not None:
            self.disk.close()
