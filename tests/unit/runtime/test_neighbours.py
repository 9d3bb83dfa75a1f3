"""Carriers of messages between stages, with made-up communicators instead of NCCL's."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist

from workbench.core.stage_map import StageMap
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.runtime.transport import neighbours
from workbench.runtime.transport.group_transport import GroupTransport
from workbench.runtime.transport.meeting import PATIENCE
from workbench.schedule.action import Kind

MAP = (0, 1, 0, 1)


def test_links_between_the_same_two_devices_have_communicators_of_their_own(monkeypatch):
    """Their messages have no common order, by which NCCL tells messages apart."""
    used, waited = [], []

    def started(tensor, peer, group, tag=0):
        used.append(group)
        return SimpleNamespace(wait=lambda *patience: waited.append((group, *patience)))

    def word(device):
        for name in ("all_reduce", "send", "recv"):
            monkeypatch.setattr(dist, name, lambda *_, **__: None)
        for name in ("isend", "irecv"):
            monkeypatch.setattr(dist, name, started)
        return device

    device, words, made = word(torch.device("cpu")), object(), []
    monkeypatch.setattr(neighbours, "new_group", lambda *_, **__: made.append(object()) or made[-1])
    monkeypatch.setattr(neighbours, "few", lambda: None)
    line = Asynchronous(
        label="", positions=MAP, depths=(3, 2, 1, 0), micros=1, samples=1, sizes=IdealSizes()
    )
    plan, carriers = schedule(line), []
    for rank in (0, 1):
        made.clear()
        links = neighbours.stage_links(MAP)
        channels = neighbours.neighbours(StageMap.of(2, 1), links, rank, "nccl", words, device)
        assert len(made) == 2 * len(links)
        transport = GroupTransport(
            channels, words, process=int, forms=lambda *_: [((1,), torch.float32, False)],
            device=device,
        )  # fmt: skip
        transport.use(plan)
        carriers.append({})
        for action in plan.actions:
            if action.rank != rank or action.kind not in (Kind.SEND, Kind.RECV, Kind.SEND_GRAD):
                continue
            used.clear()
            waited.clear()
            if action.kind is Kind.RECV:
                transport.announce(action, 0)
                transport.receive(action, 0)
            else:
                transport.send(action, (torch.zeros(1),), 0)
            first, message = used
            assert first is words
            assert waited == [(words, PATIENCE), (message,)], "with one NCCL's would hold the host"
            carriers[rank][action.kind, action.unit] = made.index(message)
    front, back = carriers
    assert len({*front.values()}) == len(front)
    assert len({*back.values()}) == len(back)
    for (kind, stage), number in front.items():  # both sides of a message name one
        if kind is Kind.SEND:
            assert back[Kind.RECV, stage] == number
