"""SuperGLUE's and SQuAD's files as labelled pairs for BERT, and as sources and answers for T5.

SuperGLUE (Wang et al., NeurIPS 2019) has a line of JSON an example; BoolQ, RTE, WiC and MultiRC are
read, told apart by their fields. T5 reads the task's name and each field after its name (Raffel et
al., JMLR 2020, appendix D), and writes the label as a word.

SQuAD 1.1 and 2.0 (Rajpurkar et al., EMNLP 2016, ACL 2018) are one JSON document each. T5 writes the
answer, and ``unanswerable`` where version 2.0 has none. BERT here tells two labels apart and finds
no spans, so its pairs are those of QNLI (Wang et al., ICLR 2019): does the sentence hold the answer
to the question? A question that has an answer comes with the sentence of its answer, and with the
first sentence of the paragraph that lacks it, if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.files import read_whole
from workbench.core.jsonfile import parse_json
from workbench.model.corpus import most_bytes, numbered_lines

EXAMPLES = (
    ("train.jsonl", "train-v2.0.json", "train-v1.1.json"),
    ("val.jsonl", "dev-v2.0.json", "dev-v1.1.json"),
)
"""Files of a folder that are trained on, and held out; the first that is there is read."""
SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|$)", re.DOTALL)
NONE = "unanswerable"
"""What T5 is to write where a paragraph has no answer."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One of SuperGLUE's: its name, the values that mean 0 and 1, what T5 reads, and the two
    sentences of BERT's, of texts by their names."""

    name: str
    labels: tuple[Any, Any]
    asked: str
    first: str
    second: str

    @property
    def fields(self) -> list[str]:
        """Names of an example's texts."""
        return re.findall(r"{(\w+)}", self.asked)

    @property
    def words(self) -> list[str]:
        """Answers of T5 that mean 0 and 1."""
        return [each if isinstance(each, str) else str(bool(each)) for each in self.labels]


MULTIRC = Task(
    "MultiRC", (0, 1), "multirc question: {question} answer: {answer} paragraph: {paragraph}",
    "{paragraph}", "{question} {answer}",
)  # fmt: skip
TASKS = (
    Task("BoolQ", (False, True), "boolq question: {question} passage: {passage}", "{passage}",
         "{question}"),
    Task("RTE", ("not_entailment", "entailment"),
         "rte hypothesis: {hypothesis} premise: {premise}", "{premise}", "{hypothesis}"),
    Task("WiC", (False, True),
         "wic sentence1: {sentence1} sentence2: {sentence2} word: {word}", "{word}: {sentence1}",
         "{sentence2}"),
    MULTIRC,
)  # fmt: skip


def examples_at(path: Path, held_out: bool = False) -> Path | None:
    """The file of examples that a path means: itself, which has no part that is held out, or one of
    a folder."""
    if path.suffix in (".jsonl", ".json") and path.is_file():
        return None if held_out else path
    return next((path / name for name in EXAMPLES[held_out] if (path / name).is_file()), None)


def read_labelled(path: Path) -> list[tuple[int, str, str]]:
    """Label, first and second sentence of every pair of a file. Raises ValueError, one sentence
    with file, line and field, for what is none of the formats or has no labels."""
    if path.suffix == ".json":
        return _some(path, (pair for asked in _questions(path) for pair in _sentences(*asked)))
    pairs = ((n, t.first.format(**of), t.second.format(**of)) for t, n, of in _labelled(path))
    return _some(path, pairs)


def read_asked(path: Path) -> list[tuple[str, str]]:
    """Source and answer of every example of a file. Raises as `read_labelled`."""
    if path.suffix == ".json":
        told = (
            (f"question: {question} context: {_line(context)}", _line(answer) or NONE)
            for question, context, answer, _ in _questions(path)
        )
        return _some(path, told)
    return _some(path, ((t.asked.format(**of), t.words[n]) for t, n, of in _labelled(path)))


