"""Rows become the tokens that a model is to see and the labels that it is to learn, or one sentence
says what is wrong with them."""

from __future__ import annotations

import json
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from workbench.core.model_spec import DOCUMENTS, PADDED
from workbench.model import row_tokens
from workbench.model.row_files import read_rows
from workbench.model.row_samples import RowSamples, RowStream, Table, packed
from workbench.model.row_tokens import RowTokenizer, load_rows
from workbench.model.text import IGNORED, load_text

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
TURN = "{{ '<|' + m['role'] + '|>' }}%s{{ m['content'] }}<|end|>%s"
LAST = "{% if m['role'] == 'assistant' and loop.last %}(thinks){% endif %}"
NO_TOOLS = "{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
ASKS = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
TURNS = "{% for m in messages %}" + TURN % (LAST, NO_TOOLS) + "{% endfor %}"
BY_TURNS = "{{ bos_token }}" + TURNS + ASKS
MARKED = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<|assistant|>"
    "{% generation %}{{ m['content'] }}<|end|>{% endgeneration %}{% else %}"
    + TURN % ("", "")
    + "{% endif %}{% endfor %}"
)
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
THOUGHTS = (
    "{% set asked = messages | map(attribute='role') | list %}{% for m in messages %}"
    "{{ '<|' + m['role'] + '|>' }}{% set said = m.content or '' %}{% if m['role'] == 'assistant' %}"
    "{% if 'user' in asked[loop.index0:] %}{% set said = said.split('/')[-1] %}{% elif '/' not in "
    "said %}{% set said = '/' + said %}{% endif %}{% endif %}{{ said }}" + CALLS + "<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>(think){% else %}</s>{% endif %}"
)
"""Drops what was thought, up to a stroke, before the last user; ends all with a token, and asks
with a word that no answer has."""
CALL = {"type": "function", "function": {"f": 1}}
CHAT = [
    {"role": "user", "content": "ab"},
    {"role": "assistant", "content": "cd"},
    {"role": "user", "content": "e"},
    {"role": "assistant", "content": "f"},
]


@pytest.fixture
def folder(tmp_path):
    """A tokenizer of bytes and five special tokens, which begins a text with one."""
    ids = {
        word: n for n, word in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    inner = Tokenizer(models.BPE(ids, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", ids["<s>"])]
    )
    path = tmp_path / "tokenizer"
    path.mkdir()
    inner.save(str(path / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": BY_TURNS}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def told(folder, row, **how) -> str:
    """Tokens of a row, those in capitals or brackets that are trained on."""
    made = RowTokenizer(str(folder), **how)
    ((ids, labels),) = made.tokens([("row 1", row)])
    assert all(label in (token, IGNORED) for token, label in zip(ids, labels, strict=True))
    words = zip(map(made.word, ids.tolist()), labels.tolist(), strict=True)
    return "".join(f"[{word}]" if label != IGNORED else word for word, label in words)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "ab"}, "<s>[a][b][</s>]"),
        ({"text": "<s>a</s>"}, "<s>[a][</s>]"),
        ({"text": ""}, "<s>[</s>]"),
        ({"prompt": "a\u00e9", "completion": "b"}, "<s>a\ufffd\ufffd[b][</s>]"),
        ({"prompt": "<s>a", "completion": "b</s></s>"}, "<s>a[b][</s>]"),
        (
            {"messages": CHAT},
            "<s><|user|>ab<|end|><|assistant|>[c][d][<|end|>]<|user|>e<|end|><|assistant|>"
            "[(][t][h][i][n][k][s][)][f][<|end|>]",
        ),
        ({"input_ids": [5, 6, 7], "labels": [5, IGNORED, 7]}, '!"[#]'),
    ],
)
def test_answers_are_trained_on_and_special_tokens_are_there_once(folder, row, words) -> None:
    assert told(folder, row) == words


def test_all_is_trained_on_where_that_is_asked_and_a_template_may_mark_answers(folder) -> None:
    whole = told(folder, {"prompt": "ab", "completion": "c"}, train_on="all")
    assert whole == "<s>[a][b][c][</s>]"
    (folder / "chat_template.jinja").write_text(MARKED)  # before the one in the settings
    marked = told(folder, {"messages": CHAT[:2]})
    assert marked == "<|user|>ab<|end|><|assistant|>[c][d][<|end|>]"


