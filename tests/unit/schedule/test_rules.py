"""Schedules that would not be training are refused, and the sentence names the culprit."""

from dataclasses import replace

import pytest

from tests.unit.schedule.mutate import (
    add,
    edit,
    forget,
    moved_update,
    peak,
    remove,
    rename,
    split,
    swap,
    written_back,
)
from tests.unit.schedule.window import WEIGHT, pipeline, replicas, window_schedule
from workbench.schedule.action import Kind
from workbench.schedule.graph import ScheduleError
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Buffer
from workbench.schedule.validate import validate

GOOD = window_schedule(4, 2)
FULL = window_schedule(4, 2, 2, workers=2, norm=True, stash=True, disk=True)
LATER = window_schedule(4, 2, norm=True, later=True)
PIPELINE = pipeline()
REPLICAS = replicas()


BROKEN = {
    # each part of the computation once
    "no forward pass": (lambda: remove(GOOD, "F2.0"), "F2.0 is missing"),
    "no backward pass": (lambda: remove(GOOD, "B2.0"), "B2.0 is missing"),
    "a forward pass twice": (
        lambda: add(GOOD, Kind.FORWARD, 2, "compute", microbatch=0, turn=1, behind="F3.0"),
        "F2.0+1 computes what F2.0 computes",
    ),
    "a backward pass twice": (
        lambda: add(GOOD, Kind.BACKWARD, 2, "compute", microbatch=0, turn=1, behind="B2.0"),
        "B2.0+1 computes what B2.0 computes",
    ),
    "a backward pass and a half": (
        lambda: add(GOOD, Kind.INPUT_GRAD, 2, "compute", microbatch=0, behind="B2.0"),
        "I2.0 computes what B2.0 computes",
    ),
    "only the input gradient": (
        lambda: split(GOOD, Kind.INPUT_GRAD),
        "W1.0, the other half of B1.0, is missing",
    ),
    "only the weight gradient": (
        lambda: split(GOOD, Kind.WEIGHT_GRAD),
        "I1.0, the other half of B1.0, is missing",
    ),
    # each part on what it needs
    "layers swapped in the forward pass": (
        lambda: swap(forget(GOOD, "F1.0", "F0.0"), "F0.0", "F1.0"),
        "F1.0 may start before F0.0 has ended: its input may be missing",
    ),
    "layers swapped in the backward pass": (
        lambda: swap(swap(forget(GOOD, "B2.0", "B3.0"), "R3.0", "R2.0"), "B3.0", "B2.0"),
        "B2.0 may start before B3.0 has ended: its output gradient may be missing",
    ),
    "a backward pass before its forward pass": (
        lambda: swap(PIPELINE, "1:F1.0", "1:B1.0"),
        "1:B1.0 may start before 1:F1.0 has ended: there is nothing to go back through",
    ),
    "a recomputation after its backward pass": (
        lambda: swap(forget(GOOD, "B1.0", "R1.0"), "B1.0", "R1.0"),
        "B1.0 may start before R1.0 has ended: its recomputed activations may be missing",
    ),
    "a recomputation before its forward pass": (
        lambda: swap(edit(edit(GOOD, "R3.0", after=()), "F3.0", after=("L3",)), "R3.0", "F3.0"),
        "R3.0 may start before F3.0 has ended: there is nothing to recompute yet",
    ),
    # stashed inputs
    "a fetch that does not wait for its stash": (
        lambda: edit(FULL, "T3.0", after=()),
        "T3.0 may start before S3.0 has ended: the activation may not be there yet",
    ),
    "a stash that never comes back": (
        lambda: remove(FULL, "T2.1"),
        "what S2.1 stashes never comes back",
    ),
    "a fetch of nothing": (lambda: remove(FULL, "S2.1"), "T2.1 fetches what nobody stashes"),
    "a stash before there is anything": (
        lambda: edit(FULL, "S1.0", after=()),
        "S1.0 may start before F0.0 has ended: there is no activation yet",
    ),
    "a recomputation that does not wait for its input": (
        lambda: forget(FULL, "R2.0", "T2.0"),
        "R2.0 may start before T2.0 has ended: its input may be missing",
    ),
    # updates
    "no update at all": (lambda: remove(GOOD, "U0", "U1", "U2", "U3"), "no unit is updated"),
    "an update missing": (
        lambda: remove(GOOD, "U2"),
        "unit 2 is never updated, others are: U2 is missing",
    ),
    "an update twice": (
        lambda: add(GOOD, Kind.UPDATE, 2, "host", turn=1, behind="U2"),
        "U2+1 updates unit 2 a second time, after U2",
    ),
    "an update before its gradients": (
        lambda: forget(GOOD, "U2", "G2"),
        "U2 may start before B2.0 has ended: its gradients may be incomplete",
    ),
    "an update before its gradients are on the host": (
        lambda: edit(GOOD, "U2", after=("B2.0",)),
        "U2 may start before G2 has ended: its gradients may be incomplete",
    ),
    "gradients that leave before they are complete": (
        lambda: edit(window_schedule(4, 2, 2), "G2", after=("B2.0",)),
        "G2 may start before B2.1 has ended: the gradients may be incomplete",
    ),
    "an update the next forward pass does not wait for": (
        lambda: forget(GOOD, "L0", "U0@-1"),
        "F0.0 of the next step may start before U0 has ended: its weights may be stale",
    ),
    # moments that are updated later than weights
    "moments before their weights": (
        lambda: swap(forget(LATER, "M2", "U2"), "U2", "M2"),
        "M2 may start before U2 has ended: its weights are not updated yet",
    ),
    "moments after the next update": (
        lambda: edit(forget(LATER, "G2", "M2@-1"), "M2", lane="host.1"),
        "U2 of the next step may start before M2 has ended: it reads old moments",
    ),
    "moments of gradients that others free": (
        lambda: edit(LATER, "M2", frees=()),
        "M2 must be the one that frees the gradients of unit 2",
    ),
    "moments that have gone to the disk": (
        lambda: window_schedule(4, 2, norm=True, later=True, disk=True),
        "M0 writes moments of unit 0 on the host, where they are not once U0 has ended",
    ),
    # the global norm
    "an update that does not wait for the norm": (
        lambda: edit(FULL, "U2", after=("G2", "READ2")),
        "U2 may start before N0 has ended: it needs the clip coefficient",
    ),
    "a norm that lacks a gradient": (
        lambda: forget(FULL, "N0", "G0"),
        "N0 may start before B0.0 has ended: the norm may lack its gradients",
    ),
    "a norm that lacks a gradient on the host": (
        lambda: edit(FULL, "N0", after=("B0.1", "G1")),
        "N0 may start before G0 has ended: the norm may lack its gradients",
    ),
    # weights
    "a load of stale weights": (
        lambda: edit(forget(GOOD, "L0", "U0@-1"), "F0.0", after=("L0", "U0@-1")),
        "L0 of the next step may start before U0 has ended: it may load stale weights",
    ),
    "a load of weights that change meanwhile": (
        lambda: add(
            replace(GOOD, buffers={**GOOD.buffers, "q": Buffer(tier=DEVICE, nbytes=WEIGHT)}),
            Kind.LOAD,
            0,
            "h2d",
            turn=2,
            after=("U0@-1",),
            takes=("q",),
            frees=("q",),
            behind="L0+1",
        ),
        "U0 may start before L0+2 has ended: it changes the weights being loaded",
    ),
    "a load into nothing": (
        lambda: edit(GOOD, "L1", takes=()),
        "L1 takes no buffer to load into",
    ),
    "compute on weights of another unit": (
        lambda: edit(GOOD, "R1.0", uses=("w2", "x1.0")),
        "R1.0 uses no weights that a load of it brings",
    ),
    "compute before its weights are loaded": (
        lambda: edit(GOOD, "F2.0", after=("F1.0",)),
        "F2.0 may start before L2 has ended: it uses buffer 'w2'",
    ),
    "an update on the device that never reaches the host": (
        lambda: moved_update(GOOD),
        "L0 of the next step may load stale weights: U0 changes them on the device and nothing "
        "evicts them in between",
    ),
    "an eviction over updated weights": (
        lambda: add(GOOD, Kind.EVICT, 0, "d2h", after=("B0.0",), behind="G0"),
        "E0 overwrites the weights U0 updates",
    ),
    # the disk
    "an update before its states are read": (
        lambda: forget(FULL, "U1", "READ1"),
        "U1 may start before READ1 has ended: its optimizer states may be missing",
    ),
    "states written before the update": (
        lambda: edit(FULL, "SPILL1", after=("READ1",)),
        "SPILL1 may start before U1 has ended: it may write old optimizer states",
    ),
    "states read before they are written": (
        lambda: edit(window_schedule(2, 2, disk=True), "READ1", after=()),
        "READ1 of the next step may start before SPILL1 has ended: it may read old states",
    ),
    "states never written": (
        lambda: remove(FULL, "SPILL1"),
        "what READ1 reads is never written back",
    ),
    "states never read": (lambda: remove(FULL, "READ1"), "what SPILL1 writes is never read"),
    # ranks
    "a send without a receive": (
        lambda: edit(remove(PIPELINE, "1:RECV1.1"), "1:F1.1", after=()),
        "SEND1.1 has no partner",
    ),
    "a receive without a send": (
        lambda: remove(PIPELINE, "1:SEND_GRAD1.0"),
        "RECV_GRAD1.0 has no partner",
    ),
    "a send of what is not computed yet": (
        lambda: edit(PIPELINE, "SEND1.1", after=()),
        "1:F1.1 may start before F0.1 has ended: its input may be missing",
    ),
    "sends and receives in different order": (
        lambda: swap(PIPELINE, "1:RECV1.0", "1:RECV1.1"),
        "the schedule deadlocks: SEND1.0 waits for 1:RECV1.1, 1:RECV1.1 waits for SEND1.0",
    ),
    "a message sent twice": (
        lambda: add(PIPELINE, Kind.SEND, 1, "net-out", microbatch=0, rank=1, behind="SEND1.0"),
        "1:SEND1.0 and SEND1.0 are one message",
    ),
    "a message to oneself": (
        lambda: edit(rename(PIPELINE, "RECV_GRAD1.0", rank=1), "B0.0", after=()),
        "1:SEND_GRAD1.0 sends to its own rank",
    ),
    "a message cut short": (
        lambda: edit(PIPELINE, "RECV_GRAD1.0", nbytes=7),
        "1:SEND_GRAD1.0 sends 8 bytes, RECV_GRAD1.0 receives 7",
    ),
    "a message of another unit": (
        lambda: rename(rename(PIPELINE, "SEND1.0", unit=0), "1:RECV1.0", unit=0),
        "1:F1.0 may start before the input of unit 1 is on rank 1: nothing that came from where "
        "it is made brings micro-batch 0",
    ),
    "an input in the place of a gradient": (
        lambda: rename(
            rename(PIPELINE, "1:SEND_GRAD1.0", kind=Kind.SEND, turn=1),
            "RECV_GRAD1.0",
            kind=Kind.RECV,
            turn=1,
        ),
        "B0.0 may start before the gradient of the input of unit 1 is on rank 0: nothing that came "
        "from where it is made brings micro-batch 0",
    ),
    "a backward pass where nothing was kept": (
        lambda: edit(
            edit(
                forget(rename(PIPELINE, "1:F1.0", rank=0), "F1.0", "1:RECV1.0"),
                "1:B1.0",
                after=("1:RECV1.0",),
            ),
            "SEND1.0",
            after=("F1.0",),
        ),
        "1:B1.0 may start before the result kept for the backward pass of unit 1 is on rank 1: "
        "nothing that came from where it is made brings micro-batch 0",
    ),
    "a message of other samples": (
        lambda: edit(PIPELINE, "SEND1.0", samples=(0, 1)),
        "SEND1.0 sends (0, 1) as samples, 1:RECV1.0 receives None",
    ),
    # replicas
    "a replica that is never updated": (
        lambda: remove(REPLICAS, "1:U0"),
        "rank 1 keeps a copy of the weights of unit 0, which no update of that rank changes",
    ),
    "an update beside the sum of its gradients": (
        lambda: edit(REPLICAS, "1:U0", after=("1:B0.0", "B0.0")),
        "1:U0 may start before the gradients of all ranks are added up",
    ),
    "a sum of something else": (
        lambda: edit(edit(REPLICAS, "REDUCE0", nbytes=16), "1:REDUCE0", nbytes=16),
        "U0 may start before the gradients of all ranks are added up (REDUCE0 is no sum of all "
        "of them)",
    ),
    "a sum of two sizes": (
        lambda: edit(REPLICAS, "1:REDUCE0", nbytes=8),
        "REDUCE0 adds up 100 bytes, 1:REDUCE0 adds up 8",
    ),
    "compute that waits for another rank": (
        lambda: edit(PIPELINE, "1:F1.0", after=("F0.0",)),
        "1:F1.0 on rank 1 waits for F0.0 of rank 0 without a transfer between them",
    ),
    "an update of one rank before its norm": (
        lambda: add(PIPELINE, Kind.NORM, 1, "compute", rank=1, behind="1:U1"),
        "1:N1 may start before B0.0 has ended: the norm may lack its gradients",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_schedule_is_refused_by_name(case):
    broken, sentence = BROKEN[case]
    with pytest.raises(ScheduleError) as error:
        validate(broken())
    assert str(error.value) == sentence


GOOD_ONES = {
    "all options": lambda: FULL,
    "two ranks": lambda: PIPELINE,
    "two replicas": lambda: REPLICAS,
    "halves of a backward pass": lambda: split(GOOD, Kind.INPUT_GRAD, Kind.WEIGHT_GRAD),
    "an update on the device that is written back": lambda: written_back(GOOD),
    "exact budgets": lambda: replace(
        GOOD, budgets={t: peak(GOOD, t) for t in (DEVICE, HOST_TIER, DISK)}
    ),
}


@pytest.mark.parametrize("case", GOOD_ONES)
def test_what_is_right_passes(case):
    schedule = GOOD_ONES[case]()
    assert validate(schedule).num_actions == len(schedule.actions)