def _some(path: Path, found: Iterable[Any]) -> list[Any]:
    if not (examples := [*found]):
        raise ValueError(f"{path.name} has no examples")
    return examples


def _labelled(path: Path) -> Iterator[tuple[Task, int, dict[str, str]]]:
    """The task of SuperGLUE's, a label of 0 or 1 and the texts of each example."""
    task = None
    for number, line in numbered_lines(path):
        where = f"{path.name} line {number}"
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise ValueError(f"{where} is not a JSON object")
        task = task or _task_of(row, where)
        for part in _flat(row, where) if task is MULTIRC else [row]:
            texts = {name: _text(part, name, f"{where}, {task.name},") for name in task.fields}
            if (label := part.get("label")) not in task.labels:
                said = f"the label {label!r}" if "label" in part else "no label"
                choice = " or ".join(map(repr, task.labels))
                raise ValueError(f"{where} has {said}; in {task.name} it is {choice}")
            yield task, task.labels.index(label), texts


def _task_of(row: Row, where: str) -> Task:
    if isinstance(row.get("passage"), dict):
        return MULTIRC
    for task in TASKS:
        if {*task.fields} <= row.keys():
            return task
    known = ", ".join(task.name for task in TASKS)
    raise ValueError(f"{where} is of no task that is read ({known}): it has {', '.join(row)}")


def _flat(row: Row, where: str) -> Iterator[Row]:
    """A row of MultiRC, which is a passage with all questions and answers, an answer a time."""
    passage = row.get("passage")
    for question in _list(passage, "questions", f"{where}, its passage"):
        for answer in _list(question, "answers", f"{where}, one of its questions"):
            known = {"paragraph": passage.get("text"), "question": question.get("question")}
            yield {**answer, **known, "answer": answer.get("text")}


def _questions(path: Path) -> Iterator[tuple[str, str, str, int]]:
    """Question, context, answer and its place in the context, of SQuAD's; empty where there is no
    answer."""
    data = parse_json(read_whole(path, str(path), most_bytes()), str(path))
    for n, article in enumerate(_list(data, "data", path.name), start=1):
        for m, part in enumerate(_list(article, "paragraphs", f"{path.name} article {n}"), start=1):
            where = f"{path.name} article {n} paragraph {m}"
            _text(part, "context", where)
            for asked in _list(part, "qas", where):
                told = f"{where} question {asked.get('id')!r}"
                question = _text(asked, "question", told)
                yield question, part["context"], *_answer(asked, part["context"], told)


def _answer(asked: Row, context: str, where: str) -> tuple[str, int]:
    answers = _list(asked, "answers", where)
    if asked.get("is_impossible", False):
        return "", 0
    if not answers:
        raise ValueError(f"{where} has no answer, and is_impossible does not say so")
    _text(answers[0], "text", where)
    answer, start = answers[0]["text"], answers[0].get("answer_start")
    if type(start) is not int or start < 0 or not context.startswith(answer, start):
        raise ValueError(f"{where} has the answer_start {start!r}, where {answer!r} is not")
    return answer, start


def _sentences(question: str, context: str, answer: str, start: int) -> Iterator[tuple[Any, ...]]:
    """A question with the sentence that holds its answer, and with one that does not."""
    if answer:
        spans = [match.span() for match in SENTENCE.finditer(context)]
        own = next((span for span in reversed(spans) if span[0] <= start), spans[0])
        yield 1, question, _line(context[slice(*own)])
        others = (_line(context[slice(*span)]) for span in spans if span != own)
        if other := next((text for text in others if _line(answer) not in text), None):
            yield 0, question, other


def _text(row: Row, name: str, where: str) -> str:
    """A text of a row, on one line."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} has no text {name!r}")
    return _line(value)


def _list(row: Any, name: str, where: str) -> list[Row]:
    found = row.get(name) if isinstance(row, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{where} has no list of objects {name!r}")
    return found


def _line(text: str) -> str:
    return " ".join(text.split())
