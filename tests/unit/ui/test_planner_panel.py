"""The planner's panel, driven without a browser: sliders are moved and
text is typed as a hand would, and the planner really answers."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from html import unescape

import ipywidgets as widgets
import pytest

from tests.runs.helpers import HANG_S, wait_for
from workbench.core.spec import RunSpec
from workbench.runs.store import Store
from workbench.ui.planner import control as planner
from workbench.ui.planner.dial import GIB, link, memory, whole
from workbench.ui.planner.panel import PlannerPanel

pytestmark = pytest.mark.slow

V100 = "v100-32gb"
SEVERAL = {"STRONGHOLD", "L2L", "Megatron-LM", "ZeRO-Offload", "ZeRO-Infinity"}


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlannerPanel]:
    """One page for all tests here: its process takes a second to start."""
    root = tmp_path_factory.mktemp("planner") / "<img src=x onerror=alert(1)>"
    panel = PlannerPanel(Store(root))
    yield panel
    panel.close()


@pytest.fixture(autouse=True)
def begin(panel: PlannerPanel) -> None:
    """Every test begins with the same small question."""
    panel.ask(planner.Question.of(machine=V100, layers=8))
    answered(panel)


def text(widget: widgets.HTML) -> str:
    """The readable text, without markup."""
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", widget.value).split()))


def answered(panel: PlannerPanel, *, full: bool = False) -> None:
    """Ticks until the question that stands there has an answer, or all of it."""
    wait_for(lambda: (panel.tick(), panel.reply and (panel.reply.done or not full))[1])


def test_an_answer_says_which_method_what_binds_and_the_largest_model(panel: PlannerPanel) -> None:
    panel.ask(device_memory="24GiB", layers=12)
    answered(panel, full=True)
    assert re.match(
        rf"On {V100}, which is not this machine: Fastest that fits: \S.* 12 layers, "
        r"7\d\d million parameters at [\d.]+ samples/s, [\d.]+ s a step\.$",
        text(panel.answer),
    )
    reply, told = panel.reply, text(panel.details)
    assert not reply.refining
    assert reply.row.fits
    assert reply.row.samples_per_second == max(o.samples_per_second for o in reply.rows if o.fits)
    assert "Bound by " in told
    assert re.search(r"Largest model under these budgets with \S+: (at least )?\d+ layers", told)
    assert f"published constants of {V100}" in told
    table = text(panel.table)
    assert all(method in table for method in SEVERAL)
    assert table.count("(this answer)") == 1
    assert "--layers 12" in text(panel.command)
    assert "--device-memory 24GiB" in text(panel.command)


def test_there_is_a_bar_for_each_tier_and_it_is_read_out(panel: PlannerPanel) -> None:
    panel.ask(device_memory="24GiB", layers=12)
    answered(panel)
    labels = re.findall(r'role="img" aria-label="([^"]*)"', panel.bars.value)
    assert [label.split(":")[0] for label in labels] == ["device memory", "host memory"]
    row, budgets = panel.reply.row, panel.reply.budgets
    assert budgets["device"] == 24 * GIB
    for label, tier in zip(labels, ("device", "host"), strict=True):
        assert f"({row.peak[tier] / budgets[tier]:.0%})" in label
        assert sum(row.parts.get(tier, {}).values()) == row.peak[tier]
    assert "optimizer states" in labels[0]


def test_less_memory_than_fits_says_what_would_help(panel: PlannerPanel) -> None:
    panel.ask(layers=24)
    panel.dials["device_memory"].position = 1.0
    answered(panel, full=True)
    assert "this machine: No method fits with 24 layers" in text(panel.answer)
    assert "GiB too much" in text(panel.bars)
    assert "wb-over" in panel.bars.value
    assert "It would fit with" in text(panel.details)
    assert panel.use.disabled
    assert panel.timeline_box.layout.display == "none"


def test_a_timeline_follows_the_full_answer(panel: PlannerPanel) -> None:
    answered(panel, full=True)
    assert panel.timeline_box.layout.display is None
    (timeline,) = panel.timeline_box.children
    assert timeline.data["blocks"][0]["source"] == "predicted"
    panel.dials["layers"].position = 6
    answered(panel, full=True)
    assert panel.timeline_box.children == (timeline,)
    assert timeline.data["title"].endswith("6 layers")


@pytest.mark.parametrize(
    ("name", "position", "field", "value", "shown"),
    [
        ("layers", 10, "layers", 10, "10"),
        ("batch", 5, "batch", 32, "32"),
        ("device_memory", 20, "device_memory", 20 * GIB, "20 GiB"),
        ("host_memory", 64, "host_memory", 64 * GIB, "64 GiB"),
        ("disk_memory", 100, "disk_memory", 100 * GIB, "100 GiB"),
        ("microbatches", 1, "microbatches", 2, "2"),
        ("seq", 9, "seq", 512, "512"),
    ],
)
def test_every_slider_asks_about_its_field(
    panel: PlannerPanel, name: str, position: float, field: str, value: int, shown: str
) -> None:
    panel.dials[name].position = position
    spec = panel.question.spec
    assert getattr(spec if hasattr(spec, field) else spec.model, field) == value
    assert panel.dials[name].text == shown
    answered(panel)
    assert panel.reply.question.spec == spec


def test_a_slower_link_makes_a_streamed_step_slower(panel: PlannerPanel) -> None:
    panel.ask(method="stronghold", device_memory="6GiB", layers=24)
    answered(panel, full=True)
    fast = panel.reply.row.step_seconds
    panel.dials["link_bytes_per_s"].position = -3
    assert panel.dials["link_bytes_per_s"].text.endswith(" GB/s")
    answered(panel, full=True)
    assert panel.reply.row.step_seconds > 1.2 * fast
    assert "with a link of" in text(panel.details)
    panel.dials["link_bytes_per_s"].text = "its own"
    assert panel.question.spec.link_bytes_per_s is None


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("device_memory", "zzz", "device memory: 'zzz' is not an amount of memory"),
        ("device_memory", "0", "'0' is no budget; write all, or more than 0"),
        ("layers", "0", "layers: 0 is too small; it must be at least 1"),
        ("layers", "1.5", "layers: '1.5' is not a whole number"),
        ("layers", "100000", "layers: 100,000 is too large; at most 1,000 can be planned here"),
        ("heads", "7", "7 heads do not divide a hidden size of 2048"),
        ("link_bytes_per_s", "-1", "'-1' is no speed of a link"),
        ("batch", "<img src=x onerror=alert(1)>", "batch: '<img src=x onerror=alert(1)>' is not"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    panel: PlannerPanel, name: str, typed: str, words: str
) -> None:
    before, answer = panel.question, panel.answer.value
    panel.dials[name].text = typed
    assert words in text(panel.refused)
    assert "<img" not in panel.refused.value
    assert (panel.question, panel.answer.value) == (before, answer)
    panel.ask(layers=7)
    assert text(panel.refused) == ""
    assert not panel.dials[name].wrong


def test_the_last_of_many_moves_is_the_one_that_is_answered(panel: PlannerPanel) -> None:
    shown = []
    panel.answer.observe(lambda change: shown.append(change["new"]), "value")
    for devices in (2, 1):
        panel.dials["ranks"].position = devices
        assert panel.question.spec.ranks == devices
    for place in range(1, 31):
        panel.dials["layers"].position = place
        panel.tick()
    answered(panel)
    assert "30 layers" in text(panel.answer)
    assert len(shown) < 32, "those in between were passed over"


def test_an_old_question_that_takes_long_does_not_keep_a_new_one(
    panel: PlannerPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "LONG_S", 0.0)
    first = panel.planner._helper._process
    first.send_signal(signal.SIGSTOP)  # as good as a plan that takes forever
    panel.ask(layers=9)
    panel.ask(layers=10)
    answered(panel)
    assert "10 layers" in text(panel.answer)
    assert first.wait(HANG_S) == -signal.SIGKILL


def test_what_was_answered_is_handed_over(panel: PlannerPanel) -> None:
    found: list[RunSpec] = []
    panel._on_use = found.append
    panel.ask(device_memory="24GiB")
    answered(panel)
    panel.use.click()
    assert found == [panel.spec]
    assert (panel.spec.model.layers, panel.spec.device_memory) == (8, 24 * GIB)
    assert panel.spec.method == panel.reply.chosen
    assert text(panel.used).startswith("Handed over: ")


def test_nothing_that_is_shown_is_markup_of_somebody_else(panel: PlannerPanel) -> None:
    assert "<img" in text(panel.command), "the folder's name is told as it is"
    for place in (panel.answer, panel.details, panel.bars, panel.table, panel.command):
        assert "<img" not in place.value


def test_scales_go_there_and_back() -> None:
    for scale, values in (
        (whole(1, 200), (1, 77, 200)),
        (whole(1, 256, doubling=True), (1, 2, 64, 256)),
        (memory(64, nothing="all"), (GIB, 24 * GIB)),
        (link(12e9), (12e9 / 4, 12e9 / 32)),
    ):
        for value in values:
            assert scale.value_at(scale.place_of(value)) == pytest.approx(value)
            assert scale.parse(scale.show(value)) == pytest.approx(value, rel=0.01)
    assert link(12e9).value_at(0.0) is None, "all of it is its own"
    assert memory(64, nothing="all").parse("all") is None
    assert memory(64, nothing="all").parse("24") == 24 * GIB