def test_answers_are_found_where_what_follows_changes_how_they_are_written(folder) -> None:
    """Turns before the last user have no thoughts, a call has no words, the first turn is an
    answer, and one that says what a user says is not taken for it."""
    (folder / "chat_template.jinja").write_text(THOUGHTS)
    said = ("assistant", "t/a"), ("user", "b"), ("assistant", None), ("tool", "c"), ("user", "b")
    chat = [{"role": role, "content": content} for role, content in (*said, ("assistant", "b"))]
    chat[2]["tool_calls"] = [CALL]
    assert told(folder, {"messages": chat}) == (
        "<|assistant|>[a][<|end|>]<|user|>b<|end|><|assistant|>"
        + "".join(f"[{letter}]" for letter in json.dumps(CALL["function"]))
        + "[<|end|>]<|tool|>c<|end|><|user|>b<|end|><|assistant|>[/][b][<|end|>][</s>]"
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{'a'}", "rows.jsonl line 2 is not JSON"),
        ("[1]", r"rows.jsonl line 2 is '\[1\]'; a row is a JSON object"),
        ('{"question": "a"}', "rows.jsonl line 2 has question; a row has text, prompt and compl"),
        ('{"text": 1}', "rows.jsonl line 2 has the text 1; it must be text"),
        ('{"input_ids": [1, 2], "labels": [1]}', "line 2 has 2 input_ids and 1 labels; each id"),
        ('{"input_ids": [1, -100]}', "line 2 has -100 among its input_ids"),
        ('{"input_ids": [1, true]}', "line 2 has True among its input_ids"),
        ('{"input_ids": [1, 300]}', "row 2 of rows.jsonl has the id 300; the model's vocabulary"),
        ('{"messages": [{"content": "a"}]}', "line 2 has the messages .* objects with a role"),
        ('{"messages": [{"role": "tool"}]}', "line 2 is refused by the chat template: no tools"),
    ],
)
def test_a_row_that_is_none_is_refused_with_its_line(folder, tmp_path, line, sentence) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=sentence) as error:
        load_rows(path, str(folder), "answers", vocab=261)
    assert "\n" not in str(error.value)


