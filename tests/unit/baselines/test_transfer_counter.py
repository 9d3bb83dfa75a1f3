"""The counter tells device from host on a CPU, to the byte, also in hindsight."""

from __future__ import annotations

import torch

from baselines.transfer_counter import TransferCounter, bytes_of, tensors_in

KIB = 256
"""fp32 elements of a KiB."""


def zeros(kib: int) -> torch.Tensor:
    return torch.zeros(kib * KIB)


def test_peak_counts_what_lives_and_not_what_was_the_hosts_all_along():
    weights, moments = zeros(8), zeros(16)
    counter = TransferCounter()
    counter.adopt([weights, moments])
    with counter:
        activation = zeros(4)
        buffer = zeros(32)  # a host buffer, but nobody can know that yet
        del activation
        gradient = zeros(2)
    counts = counter.close_step([moments, buffer])
    assert counts.device_bytes == 8 << 10
    assert counts.device_peak_bytes == (8 + 4) << 10
    with counter:
        del gradient
        temporary = zeros(1)
    counts = counter.close_step([moments, buffer])
    assert counts.device_bytes == (8 + 2) << 10
    assert counts.device_peak_bytes == (8 + 2) << 10
    assert temporary.numel() == KIB


def test_views_and_results_in_place_are_no_new_memory():
    weights = zeros(8)
    counter = TransferCounter()
    counter.adopt([weights])
    with counter:
        weights.view(2, -1).add_(1.0)
        weights.t()
    assert counter.close_step([]).device_peak_bytes == 8 << 10


def test_copies_between_the_tiers_and_no_others():
    device, other, host, pinned = zeros(2), zeros(2), zeros(2), zeros(2)
    counter = TransferCounter()
    counter.adopt([device, other, host, pinned])
    with counter:
        device.copy_(host)
        device.copy_(other)
        pinned.copy_(host)
        host[:KIB].copy_(device[:KIB])
        host.double()  # another dtype is no transfer
    counts = counter.close_step([host, pinned])
    assert counts.load_bytes == 2 << 10
    assert counts.store_bytes == 1 << 10
    with counter:
        pass
    assert counter.close_step([host, pinned]).load_bytes == 0


def test_aliased_memory_is_entered_by_size():
    counter = TransferCounter()
    with counter:
        counter.alias(3 << 10, loaded=True)
        counter.alias(-2 << 10, loaded=False)
        counter.alias(1 << 10, loaded=True)
    counts = counter.close_step([])
    assert counts.device_peak_bytes == 3 << 10
    assert counts.load_bytes == 4 << 10
    assert counter.close_step([]).device_bytes == 2 << 10


def test_what_host_work_makes_is_the_hosts_even_when_nobody_owns_it():
    counter = TransferCounter()
    with counter:
        with counter.host_work():
            moments = zeros(16)
        activation = zeros(1)
    assert counter.close_step([]).device_peak_bytes == 1 << 10
    with counter:
        del moments, activation
    assert counter.close_step([]).device_bytes == 1 << 10


def test_a_backward_pass_is_seen():
    weight = torch.ones(KIB, requires_grad=True)
    counter = TransferCounter()
    counter.adopt([weight])
    with counter:
        (weight * 2.0).sum().backward()
    counts = counter.close_step([])
    assert counts.device_bytes == 1 << 10
    assert counts.device_peak_bytes == (2 << 10) + 8  # beside weight or gradient, two scalars
    assert counter.close_step([]).device_bytes == 2 << 10


def test_tensors_are_found_in_containers_and_named_modules():
    class Holder:
        def __init__(self) -> None:
            self.inner = {"a": [zeros(1)], zeros(2): None}

    weight = zeros(3).requires_grad_()
    weight.grad = zeros(3)
    meta = torch.zeros(4, device="meta")
    found = list(tensors_in(Holder(), [weight], meta, inside=(__name__,)))
    assert bytes_of(found) == (1 + 2 + 3 + 3) << 10
    assert bytes_of(tensors_in(Holder())) == 0
    assert bytes_of([weight, weight.detach()[:1]]) == 3 << 10
