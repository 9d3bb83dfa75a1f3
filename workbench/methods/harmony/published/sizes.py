"""The published profiles as our programs and our simulator ask for layers."""

from __future__ import annotations

from functools import lru_cache

from workbench.methods.harmony.published.profiles import Direction, PublishedProfile
from workbench.methods.harmony.published.timing import Server as PublishedServer
from workbench.profile.profile import UnitCost
from workbench.profile.server import Server

CARD_BYTES_PER_S = 484e9
"""Memory bandwidth of the GTX 1080 Ti, as its vendor states it: the authors never updated there."""
ADAM_BYTES = 28
"""Bytes of a parameter that fp32 AdamW updates: four values read, three written."""


class PublishedSizes:
    """`Sizes` (profile/unit_costs.py) of a published profile: fp32, no tied weights.

    The profiled peak of a backward pass holds weights, gradients, input and output with their
    gradients, and all between; what autograd keeps is what is left of it.
    """

    library_bytes = 0

    def __init__(self, profile: PublishedProfile) -> None:
        self.profile = profile
        self.cost = lru_cache(maxsize=None)(self._cost)

    def _cost(self, unit: int, samples: int) -> UnitCost:
        profile = self.profile
        forward = profile.at(Direction.FORWARD, samples)
        # A forward pass may be of more samples than any backward pass; it asks for no more of it.
        most = profile.sizes(Direction.BACKWARD)[-1]
        backward = profile.at(Direction.BACKWARD, min(samples, most))
        weights = self.weight_bytes(unit)
        x = profile.input_bytes[unit] * samples
        y = profile.boundary_bytes(unit + 1) * samples
        between = max(0, round(backward.peak_bytes[unit]) - 2 * weights - 2 * x - 2 * y)
        return UnitCost(
            kind="layer",
            parameters=weights // 4,
            forward_s=forward.seconds[unit],
            recompute_s=forward.seconds[unit],
            backward_s=max(0.0, backward.seconds[unit] - forward.seconds[unit]),
            input_bytes=x,
            output_bytes=y,
            kept_bytes=between,
            forward_scratch_bytes=max(0, round(forward.peak_bytes[unit]) - weights - x - y),
        )

    def input_bytes(self, unit: int, samples: int) -> int:
        """Bytes of a layer's input."""
        return self.profile.input_bytes[unit] * samples if unit else 0

    def weight_bytes(self, unit: int) -> int:
        """Bytes of weights and buffers."""
        return self.profile.swapped_bytes(range(unit, unit + 1))

    visit_bytes = fresh_bytes = weight_bytes

    def owner(self, unit: int) -> int:
        """Every layer's weights are its own."""
        return unit

    def state_bytes(self, unit: int) -> int:
        """Bytes of the optimizer."""
        return self.profile.state_bytes[unit]

    def token_bytes(self, samples: int) -> int:
        """Bytes of the first layer's input."""
        return samples * self.profile.input_bytes[0]


def published_server(profile: PublishedProfile, ranks: int, device_bytes: int) -> Server:
    """The paper's server as our simulator sees one: the host link is one that all share."""
    constants = PublishedServer()
    parameters = sum(profile.weight_bytes) / 4
    return Server(
        name=f"{ranks} x GTX 1080Ti",
        ranks=ranks,
        device_bytes=device_bytes,
        host_bytes=1 << 40,
        load_bytes_per_s=constants.swap_bytes_per_s / ranks,
        store_bytes_per_s=constants.swap_bytes_per_s / ranks,
        message_bytes_per_s=constants.p2p_bytes_per_s,
        reduce_bytes_per_s=constants.p2p_bytes_per_s / (2 * (ranks - 1) / ranks or 1),
        host_adam_params_per_s=ranks * parameters / sum(profile.update_seconds),
        device_adam_params_per_s=CARD_BYTES_PER_S / ADAM_BYTES,
    )
