"""Every flag and every field of every file, given what it cannot take: exit code 2, one sentence,
no traceback, nothing written, nothing of the user's imported."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import types
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args
from unittest.mock import Mock

import pytest

from workbench import cli, doctor, page
from workbench.cli.spec import FIELDS
from workbench.core.model_spec import ModelSpec
from workbench.core.options import catalogue
from workbench.core.spec import every_field
from workbench.runs.sweep import Written

HOME = "~nosuchuser/x"
WAITS = ("pipe.json", "sparse.json")
"""A pipe that nobody writes to, and a file larger than memory."""
BRACKETS = "[" * 100_000
LONG = "9" * 5000
FILES = {
    "binary": b"\xff\xfe\x00a", "empty": b"", "short": b"abc", "brackets": BRACKETS.encode(),
    "twice": b'{"method": "l2l", "lr": 1, "lr": 2}', "utf16": '{"method": "l2l"}'.encode("utf-16"),
    "list": b"[]", "no-type": b'{"model_type": {}}', "odd-type": b'{"model_type": "x"}',
    "few": b"abab" * 5, "failing.py": b"def net(spec):\n    raise OSError(spec)",
    "gpt2": b'{"model_type": "gpt2", "n_layer": null}', "own.py": b"open('imported', 'w')",
}  # fmt: skip
TINY = {"layers": 2, "hidden": 32, "heads": 2, "seq": 16, "vocab": 256, "device": "cpu"}
RUN = ["run", *(word for name, value in TINY.items() for word in (f"--{name}", str(value)))]

STAGES = ["-b", "1", "--ranks", "2"]
LATE = [  # what only the process that trains would know, if nobody asked before
    *(
        ["-m", m, "--activations", "host"]
        for m in ("megatron-lm", "zero-infinity", "plain", "fsdp")
    ),
    *(["-m", m, *STAGES, "--activations", "host"] for m in ("torch-gpipe", "deepspeed-pipe")),
    *(["-m", m, f"--{flag}", "on"] for m in ("plain", "l2l") for flag in ("compile", "replay")),
    ["-m", "fsdp", "--device-memory", "1GiB"],
    ["-m", "zero-infinity", "--save-every", "1", "--optimizer-tier", "disk"],
    *(["-m", m, "--ranks", "5"] for m in ("torch-gpipe", "ftpipe", "data-parallel")),
    *(["-m", m, *STAGES, "--stages", "1 1"] for m in ("torch-gpipe", "deepspeed-pipe")),
    ["-m", "ftpipe", "--ranks", "2", "--cut", "1 1"],
    ["-m", "plain", "--tokenizer", "bpe:300"],
    ["-m", "plain", "--eval-every", "1", "--eval-share", "0.99999999"],
    ["-m", "plain", "--text", "few", "--tokenizer", "bpe:270", "--set", "vocab=270"],
    *(["-m", "plain", "--set", f"family={name}"] for name in ("bert", "t5", "vgg", "failing:net")),
    ["-m", "plain", "--set", "family=vit", "--text", "."],
]
NAMED = [
    *([*RUN, *words] for words in LATE),
    [*RUN, "-m", "l2l", "--lr", "1e-3", "--min-lr", "1e-2"],
    [*RUN, "-m", "l2l", "--steps", "4", "--warmup-steps", "5"],
    [*RUN, "-m", "l2l", "--steps", "9", "--warmup-steps", "5", "--set", "lr_decay_steps=4"],
    [*RUN, "-m", "l2l", "--set", "lr_decay_steps=0"],
    [*RUN, "-m", "megatron-lm", "--set", "family=own:net"],
    ["run", "-m", "l2l", "--hf-config", "gpt2", "-l", "8"],
    *(["run", "-m", "l2l", "--hf-config", name] for name in (*FILES, *WAITS, HOME)),
    *([*RUN, "-m", "l2l", "--timeout", value] for value in ("nan", "inf", "-1", "0", "x")),
    *([*RUN, "-m", "l2l", "--results", value] for value in ("short", HOME, "a\0b")),
    *(["sweep", name] for name in (*FILES, *WAITS, HOME, "nowhere", ".")),
    *(["run", "--spec", name] for name in (*FILES, *WAITS, HOME, "nowhere", ".")),
    *([*RUN, "-m", "l2l", "--text", name] for name in WAITS),
    *(["plan", "-m", "l2l", "--machine", name] for name in WAITS),
    *(["varuna", "--batch_size", "4", "--machine_list", name, "own.py"] for name in WAITS),
    *(["figure", "fig8a", *words.split(" ")] for words in (
        "-p nosuch=1", "-p size={}", "-p force=1", "-p x", "--size x", f"-p size={BRACKETS}",
        "-p text=nowhere", f"--results {HOME}", "--results short",
    )),
    *(["figure", "99z"], ["reproduce", "--only", "99z"]),
    *(["report", "--results", value] for value in ("nowhere", "short", HOME)),
    *(["page", "--port", value] for value in ("99999", "-1", "abc", "", LONG)),
    *([verb, "--results", value] for verb in ("page", "doctor") for value in ("short", HOME)),
    *(["page", "--size", "x"], ["doctor", "--device", "x"]),
    *([verb, "--nosuch"] for verb in ("page", "doctor", "run", "plan", "sweep", "report")),
]  # fmt: skip
SWEEPS = {  # fields of a sweep file, and JSON that each of them refuses
    "name": ("3", "{}", '"../x"', '"a/b"'), "base": ("[]", '"x"', "3"), "size": ("3", "null"),
    "grid": ("[]", '{"lr": []}', '{"lr": 1}', '{"x": [1]}', '{"lr": [null]}'),
    "runs": ("[]", "{}", "[1]", "null", '[{"lr": "x"}]'), "executor": ('"x"', "3", "null"),
    "results": ("3", "[]", f'"{HOME}"', '"a\\u0000b"', '"short"'), "exhibit": ('"99z"', '"8a"'),
    "version": ("0", "3", "null", '"2"', "1.5"),
    "timeout": ("0", "-1", "NaN", "true", '"1"', "1e999", "1" + "0" * 400, "1" + "0" * 309),
}  # fmt: skip
TEXTS = {  # fields that are text, and what each of them refuses
    "text": (*WAITS, "nowhere", HOME, "", "binary", "empty", "short", ".", "a\0b"),
    "method": ("x", ""),
    "tokenizer": ("x", "", "bpe:", "bpe:x", "bpe:-1", "bpe:1", "bpe:999999999999", f"bpe:{LONG}"),
    "family": (*WAITS, "", "x", HOME, "binary", "empty", "no-type", "odd-type", "own:net"),
    **dict.fromkeys(("forward_packs", "backward_packs"), ("x", "-1", "0", "1.5")),
    "start_from": ("nowhere", HOME, "a\0b"),
}  # fmt: skip


def refused_by(name: str) -> Iterator[str]:
    """Texts that a field refuses, by its annotation."""
    kinds = get_args(every_field()[name].kind) or (every_field()[name].kind,)
    if str in kinds:
        yield from TEXTS.get(name, ())
        return
    yield from ("x", "", "nan", "inf", "1e999", LONG, "\udcff", "-5GiB", "[]", "~")
    if bool not in kinds and name != "seed":
        yield "-1"
    if float not in kinds and not name.endswith("_memory"):
        yield from ("1.5", "9" * 20)


def wrong_json(name: str) -> Iterator[str]:
    """JSON that a field refuses, by its annotation."""
    kinds = get_args(every_field()[name].kind) or (every_field()[name].kind,)
    yield from ("{}", "[1]", "1" + "0" * 400, "NaN", "1e999", '"\\ud800"', BRACKETS)
    yield from (json.dumps(text) for text in TEXTS.get(name, ()) if "0" not in text)
    unfit = {"true": bool, "null": types.NoneType, "1.5": float, "9" * 20: float}
    yield from (text for text, kind in unfit.items() if kind not in kinds)


def command_lines() -> Iterator[tuple[list[str], str]]:
    """Words, and the text of the file ``given`` that some of them name."""
    options = catalogue()
    flags = {name: f"--{name.replace('_', '-')}" for name in (*FIELDS, *options)}
    for name in every_field():
        has = options[name].methods[0] if name in options else "l2l"
        has = "megatron-lm" if name == "family" else has  # others take modules of one's own
        for value in refused_by(name):
            given = [flags[name], value] if name in flags else ["--set", f"{name}={value}"]
            method = [] if name == "method" else ["-m", has]
            yield [*RUN, *method, *given], ""
            if name not in ("text", "tokenizer", "start_from"):  # which no plan looks at
                yield ["plan", *RUN[1:], *method, *given], ""
        inside = name in {field.name for field in fields(ModelSpec)}
        for value in wrong_json(name):
            field = f'"model": {{"{name}": {value}}}' if inside else f'"{name}": {value}'
            kept = {k: v for k, v in {"method": has, **TINY}.items() if k != name}
            text = f"{json.dumps(kept)[:-1]}, {field}}}"
            yield ["run", "--spec", "given"], text
            yield ["sweep", "given", "--dry-run"], f'{{"base": {text}}}'
    for name, values in SWEEPS.items():
        for value in values:
            base = "" if name in ("base", "exhibit") else ', "base": {"method": "l2l"}'
            yield ["sweep", "given", "--dry-run"], f'{{"{name}": {value}{base}}}'
    (verbs,) = (a for a in cli.make_parser()._actions if isinstance(a.choices, dict))
    own = {"doctor": doctor.make_parser(), "page": page.make_parser()}
    for verb, parser in {**verbs.choices, **own}.items():
        for action in parser._actions:
            if action.option_strings and action.nargs is None:
                yield [verb, action.option_strings[-1]], ""


@pytest.mark.parametrize("share", [25, pytest.param(1, marks=pytest.mark.thorough)])
def test_what_cannot_be_is_one_sentence(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Mock(side_effect=AssertionError("it would have started"))
    for name in ("runs.runner.run", "reproduce.run_notebook", "page.notebook", "doctor.examine"):
        monkeypatch.setattr(f"workbench.{name}", started)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of modules that are imported here
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    os.mkfifo(WAITS[0])
    with open(WAITS[1], "wb") as file:
        file.truncate(1 << 40)
    assert set(SWEEPS) == {field.name for field in fields(Written)}
    generated = list(command_lines())
    drawn, wrong = random.Random(30).sample(generated, len(generated) // share), []
    for words, text in [*((words, "{}") for words in NAMED), *drawn]:
        (tmp_path / "given").write_text(text)
        if words[0] in ("run", "plan", "sweep") and '"results"' not in text:
            words = [words[0], "--results", "results", *words[1:]]
        try:
            code = cli.main(words)
        except BaseException as error:
            code = repr(error)[:200]
        said = capsys.readouterr()
        one = said.err.count("\n") == 1 and said.err.startswith("workbench: ")
        if (code, one, said.out) != (2, True, "") or set(os.listdir()) != {*FILES, *WAITS, "given"}:
            wrong.append((code, said.err[-200:], said.out[:80], str(words)[-300:], text[:200]))
            shutil.rmtree("results", ignore_errors=True)
    assert "own" not in sys.modules
    assert not wrong, "\n".join(map(str, wrong))
