"""A folder of profiles is read as the table of the same files; a broken one is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.methods.aceso.database import read_database
from workbench.methods.aceso.files import read_table
from workbench.model.operators import operator_list
from workbench.published.aceso import DATABASE

GPT = operator_list("gpt", 24)
FILE = "gpt_1_3B_mbs2_tp1_algo0.csv"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in read_table(DATABASE).items():
        if name.startswith(("gpt", "prim_gpt", "p2p")):
            (tmp_path / name).write_text(text + "\n")
    return tmp_path


def test_the_committed_table_holds_the_79_published_files() -> None:
    assert len(read_table(DATABASE)) == 79
    assert DATABASE.stat().st_size < 500_000


@pytest.mark.parametrize(
    ("family", "layers", "model"),
    [("gpt", 24, "gpt_1_3B"), ("t5", 24, "t5_770M"), ("resnet", [3, 4, 6, 3], "resnet_1B")],
)
def test_lists_of_operators_are_those_of_the_profiles(family, layers, model) -> None:
    """Reading refuses a row of another name."""
    found = read_database(DATABASE, model, operator_list(family, layers))
    assert (8, 1, 0) in found.rows


def test_a_folder_and_the_table_hold_the_same(folder: Path) -> None:
    one, other = (read_database(place, "gpt_1_3B", GPT) for place in (folder, DATABASE))
    assert one.rows.keys() == other.rows.keys()
    assert all((one.rows[key] == other.rows[key]).all() for key in one.rows)
    assert one.collectives == other.collectives
    assert one.intra == other.intra
    assert len(one.collectives) == 8


def edit(old: str, new: str, name: str = FILE) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def without_tp_1(folder: Path) -> None:
    for path in folder.glob("*_tp1_*"):
        path.unlink()


def cut(folder: Path) -> None:
    (folder / FILE).write_text((folder / FILE).read_text()[:700])


WRONG = {
    "columns": (edit("weights", "parameters"), f"{FILE} of .* other columns .*'parameters'"),
    "cut": (cut, f"{FILE} of .* operators; they must be 16"),
    "nan": (edit("208.000", "nan"), f"{FILE} of .*encoder-embedding, weights is 'nan'"),
    "negative": (edit("208.000", "-208"), "weights is '-208'; it must be a number of 0 or more"),
    "name": (edit("enc-MLP-gelu", "enc-MLP-relu"), "operator 12 is 'enc-MLP-relu'; it must be"),
    "row": (edit(",208.000", ""), "is cut off: encoder-embedding has 7 numbers"),
    "tp 1": (without_tp_1, "for tp 2 and more; those for tp 1 must be there"),
    "links": (lambda folder: (folder / "p2p_intra_node.csv").unlink(), "no p2p_intra_node.csv"),
    "speed": (edit("7.41", "0", "p2p_intra_node.csv"), "a bandwidth is 0"),
    "empty": (lambda folder: (folder / FILE).write_text(""), "other columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_database_is_refused_with_its_file(name: str, folder: Path) -> None:
    change, told = WRONG[name]
    change(folder)
    with pytest.raises(ValueError, match=told) as error:
        read_database(folder, "gpt_1_3B", GPT)
    assert "\n" not in str(error.value)


def test_another_size_and_no_folder_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="has no profile of gpt_13B; it has gpt_1_3B"):
        read_database(folder, "gpt_13B", GPT)
    with pytest.raises(ValueError, match="there is no profile database"):
        read_database(folder / "absent", "gpt_1_3B", GPT)


def test_out_of_memory_is_a_state(folder: Path) -> None:
    edit("208.000", "10000000.000")(folder)
    rows = read_database(folder, "gpt_1_3B", GPT).rows[2, 1, 0]
    assert (rows[:, 0] < 0).all()
    assert (rows[:, 1:] >= 0).all()
