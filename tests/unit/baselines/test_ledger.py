"""The ledger tells device from host on a CPU, to the byte, also in hindsight."""

from __future__ import annotations

import torch

from baselines.ledger import Ledger, bytes_of, tensors_in

KIB = 256
"""fp32 elements of a KiB."""


def zeros(kib: int) -> torch.Tensor:
    return torch.zeros(kib * KIB)


def test_peak_counts_what_lives_and_not_what_was_the_hosts_all_along():
    weights, moments = zeros(8), zeros(16)
    ledger = Ledger()
    ledger.adopt([weights, moments])
    with ledger:
        activation = zeros(4)
        buffer = zeros(32)  # a host buffer, but nobody can know that yet
        del activation
        gradient = zeros(2)
    books = ledger.close_step([moments, buffer])
    assert books.device_bytes == 8 << 10
    assert books.device_peak_bytes == (8 + 4) << 10
    with ledger:
        del gradient
        temporary = zeros(1)
    books = ledger.close_step([moments, buffer])
    assert books.device_bytes == (8 + 2) << 10
    assert books.device_peak_bytes == (8 + 2) << 10
    assert temporary.numel() == KIB


def test_views_and_results_in_place_are_no_new_memory():
    weights = zeros(8)
    ledger = Ledger()
    ledger.adopt([weights])
    with ledger:
        weights.view(2, -1).add_(1.0)
        weights.t()
    assert ledger.close_step([]).device_peak_bytes == 8 << 10


def test_copies_between_the_tiers_and_no_others():
    device, other, host, pinned = zeros(2), zeros(2), zeros(2), zeros(2)
    ledger = Ledger()
    ledger.adopt([device, other, host, pinned])
    with ledger:
        device.copy_(host)
        device.copy_(other)
        pinned.copy_(host)
        host[:KIB].copy_(device[:KIB])
        host.double()  # another dtype is no transfer
    books = ledger.close_step([host, pinned])
    assert books.load_bytes == 2 << 10
    assert books.store_bytes == 1 << 10
    with ledger:
        pass
    assert ledger.close_step([host, pinned]).load_bytes == 0


def test_aliased_memory_is_entered_by_size():
    ledger = Ledger()
    with ledger:
        ledger.alias(3 << 10, loaded=True)
        ledger.alias(-2 << 10, loaded=False)
        ledger.alias(1 << 10, loaded=True)
    books = ledger.close_step([])
    assert books.device_peak_bytes == 3 << 10
    assert books.load_bytes == 4 << 10
    assert ledger.close_step([]).device_bytes == 2 << 10


def test_what_host_work_makes_is_the_hosts_even_when_nobody_owns_it():
    ledger = Ledger()
    with ledger:
        with ledger.host_work():
            moments = zeros(16)
        activation = zeros(1)
    assert ledger.close_step([]).device_peak_bytes == 1 << 10
    with ledger:
        del moments, activation
    assert ledger.close_step([]).device_bytes == 1 << 10


def test_a_backward_pass_is_seen():
    weight = torch.ones(KIB, requires_grad=True)
    ledger = Ledger()
    ledger.adopt([weight])
    with ledger:
        (weight * 2.0).sum().backward()
    books = ledger.close_step([])
    assert books.device_bytes == 1 << 10
    assert books.device_peak_bytes == (2 << 10) + 8  # beside weight or gradient, two scalars
    assert ledger.close_step([]).device_bytes == 2 << 10


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
