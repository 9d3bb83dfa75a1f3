"""About how long a step takes, by arithmetic: what every lane has to do, and when it may.

A simulation says how long a step takes; a sum says it mostly within a few percent, a hundred times
as fast, and nearly always errs on the low side. What is summed:

* the work of compute, the host and both ways of the link in a step. They disturb each other while
  they are busy together, and each is busy for its share of the step: the step is as long as makes
  that true;
* weights come and gradients go while streamed layers are computed; pulled states visit the device
  between the backward pass of the last of their layers and the forward pass of the first; and what
  is not updated as gradients arrive is updated before the next forward pass has ended. No part of
  the step is shorter than what has to be done in it;
* where gradients are clipped, no update is final before the backward pass has ended.

What is not: that transfers and updates wait for each other layer by layer. So a search may ask here
where to simulate (search.py), and believe the simulation.
"""

from __future__ import annotations

from itertools import combinations
from math import ceil

from workbench.core.spec import RunSpec
from workbench.methods.stronghold.choice import Choice
from workbench.profile.cuda_graphs import replays
from workbench.profile.profile import Profile, ProfileCosts
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST

LANES = (COMPUTE, HOST, H2D, D2H)
OTHERS = ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2))
"""Indices of the other lanes, for each lane."""
ROUNDS = 3
"""In which the shares and the length of a step settle."""
STATE_SLOTS = 3
"""Visits that need not wait for anybody (methods/offload/placement.py)."""


