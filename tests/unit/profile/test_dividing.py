"""Which number of micro-batches is taken of plans whose times and bytes are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.profile.dividing import best_division, in_words
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE, HOST_TIER

SPARE, HOST, FULL, LACKS = "spare", "host", "full", "lacks"


@pytest.mark.parametrize(
    ("told", "asked", "taken"),
    [
        ({1: (SPARE, 2.0), 2: (FULL, 1.0)}, [1], 1),
        ({1: (FULL, 2.0), 2: (FULL, 1.5), 4: (FULL, 1.6), 8: (FULL, 1.0)}, [1, 2, 4], 2),
        ({1: (LACKS, 9.0), 2: (LACKS, 9.0), 4: (FULL, 3.0), 8: (FULL, 3.1)}, [1, 2, 4, 8], 4),
        ({1: (FULL, 2.0), 2: (FULL, 1.99), 4: (FULL, 1.9), 8: (FULL, 2.0)}, [1, 2, 4, 8], 4),
        ({1: (FULL, None), 2: (FULL, None)}, [1, 2], 1),
        ({1: None, 2: None, 4: (FULL, 3.0), 8: None}, [1, 2, 4, 8], 4),
        (dict.fromkeys((1, 2, 4, 8), (LACKS, 1.0)), [1, 2, 4, 8], 8),
        ({1: (HOST, 1.0), 2: (HOST, 1.0)}, [1, 2], 2),
    ],
)
def test_the_fewest_of_the_fastest_that_fit(told, asked, taken) -> None:
    heard = []

    def ask(spec: RunSpec) -> SimpleNamespace:
        heard.append(count := spec.microbatches)
        if told[count] is None:
            raise ValueError(f"no {count}")
        state, seconds = told[count]
        plan = Plan(
            method="l2l", fits=state in (SPARE, FULL), schedule=None, step_seconds=seconds,
            peak_bytes={HOST_TIER: 7}, moved_bytes={}, binding="",
            lacking={LACKS: DEVICE, HOST: HOST_TIER}.get(state),
        )  # fmt: skip
        return SimpleNamespace(spec=spec, plan=plan, spares=state == SPARE)

    spec = RunSpec(method="l2l", batch=8, microbatches="auto")
    assert best_division(spec, ask).spec.microbatches == taken
    assert heard == asked


@pytest.mark.parametrize(
    ("promised", "asked", "taken"),
    [
        ({2: 2.0, 4: 1.0}, [1], 1),
        ({2: 1.97, 4: 1.0, 8: 1.0}, [1, 4, 8], 4),
        ({2: 1.97, 4: 1.98, 8: 1.99}, [1], 1),
        ({2: 1.0, 4: 1.0, 8: 1.0}, [1, 2, 4, 8], 4),
        ({2: None, 4: 1.59, 8: 1.6}, [1, 2], 2),
    ],
    ids=str,
)
def test_what_promises_no_gain_is_not_measured(promised, asked, taken) -> None:
    """A plan by proportion that fits nowhere promises nothing, and forbids nothing."""
    heard = []

    def planned(spec: RunSpec, seconds: float | None) -> SimpleNamespace:
        plan = Plan(
            method="l2l", fits=seconds is not None, schedule=None, step_seconds=seconds,
            peak_bytes={}, moved_bytes={}, binding="",
        )  # fmt: skip
        return SimpleNamespace(spec=spec, plan=plan, spares=False)

    def ask(spec: RunSpec) -> SimpleNamespace:
        heard.append(count := spec.microbatches)
        return planned(spec, {1: 2.0, 2: 1.6, 4: 1.5, 8: 1.5}[count])

    def promise(spec: RunSpec, best: SimpleNamespace) -> SimpleNamespace:
        assert best.spec.microbatches < spec.microbatches
        return planned(spec, promised[spec.microbatches])

    spec = RunSpec(method="l2l", batch=8, microbatches="auto")
    assert best_division(spec, ask, promise).spec.microbatches == taken
    assert heard == asked


def test_a_number_stays_open_where_it_can_be_another() -> None:
    def number(method: str = "stronghold", family: str = "gpt", **fields) -> int | str:
        model = fields.pop("model", ModelSpec(family=family))
        return RunSpec(method=method, microbatches="auto", model=model, **fields).microbatches

    assert number() == number("1f1b", ranks=2) == number("fsdp") == number(family="vit") == "auto"
    assert number(batch=1) == number("harmony-pp", ranks=2) == number("varuna", ranks=2) == 1
    assert number(family="resnet") == number(family="mine.net:make") == 1, "BatchNorm; nobody knows"
    plain = ModelSpec(family="wide-resnet", group_norm=True)
    assert number(model=plain) == "auto"
    spec = RunSpec(method="stronghold", batch=8, microbatches="auto")
    assert spec.microbatch == 8
    assert RunSpec.from_dict(spec.to_dict()) == spec
    assert (
        spec.key()
        != spec.with_(microbatches=1).key()
        == RunSpec(method="stronghold", batch=8).key()
    )
    assert in_words(spec.with_(microbatches=4)) == "in 4 micro-batches of 2, chosen"
    with pytest.raises(ValueError, match="microbatches is 'all'"):
        RunSpec.from_dict({"method": "l2l", "microbatches": "all"})
