"""A step of DeepSpeed's ZeRO, as a schedule, with its bytes on each tier.

ZeRO-Offload (Ren et al., USENIX ATC 2021) and ZeRO-Infinity (Rajbhandari et al., SC 2021) differ in
where the weights are. Of both:

* gradients leave for the host as the backward pass makes them;
* with clipping on, the host optimizer starts when the last gradient is there and the norm is known,
  and nothing else runs meanwhile: its whole time is exposed (in every release, 0.19 included);
* then ZeRO-Offload copies all weights back, before the next forward pass. ZeRO-Infinity copies
  nothing: each unit's weights are fetched when the forward and the backward pass come to it.

Several ranks divide every micro-batch, gradients, states and ZeRO-Infinity's weights among them.
All do the same at once, so the schedule is that of one of them, with its part on the links and all
of the host's memory. Whatever a rank loads, it then gathers from the others (ZeRO-3's fetches,
ZeRO-2's weights after the update), and gradients are added up before its part leaves.

The library trains by itself, so this schedule is simulated and never executed. What belongs to a
release rather than to ZeRO (does a fetch run beside compute, how fast is its Adam, what does its
allocator hold on to) stands in a `Release`: `releases.json` has today's, the constants of a
published machine what its paper ran.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.methods.offload.outside import plan_of
from workbench.profile.budgets import Budgets
from workbench.profile.profile import Profile, ProfileCosts
from workbench.profile.server import Server, of_a_rank, server_of
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, D2H, DISK_IN, DISK_OUT, H2D, HOST, Action, Kind
from workbench.schedule.action import format_name as act
from workbench.schedule.build.builder import ScheduleBuilder
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Schedule

F, R, B = Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD
L, G, U = Kind.LOAD, Kind.GRAD_OUT, Kind.UPDATE
SO_FAR = 2
"""Turn of the load of the sum of gradients so far."""
STATE_BYTES = 16
"""fp32 master, gradient and two moments: what the optimizer owns of a parameter."""
BUCKET_ELEMENTS = 50_000_000
"""Gradients reduced, parameters fetched and states updated at once: one layer of hidden size 2048
(published: 5e7, 9e7, 1e8; smaller takes less memory and gives the disk tier more to overlap)."""
KEPT_OF_A_BLOCK = 40
"""Activations of a block, in hidden vectors a token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """Facts of one release of the library, and not of ZeRO."""

    name: str
    adam_params_per_s: float | None = None
    """Parameters per second of its host optimizer; None where it is known relative to ours only."""
    adam_share: float = 1.0
    """Rate of the release's host optimizer as a share of the machine's fused one-pass AdamW."""
    block_s: float = 0.0
    """Seconds of the library's own work on the tensors of a block, whatever their size."""
    overlap_loads: bool = True
    """Whether the next unit's weights are fetched beside compute."""
    overlap_gradients: bool = True
    """Whether gradients leave beside compute."""
    device_fixed_bytes: int = 0
    """Buffers on the device, whatever the model."""
    device_buckets: int = 0
    """Buckets on the device for gradients on their way, of a block each (5e7 elements at most);
    twice as many where one fills while the other leaves."""
    held_weight_copies: float = 0.0
    """Copies of the weights that the allocator of the device still holds from the start."""
    host_weight_copies: float = 1.0
    """Buffers of the weights' size and precision on the host: weights, gradients, staging."""
    host_matrices: int = 0
    """Buffers on the host, of each rank, for the gradient of any one matrix."""
    host_factor: float = 1.0
    """Host memory used over what the formula counts."""
    disk_leaves_bytes: int = 0
    """Bytes a parameter of the optimizer that stay when its states are on the disk."""
    disk_tiles: int = 0
    """Host buffers of a block in fp32, through which states pass from and to the disk."""
    reuse_elements: int = 0
    """ZeRO-Infinity: weights stay from forward to backward pass if no more come after them."""

    @classmethod
    def current(cls, method: str) -> Release:
        """Today's release under one of our method names."""
        return cls(**{key: constant["value"] for key, constant in _current()[method].items()})


@cache
def _current() -> dict:
    return json.loads((Path(__file__).resolve().parent / "releases.json").read_text())


def activation_bytes(spec: RunSpec) -> int:
    """Bytes that a pass is known to have on the device: inputs of all blocks and the activations of
    one, or of all where they are kept."""
    model, kept = spec.model, spec.activations == "keep"
    of_blocks = model.layers * KEPT_OF_A_BLOCK if kept else model.layers + KEPT_OF_A_BLOCK
    return VALUE_BYTES[spec.dtype] * spec.microbatch * model.seq * model.hidden * of_blocks


