"""The whole way of a model, by the commands that a user gives: a folder of weights and rows in,
fine-tuning with held-out losses, curves and checkpoints, a folder out, which transformers loads.

    python -m benchmarks.whole_way WORK
    python -m benchmarks.whole_way WORK --smoke

WORK is a new folder. The model is `--model` of real_models.toml with random weights; its tokenizer
and rows are made from this repository's own text. Each command is printed with its seconds and the
last lines of its output. The exit code is 1 where one fails, or where a key is missing, unexpected
or of another shape when the exported folder is loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real_cases import DATA, SMOKE, config_of
from benchmarks.real_runs import LEARNED, TOKENS, rows_of_text
from workbench.model.corpus import read_corpus
from workbench.runs.store import Store

ROOT = Path(__file__).resolve().parents[1]
FOUND = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
"""Where commands find this copy of the code."""
HELD = 64
"""Rows that are held out."""
TOLD = 24
"""Lines of each command's output that are printed."""
STEPS, SAVE, EVALUATE, BATCH, CAP_GIB = 500, 100, 50, 8, 24
LOADING = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, device = sys.argv[1], "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = AutoTokenizer.from_pretrained(folder)
model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
wrong = {key: len(found[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
asked = tokenizer("def main(", return_tensors="pt").input_ids.to(device)
made = model.to(device).generate(asked, max_new_tokens=20, do_sample=False)
print(wrong, f"{model.num_parameters():,} parameters:", repr(tokenizer.decode(made[0])))
sys.exit(any(wrong.values()))
"""


class Failed(Exception):
    """A command has failed."""


def told(work: Path, words: Sequence[str], *, shown: str = "") -> None:
    """Run Python with these words in a folder; print the command and the end of its output."""
    began = time.monotonic()
    print("$", shown or " ".join(words[1:]), flush=True)
    ended = subprocess.run(
        [sys.executable, *words], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False, env=os.environ | {"PYTHONPATH": FOUND},
    )  # fmt: skip
    lines = [line.rpartition("\r")[2] for line in ended.stdout.splitlines()]
    print(*lines[-TOLD:], f"[{time.monotonic() - began:.0f} s]", sep="\n", flush=True)
    if ended.returncode:
        raise Failed(f"exit code {ended.returncode}")


def prepare(work: Path, model: str, *, smoke: bool) -> int:
    """Weights, tokenizer and rows below WORK; returns tokens of a sample."""
    config = config_of(model, smoke=smoke)
    (work / "config.json").write_text(json.dumps(config))
    told(work, ["-m", "benchmarks.folder", "config.json", "FOLDER", "--alike"])
    seq, tokens = SMOKE["seq"] if smoke else 2048, min(TOKENS, config["vocab_size"] // 2)
    text = read_corpus().data[: LEARNED // 8 if smoke else None]
    made = rows_of_text(work / "text", seq - 2, tokens, text)
    for file in made.glob("token*"):
        (work / "FOLDER" / file.name).write_bytes(file.read_bytes())
    lines = (made / "rows.jsonl").read_text().splitlines(keepends=True)
    (work / "held.jsonl").write_text("".join(lines[-HELD:]))
    (work / "rows.jsonl").write_text("".join(lines[:-HELD]))
    return seq


def walk(work: Path, model: str, log: str, *, smoke: bool) -> None:
    """All commands. Raises `Failed`."""
    seq, share = prepare(work, model, smoke=smoke), 50 if smoke else 1
    cap = f"{CAP_GIB * SMOKE['mib_per_gib']}MiB" if smoke else f"{CAP_GIB}GiB"
    told(work, [
        "-m", "workbench", "run", "-m", "stronghold", "--hf-config", "FOLDER", "--tokenizer",
        "FOLDER", "--text", "rows.jsonl", "--seq", f"{seq}", "-b", f"{BATCH}", "--dtype", "bf16",
        "--device-memory", cap, "--steps", f"{STEPS // share}", "--save-every", f"{SAVE // share}",
        "--eval-text", "held.jsonl", "--eval-every", f"{EVALUATE // share}",
        *(["--log", log] if log else []), "--results", "results",
    ])  # fmt: skip
    [run] = Store(work / "results").runs.iterdir()
    told(work, ["-m", "workbench", "export", str(run), "OUT", "--results", "results"])
    told(work, ["-c", LOADING, "OUT"], shown="from_pretrained(OUT)")


def main(words: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 where a command fails; 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.whole_way", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("--model", choices=DATA["models"], default="llama-1b")
    parser.add_argument("--log", choices=("", "tensorboard", "wandb"), default="tensorboard")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, on any machine")
    given = parser.parse_args(words)
    try:
        given.work.mkdir(parents=True)
    except FileExistsError:
        print(f"whole_way: {given.work} is there; name a new folder", file=sys.stderr)
        return 2
    try:
        walk(given.work.resolve(), given.model, given.log, smoke=given.smoke)
    except Failed as error:
        print(f"whole_way: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
