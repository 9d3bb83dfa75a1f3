"""The drawing of a plan, from the keys of its file."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from workbench.figures.plans import AGAIN, COLOURS, TURNED, draw_plan, keys

PLAN = {
    "model_name": "gpt", "model_size": "1_3B", "micro_batch_size": 2, "global_batch_size": 8,
    "num_gpus": [1, 2], "num_ops_in_each_stage": [3, 4],
    "model_parallel_size_of_each_op": [[1, 1, 1], [2, 2, 1, 1]],
    "data_parallel_size_of_each_op": [[1, 1, 1], [1, 1, 2, 2]],
    "recompute_ops": [[0, 1, 1], [0, 0, 0, 0]], "algo_of_each_op": [[0, 0, 0], [0, 1, 0, 0]],
}  # fmt: skip
COST = {
    "iteration_ms": 500.0, "memory_mb": 900.0,
    "stages": [{"iteration_ms": 500.0, "memory_mb": 800}, {"iteration_ms": 400, "memory_mb": 900}],
}  # fmt: skip


def test_stages_are_as_wide_as_their_operators_and_as_high_as_their_devices():
    axes = Figure().subplots()
    draw_plan(axes, PLAN, COST, limit_mb=1000)
    boxes = {}
    for bar in axes.patches:
        left, bottom = bar.get_xy()
        end = round(left + bar.get_width(), 1)
        boxes.setdefault(to_hex(bar.get_facecolor()).upper(), []).append((left, end, bottom))
        high = bar.get_height()
        assert high in (1, 2) or high == pytest.approx(0.22), "devices, or a strip"
    assert boxes[COLOURS[1, 1]] == [(0, 3.0, 0)]
    assert boxes[COLOURS[2, 1]] == [(3, 5.0, 0)]
    assert boxes[COLOURS[1, 2]] == [(5, 7.0, 0)]
    assert [(left, bottom < 0) for left, _, bottom in boxes[AGAIN]] == [(1, True)]
    assert boxes[TURNED] == [(4, 5.0, 2)]
    bold = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert len(bold) == 1, "the slowest stage alone"
    assert "2 recomputed" in bold[0]
    assert "16.00 samples/s, 900 of 1,000 MB" in axes.get_title(loc="left")


def test_a_legend_names_what_is_drawn_and_a_plan_needs_no_costs():
    axes = Figure().subplots()
    draw_plan(axes, PLAN)
    assert "ms" not in "".join(text.get_text() for text in axes.texts)
    names = [name for _, name in keys([PLAN])]
    assert names[:3] == ["tp 1, dp 1", "tp 1, dp 2", "tp 2, dp 1"]
    assert len(names) == 5, "and both strips"
