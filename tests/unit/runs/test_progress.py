"""Progress as text, with and without a terminal."""

import io
from dataclasses import replace

from workbench.core.record import RunRecord
from workbench.runs.overrides import make_spec
from workbench.runs.progress import Progress, describe_record, describe_spec

SPEC = make_spec({"method": "l2l", "layers": 4, "steps": 3})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(index: int) -> dict:
    return {"event": "step", "step": index, "loss": 2.0 - index, "seconds": 0.5}


def test_a_terminal_has_one_live_line() -> None:
    stream = Terminal()
    shown = Progress(stream, SPEC)
    for event in (step(0), step(1), {"event": "phase", "text": "saving"}, step(2)):
        shown.on_event(event)
    shown.end()

    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\r\x1b[K")
    assert "step 2/3, loss 1.0000, 0.5 s a step, 0.5 s left" in stream.getvalue()


def test_the_first_step_alone_says_nothing_of_the_others() -> None:
    stream = Terminal()
    shown = Progress(stream, SPEC)
    shown.on_event({**step(0), "seconds": 60.0})
    assert "60 s a step" in stream.getvalue().replace("1 min 00 s", "60 s")
    assert "left" not in stream.getvalue()
    shown.on_event(step(1))
    assert "0.5 s left" in stream.getvalue()


def test_bytes_are_told_all_the_while() -> None:
    stream = Terminal()
    shown = Progress(stream, SPEC)
    for done in (1 << 30, 3 << 30):
        shown.on_event(
            {"event": "bytes", "text": "weights", "done_bytes": done, "all_bytes": 3 << 30}
        )
    assert "weights: 1 GiB of 3 GiB\r" in stream.getvalue()
    assert stream.getvalue().endswith("weights: 3 GiB of 3 GiB")


def test_a_checkpoint_that_was_not_saved_is_a_line() -> None:
    stream = io.StringIO()
    reason = "the checkpoint step-00000002 was not written: [Errno 28] No space left on device"
    shown = Progress(stream, SPEC)
    for step in (2, 3):
        shown.on_event({"event": "not_saved", "next_step": step, "reason": reason})
    assert stream.getvalue() == reason + "\n", "once in a row"


def test_what_a_run_goes_on_from_and_leaves_is_told() -> None:
    stream = io.StringIO()
    shown = Progress(stream, SPEC)
    shown.on_event({"event": "damaged", "path": "step-00000004", "reason": "it is damaged"})
    shown.on_event({"event": "resumed", "path": "step-00000002", "next_step": 2})
    assert stream.getvalue() == (
        "it is damaged\ngoing on from step 2, where a checkpoint was left\n"
    )
    assert shown.saved == 2
    shown.on_event({"event": "saved", "path": "step-00000004", "next_step": 4})
    assert shown.saved == 4


def test_the_packs_of_a_plan_are_told_and_other_plans_are_not() -> None:
    stream = io.StringIO()
    shown = Progress(stream, SPEC)
    shown.on_event({"event": "plan", "settings": {"window": 2}})
    assert stream.getvalue() == ""
    settings = {
        "forward_size": 4, "backward_size": 2, "forward_packs": "", "backward_packs": "3 3",
        "mirrored": False, "resident": 0,
    }  # fmt: skip
    told = {"step_seconds": 0.45, "step_seconds_range": [0.36, 0.54]}
    shown.on_event({"event": "plan", "settings": settings, **told})
    assert stream.getvalue().splitlines() == [
        "planned: 0.45 s a step (0.36 s to 0.54 s)",
        "micro-batches of 4 samples forward, 2 backward",
        "forward packs, by their units: none",
        "backward packs, by their units: 3 3",
        "packs go to the ranks in turn; 0 units stay",
    ]


def test_a_pipe_gets_whole_lines_and_not_one_a_step() -> None:
    stream = io.StringIO()
    shown = Progress(stream, SPEC)
    shown.line("l2l")
    for index in range(3):
        shown.on_event(step(index))

    assert stream.getvalue() == "l2l\nstep 3/3, loss 0.0000, 0.5 s a step\n"


def test_a_run_begins_with_what_is_true_of_its_model() -> None:
    """A function may take the numbers of a spec for anything."""
    spec = SPEC.with_(model=replace(SPEC.model, family="own.nets:net"))
    size = f"{spec.model.layers} layers x {spec.model.hidden}"
    assert describe_spec(SPEC).startswith(f"l2l: {size}, batch {SPEC.batch}, sequence ")
    assert describe_spec(spec).startswith(f"l2l: own.nets:net, batch {spec.batch}, 3 steps, ")


def test_one_line_says_how_it_ended() -> None:
    good = RunRecord(
        key="k",
        method="l2l",
        status="ok",
        spec={},
        losses=[3.0, 2.0],
        step_seconds=[9.0, 0.5],
        samples_per_second=8.0,
        peak_bytes={"device": 2**30, "host": None},
    )
    bad = RunRecord(key="k", method="l2l", status="oom_host", spec={}, message="no room")

    assert describe_record(good) == (
        "l2l: ok, 0.5 s a step, 8 samples/s, loss 3.0000 to 2.0000, peak 1 GiB device"
    )
    assert describe_record(bad) == "l2l: oom_host: no room"
