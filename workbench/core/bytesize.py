"""Amounts of memory as people write them.

GB means 10^9 bytes and GiB 2^30, as in the standard; a bare G is refused because half of all tools
mean the one by it and half the other, and a budget that is 7 % off decides whether a model fits.
"""

import re
from decimal import Decimal

FACTORS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
}


def parse_bytes(amount: str | int) -> int:
    """Bytes in ``'32GiB'``, ``'1.5 GB'``, ``'4096'`` or a plain int; ValueError for anything else.

    >>> parse_bytes("512MiB"), parse_bytes("90GB"), parse_bytes(4096)
    (536870912, 90000000000, 4096)
    """
    if isinstance(amount, int) and not isinstance(amount, bool):
        if amount < 0:
            raise ValueError(f"{amount} bytes is negative")
        return amount
    pattern = r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*"
    match = re.fullmatch(pattern, amount.lower(), re.ASCII) if isinstance(amount, str) else None
    if match and match[2] in FACTORS:
        return int(Decimal(match[1]) * FACTORS[match[2]])
    hint = "a number with a unit, such as 32GiB, 90GB or 512MiB"
    if match and match[2] in {*"kmgtp"}:
        unit = match[2].upper()
        hint = f"{unit}iB (powers of 1024) or {unit}B (powers of 1000) instead of {unit}"
    raise ValueError(f"{amount!r} is not an amount of memory: write {hint}")


def format_bytes(nbytes: float) -> str:
    """The amount in the largest binary unit that keeps it at 1 or more, to four digits.

    >>> format_bytes(17), format_bytes(1536), format_bytes(32 * 2**30)
    ('17 B', '1.5 KiB', '32 GiB')
    """
    if nbytes < 0:
        return f"-{format_bytes(-nbytes)}"
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1023.5:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g} {unit}"
