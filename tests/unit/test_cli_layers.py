"""`workbench layers` and `workbench plan` describe models, also on several devices."""

from __future__ import annotations

import json

import pytest

from workbench.cli import main
from workbench.cli.operators import STANDS

SMALL = ("-l", "4", "--hidden", "64", "--heads", "2", "--seq", "32", "--vocab", "256", "-b", "4")


@pytest.mark.parametrize(
    ("words", "total", "lines"),
    [
        (
            "-l 48 --hidden 1600 --heads 25 --seq 1024 --vocab 50257",
            "50 units, 1,557,611,200 parameters",
            ["1-48  block      30,740,800  [1 x 1024 x 1600]", "; weights of unit 0"],
        ),
        (
            "-l 24 --hidden 1024 --heads 16 --seq 512 --vocab 30522 --set family=bert "
            "--set tied=false",
            "27 units, 335,143,938 parameters",
            ["1-24  encoder.0 to encoder.23  12,596,224  [1 x 512] bool, no gradient; "],
        ),
        (
            "-l 2 --hidden 16 --heads 1 --vocab 3 --set family=tests.methods.biased:net "
            "--set tied=false",
            "4 units, 819 parameters",
            ["[1 x 16], the same for all samples; [1 x 16]"],
        ),
        (
            "-l 2 --hidden 16 --heads 2 --vocab 300 --seq 9 --set target_seq=4 "
            "--set family=megatron-t5",
            "8 units, 20,512 parameters",
            ["0  embeddings                5,088  data\n", "; weights of unit 0"],
        ),
    ],
    ids=["GPT-2 XL", "BERT-Large", "somebody's own", "of Megatron's T5 one layer shares"],
)
def test_a_model_is_shown_as_it_is_cut(words, total, lines, capsys):
    assert main(["layers", *words.split()]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[-1] == total
    for line in lines:
        assert line in told
    assert main(["layers", *words.split(), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert f"{sum(row['parameters'] for row in rows):,}" in total


def test_a_model_that_cannot_be_made_is_a_sentence(capsys):
    assert main(["layers", "--set", "family=brt"]) == 2
    assert "the model 'brt' is not known: it is gpt, bert, vgg" in capsys.readouterr().err
    assert main(["layers", "-l", "4", "--set", "family=vgg", "--set", "tied=false"]) == 2
    assert "layers is 4; the model has 5 groups" in capsys.readouterr().err


def test_on_several_devices_those_methods_are_compared_that_run_there(tmp_path, capsys):
    words = ["plan", *SMALL, "--ranks", "2", "--results", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    planned = {method["method"] for method in told["methods"]}
    swapped = {"harmony-pp", "harmony-dp", "pp-swap", "dp-swap"}
    assert swapped | {"data-parallel", "torch-gpipe", "gpipe", "1f1b", "zb-h1"} <= planned
    assert {"torch-1f1b", "interleaved"} <= planned, "with more than one micro-batch"
    assert {"zero-offload", "zero-infinity"} <= planned
    assert told["method"] in planned
    unplanned = {"aceso", "megatron-parallel", "torch-interleaved", "torch-zero-bubble"}
    assert told["not_planned"].keys() == unplanned
    words += ["--microbatches", "2"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert ", batch 4, on this machine (" in told
    assert "this machine has not been measured, so no times are told: `workbench plan" in told
    assert "torch-interleaved is not planned: torch plans torch-interleaved by itself" in told
    more = ["--set", "family=resnet", "--set", "tied=false"]
    assert main([*words, *more]) == 0
    told = capsys.readouterr().out
    assert "torch-interleaved is not planned: torch plans torch-interleaved by itself" in told
    assert all(f"\n  {name} " in told for name in ("torch-gpipe", "torch-1f1b")), "modules, too"
    assert "torch-zero-bubble" not in told, "it trains decoders only"


def test_where_nothing_can_be_planned_the_reason_is_said(tmp_path, capsys):
    assert main(["plan", *SMALL, "--ranks", "7", "-m", "harmony-pp"]) == 2
    assert "ranks is 7; the model has 6 units" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "number", "times", "row"),
    [
        ("gpt-1_3B", 315, 24, ("enc-attention-qkv", "qkv", 12_589_056, True)),
        ("t5-large", 821, 24, ("dec-attention-qkv-2", "cross-qkv", 3_148_800, True)),
        ("wide-resnet-imagenet-13B", 270, 1, ("block-2-22-bn1", "batchnorm", 2_560, False)),
    ],
)
def test_operators_are_listed(family, number, times, row, capsys):
    words = ["layers", "--operators", "--set", f"family={family}"]
    assert main([*words, "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == ("" if family != "t5-large" else f"{STANDS}\n")
    rows = json.loads(told.out)
    assert [row["operator"] for row in rows] == [*range(number)]
    alike = [tuple(each.values())[1:5] for each in rows if each["name"] == row[0]]
    assert alike == [row] * times
    assert main(words) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == [str(number), "operators"]
    shown = next(line for line in lines if line[0] == row[0])
    assert shown[1:4] == [str(times), row[1], f"{row[2]:,}"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("family=vgg", "the model is vgg; operators are listed of gpt, megatron-t5, wide-resnet"),
        ("family=t5 --set decoder_layers=2", "decoder_layers is 2; the list has as many layers"),
        ("family=wide-resnet-imagenet -l 3", "layers is 3; the model has 4 groups"),
        ("family=t5 --set width_factor=3", "width_factor is 3; of the model t5 it means nothing"),
    ],
)
def test_models_without_a_list_of_operators_are_a_sentence(words, told, capsys):
    assert main(["layers", "--operators", "--set", *words.split()]) == 2
    assert told in capsys.readouterr().err
