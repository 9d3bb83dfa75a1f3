"""The parts of a start that a record tells."""

from __future__ import annotations

from workbench.runs.starts import parts_of, start_words


def test_ranks_tell_what_they_did_while_they_were_waited_for() -> None:
    """The slowest rank took ten seconds. The run made weights during the first three, and waited
    for the ranks during the other seven."""
    own = {"imports": 4.0, "compiling": 2.0, "page-locking": 1.0, "passes": 3.0}
    told = (
        ("started", 1.0, {}), ("phase", 2.0, {"text": "starting 2 ranks"}),
        ("phase", 5.0, {"text": "waiting for the ranks"}), ("phase", 12.0, {"text": "training"}),
        ("step", 14.0, {}), ("ranks", 20.0, {"parts": own}), ("compiled", 20.0, {"took": 0.5}),
    )  # fmt: skip
    found = parts_of([{"event": kind, "time": at, **more} for kind, at, more in told], 0.0)
    assert found == {
        "starting its process": 1.0, "imports": 1.0, "starting 2 ranks": 3.0, "first step": 1.5,
        "ranks: imports": 1.0, "ranks: page-locking": 1.0, "ranks: passes": 3.0, "compiling": 2.5,
    }  # fmt: skip


def test_a_first_step_of_no_time_was_done() -> None:
    """A tiny model's first step is shorter than what is told of other parts."""
    events = [{"event": "started", "time": 1.0}]
    events += [{"event": "phase", "time": 3.0, "text": "training"}]
    assert "no step was done" in start_words(parts_of(events, 0.0))
    found = parts_of([*events, {"event": "step", "time": 3.01}], 0.0)
    assert "3 s to the end of the first step" in start_words(found)