def plan(spec: RunSpec, profile: Profile, release: Release, *, offload_weights: bool) -> Plan:
    """The plan of one ZeRO system: ZeRO-Infinity when the weights are offloaded too.

    Raises ValueError for a micro-batch that does not divide among the ranks.
    """
    ranks, server = spec.ranks, server_of(profile, spec)
    if spec.microbatch % ranks:
        raise ValueError(
            f"DeepSpeed's ZeRO gives every rank as many samples: a micro-batch of {spec.microbatch}"
            f" does not divide among {ranks} ranks"
        )
    profile = _with_its_optimizer(of_a_rank(profile, server), release)
    if profile.hardware.device == "cpu":  # without streams nothing runs beside compute
        release = replace(release, overlap_loads=False, overlap_gradients=False)
    builder = _Builder(spec, profile, release, offload_weights)
    weights = sum(unit.parameters for unit in profile.units) * profile.weight_bytes
    notes = (f"predicted from what is known of {release.name}; the library plans for itself",)
    made = plan_of(
        builder.schedule(),
        profile,
        Budgets.of(spec, profile),
        method=spec.method,
        held_device_bytes=round(release.held_weight_copies * weights),
        settings={"release": release.name},
        notes=(*notes, *[f"the schedule is that of each of {ranks} ranks"] * (ranks > 1)),
        costs=_Costs(profile, server, release.block_s),
    )
    return replace(made, moved_bytes={way: ranks * n for way, n in made.moved_bytes.items()})


class _Costs(ProfileCosts):
    """Costs of one rank. Gathering what each has loaded, and adding up what is then divided and
    stored, is each half of the way of a sum that all get."""

    def __init__(self, profile: Profile, server: Server, block_s: float) -> None:
        super().__init__(profile)
        self._server, self._block_s = server, block_s

    def seconds(self, action: Action) -> float:
        seconds, ranks = super().seconds(action), self._server.ranks
        if action.kind is U and 0 < action.unit < len(self.profile.units) - 1:
            return seconds + self._block_s
        if ranks == 1 or action.kind is not G and (action.kind is not L or action.turn == SO_FAR):
            return seconds
        whole = self.profile.units[action.unit].parameters * self.profile.weight_bytes
        return seconds + self._server.sum_seconds(whole, ranks) / 2


def _with_its_optimizer(profile: Profile, release: Release) -> Profile:
    hardware = profile.hardware
    rate = release.adam_params_per_s or release.adam_share * hardware.host_adam_params_per_s
    return replace(profile, hardware=replace(hardware, host_adam_params_per_s=rate))


