"""What a user can get wrong is said in one sentence before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench import cli
from workbench.reproduce import check_parameters, read_notebook, reproduce

GOOD = {"size": "paper", "results": "somewhere"}


@pytest.fixture
def complaint(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The sentence that the command line says to some words."""

    def complain(*words: str) -> str:
        assert cli.main([*words]) == 2
        said = capfd.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1), said.err
        return said.err

    return complain


def test_an_unknown_parameter_ends_the_command_with_2(complaint, tmp_path: Path) -> None:
    said = complaint("reproduce", "-p", "frce=true", "--results", str(tmp_path / "new"))
    assert "unknown parameter 'frce'" in said
    assert "size, results, force" in said
    assert not (tmp_path / "new").exists()


def test_an_unknown_exhibit_ends_the_command_with_2(complaint) -> None:
    assert "fig6a, fig7a, fig8a, fig8b, fig9" in complaint("figure", "fig10")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"force": "yes"}, "force is 'yes'; it must be of type bool"),
        ({"force": 1}, "of type bool"),
        ({"size": 3}, "of type str"),
        ({"size": True}, "of type str"),
    ],
)
def test_a_parameter_of_another_type_is_refused(values: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_parameters(read_notebook("9"), {**GOOD, **values}, "9")


def test_right_parameters_pass() -> None:
    check_parameters(read_notebook("9"), {**GOOD, "force": True, "batch": 8, "window": 2}, "9")


def test_a_value_that_cannot_be_ends_the_command_with_2(complaint, tmp_path: Path) -> None:
    words = ("figure", "fig9", "--results", str(tmp_path / "new"), "--size", "smoke", "-p")
    assert "hidden" in complaint(*words, "hidden=33")
    assert "steps is 0" in complaint(*words, "steps=0")


def test_a_results_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_text("not a folder")
    with pytest.raises(OSError, match="cannot be written"):
        reproduce("paper", file, only=["fig9"], echo=print)


def test_a_report_of_nothing_is_refused(complaint, tmp_path: Path) -> None:
    assert "nothing has been reproduced" in complaint("report", "--results", str(tmp_path))


def test_notebooks_are_read_without_a_grammar_of_addresses(root: Path) -> None:
    """Who asks for that grammar afterwards has it."""
    code = (
        "import sys; from workbench.core.notebook_files import GRAMMAR, quick_nbformat\n"
        "quick_nbformat(); import papermill; print({GRAMMAR, 'lark'} & {*sys.modules})"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert told.stdout == "set()\n", told.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_results_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="cannot be written"):
        reproduce("paper", tmp_path, only=["fig9"], echo=print)