def test_tokenizers_and_files_that_cannot_be_are_refused(folder, tmp_path, monkeypatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    for tokenizer, vocab, sentence in (
        (str(folder), 260, "vocabulary of 260 is smaller than the 261 tokens of"),
        (str(tmp_path), 300, "there is no tokenizer.json in it, which .* make of older files"),
        (str(folder / "tokenizer.json"), 300, "which is no folder; name one with a tokenizer.json"),
        ("bpe:300", 300, "rows take 'bytes', or a folder with a tokenizer.json"),
        ("bytes", 300, "line 1 has messages, which a chat template writes"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load_rows(path, tokenizer, "answers", vocab=vocab)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="has no chat template, which messages need"):
        load_rows(path, str(folder), "answers", vocab=300)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("rows.parquet", "rows.arrow"):
        (tmp_path / name).write_bytes(b"PAR1")
        with pytest.raises(
            ValueError, match=r"pyarrow, which is not installed; pip install pyarrow"
        ):
            read_rows(tmp_path / name)


def test_tables_hold_the_rows_that_lines_do(tmp_path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'finetune' is not installed")
    from pyarrow import feather, parquet

    calls = [{"tool_calls": [{"function": {"arguments": {name: 1}}}]} for name in "xy"]
    said = {"role": "assistant", "content": None}
    messages = [{"role": "user", "content": "a"}, *(said | call for call in calls)]
    rows = [{"input_ids": [1, 2]}, {"text": "a"}, {"messages": messages}]
    names = [name for row in rows for name in row]
    table = pyarrow.Table.from_pylist([dict.fromkeys(names) | row for row in rows])
    parquet.write_table(table, tmp_path / "rows.parquet")
    feather.write_feather(table, tmp_path / "rows.feather")
    with pyarrow.ipc.new_stream(str(tmp_path / "rows.arrow"), table.schema) as stream:
        stream.write_table(table)
    for ending in ("parquet", "feather", "arrow"):
        path = tmp_path / f"rows.{ending}"
        found = [*read_rows(path)]
        assert found == [(f"rows.{ending} row {n}", row) for n, row in enumerate(rows, 1)]
        path.write_bytes(path.read_bytes()[:20])
        with pytest.raises(ValueError, match="is no table that pyarrow reads"):
            [*read_rows(path)]


def table_of(lengths) -> Table:
    """Rows of so many tokens, rising through all; the first half of each is read only."""
    ids = np.arange(sum(lengths))
    places = np.concatenate([np.arange(n) for n in lengths])
    halves = np.concatenate([np.arange(n) < (n + 1) // 2 for n in lengths])
    return Table(np.stack([ids, np.where(halves, IGNORED, ids), places]).astype(np.int32), "rows")


def test_documents_are_all_there_once_and_begin_anew() -> None:
    lengths = [3, 8, 2, 5, 1, 7, 4, 2]
    made = RowSamples(table_of(lengths), DOCUMENTS, seq=8, cut=False, seed=1)
    assert made.note.endswith("; 1 without a label that counts are left out")  # that of one token
    ids, positions, targets = made.at(range(len(made)), ())
    assert ids.dtype == positions.dtype == targets.dtype == torch.int64
    counted, begins = targets != IGNORED, np.cumsum([0, *lengths])
    assert len(made) == 4 == -(-(sum(lengths) - 1) // 8)
    assert torch.equal(targets[counted], ids[counted] + 1)
    learned = Counter(targets[counted].tolist())
    rows = [range(begin, begin + n) for n, begin in zip(lengths, begins, strict=False)]
    wanted = [token for row in rows for token in row[(len(row) + 1) // 2 :]]
    assert learned == Counter(wanted)
    starts = (positions == 0).nonzero().tolist()
    begun = [int(ids[row, at]) for row, at in starts]
    assert sorted(begun) == [row[0] for row in rows if len(row) > 1]
    steps = positions.diff(dim=1)
    assert ((steps == 1) | (positions[:, 1:] == 0)).all()
    assert torch.equal(made.rows((3,))[0], made.rows((1, 3))[0][1:])


def test_long_rows_are_refused_or_cut_and_padded_ones_are_alone() -> None:
    with pytest.raises(ValueError, match="seq is 4, and 2 of the 3 rows of rows are longer, the l"):
        RowSamples(table_of([6, 2, 9]), PADDED, seq=4, cut=False, seed=1)
    made = RowSamples(table_of([6, 2, 9]), PADDED, seq=4, cut=True, seed=1)
    ids, targets = made.at(range(2), ())
    assert ids.tolist() == [[0, 1, 2, 3], [6, 7, 0, 0]]
    none = IGNORED
    assert targets.tolist() == [[none, none, 3, none], [7, none, none, none]]
    with pytest.raises(ValueError, match="none of the 1 rows of rows has a label that counts"):
        RowSamples(table_of([9]), PADDED, seq=4, cut=True, seed=1)


def test_packs_are_few_and_a_stream_has_the_labels_of_its_rows() -> None:
    lengths = np.array([3, 5, 2, 8, 1, 7, 4])
    packs = packed(lengths, 8)
    assert sorted(sum(packs, [])) == [*range(7)]
    assert all(lengths[pack].sum() <= 8 for pack in packs)
    assert len(packs) == 4
    stream = RowStream(table_of([4, 4, 1]), 4, 1, seed=0)
    windows = [stream.rows((sample,)) for sample in range(2)]
    found = {int(ids[0, 0]): targets[0].tolist() for ids, targets in windows}
    assert found == {0: [IGNORED, 2, 3, IGNORED], 4: [IGNORED, 6, 7, IGNORED]}
    digest, stream.labels = stream.digest, stream.labels * 2
    assert stream.digest != digest


def test_rows_are_tokenized_once(folder, tmp_path, monkeypatch) -> None:
    path, cache = tmp_path / "rows.jsonl", tmp_path / "cache"
    path.write_text('{"text": "a"}\n{"text": "bc"}\n')
    first, digest = load_rows(path, str(folder), "answers", vocab=300, cache=cache)
    monkeypatch.setattr(row_tokens.RowTokenizer, "tokens", None)
    second, again = load_rows(path, str(folder), "answers", vocab=300, cache=cache)
    assert isinstance(second, np.memmap)
    assert np.array_equal(first, second)
    assert digest == again
    with pytest.raises(TypeError):  # of other tokens
        load_rows(path, str(folder), "all", vocab=300, cache=cache)


def test_ids_are_a_text_and_a_folder_tokenizes_one(folder, tmp_path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(40, dtype=np.int32))
    assert load_text(tmp_path / "ids.npy", vocab=40, seq=8).tokens.tolist() == [*range(40)]
    with pytest.raises(ValueError, match="ids.npy has the id 39; the model's vocabulary of 39 has"):
        load_text(tmp_path / "ids.npy", vocab=39, seq=8)
    np.save(tmp_path / "two.npy", np.zeros((2, 40)))
    with pytest.raises(ValueError, match=r"holds float64 of shape \(2, 40\); token ids are whole"):
        load_text(tmp_path / "two.npy", vocab=40, seq=8)
    (tmp_path / "text").write_text("ab" * 20)
    text = load_text(tmp_path / "text", str(folder), vocab=261, seq=8, cache=tmp_path / "cache")
    assert text.tokenizer.decode(text.tokens.tolist()) == "ab" * 20
    with pytest.raises(ValueError, match="vocabulary of 260 is smaller than the 261 tokens of"):
        load_text(tmp_path / "text", str(folder), vocab=260, seq=8)


def test_a_special_token_beyond_the_vocabulary_harms_nobody_who_has_none(folder, tmp_path) -> None:
    """As Gemma 3's tokenizer, which has one for pictures, beside a model of texts alone."""
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens(["<picture>"])
    inner.save(str(folder / "tokenizer.json"))
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a picture"}\n{"input_ids": [1, 2]}\n')
    found, _ = load_rows(path, str(folder), "answers", vocab=261)
    assert found[0].max() < 261
    (tmp_path / "text").write_text("a <picture>" * 9)
    assert load_text(tmp_path / "text", str(folder), vocab=261, seq=8).tokens.max() < 261
    path.write_text('{"text": "a"}\n{"input_ids": [1, 261]}\n')
    with pytest.raises(ValueError, match="row 2 of rows.jsonl has the id 261; the model's vocab"):
        load_rows(path, str(folder), "answers", vocab=261)
    inner.add_tokens(["word"])
    inner.save(str(folder / "tokenizer.json"))
    with pytest.raises(ValueError, match="vocabulary of 261 is smaller than the 263 tokens of"):
        load_rows(path, str(folder), "answers", vocab=261)