class _Builder(ScheduleBuilder):
    """Collects one step's actions and buffers."""

    def __init__(
        self, spec: RunSpec, profile: Profile, release: Release, offload_weights: bool
    ) -> None:
        super().__init__()
        self.spec, self.profile, self.release = spec, profile, release
        self.fetched = offload_weights
        self.on_disk = getattr(spec.options, "optimizer_tier", HOST_TIER) == DISK
        self.head = len(profile.units) - 1
        self.units = range(len(profile.units))
        self.micros = range(spec.microbatches)
        sums = [*accumulate(unit.parameters for unit in profile.units)]
        self.parameters, self.after = sums[-1], [sums[-1] - each for each in sums]

    def schedule(self) -> Schedule:
        self._permanent()
        if not self.fetched:
            self._weights_back()
        for micro in self.micros:
            for unit in self.units:
                self._forward(unit, micro)
            for unit in reversed(self.units):
                self._backward(unit, micro)
        self._optimizer()
        return Schedule(
            name=self.spec.method,
            num_units=len(self.units),
            num_microbatches=len(self.micros),
            actions=tuple(self.actions),
            buffers=self.buffers,
        )

    # -- what is there all the time -------------------------------------------------------------

    def _permanent(self) -> None:
        release, weights = self.release, self.parameters * self.profile.weight_bytes
        block = min(BUCKET_ELEMENTS, self.profile.units[1].parameters)
        buckets = release.device_buckets * (2 if release.overlap_gradients else 1)
        library = release.device_fixed_bytes + buckets * block * self.profile.weight_bytes
        self.buffer("library", DEVICE, library, permanent=True)
        states = release.disk_leaves_bytes if self.on_disk else STATE_BYTES
        copies, ranks = release.host_weight_copies, self.spec.ranks
        if not self.fetched and len(self.micros) > 1:
            copies += 1  # the sum of gradients so far
        counted = states * self.parameters + copies * weights
        widest = max(self.profile.units[0].parameters, self.profile.units[1].parameters // 3)
        counted += ranks * release.host_matrices * widest * self.profile.weight_bytes
        self.buffer("optimizer", HOST_TIER, round(release.host_factor * counted), permanent=True)
        if self.on_disk:
            self.buffer("states", DISK, STATE_BYTES * self.parameters, permanent=True)
            self.buffer("tiles", HOST_TIER, ranks * release.disk_tiles * 4 * block, permanent=True)

    def _weights_back(self) -> None:
        """ZeRO-Offload: the weights of the last step's update, each to its place, all at once."""
        for unit in self.units:
            nbytes = self._weight_bytes(unit)
            label = self.buffer(name.weights(unit), DEVICE, nbytes, slot=f"weights {unit}")
            after = [act(U, self.head, step=-1)]
            self.add(L, unit, H2D, after=after, nbytes=self._part(nbytes), takes=[label])

    # -- forward and backward -------------------------------------------------------------------

    def _forward(self, unit: int, micro: int) -> None:
        cost = self.profile.units[unit]
        takes, frees = [self._scratch(F, unit, micro, cost.forward_scratch_bytes)], []
        after = [act(F, unit - 1, micro)] if unit else [self._begin(micro)]
        if self.fetched:
            early = self.release.overlap_loads and unit > 1
            behind = act(F, unit - 2, micro) if early else after[0]
            after.append(self._fetch(unit, micro, turn=0, behind=behind))
            if not self._stays(unit):
                frees.append(self._weights(unit, micro, 0))
        if unit < self.head:
            takes.append(self.buffer(name.activation(unit + 1, micro), DEVICE, cost.output_bytes))
        if unit == self.head or self._keeps(unit):
            takes.append(self.buffer(name.kept(unit, micro), DEVICE, cost.kept_bytes))
        uses = [self._weights(unit, micro, 0)]
        self.add(F, unit, COMPUTE, micro, after=after, takes=takes, uses=uses, frees=frees)

    def _backward(self, unit: int, micro: int) -> None:
        cost = self.profile.units[unit]
        takes, frees, after = [self._scratch(B, unit, micro, cost.backward_scratch_bytes)], [], []
        if unit < self.head:
            after.append(act(B, unit + 1, micro))
            frees.append(name.output_gradient(unit, micro))
            behind = unit + (2 if self.release.overlap_gradients else 1)  # two buckets, or one
            if behind <= self.head:
                after.append(act(G, behind, micro))
        if self.fetched and not self._stays(unit):
            early = self.release.overlap_loads and unit + 2 <= self.head
            behind = act(B, unit + 2, micro) if early else after[-1]
            after.append(self._fetch(unit, micro, turn=1, behind=behind))
        weights = self._weights(unit, micro, 0 if self._stays(unit) else 1)
        if unit == self.head or self._keeps(unit):
            after.append(act(F, unit, micro))
            frees.append(name.kept(unit, micro))
        elif cost.kept_bytes:
            kept = self.buffer(name.kept(unit, micro), DEVICE, cost.kept_bytes)
            scratch = self._scratch(R, unit, micro, cost.recompute_scratch_bytes)
            self.add(R, unit, COMPUTE, micro, after=after, takes=[kept, scratch], uses=[weights])
            after = [act(R, unit, micro)]
            frees.append(kept)
        if unit:
            frees.append(name.activation(unit, micro))
            label = name.output_gradient(unit - 1, micro)
            takes.append(self.buffer(label, DEVICE, cost.input_bytes))
        if self.fetched or micro == self.micros[-1]:
            frees.append(weights)
        gradients = f"{name.gradients(unit)}.{micro}"
        takes.append(self.buffer(gradients, DEVICE, self._weight_bytes(unit)))
        self.add(B, unit, COMPUTE, micro, after=after, takes=takes, uses=[weights], frees=frees)
        self._gradients_out(unit, micro, gradients)

    def _gradients_out(self, unit: int, micro: int, label: str) -> None:
        """Gradients to the host. With several micro-batches the sum so far comes back first.

        ZeRO-Offload hands fp32 gradients to the optimizer, besides the sum it keeps.
        """
        nbytes, after, frees = self._weight_bytes(unit), [act(B, unit, micro)], [label]
        accumulating = len(self.micros) > 1
        if accumulating and micro:
            back = self.buffer(f"{label} so far", DEVICE, nbytes)
            part = self._part(nbytes)
            loaded = self.add(
                L, unit, H2D, micro, turn=SO_FAR, after=after, nbytes=part, takes=[back]
            )
            after = [loaded]
            frees.append(back)
        if not self.fetched:
            last = micro == self.micros[-1]
            final = 4 * self.profile.units[unit].parameters if last else 0
            nbytes = final + (nbytes if accumulating else 0)
        self.add(G, unit, D2H, micro, after=after, nbytes=self._part(nbytes), frees=frees)

    def _fetch(self, unit: int, micro: int, *, turn: int, behind: str) -> str:
        """A unit's weights to the device, once `behind` is done; a tied head brings its matrix."""
        nbytes = self._weight_bytes(unit)
        if unit == self.head and self.spec.model.tied and not self._stays(0):
            model = self.spec.model
            nbytes += model.vocab * model.hidden * self.profile.weight_bytes
        held = nbytes
        if self._stays(unit):  # as they are computed with; on the link they may be wider
            held = nbytes * VALUE_BYTES[self.spec.dtype] // self.profile.weight_bytes
        label = self.buffer(self._weights(unit, micro, turn), DEVICE, held)
        return self.add(
            L, unit, H2D, micro, turn=turn, after=[behind], nbytes=self._part(nbytes), takes=[label]
        )

    # -- optimizer ------------------------------------------------------------------------------

    def _optimizer(self) -> None:
        last = self.micros[-1]
        norm = self.add(Kind.NORM, 0, HOST, after=[act(G, 0, last), act(B, 0, last)])
        for unit in self.units:
            after = [norm]
            if self.on_disk:
                nbytes = self._part(STATE_BYTES * self.profile.units[unit].parameters)
                # One tile is updated, one is being read, one written.
                free = [norm, act(Kind.SPILL, unit, step=-1)]
                if unit > 1:
                    free.append(act(Kind.SPILL, unit - 2))
                after.append(self.add(Kind.READ, unit, DISK_IN, after=free, nbytes=nbytes))
            updated = self.add(U, unit, HOST, after=after)
            if self.on_disk:
                self.add(Kind.SPILL, unit, DISK_OUT, after=[updated], nbytes=nbytes)

    def _begin(self, micro: int) -> str:
        """Action that the first unit waits for: the end of the micro-batch before, or the last
        step's optimizer."""
        if micro:
            return act(B, 0, micro - 1)
        return act(U, self.head, step=-1) if self.fetched else act(L, self.head)

    # -- small answers --------------------------------------------------------------------------

    def _stays(self, unit: int) -> bool:
        """Whether fetched weights stay from forward to backward pass: all that come after them in
        the model are within the reuse distance."""
        return unit == self.head or 0 < self.after[unit] <= self.release.reuse_elements

    def _keeps(self, unit: int) -> bool:
        return self.spec.activations == "keep" and self.profile.units[unit].kept_bytes > 0

    def _part(self, nbytes: int) -> int:
        """A rank's part of the bytes of a unit."""
        return nbytes // self.spec.ranks

    def _weight_bytes(self, unit: int) -> int:
        return self.profile.units[unit].parameters * self.profile.weight_bytes

    def _weights(self, unit: int, micro: int, turn: int) -> str:
        """The buffer of a unit's weights: its own for good, or one a fetch."""
        return f"{name.weights(unit, turn)}.{micro}" if self.fetched else name.weights(unit)

    def _scratch(self, kind: Kind, unit: int, micro: int, nbytes: int) -> str:
        return self.scratch(act(kind, unit, micro), nbytes)


def stage_3(spec: RunSpec, block_elements: int, live: int) -> dict[str, Any]:
    """DeepSpeed's configuration of ZeRO-3 for a model whose blocks have `block_elements`
    parameters, with its optimizer on the host, and at most `live` fetched parameters. Norms and
    biases stay on the device, matrices never, at any width."""
    bucket = min(BUCKET_ELEMENTS, block_elements)
    return {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": bucket,
        "stage3_prefetch_bucket_size": bucket,
        "stage3_max_live_parameters": live,
        "stage3_max_reuse_distance": live,
        "stage3_param_persistence_threshold": 4 * spec.model.hidden + 1,
        "sub_group_size": bucket,
    }