class Loads:
    """One spec's arithmetic on one machine. The first block stands for all."""

    def __init__(self, spec: RunSpec, profile: Profile) -> None:
        hardware = profile.hardware
        self._spec, self._layers, self._micros = spec, spec.model.layers, spec.microbatches
        self._workers = spec.options.host_workers
        self._embedding, block, *_, self._head = profile.units
        self._block = block.as_recorded() if replays(spec, profile) else block
        self._ends = self._embedding.parameters + self._head.parameters
        self._end_weights, self._end_states = (
            self._ends * each for each in (profile.weight_bytes, profile.state_bytes)
        )
        self._overhead = hardware.action_overhead_s
        self._weights = self._block.parameters * profile.weight_bytes
        self._states = self._block.parameters * profile.state_bytes
        self._in, self._out = 1 / hardware.h2d_bytes_per_s, 1 / hardware.d2h_bytes_per_s
        self._transfer = self._overhead + hardware.link_latency_s
        self._on_host = self._block.parameters / hardware.host_adam_params_per_s + self._overhead
        self._apart = profile.apart * (self._on_host - self._overhead) + self._overhead
        """Seconds on the host for a layer's weights alone, or for its moments alone."""
        self._on_device = 1 / hardware.device_adam_params_per_s
        self._disk = max(
            (1 / rate for rate in (hardware.disk_read_bytes_per_s, hardware.disk_write_bytes_per_s)
             if rate), default=0.0,
        )  # fmt: skip
        self._slower = [self._slowdowns(ProfileCosts(profile), lane) for lane in LANES]

    def host_bytes(self, choice: Choice) -> int:
        """Bytes on the host: weights, states and gradients of streamed layers, states of pulled
        ones, and stashed inputs."""
        streamed = self._layers - choice.resident - choice.pulled
        gradients = min(streamed, self._workers + 1) if choice.eager == "all" else streamed
        states = streamed - choice.on_disk + choice.pulled
        stashed = min(self._layers - choice.kept, self._layers - 1) if choice.stash else 0
        return (
            choice.hosted * (2 * self._end_weights + self._end_states)
            + (streamed + gradients) * self._weights
            + states * self._states
            + stashed * self._micros * self._block.input_bytes
        )

    def step_seconds(self, choice: Choice) -> tuple[float, float | None]:
        """Estimated seconds of a step that is not clipped, and of a clipped one; see
        `EvaluationCache.step_seconds`."""
        spec, block, micros, each = self._spec, self._block, self._micros, self._overhead
        layers, resident, pulled, window = (
            self._layers, choice.resident, choice.pulled, choice.window
        )  # fmt: skip
        streamed, recomputed = layers - resident - pulled, layers - choice.kept
        parameters = resident * block.parameters + (0 if choice.hosted else self._ends)
        update = (resident + 2) * each + parameters * self._on_device
        ends = micros * (self._embedding.forward_s + self._head.recompute_s + 2 * each)
        forward = ends + self._forward(layers, recomputed)
        ends = micros * (self._embedding.backward_s + self._head.backward_s + 2 * each)
        backward = ends + self._backward(layers, recomputed, streamed)
        host = streamed * self._on_host / self._workers
        stashed = micros if choice.stash else 0  # of a layer
        fetch = stashed * (self._transfer + block.input_bytes * self._in)
        stash = stashed * (self._transfer + block.input_bytes * self._out)
        ahead = max(0, streamed - window)
        load = self._transfer + self._weights * self._in
        leave = self._transfer + self._weights * self._out
        pull = self._transfer + self._states * self._in
        push = self._transfer + self._states * self._out

        work = forward + backward + update
        stands = self._together(
            work,
            host,
            (streamed + ahead) * load + pulled * pull + recomputed * fetch,
            streamed * leave + pulled * push + recomputed * stash,
        )
        # Of recomputed layers, the first ones, some are resident, some pulled, some streamed.
        first = min(resident, recomputed)
        inner = min(pulled, recomputed - first)
        last = recomputed - first - inner
        there = self._forward(streamed, last)
        back = self._backward(streamed, last, streamed)
        between = self._forward(pulled, inner)
        waits = choice.eager == "all"  # gradients for updates
        gradients = self._together(
            back, host if waits else 0.0, ahead * load + last * fetch, ahead * leave
        )
        seconds = gradients + self._together(there, 0.0, ahead * load, last * stash)
        seconds += self._together(between, 0.0, 0.0, inner * stash)
        rest = work - there - back - between
        slowest = self._slower[1][-1]
        left = 0.0 if waits else max(0.0, host - back / slowest)
        visits = max(0, pulled - STATE_SLOTS)
        if choice.stash and first:  # these inputs come behind the states of the pulled layers
            behind = rest - self._backward(resident + pulled - first, inner, 0)
            seconds += self._together(behind, 0.0, first * fetch, first * stash)
            comes = pulled if inner == pulled else visits
            here = rest - behind, comes * pull + inner * fetch, visits * push
        else:
            here = rest, visits * pull + (first + inner) * fetch, visits * push + first * stash
        # The host is busy beside them, with what it could not do before.
        seconds += self._together(here[0], min(left, max(here) / slowest), *here[1:])
        # Layers not updated as gradients arrive are updated between the two passes over streamed
        # ones.
        late = self._together(
            work - back,
            host * (1 - self._eager(choice, streamed, recomputed)),
            ahead * load + visits * pull + (first + inner) * fetch,
            visits * push + recomputed * stash,
        )
        stands = max(stands, gradients + late)
        ends = choice.hosted * self._ends_seconds()
        disk = choice.on_disk * self._states * self._disk
        stands = max(stands, seconds, disk) + ends
        if spec.clip is None:
            return stands, None
        later = min(streamed, int(backward / (self._apart / self._workers)))
        later *= choice.moments_later
        back = self._together(
            backward,
            later * self._apart / self._workers,
            ahead * load + recomputed * fetch,
            streamed * leave,
        )
        host -= later * (self._on_host - self._apart) / self._workers
        come = visits if choice.eager == "none" else pulled
        rest = self._together(
            forward + update,
            host,
            streamed * load + come * pull,
            come * push + recomputed * stash,
        )
        clips = max(back + rest, disk) + ends
        return (stands, clips) if choice.eager != "none" else (clips, None)

    def _ends_seconds(self) -> float:
        """From the gradients of the embedding and the head, the last of a step, to their weights,
        the first of the next."""
        moves = 2 * self._transfer + self._end_weights * (self._in + self._out)
        return moves + self._ends * self._on_host / self._block.parameters

    def _eager(self, choice: Choice, streamed: int, recomputed: int) -> float:
        """Share of the streamed layers whose updates are eager (methods/offload/updates.py)."""
        if choice.eager != "some" or not streamed:
            return float(choice.eager == "all")
        block = self._block
        span = self._layers * (block.backward_s + block.gradient_s)
        span += recomputed * block.recompute_s
        return min(1.0, ceil(span / (self._on_host - self._overhead)) / streamed)

    def _forward(self, layers: int, recomputed: int) -> float:
        block = self._block
        kept = (layers - recomputed) * block.recompute_s
        return self._micros * (kept + recomputed * block.forward_s + layers * self._overhead)

    def _backward(self, layers: int, recomputed: int, streamed: int) -> float:
        block, each = self._block, self._overhead
        passes = layers * (block.backward_s + each) + recomputed * (block.recompute_s + each)
        once = layers * block.gradient_s + streamed * block.gradient_copy_s
        return self._micros * passes + once

    def _together(self, *work: float) -> float:
        """Seconds in which all lanes are done with their work, of seconds each were it alone."""
        busy = [lane for lane, seconds in enumerate(work) if seconds]
        if len(busy) < 2:
            return sum(work[lane] * self._slower[lane][0] for lane in busy)
        lasts, length = [*work], max(work)
        for _ in range(ROUNDS):
            shares = [seconds / length for seconds in lasts]
            for lane in busy:
                x, y, z = OTHERS[lane]
                x, y, z = shares[x], shares[y], shares[z]
                none, xs, ys, zs, xy, xz, yz, all_ = self._slower[lane]
                u, v = 1 - x, 1 - y
                alone = v * (u * none + x * xs) + y * (u * ys + x * xy)
                beside = v * (u * zs + x * xz) + y * (u * yz + x * all_)
                # the mean factor of the lane, the others being busy for these shares of the time
                lasts[lane] = work[lane] * ((1 - z) * alone + z * beside)
            length = max(lasts)
        return length

    def _slowdowns(self, costs: ProfileCosts, lane: str) -> list[float]:
        """Factors of a lane beside none, one, two and all three of the others, as they stand in
        `LANES`."""
        workers = {HOST: self._workers}
        own = [lane] * (workers.get(lane, 1) - 1)
        others = [[other] * workers.get(other, 1) for other in LANES if other != lane]
        return [
            costs.slowdown(lane, sum(busy, own))
            for count in range(4)
            for busy in combinations(others, count)
        ]
