"""Orders as the original's own checker prints them, and the staleness that follows."""

from __future__ import annotations

import json

import pytest

from workbench.cli import main
from workbench.methods.ftpipe.orders import depths, passes, staleness, string, versions

PUBLISHED = [
    ("async-1f1b", 0, 1, "FB" * 12),
    ("async-1f1b", 1, 1, "FFBFBFBFBFBFBFBFBFBFBFBB"),
    ("async-1f1b", 2, 1, "FFFBFBFBFBFBFBFBFBFBFBBB"),
    ("async-1f1b", 3, 1, "FFFFBFBFBFBFBFBFBFBFBBBB"),
    ("pipedream", 3, 1, "FFFFBFBFBFBFBFBFBFBFBBBB"),
    ("seq", 3, 1, "FB" * 12),
    ("gpipe-lifo", 2, 4, "FFFFBBBB" * 3),
    ("sync-1f1b", 0, 4, "FBFBFBFB" * 3),
    ("sync-1f1b", 1, 4, "FFBFBFBB" * 3),
    ("sync-1f1b", 2, 4, "FFFBFBBB" * 3),
    ("sync-1f1b", 3, 4, "FFFFBBBB" * 3),
    ("sync-1f1b", 1, 2, "FFBB" * 6),
]
CAPS = {4: [0] * 14 + [1, 2], 8: [0] * 10 + [1, 2, 3, 4, 5, 6], 16: [0, *range(15)]}


@pytest.mark.parametrize(("order", "depth", "step_every", "wanted"), PUBLISHED)
def test_strings_are_the_published_ones(order, depth, step_every, wanted):
    assert string(passes(order, depth, 12, step_every)) == wanted


@pytest.mark.parametrize("cap", [*CAPS, 17, 100])
def test_virtual_depths_are_the_published_ones(cap):
    found = depths(16, "virtual-stages-1f1b", supremum=cap)[::-1]
    assert found == CAPS.get(cap, [*range(16)])


def test_the_cap_as_it_was_meant_gives_the_first_stage_one_more():
    assert depths(16, "virtual-stages-1f1b", supremum=4, right=True)[:4] == [3, 2, 1, 0]


@pytest.mark.parametrize("step_every", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 5, 7, 15])
def test_staleness_is_the_closed_form_once_the_pipeline_is_full(depth, step_every):
    made = passes("async-1f1b", depth, 60 * step_every, step_every)
    found = staleness(made)
    wanted = [max(0, -(-(depth - place) // step_every)) for place in range(step_every)]
    assert found[40 * step_every : 41 * step_every] == wanted
    assert found[0] == 0  # the first weights are everybody's
    forward = versions(made, "F")
    assert all(a <= b for a, b in zip(forward, forward[1:], strict=False))


@pytest.mark.parametrize("order", ["seq", "gpipe-lifo", "sync-1f1b"])
def test_synchronous_orders_are_never_stale(order):
    assert set(staleness(passes(order, 3, 10, 4))) == {0}


def test_gpipe_goes_back_last_in_first_out():
    backward = [made.micro for made in passes("gpipe-lifo", 1, 6, 4) if made.kind == "B"]
    assert backward == [3, 2, 1, 0, 5, 4]


def test_orders_that_are_none_are_refused():
    with pytest.raises(ValueError, match="order is '1f1b'; give one of async-1f1b"):
        depths(2, "1f1b")
    with pytest.raises(ValueError, match="supremum of staleness is 0"):
        depths(2, "virtual-stages-1f1b", supremum=0)
    with pytest.raises(ValueError, match="0 micro-batches"):
        passes("seq", 0, 0, 1)


def test_the_command_prints_what_each_stage_does(capsys):
    asked = "schedule async-1f1b -P 4 -N 12 --step-every 2 --json"
    assert main(asked.split()) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert [row["string"] for row in stages] == [
        string(passes("async-1f1b", depth, 12, 1)) for depth in (3, 2, 1, 0)
    ]
    assert stages[0]["staleness"] == [0, 0, 1, 1, 2, 1, 2, 1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("async-1f1b --chunks 2", "--chunks has no meaning for async-1f1b"),
        ("varuna --versions", "--versions has no meaning for varuna"),
        ("virtual-stages-1f1b --supremum 0", "supremum of staleness is 0"),
    ],
)
def test_flags_without_meaning_are_refused(flags, sentence, capsys):
    assert main(["schedule", *flags.split()]) == 2
    assert sentence in capsys.readouterr().err
