"""`workbench layers` and `workbench plan` describe models, also on several devices."""

from __future__ import annotations

import json

import pytest

from workbench.cli import main

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
    ],
    ids=["GPT-2 XL", "BERT-Large", "somebody's own"],
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
    assert told["not_planned"].keys() == {"torch-interleaved", "torch-zero-bubble"}
    assert main(words) == 0
    told = capsys.readouterr().out
    assert ", batch 4, on this machine (" in told
    assert "this machine has not been measured, so no times are told: `workbench plan" in told
    assert "torch-interleaved is not planned: torch plans torch-interleaved by itself" in told
    more = ["--set", "family=resnet", "--set", "tied=false"]
    assert main([*words, *more]) == 0
    told = capsys.readouterr().out
    assert "torch-interleaved is planned for decoders only" in told
    assert "torch-zero-bubble" not in told, "it trains decoders only"


def test_where_nothing_can_be_planned_the_reason_is_said(tmp_path, capsys):
    assert main(["plan", *SMALL, "--ranks", "7", "-m", "harmony-pp"]) == 2
    assert "ranks is 7; the model has 6 units" in capsys.readouterr().err
