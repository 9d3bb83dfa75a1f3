"""When a worker's failure ends a job, and when another round begins.

Workers die as machines do, and whoever loses a peer fails with an error of its own, which says
nothing against another round. A script that fails by itself does so again: after `FRUITLESS` rounds
without a new step there is no use in another. An error that may be a lost peer's counts only where
it comes in equal words after one and the same step.
"""

from __future__ import annotations

from collections import Counter

FRUITLESS = 3
"""Rounds after which there is no use in another."""
RUNTIME = "failed: RuntimeError"
LED, PEER = (RUNTIME, "failed: Dist"), ("peer", "gloo", "NCCL")
"""Failures of workers that may have lost a peer, and words of errors that tell of one."""
ENDED, WRONG = "ended with", "failed: ValueError"
"""Failures of a script that cannot profile, and of one that is given what cannot be trained."""
LACKING = (
    "{}: given --profiling=DIR, the script must run a Profiler into DIR, which hosts share, and "
    "end, as examples/gpt.py does; or give --nstages and --chunk_size"
)


class Failures:
    """Those since the last new step."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A step is done for the first time, or a profile is made."""
        self._fruitless, self._equal = 0, Counter[tuple[str, int | None]]()

    def judge(self, failure: str, step: int | None, *, gains: bool) -> str:
        """Count the first failure of a round, whose last step is `step`, and which `gains` if it
        did a new one; why there is no use in another round, empty where there is."""
        by_itself = failure.startswith(("failed", ENDED)) and not failure.startswith(LED)
        self._fruitless += step is None or (by_itself and not gains)
        if self._fruitless == FRUITLESS:
            return f"{FRUITLESS} rounds in a row failed without a new step"
        if failure.startswith(RUNTIME) and not any(word in failure for word in PEER):
            self._equal[failure, step] += 1
            if self._equal[failure, step] == FRUITLESS:
                return f"{FRUITLESS} rounds failed with one error after step {step}"
        return ""
