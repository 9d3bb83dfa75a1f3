"""A served page reads no plan outside its results folder."""

from __future__ import annotations

import pytest

from workbench.runs.confines import confine


def test_plans_are_files_of_the_results_or_those_that_runs_kept(tmp_path):
    root = tmp_path / "results"
    (root / "plans").mkdir(parents=True)
    (root / "plans" / "0123456789abcdef.json").touch()
    for path in (root / "own.json", tmp_path / "foreign.json"):
        path.touch()
    (root / "link.json").symlink_to(tmp_path / "foreign.json")
    for allowed in ("", "0123456789abcdef", str(root / "own.json")):
        confine({"options": {"plan": allowed}}, root)
    foreign = tmp_path / "foreign"
    for refused in (f"{foreign}.json", "../../foreign", str(foreign), str(root / "link.json")):
        with pytest.raises(ValueError, match="must lie in the results folder"):
            confine({"options": {"plan": refused}}, root)
