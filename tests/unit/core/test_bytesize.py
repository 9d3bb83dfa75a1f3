"""Amounts of memory are read as people write them, and refused where they are ambiguous."""

import pytest

from workbench.core.bytesize import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [
        ("32GiB", 32 * 2**30),
        ("90GB", 90 * 10**9),
        ("512MiB", 512 * 2**20),
        (" 1.5 gib ", 3 * 2**29),
        ("0.1MB", 100_000),
        ("4096", 4096),
        ("17 B", 17),
        (4096, 4096),
        (0, 0),
        ("9007199254740993", 2**53 + 1),  # more than a float can tell apart
    ],
)
def test_parse(written, nbytes):
    assert parse_bytes(written) == nbytes


@pytest.mark.parametrize(
    "written", ["", "GiB", "-1GiB", "1..5GB", "32GBit", "1e9", "inf", True, None, 1.5, -1]
)
def test_nonsense_is_refused(written):
    with pytest.raises(ValueError, match=r"is not an amount of memory|is negative"):
        parse_bytes(written)


def test_a_bare_letter_is_refused_with_both_readings():
    with pytest.raises(
        ValueError, match=r"'32G' is not .* GiB \(powers of 1024\) or GB \(powers of 1000\)"
    ):
        parse_bytes("32G")


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1536, "1.5 KiB"),
        (32 * 2**30, "32 GiB"),
        (90 * 10**9, "83.82 GiB"),
        (2**30 - 1, "1 GiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_format(nbytes, shown):
    assert format_bytes(nbytes) == shown
