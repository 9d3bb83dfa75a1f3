"""Harmony's published rules on this machine (VLDB'22, section 4.3; `published/`).

`--packing faithful` leaves the four choices to the scheduler as its authors published it: packs by
their rules, one partition each, ranked by their estimate, and the whole model on one device first
wherever it fits there. It is given what their profiler would have measured here: of every layer and
micro-batch a forward pass, a backward pass with its recomputation, the update on the host, and the
peaks of the passes. The device's budget is the capacity of a pack, the links are this server's.

What comes out runs like any other plan of ours, so the published search is compared by its choices
alone, on one runtime. Their capacity binds single packs and not all that a device holds at once:
such a plan may need more than there is, and is refused then, with how much.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from workbench.core.bytesize import format_bytes
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.problem import PackingProblem
from workbench.methods.harmony.published import search as published
from workbench.methods.harmony.published.profiles import Measured, PublishedProfile
from workbench.methods.harmony.published.tasks import Configuration, Mode
from workbench.methods.harmony.published.timing import Server as PublishedServer
from workbench.methods.harmony.search import Found, scheduled
from workbench.profile.profile import UnitCost
from workbench.profile.server import Server
from workbench.profile.unit_costs import Sizes
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE
from workbench.schedule.validate import validate

FAITHFUL = "faithful"
"""Value of a spec's `packing`."""


def choose(
    problem: PackingProblem, sizes: Sizes, units: int, server: Server, profiled: Collection[int]
) -> Found:
    """The published choice, scheduled and proved; `profiled` are the micro-batches that `sizes`
    knows by measurement. Raises DoesNotFit where the rules find nothing, or too much."""
    profile = model_profile(sizes, units, server, profiled, problem)
    try:
        result = published.search(profile, settings(problem), published_server(server))
    except ValueError as error:
        raise DoesNotFit(f"by the published rules {error}", tier=DEVICE) from error
    packs = packs_of(result.best[0].candidate.configuration)
    schedule, less = None, 0
    while True:
        before, schedule = schedule, scheduled(packs, problem, sizes, less=less)
        proved = validate(schedule)
        needed = max(peaks[DEVICE] for peaks in proved.peak_bytes.values())
        over = needed - problem.device_bytes
        if over <= 0:
            return Found(
                packs=packs, schedule=schedule, seconds=0.0, proved=proved, trials=result.simulated
            )
        if schedule == before:  # smaller rings are no help any more
            break
        less += over
    raise DoesNotFit(
        f"the published rules chose micro-batches of {packs.forward_size} samples forward and "
        f"{packs.backward_size} backward in {len(packs.forward)} and {len(packs.backward)} packs, "
        f"which need {format_bytes(needed)} of device memory: {format_bytes(over)} more than there "
        "is",
        tier=DEVICE,
    )


def settings(problem: PackingProblem) -> published.SearchSettings:
    """Settings of the published search for this problem; all others as published."""
    return published.SearchSettings(
        mode=Mode(problem.mode.upper()),
        gpus=problem.ranks,
        minibatch=problem.minibatch,
        memory_cap=problem.device_bytes,
    )


def published_server(server: Server) -> PublishedServer:
    """Links as the published estimator knows them: one to the host, of which each device has its
    part, and messages through the host at the same rate. Deleting takes its constant."""
    together = server.ranks * min(server.load_bytes_per_s, server.store_bytes_per_s)
    return PublishedServer(
        swap_bytes_per_s=together,
        p2p_bytes_per_s=server.message_bytes_per_s,
        message_bytes_per_s=together,
    )


def model_profile(
    sizes: Sizes, units: int, server: Server, profiled: Collection[int], problem: PackingProblem
) -> PublishedProfile:
    """Profile as the published profiler would have written it: of micro-batches from the smallest
    that runs to the largest that the device has room for in each direction, or to the whole
    minibatch."""
    weights = [sizes.visit_bytes(unit) for unit in range(units)]

    def measured(
        largest: int | None,
        seconds: Callable[[UnitCost], float],
        peak: Callable[[UnitCost, int], int],
    ) -> Measured:
        ends = {problem.smallest, largest or problem.minibatch}
        points = sorted(ends | {size for size in profiled if min(ends) < size < max(ends)})
        costs = [[sizes.cost(unit, size) for size in points] for unit in range(units)]
        return Measured(
            microbatches=tuple(points),
            seconds=tuple(tuple(map(seconds, row)) for row in costs),
            peak_bytes=tuple(
                tuple(peak(cost, nbytes) for cost in row)
                for row, nbytes in zip(costs, weights, strict=True)
            ),
        )

    return PublishedProfile(
        model="the model",
        forward=measured(problem.forward.largest, lambda cost: cost.forward_s, _forward_peak),
        backward=measured(
            problem.backward.largest,
            lambda cost: cost.recompute_s + cost.backward_s,
            _backward_peak,
        ),
        weight_bytes=tuple(weights),
        buffer_bytes=(0,) * units,
        state_bytes=tuple(sizes.state_bytes(unit) for unit in range(units)),
        input_bytes=tuple(
            sizes.input_bytes(unit, 1) if unit else sizes.token_bytes(1) for unit in range(units)
        ),
        update_seconds=tuple(
            sizes.cost(unit, 1).parameters / server.host_adam_params_per_s for unit in range(units)
        ),
    )


def packs_of(chosen: Configuration) -> Packs:
    """The four choices as ours."""
    return Packs(
        mode=chosen.mode.value.lower(),
        ranks=chosen.gpus,
        minibatch=chosen.minibatch,
        forward_size=chosen.u_forward,
        backward_size=chosen.u_backward,
        forward=chosen.forward,
        backward=chosen.backward,
    )


def _forward_peak(cost: UnitCost, weights: int) -> int:
    """Peak bytes of a layer alone without gradients: weights, input, output, and tensors
    between."""
    return weights + cost.input_bytes + cost.output_bytes + cost.forward_scratch_bytes


def _backward_peak(cost: UnitCost, weights: int) -> int:
    """Peak bytes of a layer alone there and back: weights, input and output with their gradients,
    and tensors between."""
    ends = 2 * (weights + cost.input_bytes + cost.output_bytes)
    scratch = max(cost.recompute_scratch_bytes, cost.backward_scratch_bytes)
    return ends + cost.kept_bytes + scratch
