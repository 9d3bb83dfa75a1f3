"""A model of eight layers whose costs are small numbers, and all ways to run it."""

from __future__ import annotations

from hypothesis import strategies as st

from workbench.methods.harmony.published.microbatches import shares
from workbench.methods.harmony.published.packing import packs_of
from workbench.methods.harmony.published.profiles import Measured, PublishedProfile
from workbench.methods.harmony.published.tasks import Configuration, Mode

LAYERS = 8


def profile(layers: int = LAYERS) -> PublishedProfile:
    """Layer l takes l + 1 s forward and 3 (l + 1) s backward, per sample, from 1 to 16 samples."""
    sizes = (1, 16)
    forward = tuple(tuple(float((layer + 1) * size) for size in sizes) for layer in range(layers))
    return PublishedProfile(
        model="made up",
        forward=Measured(
            microbatches=sizes,
            seconds=forward,
            peak_bytes=tuple(tuple(100 + 20 * size for size in sizes) for _ in range(layers)),
        ),
        backward=Measured(
            microbatches=sizes,
            seconds=tuple(tuple(3 * value for value in row) for row in forward),
            peak_bytes=tuple(tuple(300 + 50 * size for size in sizes) for _ in range(layers)),
        ),
        weight_bytes=tuple(100 + layer for layer in range(layers)),
        buffer_bytes=(1,) * layers,
        state_bytes=(200,) * layers,
        input_bytes=tuple(10 + layer for layer in range(layers)),
        update_seconds=(0.5,) * layers,
        target_bytes=3,
    )


@st.composite
def packs(draw: st.DrawFn, layers: int):
    cuts = draw(st.sets(st.integers(1, layers - 1))) if layers > 1 else set()
    ends = [0, *sorted(cuts), layers]
    return packs_of(b - a for a, b in zip(ends, ends[1:], strict=False))


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    mode = draw(st.sampled_from(Mode))
    gpus = draw(st.integers(1, 5))
    minibatch = draw(st.integers(gpus, 16))
    least = shares(minibatch, gpus)[-1] if mode is Mode.DP else minibatch
    backward = draw(packs(LAYERS))
    before = backward[-1].start
    return Configuration(
        mode=mode,
        gpus=gpus,
        minibatch=minibatch,
        u_forward=draw(st.integers(1, least)),
        forward=draw(packs(before)) if before else (),
        u_backward=draw(st.integers(1, least)),
        backward=backward,
    )
