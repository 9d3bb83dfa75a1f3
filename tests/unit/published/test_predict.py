"""Acceptance of the simulated figures: the published values within the stated tolerances."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from workbench.published.predict import AS_PUBLISHED, EXACT, FIGURES, compare, predict


@cache
def compared(figure: str) -> pd.DataFrame:
    return compare(figure)


@cache
def predicted(figure: str) -> pd.DataFrame:
    return predict(figure)


def test_largest_models_are_within_15_percent() -> None:
    table = compared("6a")
    assert table["value_published"].tolist() == [32, 78, 48, 48, 100]
    assert table["deviation"].abs().max() <= 0.15


def test_largest_models_rank_as_published_and_the_right_memory_binds() -> None:
    table = predicted("6a")
    table = table[table["variant"] == AS_PUBLISHED].set_index("method")
    size, tier = table["layers"], table["tier"].to_dict()
    assert size["stronghold"] > size["l2l"] > size["zero-offload"] > size["megatron-lm"]
    assert size["l2l"] > size["zero-infinity"] > size["megatron-lm"]
    assert abs(size["zero-offload"] / size["zero-infinity"] - 1) < 0.1  # published: equal
    assert tier == {
        "megatron-lm": "device",
        "l2l": "device",
        "zero-offload": "device",
        "zero-infinity": "host",
        "stronghold": "host",
    }


@pytest.mark.parametrize("figure", ["8a", "8b", "9"])
def test_times_are_within_10_percent_of_the_published_medians(figure: str) -> None:
    table = compared(figure)
    assert len(table) == {"8a": 5, "8b": 9, "9": 8}[figure]
    wrong = table[table["deviation"].abs() > 0.10]
    assert wrong.empty, wrong.to_string()


@pytest.mark.parametrize("figure", ["8a", "8b", "9"])
def test_points_that_calibrated_nothing_are_predicted_too(figure: str) -> None:
    table = compared(figure)
    free = table[~table["calibrated"]]
    assert len(free) == {"8a": 2, "8b": 8, "9": 7}[figure]
    assert free["deviation"].abs().max() <= 0.10
    assert free["deviation"].abs().max() > 0.001  # a prediction, not a copy


def test_figure_7a_holds_but_for_the_killed_run() -> None:
    table = compared("7a").set_index(["pair", "method"])["deviation"]
    killed = ("l2l", "l2l")
    assert table.drop(killed).abs().max() <= 0.10
    assert 0.10 < table[killed] < 0.25, "the log is a warm-up mean of a run short of memory"


def test_the_published_order_of_throughput_is_predicted() -> None:
    value = compared("8a").set_index("method")["value"]
    order = ["l2l", "zero-infinity", "zero-offload", "stronghold", "megatron-lm"]
    assert value.sort_values().index.tolist() == order


def test_iteration_time_grows_linearly_with_depth() -> None:
    table = compared("8b")
    slope = table["value"].diff() / table["layers"].diff()
    assert slope.iloc[3:].std() / slope.iloc[3:].mean() < 0.05


def test_an_exact_stronghold_hides_what_the_artifact_waits_for() -> None:
    for figure in ("8b", "9"):
        table = predicted(figure)
        exact = table[table["variant"] == EXACT].reset_index()
        artifact = table[table["variant"] == AS_PUBLISHED].reset_index()
        assert (exact["value"] < artifact["value"]).all()
    windows = predicted("9").query("variant == @EXACT")["value"]
    assert windows.max() / windows.min() < 1.02, "no window is needed to hide waiting"


@pytest.mark.parametrize("figure", FIGURES)
def test_rows_say_what_they_are(figure: str) -> None:
    table = predicted(figure)
    assert set(table["source"]) == {"simulated"}
    assert set(table["variant"]) <= {AS_PUBLISHED, EXACT}
    assert not table.duplicated(["method", "layers", "window", "variant", "pair"]).any()
    assert (table["binding"].str.len() > 10).all()
    assert (table["value"] > 0).all()
    unsound = table[
        (table["variant"] == AS_PUBLISHED) & table["method"].isin(["l2l", "stronghold"])
    ]
    assert (unsound["note"].str.len() > 10).all()
    assert not table[table["variant"] == EXACT]["calibrated"].any()


def test_an_unknown_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="figure '6b' is not predicted; 6a, 7a, 8a, 8b, 9 are"):
        predict("6b")
