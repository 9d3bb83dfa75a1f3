"""The device memory that the search asks for is the proof's, to the byte."""

from __future__ import annotations

import random

import pytest

from tests.methods.test_planner_quick import question
from workbench.methods.offload.program import build
from workbench.methods.stronghold.choice import Choice
from workbench.methods.stronghold.memory import device_bytes
from workbench.methods.stronghold.planner import placement_of
from workbench.schedule.graph import unroll
from workbench.schedule.order import Order
from workbench.schedule.peak import worst_case
from workbench.schedule.schedule import DEVICE

LAYERS, STEPS = 12, 3


@pytest.mark.parametrize("replay", ["on", "off"])
@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("seed", range(12))
def test_one_pass_finds_what_the_proof_finds(seed, clip, replay):
    chance = random.Random(f"{seed} {clip}")
    spec, profile = question(
        layers=LAYERS,
        batch=chance.choice((1, 4)),
        clip=clip,
        hidden=chance.choice((1024, 4096)),
    )
    spec = spec.with_(replay=replay)
    resident = chance.randint(0, LAYERS)
    pulled = chance.randint(0, LAYERS - resident)
    streamed = LAYERS - resident - pulled
    choice = Choice(
        resident=resident,
        pulled=pulled,
        window=chance.randint(min(2, streamed), streamed),
        kept=chance.randint(0, LAYERS),
        stash=chance.random() < 0.5,
        eager=chance.choice(("some", "none")),
        hosted=chance.random() < 0.5,
    )
    assert_proved(placement_of(spec, profile, choice), profile)


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("micros", [1, 4])
def test_where_all_blocks_keep_and_stay(clip, micros):
    """In several micro-batches all blocks are one chain, with memory for one micro-batch."""
    choice = Choice(resident=LAYERS, window=LAYERS, kept=LAYERS)
    found = {}
    for replay in ("on", "off"):
        spec, profile = question(layers=LAYERS, batch=4, clip=clip)
        spec = spec.with_(replay=replay, microbatches=micros)
        found[replay] = placement_of(spec, profile, choice)
        assert_proved(found[replay], profile)
    chained, launched = (found[replay] for replay in ("on", "off"))
    assert chained.chained(LAYERS + 2) is (micros > 1)
    if micros > 1:
        assert device_bytes(chained, profile) < device_bytes(launched, profile)


def assert_proved(placement, profile):
    graph = unroll(build(placement, profile), STEPS)
    proved = worst_case(graph, Order(graph), DEVICE).nbytes
    assert device_bytes(placement, profile) == proved, placement
