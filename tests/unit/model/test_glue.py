"""SuperGLUE's and SQuAD's files as pairs and as answers; file, line and field of what is wrong."""

import json

import pytest

from workbench.cli import main
from workbench.model.answers import load_answers
from workbench.model.glue import examples_at, read_asked, read_labelled
from workbench.model.pairs import load_pairs

BOOLQ = {"question": "is it so", "passage": "It  is\nso.", "idx": 0, "label": True}
RTE = {"premise": "A cat sat.", "hypothesis": "A cat.", "label": "not_entailment", "idx": 1}
WIC = {
    "word": "bank", "sentence1": "By the bank.", "sentence2": "A bank lends.", "start1": 7,
    "end1": 11, "start2": 2, "end2": 6, "version": 1.1, "idx": 0, "label": False,
}  # fmt: skip
MULTIRC = {
    "idx": 0, "version": 1.1,
    "passage": {"text": "Two ran.", "questions": [
        {"idx": 0, "question": "Who?", "answers": [
            {"text": "Two", "idx": 0, "label": 1}, {"text": "Ten", "idx": 1, "label": 0}]}]},
}  # fmt: skip
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
    paragraphs = [{"context": context, "qas": list(asked)}]
    return {"version": "v2.0", "data": [{"title": "Paris", "paragraphs": paragraphs}]}


@pytest.mark.parametrize("task", ROWS)
def test_tasks_of_superglue(task, tmp_path):
    row, pairs, answers = ROWS[task]
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row) + "\n\n" + json.dumps(row) + "\n")
    assert examples_at(tmp_path) == examples_at(file) == file
    assert read_labelled(file) == pairs * 2
    assert read_asked(file) == answers * 2
    made = load_pairs(tmp_path, vocab=300, seq=48, seed=1)
    assert made.labels.tolist() == [label for label, *_ in pairs * 2]
    told = load_answers(tmp_path, vocab=300, seq=96, target_seq=16, seed=1)
    assert bytes(told.ids[0][told.mask[0]][:-1].tolist()).decode() == answers[0][0]
    assert load_answers(file, vocab=300, seq=96, target_seq=16, seed=1).digest == told.digest


def test_squad(tmp_path):
    file = tmp_path / "train-v2.0.json"
    impossible = {"id": "q2", "question": "Who rules?", "answers": [], "is_impossible": True}
    file.write_text(json.dumps(squad(ASKED, impossible)))
    context = "context: Paris is large. It lies on the Seine. Nobody asked!"
    assert read_asked(file) == [
        (f"question: Where does it lie? {context}", "on the Seine"),
        (f"question: Who rules? {context}", "unanswerable"),
    ]
    assert read_labelled(file) == [
        (1, "Where does it lie?", "It lies on the Seine."),
        (0, "Where does it lie?", "Paris is large."),
    ]
    assert load_pairs(tmp_path, vocab=300, seq=48, seed=1).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (json.dumps(BOOLQ) + "\n{", "train.jsonl line 2 is not JSON"),
        ("[1]", "train.jsonl line 1 is not a JSON object"),
        (json.dumps({**BOOLQ, "label": "yes"}), "line 1 has the label 'yes'; in BoolQ it is False"),
        (json.dumps({**RTE, "label": "neutral"}), "line 1 has the label 'neutral'; in RTE it is"),
        (json.dumps({k: v for k, v in WIC.items() if k != "label"}), "line 1 has no label; in WiC"),
        (json.dumps({**RTE, "premise": " "}), "line 1, RTE, has no text 'premise'"),
        (json.dumps({"text": "a", "label": 1}), "is of no task that is read: BoolQ, RTE, WiC, Mul"),
        (json.dumps({"passage": {"text": "a"}}), "line 1, its passage has no list of .*questions"),
        ("\n", "train.jsonl has no examples"),
    ],
)
def test_refuses_other_lines(text, sentence, tmp_path):
    (tmp_path / "train.jsonl").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load_answers(tmp_path, vocab=300, seq=16, target_seq=4, seed=1)
    with pytest.raises(ValueError, match=sentence):
        load_pairs(tmp_path, vocab=300, seq=16, seed=1)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "train-v1.1.json has no list of objects 'data'"),
        (squad({**ASKED, "answers": []}), "article 1 paragraph 1 question 'q1' has no answer, and"),
        (squad(ASKED, context="short"), "has the answer_start 24, where its answer 'on the Seine'"),
        (squad({**ASKED, "question": 3}), "question 'q1' has no text 'question'"),
        (squad(ASKED, context=""), "article 1 paragraph 1 has no text 'context'"),
        ({"data": []}, "train-v1.1.json has no examples"),
    ],
)
def test_refuses_other_documents(document, sentence, tmp_path, capsys):
    file = tmp_path / "train-v1.1.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=sentence):
        read_labelled(file)
    words = ["run", "-m", "plain", "--set", "family=t5", "--vocab", "300", "--text", str(file)]
    assert main([*words, "--results", str(tmp_path / "results")]) == 2
    assert file.name in capsys.readouterr().err
    assert not (tmp_path / "results" / "runs").exists()
