"""SuperGLUE's and SQuAD's files as pairs and as answers; file, line and field of what is wrong."""

import json

import pytest

from workbench.cli import main
from workbench.model import answers, pairs
from workbench.model.answers import load_answers
from workbench.model.glue import examples_at, read_asked, read_labelled

BOOLQ = {"question": "is it so", "passage": "It  is\nso.", "idx": 0, "label": True}
RTE = {"premise": "A cat sat.", "hypothesis": "A cat.", "label": "not_entailment", "idx": 1}
WIC = {"word": "bank", "sentence1": "By the bank.", "sentence2": "A bank lends.", "label": False}
LINES, DOCUMENT = "train.jsonl", "train-v1.1.json"
ANSWERS = [{"text": "Two", "idx": 0, "label": 1}, {"text": "Ten", "idx": 1, "label": 0}]
MULTIRC = {"passage": {"text": "Two ran.", "questions": [{"question": "Who?", "answers": ANSWERS}]}}
ROWS = {
    "BoolQ": (BOOLQ, [(1, "It is so.", "is it so")],
              [("boolq question: is it so passage: It is so.", "True")]),
    "RTE": (RTE, [(0, "A cat sat.", "A cat.")],
            [("rte hypothesis: A cat. premise: A cat sat.", "not_entailment")]),
    "WiC": (WIC, [(0, "bank: By the bank.", "A bank lends.")],
            [("wic sentence1: By the bank. sentence2: A bank lends. word: bank", "False")]),
    "MultiRC": (MULTIRC, [(1, "Two ran.", "Who? Two"), (0, "Two ran.", "Who? Ten")],
                [("multirc question: Who? answer: Two paragraph: Two ran.", "True"),
                 ("multirc question: Who? answer: Ten paragraph: Two ran.", "False")]),
}  # fmt: skip
CONTEXT = "Paris is large. It lies\non the Seine. Nobody asked!"
ASKED = {"id": "q1", "question": "Where does it lie?",
         "answers": [{"text": "on the Seine", "answer_start": 24}]}  # fmt: skip


def squad(*asked, context=CONTEXT):
    return {"data": [{"title": "Paris", "paragraphs": [{"context": context, "qas": list(asked)}]}]}


@pytest.mark.parametrize("task", ROWS)
def test_tasks_of_superglue(task, tmp_path):
    row, pairs, answers = ROWS[task]
    (tmp_path / LINES).write_text(json.dumps(row) + "\n\n" + json.dumps(row) + "\n")
    file = examples_at(tmp_path)
    assert (read_labelled(file), read_asked(file)) == (pairs * 2, answers * 2)
    told = load_answers(tmp_path, vocab=300, seq=96, target_seq=16, seed=1)
    assert bytes(told.ids[0][told.mask[0]][:-1].tolist()).decode() == answers[0][0]


def test_squad(tmp_path):
    file = tmp_path / "train-v2.0.json"
    impossible = {"id": "q2", "question": "Who rules?", "answers": [], "is_impossible": True}
    file.write_text(json.dumps(squad(ASKED, impossible)))
    context = "context: Paris is large. It lies on the Seine. Nobody asked!"
    assert read_asked(file) == [
        (f"question: Where does it lie? {context}", "on the Seine"),
        (f"question: Who rules? {context}", "unanswerable"),
    ]
    kept = [(label, sentence) for label, _, sentence in read_labelled(file)]
    assert kept == [(1, "It lies on the Seine."), (0, "Paris is large.")]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (LINES, json.dumps(BOOLQ) + "\n{", "train.jsonl line 2 is not JSON"),
        (LINES, json.dumps(RTE | {"premise": " "}), "line 1, RTE, has no text 'premise'"),
        (LINES, json.dumps({"text": "a"}), "is of no task that is read (BoolQ, RTE"),
        (LINES, json.dumps({"passage": {}}), "line 1, its passage has no list of objects"),
        (DOCUMENT, "[]", "train-v1.1.json has no list of objects 'data'"),
        (DOCUMENT, json.dumps(squad(ASKED | {"answers": []})), "1 question 'q1' has no answer"),
        (DOCUMENT, json.dumps(squad(ASKED, context="a")), "has the answer_start 24, where 'on the"),
        (DOCUMENT, json.dumps(squad(ASKED | {"question": 3})), "'q1' has no text 'question'"),
    ],
)
def test_a_run_says_file_and_line_and_writes_nothing(name, text, sentence, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    words = ["run", "-m", "plain", "--results", str(tmp_path / "results"), "--vocab", "300"]
    for family in ("bert", "t5"):
        assert main([*words, "--set", f"family={family}", "--text", str(tmp_path)]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "results" / "runs").exists()


def test_a_folder_has_a_part_for_evaluations(tmp_path):
    (tmp_path / LINES).write_text(json.dumps(BOOLQ) + "\n" + json.dumps(BOOLQ))
    given = {"vocab": 300, "seq": 16, "seed": 1}
    assert not answers.holds_out(tmp_path)
    assert not pairs.holds_out(tmp_path)
    (tmp_path / "val.jsonl").write_text(json.dumps(BOOLQ))
    assert answers.holds_out(tmp_path)
    assert pairs.holds_out(tmp_path)
    for held_out, count in ((False, 2), (True, 1)):
        made = answers.load_answers(tmp_path, target_seq=4, held_out=held_out, **given)
        assert len(made) == len(pairs.load_pairs(tmp_path, held_out=held_out, **given)) == count
