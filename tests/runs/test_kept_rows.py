"""Rows are tokenized once, when a command looks at them: its runs read what is kept of that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench import cli
from workbench.model import row_tokens

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


@pytest.fixture
def words(tmp_path: Path) -> Callable[..., list[str]]:
    """A command over rows of 4 tokens, and held-out ones of 9."""
    sizes = {"vocab_size": 256, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16}
    ends = {"num_attention_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
    transformers.LlamaConfig(**sizes, **ends).save_pretrained(tmp_path / "model")
    for name, length in (("rows", 4), ("held", 9)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"input_ids": {[*range(length)]}}}\n' * 8)

    def made(verb: str, *more: str) -> list[str]:
        text, model = str(tmp_path / "rows.jsonl"), str(tmp_path / "model")
        asked = [verb, "-m", "plain", "--hf-config", model, "--text", text, "--steps", "2"]
        return [*asked, *more, "-b", "2", "--results", str(tmp_path / "results")]

    return made


def test_rows_are_tokenized_once_for_all(words, tmp_path, measured, monkeypatch) -> None:
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    assert cli.main(words("run", "--seq", "8")) == 0
    (kept,) = (tmp_path / "results/cache").glob("rows-*.npy")
    (run,) = (tmp_path / "results/runs").iterdir()
    assert [path.samefile(kept) for path in (run / "cache").glob("rows-*.npy")] == [True]
    before = kept.stat()
    monkeypatch.setattr(row_tokens.RowTokenizer, "tokens", None)
    assert cli.main(words("run", "--seq", "9", "--eval-every", "1")) == 0
    assert kept.stat() == before, "no run has made them anew"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--seq", "3"], "8 of the 8 rows of rows.jsonl are longer"),
        (["--seq", "8", "--eval-text", "held.jsonl"], "8 of the 8 rows of held.jsonl are longer"),
        (["--seq", "8", "--weights", "nowhere"], "there are no weights at"),
    ],
)
def test_nothing_is_kept_of_what_is_refused(words, tmp_path, capsys, monkeypatch, more, sentence):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words("run", *more)) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
