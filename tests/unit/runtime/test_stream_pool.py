"""Streams that trainings take after each other, of a GPU that is made up."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from workbench.runtime.executor import stream_pool
from workbench.runtime.executor.stream_pool import between_steps, give_back, take


class Stream:
    """As torch's, of its place alone."""

    def __init__(self, device: torch.device) -> None:
        self.device_index = device.index


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(stream_pool, "_streams", cache(stream_pool._streams.__wrapped__))


def test_a_stream_has_one_training_at_a_time_and_lanes_of_one_kind():
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    passes, copies, other = take(first), take(first, "h2d"), take(first)
    assert len({passes, copies, other}) == 3
    give_back({"compute": passes, "compute.1": passes, "h2d": copies})
    assert take(second) not in (passes, copies)
    assert take(first, "compute.1") is passes
    assert take(first) not in (passes, copies, other)
    assert take(first, "h2d") is copies


def test_passes_between_steps_have_the_stream_of_the_training_that_is_there():
    device = torch.device("cuda", 0)
    assert between_steps(device) is None
    passes, copies = take(device), take(device, "h2d")
    assert between_steps(device) is passes is not copies
    give_back({"compute": passes})
    assert between_steps(device) is None
