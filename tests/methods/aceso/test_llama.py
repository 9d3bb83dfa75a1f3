"""A Llama of a configuration of Hugging Face's trains under a plan as transformers' own module."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import save_model

from tests.exactness.trained import NEAR, assert_equals
from tests.methods.aceso.plans import drawn, even, plan, some, spec_of, turns
from tests.methods.aceso.test_training import ranks, trained, written
from workbench.cli import main
from workbench.methods.aceso.options import check
from workbench.methods.aceso.plan import Subject, read_plan
from workbench.model import make_model
from workbench.model.hf_config import spec_from_config
from workbench.model.whole import make_whole

pytest.importorskip("transformers")
END, SEQ = 29, 8
SHAPE = {"seq_length": SEQ, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 32,
         "ffn_hidden_size": 40}  # fmt: skip
CONFIG = {
    "model_type": "llama", "vocab_size": 258, "hidden_size": 32, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 64, "tie_word_embeddings": True, "pad_token_id": 101,
    "attention_bias": True, "rms_norm_eps": 1e-4,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
}  # fmt: skip
SUBJECT = Subject(model="llama", size="tiny", layers=2, shape=tuple(SHAPE.items()), batch=10)
llama = partial(plan, subject=SUBJECT)
__all__ = ["ranks"]  # a fixture


def configured(folder: Path, **changes) -> str:
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIG | changes))
    return str(file)


@pytest.mark.parametrize(
    ("made", "how", "changes"),
    [
        # Cuts inside attention and the feed-forward, tp to dp, both dimensions, both copies of a
        # tied table, frequencies that are scaled, a token whose vector is not trained.
        (llama([(2, 5, turns(2, 1)), (1, 12, some()), (1, END, even())]), {}, {}),
        pytest.param(
            llama([(4, END, drawn(3, 4))]), {"pad_token_id": None, "tie_word_embeddings": False},
            {"fused": False}, marks=pytest.mark.thorough,
        ),
        pytest.param(
            llama([(2, 9, drawn(1, 2)), (2, END, drawn(2, 2))], micro=2, batch=7),
            {"attention_bias": False, "mlp_bias": True, "num_key_value_heads": 8}, {},
            marks=pytest.mark.thorough,
        ),
    ],
)  # fmt: skip
def test_a_llama_trains_as_transformers_own_does(made, how, changes, ranks, tmp_path):
    """Steps of shared heads, rotary positions and SwiGLU, from weights in a file."""
    if "num_key_value_heads" in how:
        text = json.dumps(made.to_dict() | {"num_key_value_heads": how["num_key_value_heads"]})
        made = read_plan(text, "the plan")
    bare = make_whole(make_model(spec_from_config(configured(tmp_path, **how))), seed=3)
    save_model(bare, str(tmp_path / "model.safetensors"))
    model = spec_from_config(tmp_path, seq=SEQ)
    spec = spec_of(made, tmp_path, model=model, **({"steps": 8} | changes))
    assert model.pretrained
    found = trained(spec, tmp_path / "runs" / "run")
    assert_equals(found, written(spec, tmp_path / "runs" / "one"), NEAR["fp32"])


def test_its_operators_are_listed(tmp_path, capsys):
    """With the parameters that transformers counts, of which those tied are in both."""
    assert main(["layers", "--operators", "--json", "--hf-config", configured(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["layers", "--json", "--hf-config", configured(tmp_path)]) == 0
    units = json.loads(capsys.readouterr().out)
    tied = CONFIG["vocab_size"] * CONFIG["hidden_size"]
    assert len(rows) == END
    assert sum(row["parameters"] for row in rows) == tied + sum(u["parameters"] for u in units)
    assert rows[2]["kind"] == "grouped-qkv"
    assert rows[12]["passes_on"] == ["1-residual-2"]


@pytest.mark.parametrize(
    ("how", "sizes", "told"),
    [
        ({}, {"hidden_size": 64}, "hidden_size is 64; .*config.json has 32"),
        ({"num_key_value_heads": 2}, {}, "num_key_value_heads is 4; .*config.json has 2"),
        ({"hidden_act": "gelu"}, {}, "hidden_act is 'gelu'; operators are listed with 'silu'"),
        ({"attention_dropout": 0.1}, {}, "attention_dropout is 0.1; operators are listed with 0"),
        ({"model_type": "mistral"}, {}, "give --hf-config FILE"),
        (None, {}, "its configuration is missing: give --hf-config FILE"),
    ],
)
def test_a_configuration_of_another_model_is_refused(how, sizes, told, tmp_path):
    """In one sentence."""
    made = read_plan(json.dumps(llama([(2, END, even(2))]).to_dict() | sizes), "the plan")
    check(made, 2)
    more = {} if how is None else {"model": spec_from_config(configured(tmp_path, **how), seq=SEQ)}
    spec = spec_of(made, tmp_path, **more)
    with pytest.raises(ValueError, match=told):
        spec.options.settled(spec, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_tp_divides_the_heads_of_keys():
    with pytest.raises(ValueError, match="it must divide num_key_value_heads, which is 4"):
        read_plan(json.dumps(llama([(8, END, even(8))]).to_dict()), "the plan")
