"""Parameter counts equal the published ones; a spec refuses what no model can be."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.model import ModelSpec, make_model
from workbench.model.whole import make_whole

RUNS = Path(__file__).parents[4] / "shared" / "reference" / "stronghold" / "runs.csv"
PUBLISHED = {32: 1_716_588_544, 78: 4_033_069_056, 100: 5_140_951_040}


@pytest.mark.parametrize(("layers", "parameters"), PUBLISHED.items())
def test_formula_gives_published_counts(layers, parameters):
    spec = ModelSpec(layers=layers)
    assert spec.block_parameters == 50_358_272
    assert spec.parameters == parameters


def test_every_published_run_has_its_count():
    if not RUNS.exists():
        pytest.skip("the published runs are not beside this checkout")
    with RUNS.open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        sizes = {name: int(row[name]) for name in ("layers", "hidden", "heads", "seq")}
        assert ModelSpec(**sizes).parameters == int(row["parameters"])


@pytest.mark.parametrize("tied", [True, False])
def test_modules_have_the_parameters_of_the_formula(tied):
    spec = ModelSpec(layers=32, tied=tied)
    model = make_model(spec)
    assert model.unit_parameters(1) == spec.block_parameters
    assert model.parameters_count() == spec.parameters
    whole = make_whole(model, seed=1, device="meta")
    if not tied:  # meta copies of a tied matrix are two tensors
        assert sum(p.numel() for p in whole.parameters()) == spec.parameters


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"heads": 12, "hidden": 64}, "12 heads do not divide a hidden size of 64; (8|16) heads"),
        ({"layers": 0}, "layers is 0; it must be at least 1"),
        ({"layers": 200_000}, "layers is 200000; it must be at most 2000"),
        ({"hidden": 10**18}, "hidden is 1000000000000000000; it must be at most 1048576"),
        ({"heads": 16, "hidden": 1_000_003}, "16 heads do not divide .* 1000003; 1 heads would"),
        ({"seq": 2.5}, "seq is 2.5; it must be a whole number"),
        ({"dropout": 1.0}, r"dropout is 1\.0; it must be at least 0 and below 1"),
        ({"tied": "yes"}, "tied is 'yes'"),
        ({"family": ""}, "family is empty"),
    ],
)
def test_refuses_what_cannot_be(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        ModelSpec(**change)


def test_round_trip():
    spec = ModelSpec(layers=3, hidden=96, heads=6, dropout=0.1, tied=False)
    assert ModelSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(ValueError, match="unknown field 'depth'"):
        ModelSpec.from_dict({"depth": 3})


def test_specs_and_text_need_no_torch():
    script = (
        "import sys, workbench.model, workbench.model.text;"
        "workbench.model.ModelSpec().parameters; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
