"""Tables of words for people, in lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Rows with columns of equal width, those of the numbers `right` at their right edge.

    >>> aligned([("layer", "parameters"), ("head", "64")], right=[1])
    ['layer  parameters', 'head           64']
    """
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in rows
    ]
