"""Fields by name: from text and from JSON, checked against their annotations."""

import pytest

from workbench.core.spec import RunSpec, every_field
from workbench.runs.overrides import make_spec, parse_setting


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("window=auto", "auto"),
        ("window=4", 4),
        ("model.layers=3", 3),
        ("clip=none", None),
        ("clip=1", 1.0),
        ("lr=1e-3", 1e-3),
        ("tied=false", False),
        ("device_memory=32GiB", 32 * 2**30),
        ("device_memory=none", None),
        ("text=a=b", "a=b"),
        ("lr_decay_steps = 7", 7),
    ],
)
def test_settings_from_text(text: str, value: object) -> None:
    name, parsed = parse_setting(text)

    assert parsed == value
    assert type(parsed) is type(value)
    assert "." not in name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("window", "'window' is not a setting; write field=value"),
        ("window=wide", "window is 'wide'; it must be a whole number or auto"),
        ("batch=4.5", "batch is '4.5'; it must be a whole number"),
        ("dtype=fp16", "dtype is 'fp16'; it must be fp32 or bf16"),
        ("lr=inf", "lr is 'inf'; it must be a number"),
        ("windows=4", "unknown field 'windows' in a run spec; known: activations, "),
    ],
)
def test_what_is_wrong_with_a_setting(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + sentence.replace("(", r"\(")):
        parse_setting(text)


def test_a_spec_survives_json_and_takes_changes() -> None:
    spec = RunSpec(method="l2l", lr=1.0, clip=None)

    assert make_spec(spec.to_dict()) == spec
    changed = make_spec(spec.to_dict(), {"layers": 3, "host_memory": "1GiB", "lr": 2})
    assert (changed.model.layers, changed.host_memory, changed.model.hidden) == (3, 2**30, 2048)
    # An integer where a number is meant is that number, so that it is the same key.
    made = make_spec({"method": "l2l", "lr": 1, "microbatches": 1})
    assert made.key("", "") == RunSpec(method="l2l", lr=1.0).key("", "")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "a run spec is a JSON object"),
        ({"layers": 3}, "a run spec needs a method"),
        ({"method": "l2l", "batch": True}, "batch is True; it must be a whole number"),
        ({"method": "l2l", "model": 3}, "model is 3; it must be a JSON object"),
        ({"method": "l2l", "lr": float("nan")}, "lr is nan; it must be a number"),
        ({"method": "l2l", "text": None}, "text is None; it must be text"),
        ({"method": "l2l", "batch": 10**12}, "batch is 1000000000000; it must be at most 1048576"),
        ({"method": "1f1b", "ranks": 4000}, "ranks is 4000; it must be at most 64"),
        ({"method": "l2l", "layers": 900, "batch": 64, "microbatches": 64}, "are 57600 forward"),
    ],
)
def test_malformed_json(data: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_spec(data)


def test_every_field_can_be_described() -> None:
    for field in every_field().values():
        assert field.takes
