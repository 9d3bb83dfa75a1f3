"""Plans' files are byte-stable, and wrong ones are refused with the number at fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.aceso.cases import golden
from workbench.methods.aceso.plan import read_plan

GPT = golden()["small_gpt_1_3B_4gpu_3stages"]


@pytest.mark.parametrize("name", golden())
def test_a_published_plan_is_written_as_it_was_read(name: str) -> None:
    assert read_plan(golden()[name], name).to_json() == golden()[name]


def put(*place: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(plan: dict[str, Any]) -> None:
        for key in place[:-1]:
            plan = plan[key]
        plan[place[-1]] = value

    return change


def longer(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda plan: plan[name][1].append(plan[name][1][0])


WRONG = {
    "operators": (put("num_ops_in_each_stage", 0, value=80), "adds up to 314; gpt of 24 layers"),
    "depth": (put("num_layers", value=30), "adds up to 315; gpt of 30 layers has 393 operators"),
    "list": (longer("recompute_ops"), "recompute_ops[1] has 161 entries; the stage has 160"),
    "stages": (put("num_stages", value=4), "num_gpus has 3 entries; it must have one of 4 stages"),
    "tp": (put("model_parallel_size_of_each_op", 1, 7, value=2), "tp 2 x dp 2 of operator 7 of "
           "stage 1 is 4; its stage has 2 GPUs"),
    "heads": (put("num_attention_heads", value=31), "num_attention_heads"),
    "flag": (put("recompute_ops", 0, 3, value=2), "recompute_ops[0][3] is 2; it must be 0 or 1"),
    "text": (put("num_gpus", 0, value="one"), "num_gpus[0] is 'one'; it must be a whole number"),
    "micro": (put("micro_batch_size", value=0), "micro_batch_size is 0; it must be from 1"),
    "batch": (put("micro_batch_size", value=513), "513; it must be from 1 to the batch of 512"),
    "dp": (put("micro_batch_size", value=3), "it must divide the micro-batch of 3"),
    "model": (put("model_name", value="bert"), "model_name is 'bert'; it must be gpt or t5"),
    "key": (put("layers", value=3), "unknown field 'layers'"),
    "said": (put("checkpoint_activations", 2, value=False), "checkpoint_activations[2] is False; "
             "by its operators it must be True"),
    "shape": (put("hidden_size", value=0), "hidden_size is 0"),
    "wide": (put("hidden_size", value=10**12), "hidden_size is 1000000000000"),
    "samples": (put("global_batch_size", value=-5), "global_batch_size is -5; it must be from 1"),
    "many": (put("global_batch_size", value=10**18), "global_batch_size is 1000000000000000000"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused_in_one_sentence(name: str) -> None:
    change, told = WRONG[name]
    plan = json.loads(GPT)
    change(plan)
    if name == "heads":
        plan["model_parallel_size_of_each_op"][1] = [2] * 160
        plan["data_parallel_size_of_each_op"][1] = [1] * 160
    with pytest.raises(ValueError, match="^the plan: ") as error:
        read_plan(json.dumps(plan), "the plan")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [GPT[:-300], GPT.replace("512", "NaN", 1), "[]", "\xff"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the plan"):
        read_plan(text, "the plan")
