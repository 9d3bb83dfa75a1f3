"""Who waits for a token is woken, whenever it is set; tokens of passed steps come again."""

from __future__ import annotations

import threading

from tests.runs.helpers import HANG_S
from workbench.runtime.tokens import Token, Tokens


def test_all_who_wait_are_woken():
    token, woken = Token(), []
    threads = [threading.Thread(target=lambda: (token.wait(), woken.append(1))) for _ in range(5)]
    for thread in threads:
        thread.start()
    token.set()
    for thread in threads:
        thread.join(HANG_S)
    assert len(woken) == 5
    token.wait()  # what is set waits for nobody


def test_no_wait_is_missed_however_the_two_meet():
    """A chain of actions on two lanes that wait for each other at every one."""
    tokens = Tokens(range(2000))
    tokens.begin([0])
    made = tokens.of(0)

    def walk(first: int) -> None:
        for i in range(first, len(made), 2):
            if i and not made[i - 1].issued:
                made[i - 1].wait()
            made[i].set()

    threads = [threading.Thread(target=walk, args=(first,), daemon=True) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert all(token.issued for token in made.values())


def test_tokens_of_steps_that_all_have_passed_are_used_again():
    tokens = Tokens([3, 4])
    tokens.begin([0, 1])
    old = tokens.of(0)
    old[3].set()
    tokens.drop_before(1)
    assert tokens.of(0) is None
    tokens.add(2)
    assert tokens.of(2) is old
    assert not any(token.issued or token.cuda for token in tokens.all())
    tokens.add(2)
    assert tokens.of(2) is old, "a step in flight keeps its tokens"
    tokens.begin([7])
    assert tokens.of(1) is tokens.of(2) is None
    assert [*tokens.of(7)] == [3, 4]
