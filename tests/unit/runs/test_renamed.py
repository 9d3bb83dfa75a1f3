"""Records, sweep files and rows of older versions call torch's pipelines as ours are called now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench import cli
from workbench.core.record import RunRecord
from workbench.core.spec import RunSpec
from workbench.published.here import SERVERS
from workbench.runs.sweep import SweepFile

OLD = Path(__file__).resolve().parents[2] / "golden" / "specs_before_options.jsonl"
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("old", ["gpipe", "1f1b"])
def test_old_records_are_torchs(old):
    specs = [json.loads(line) for line in OLD.read_text().splitlines()]
    (spec, *_) = (each.get("spec", each) for each in specs)
    record = RunRecord(key="k", method="plain", spec=spec, status="ok")
    told = json.loads(record.to_json()) | {"schema": 1, "method": old}
    told["spec"] = spec | {"method": old}
    found = RunRecord.from_json(json.dumps(told))
    assert found.method == found.spec["method"] == f"torch-{old}"


def test_a_sweep_file_says_by_its_version_whose_pipelines_it_means(tmp_path, capsys):
    runs = [{"method": "1f1b"}, {"method": "plain"}]
    data = {"base": {"method": "gpipe", "ranks": 2}, "runs": runs}
    old = SweepFile.parse(data, "old")
    assert [spec.method for spec in old.specs] == ["torch-1f1b", "plain"]
    assert "old has no version: 1f1b, gpipe in it are torch's" in old.note
    new = SweepFile.parse(data | {"version": 2}, "new")
    assert [spec.method for spec in new.specs] == ["1f1b", "plain"]
    assert new.note == ""
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"base": data["base"] | {"microbatches": 2, "device": "cpu"}}))
    assert cli.main(["sweep", str(file), "--results", str(tmp_path), "--dry-run"]) == 0
    assert 'write "version": 2' in capsys.readouterr().err
    with pytest.raises(ValueError, match="version is 3; this program reads 1 to 2"):
        SweepFile.parse({"base": {"method": "plain"}, "version": 3}, "later")


def test_old_rows_are_torchs_and_new_ones_ours():
    runs = SERVERS.runs([ROOT / "results"])
    before = {run.method for run in runs if str(run.date) < "2026-11-27"}
    since = {run.method for run in runs if str(run.date) >= "2026-11-27"}
    assert {"torch-gpipe", "torch-1f1b"} <= before
    assert not before & {"gpipe", "1f1b"}
    assert {"1f1b", "gpipe", "interleaved", "zb-h1", "torch-1f1b"} <= since


def test_a_spec_of_today_means_our_own():
    assert RunSpec.from_dict({"method": "gpipe", "ranks": 2}).method == "gpipe"
