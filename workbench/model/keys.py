"""Keys of random numbers: a draw depends on what it is for, never on what was drawn before.

A stream of random numbers that flows through a program ties its values to the order of the draws,
and each method has its own order. So each mask, initial weight and sample position is drawn from a
generator of its own, seeded with a key hashed from names: the run's seed, the step, the sample,
the unit. BLAKE2 rather than Python's `hash`, which differs between processes.
"""

from __future__ import annotations

from hashlib import blake2b


def key(*parts: int | str) -> int:
    """A seed in [0, 2^63) for the thing that `parts` name; equal parts give equal seeds."""
    name = "/".join(map(str, parts))
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def place_of(sample: int, size: int, seed: int) -> int:
    """The item of a data set's `size` that a run's sample is, of equal chance, and each once an
    epoch: any process finds it by the sample's number and the run's seed alone."""
    epoch, place = divmod(sample, size)
    return permuted(place, size, seed, "sample", epoch)


def permuted(index: int, size: int, *parts: int | str) -> int:
    """Where the permutation of range(size) that `parts` name sends `index`.

    A four-round Feistel network on the smallest square power of two that holds `size`, walked
    until it lands inside: constant memory, and any single position without computing the others
    (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, section 3).
    """
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(4):
            left, right = right, left ^ (key(*parts, turn, right) & mask)
        index = left << half | right
        if index < size:
            return index
