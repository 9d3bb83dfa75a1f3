"""Each side keeps its share of the cores, whatever the other sets."""

import threading

import pytest
import torch

from workbench.runtime.executor import threads


def in_a_new_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_lane_of_one_thread_leaves_the_compute_lane_its_own(monkeypatch):
    monkeypatch.setattr(threads, "cpu_threads", lambda device: threads.Threads(2, 1))
    before, seen = torch.get_num_threads(), []

    def compute() -> None:
        threads.use_device_threads("cpu")
        in_a_new_thread(lambda: (threads.use_lane_thread("cpu"), seen.append(lane())))
        seen.append(lane())

    lane = torch.get_num_threads
    try:
        in_a_new_thread(compute)  # one that has computed nothing yet, as a run begins
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


@pytest.mark.parametrize(("ranks", "expected"), [(1, 8), (4, 2), (16, 1)])
def test_ranks_with_gpus_divide_the_cores_that_torch_computes_with(ranks, expected, monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    before = torch.get_num_threads()
    try:
        threads.use_rank_threads("cuda", ranks)
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
