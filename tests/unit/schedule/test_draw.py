"""Drawings show the events they were given, say where they come from, and can be read in print."""

import io
import subprocess
import sys

import pytest

from tests.unit.schedule.made_up import Table
from tests.unit.schedule.window import pipeline, window_schedule
from workbench.schedule.action import Kind
from workbench.schedule.draw import LABEL_PT, draw_comparison, draw_timeline
from workbench.schedule.looks import LOOKS, WAITING
from workbench.schedule.simulate import simulate

SCHEDULE = window_schedule(4, 2, workers=2, budgets={"device": 600, "host": 1700})
SIMULATION = simulate(SCHEDULE, Table(default_s=0.25), steps=2)


def bars(axes):
    """(left, right, row) of every bar."""
    boxes = [path.get_extents() for c in axes.collections for path in c.get_paths()]
    return sorted((round(b.x0, 6), round(b.x1, 6), round((b.y0 + b.y1) / 2, 6)) for b in boxes)


def words(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def rows(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_every_event_is_a_bar_in_its_lane():
    axes = draw_timeline(SIMULATION.events, source="simulated", width_in=40).axes[0]
    assert rows(axes) == ["compute", "h2d", "d2h", "host", "host.1"]
    places = dict(zip(rows(axes), axes.get_yticks(), strict=True))
    point = axes.get_xlim()[1] / (40 * 72)
    drawn = bars(axes)
    expected = sorted((e.start_s, e.end_s, places[e.lane]) for e in SIMULATION.events)
    assert len(drawn) == len(expected)
    for (left, right, row), (start, end, place) in zip(drawn, expected, strict=True):
        assert (left, row) == (pytest.approx(start), place)
        assert end - point < right <= end + 1e-6


def test_thin_bars_of_one_kind_join_and_cover_the_same_time():
    schedule = window_schedule(60, 3)
    events = simulate(schedule, Table(), steps=3).events
    axes = draw_timeline(events, source="simulated").axes[0]
    drawn = bars(axes)
    assert len(drawn) < 0.8 * len(events)
    covered = sum(right - left for left, right, _ in drawn)
    assert covered == pytest.approx(sum(e.end_s - e.start_s for e in events), rel=1e-3)


def test_labels_stand_where_they_fit():
    wide = draw_timeline(SIMULATION.events, source="measured", width_in=40).axes[0]
    narrow = draw_timeline(SIMULATION.events, source="measured", width_in=3.3).axes[0]
    assert {"F0.0", "L2", "U3"} <= set(words(wide))
    assert not {"F0.0", "L2", "U3"} & set(words(narrow))
    assert {"0", "2", "3"} <= set(words(narrow))  # units still fit
    thin = draw_timeline(SIMULATION.events, source="measured", width_in=1.5).axes[0]
    assert not [text for text in words(thin) if not text.startswith("step")]
    figure = draw_timeline(SIMULATION.events, source="measured", steps=[0])
    figure.canvas.draw()
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        (x, y) = text.get_transform().transform(text.get_position())
        holders = [
            bar
            for collection in figure.axes[0].collections
            for path in collection.get_paths()
            if (bar := path.get_extents(collection.get_transform())).contains(x, y)
        ]
        assert any(bar.x0 - 1 <= box.x0 and box.x1 <= bar.x1 + 1 for bar in holders)


def test_print_is_legible_at_column_width():
    figure = draw_timeline(SIMULATION.events, source="simulated", schedule=SCHEDULE)
    figure.canvas.draw()
    assert figure.get_size_inches()[0] == 3.3
    drawn = figure.get_tightbbox()
    assert 0 <= drawn.x0 < drawn.x1 <= 3.3
    assert 0 <= drawn.y0 < drawn.y1 <= figure.get_size_inches()[1]
    texts = [t for axes in figure.axes for t in (*axes.texts, axes.title, *axes.get_yticklabels())]
    assert min(text.get_fontsize() for text in texts + figure.legends[0].get_texts()) >= LABEL_PT


def test_steps_are_marked():
    axes = draw_timeline(SIMULATION.events, source="simulated", width_in=10).axes[0]
    first = {
        step: min(e.start_s for e in SIMULATION.events if e.lane == "compute" and e.step == step)
        for step in (0, 1)
    }
    assert [line.get_xdata()[0] for line in axes.lines] == [first[0], first[1]]
    assert [text for text in words(axes) if text.startswith("step")] == ["step 0", "step 1"]
    one = draw_timeline(SIMULATION.events, source="simulated", steps=[1]).axes[0]
    assert not one.lines
    assert bars(one)[0][0] == 0.0  # from its own start


@pytest.mark.parametrize(("source", "hatched"), [("simulated", True), ("measured", False)])
def test_the_source_is_said_and_seen(source, hatched):
    figure = draw_timeline(SIMULATION.events, source=source, schedule=SCHEDULE, title="window 2")
    assert figure.axes[0].get_title(loc="left") == f"window 2, {source}"
    marks = [collection for axes in figure.axes for collection in axes.collections]
    assert all(bool(mark.get_hatch()) == hatched for mark in marks)


def test_memory_is_drawn_with_its_budget():
    figure = draw_timeline(SIMULATION.events, source="simulated", schedule=SCHEDULE)
    lanes, device, host = figure.axes
    assert words(device) == ["device memory, peak 505 B, budget 600 B"]
    curve, budget = device.lines
    assert max(curve.get_ydata()) == SIMULATION.peak_bytes[0]["device"]
    assert list(budget.get_ydata()) == [600, 600]
    assert device.get_ylim()[1] > 600
    assert words(host) == ["host memory, peak 1.27 KiB, budget 1.66 KiB"]
    assert host.get_xlabel() == "time (s)"
    assert lanes.get_xlim() == device.get_xlim() == host.get_xlim()


def test_a_budget_far_above_does_not_flatten_the_curve():
    schedule = window_schedule(4, 2, budgets={"device": 100_000})
    events = simulate(schedule, Table(), steps=1).events
    device = draw_timeline(events, source="simulated", schedule=schedule).axes[1]
    assert words(device) == ["device memory, peak 505 B, budget 1e+05 B"]
    assert len(device.lines) == 1
    assert device.get_ylim()[1] < 600


def test_ranks_are_rows_of_their_own():
    events = simulate(pipeline(), Table(), steps=1).events
    axes = draw_timeline(events, source="simulated").axes[0]
    assert rows(axes) == [
        f"{r}:{lane}" for r in (0, 1) for lane in ("compute", "net-in", "net-out")
    ]
    assert axes.get_yticks()[3] - axes.get_yticks()[2] == 1.5


def test_a_prediction_stands_above_the_measurement_at_one_scale():
    later = simulate(SCHEDULE, Table(default_s=0.5), steps=2).events
    shifted = [
        type(e)(*[getattr(e, f) for f in e.__slots__[:7]], e.start_s + 9, e.end_s + 9)
        for e in later
    ]
    figure = draw_comparison(SIMULATION.events, shifted, title="w2", width_in=10)
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim() == (0, SIMULATION.makespan_s * 2)
    assert rows(above) == rows(below)
    assert [2 * left for left, _, _ in bars(above)] == pytest.approx([b[0] for b in bars(below)])
    assert above.get_title(loc="left") == f"w2, simulated: {SIMULATION.makespan_s:.3g} s"
    assert below.get_title(loc="left").endswith("(2.00x)")
    assert all(c.get_hatch() for c in above.collections)
    assert not any(c.get_hatch() for c in below.collections)


def test_times_have_a_unit_that_suits_them():
    for seconds, unit in ((0.25, "s"), (2.5e-4, "ms"), (2.5e-7, "us")):
        events = simulate(SCHEDULE, Table(default_s=seconds), steps=1).events
        axes = draw_timeline(events, source="simulated").axes[0]
        assert axes.get_xlabel() == f"time ({unit})"
        assert 0.5 < axes.get_xlim()[1] < 1000


def test_the_legend_names_what_is_there():
    figure = draw_timeline(SIMULATION.events, source="simulated")
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["forward", "recompute", "backward", "update", "weights", "gradients"]


def test_every_kind_has_a_look_and_letters_can_be_read_on_it():
    assert set(LOOKS) == {*Kind, WAITING}

    def brightness(color):
        linear = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in linear]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for look in LOOKS.values():
        ink = 1.0 if look.ink == "white" else 0.0
        light, dark = sorted((brightness(look.color), ink), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3  # WCAG's least contrast for large letters


def test_the_same_events_give_the_same_file():
    def draw(kind):
        out = io.BytesIO()
        figure = draw_timeline(SIMULATION.events, source="simulated", schedule=SCHEDULE)
        figure.savefig(out, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
        return out.getvalue()

    for kind in ("png", "pdf"):
        assert draw(kind) == draw(kind)


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match=r"there is no event to draw in steps \[7\]"):
        draw_timeline(SIMULATION.events, source="simulated", steps=[7])


def test_schedules_need_no_matplotlib_and_drawings_no_pyplot():
    code = (
        "import sys, workbench.schedule, workbench.schedule.draw, workbench.schedule.trace\n"
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules\n"
        "from workbench.schedule.simulate import Event\n"
        "event = Event('L0', 'L', 0, None, 0, 'h2d', 0, 0.0, 1.0)\n"
        "workbench.schedule.draw.draw_timeline([event], source='measured').savefig(sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, "/dev/null"], check=True)
