"""Buffers with places in one slot: what is asked of neighbours says it of all pairs."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from workbench.schedule.graph import ScheduleError
from workbench.schedule.occupancy import _check_side_by_side
from workbench.schedule.schedule import DEVICE, Buffer

STEP = 12
"""Ticks of a step in which nothing waits."""

users = st.tuples(
    st.integers(0, STEP - 1),  # taken
    st.integers(1, STEP),  # for so long, into the next step perhaps
    st.integers(0, 6),  # first byte
    st.integers(1, 4),  # bytes
)


def asked(made: list[tuple[int, int, int, int]]) -> bool:
    """Whether the check finds nothing wrong; each action is its own time."""

    def require(first: int, second: int, why: str, *, steps: int = 0) -> None:
        if first > second + steps * STEP:
            raise ScheduleError(why)

    buffers = {
        f"b{n}": Buffer(tier=DEVICE, nbytes=nbytes, slot="ring", offset=first)
        for n, (_, _, first, nbytes) in enumerate(made)
    }
    takes = {f"b{n}": taken for n, (taken, *_) in enumerate(made)}
    frees = {f"b{n}": taken + lasts for n, (taken, lasts, *_) in enumerate(made)}
    proof = SimpleNamespace(
        schedule=SimpleNamespace(buffers=buffers, actions=[SimpleNamespace(kind=None)] * STEP),
        require=require,
    )
    try:
        _check_side_by_side(proof, [*buffers], takes, frees, "they overlap")
    except ScheduleError:
        return False
    return True


def apart(made: list[tuple[int, int, int, int]]) -> bool:
    """Whether no two of the buffers share bytes at one time, pair by pair."""
    return not any(
        first < other + more
        and other < first + nbytes
        and (taken + lasts > then or then + long > taken + STEP)
        for (taken, lasts, first, nbytes), (then, long, other, more) in combinations(made, 2)
    )


@given(st.lists(users, min_size=1, max_size=9))
def test_neighbours_stand_for_all_pairs(found):
    made = sorted(found)
    assert asked(made) == apart(made)


def test_what_only_some_bytes_of_a_later_one_meet_is_found():
    """The middle one has half of the first one's bytes; the last meets the other half too soon."""
    made = [(0, 8, 0, 4), (8, 1, 0, 2), (5, 1, 2, 2)]
    assert not asked(sorted(made))
    assert asked([(0, 5, 0, 4), (5, 1, 2, 2), (8, 1, 0, 2)])
