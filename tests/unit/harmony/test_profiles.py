"""Profiles: what a file must hold, what lies between two profiled sizes, what a pack costs."""

import json

import pytest

from tests.unit.harmony.toy_model import profile
from workbench.methods.harmony.published.profile_file import load
from workbench.methods.harmony.published.profiles import Direction

TABLE = {"class": [0, 1, 1], "values": [[10, 20, 40], [30, 60, 120]]}
FILE = {
    "model": "tiny",
    "layers": 3,
    "w_bytes": [8, 16, 0],
    "b_bytes": [0, 4, 0],
    "k_bytes": [16, 32, 0],
    "x_bytes_per_sample": [2, 5, 7],
    "target_bytes_per_sample": 8,
    "cpu_update_time": [1000, 2000, 0],
    "fwd_microbatch": [1, 2, 4],
    "bwd_microbatch": [1, 2, 4],
    "fwd_time": TABLE,
    "bwd_time": TABLE,
    "fwd_memory": TABLE,
    "bwd_memory": TABLE,
}


def written(folder, **changes):
    path = folder / "tiny.json"
    data = {key: value for key, value in (FILE | changes).items() if value is not None}
    path.write_text(json.dumps(data))
    return path


def test_a_file_gives_seconds_and_bytes_of_every_layer(tmp_path):
    tiny = load(written(tmp_path))
    costs = tiny.at(Direction.FORWARD, 2)
    assert tiny.layers == 3
    assert costs.seconds == pytest.approx((20e-6, 60e-6, 60e-6))
    assert costs.peak_bytes == (20, 60, 60)
    assert costs.input_bytes == (4, 10, 14)
    assert tiny.swapped_bytes(range(0, 2)) == 8 + 16 + 4
    assert tiny.update_time(range(0, 2)) == pytest.approx(3e-3)
    assert (tiny.boundary_bytes(1), tiny.boundary_bytes(3)) == (5, 0)


def test_sizes_between_profiled_ones_are_interpolated_and_others_refused(tmp_path):
    tiny = load(written(tmp_path))
    assert tiny.at(Direction.BACKWARD, 3).seconds == pytest.approx((30e-6, 90e-6, 90e-6))
    assert tiny.at(Direction.BACKWARD, 3).peak_bytes == (30, 90, 90)
    for size in (0, 5):
        with pytest.raises(ValueError, match=f"size {size} is outside .* from 1 to 4"):
            tiny.at(Direction.BACKWARD, size)


def test_a_pack_counts_inner_inputs_once():
    costs = profile().at(Direction.BACKWARD, 4)
    pack = range(2, 5)
    assert costs.time(pack) == pytest.approx(4 * 3 * (3 + 4 + 5))
    assert costs.memory(pack) == 3 * (300 + 200) - 4 * (13 + 14)
    assert costs.memory(range(2, 3)) == 500
    assert costs.beyond_input()[2] == 500 - 4 * 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w_bytes": None}, "the field 'w_bytes' is missing"),
        ({"layers": 0}, "layers is 0; it must be 1 or more"),
        ({"model": 7}, "model is 7; it must be text"),
        ({"w_bytes": [1, 2]}, "w_bytes must hold 3 numbers, found 2"),
        ({"k_bytes": {}}, "k_bytes is {}; it must be a list"),
        ({"x_bytes_per_sample": [1, -2, 3]}, "x_bytes_per_sample holds -2"),
        ({"target_bytes_per_sample": -1}, "target_bytes_per_sample holds -1"),
        ({"cpu_update_time": [1, "2", 3]}, r"cpu_update_time\[1\] is '2'; it must be a number"),
        ({"fwd_microbatch": [1, 4, 2]}, "fwd_microbatch must list whole sizes"),
        ({"bwd_microbatch": []}, "bwd_microbatch must list whole sizes"),
        ({"fwd_time": [1]}, r"fwd_time is \[1\]; it must be an object"),
        ({"fwd_time": {"values": []}}, "fwd_time: the field 'class' is missing"),
        ({"fwd_time": TABLE | {"class": [0, 1, 2]}}, "fwd_time.class names a row that is not"),
        ({"bwd_memory": TABLE | {"class": [0, 1]}}, "bwd_memory.class must hold 3 numbers"),
        (
            {"bwd_time": TABLE | {"values": [[1, 2, 3], [1, 2]]}},
            r"bwd_time.values\[1\] must hold 3 numbers, found 2",
        ),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence(tmp_path, changes, message):
    with pytest.raises(ValueError, match=f"^tiny.json: {message}"):
        load(written(tmp_path, **changes))


@pytest.mark.parametrize("text", ["{", "", "\x00"])
def test_what_is_not_json_is_refused(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"broken\.json is not JSON"):
        load(path)


def test_a_list_is_no_profile(tmp_path):
    path = tmp_path / "list.json"
    path.write_text("[1]")
    with pytest.raises(ValueError, match="not a JSON object"):
        load(path)


@pytest.mark.parametrize(
    ("name", "layers", "weights_gib", "forward_s", "backward_s", "update_s"),
    [
        ("bert_large_seq512", 28, 1.249, 0.1019, 0.4157, 0.653),
        ("bert_96_seq512", 100, 4.627, 0.392, 1.649, 2.419),
        ("gpt2_xl", 52, 6.102, 0.694, 1.968, 2.210),
        ("vgg416", 417, 2.153, 0.246, 1.019, 0.230),
        ("resnet1026", 515, 2.987, 0.388, 1.607, 0.389),
        ("gpt2_10b", 54, 39.06, 2.73, 8.64, 13.3),
        ("gpt2_20b", 104, 76.57, 5.41, 17.1, 26.0),
        ("gpt2_40b", 204, 151.59, 10.77, 34.0, 51.4),
    ],
)
def test_published_profiles_add_up_to_the_published_totals(
    profile_of, name, layers, weights_gib, forward_s, backward_s, update_s
):
    model = profile_of(name)
    whole = range(layers)
    assert model.layers == layers
    assert sum(model.weight_bytes) / 2**30 == pytest.approx(weights_gib, rel=5e-4)
    assert model.at(Direction.FORWARD, 1).time(whole) == pytest.approx(forward_s, rel=2e-3)
    assert model.at(Direction.BACKWARD, 1).time(whole) == pytest.approx(backward_s, rel=5e-3)
    assert model.update_time(whole) == pytest.approx(update_s, rel=5e-3)
