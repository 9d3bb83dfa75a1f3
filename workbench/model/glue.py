"""SuperGLUE's and SQuAD's files as labelled pairs for BERT, and as sources and answers for T5.

SuperGLUE (Wang et al., NeurIPS 2019) has a line of JSON an example; of it BoolQ, RTE, WiC and
MultiRC are read, told apart by their fields. The label of a pair is 1 for ``true`` and
``entailment``. T5 reads the task's name and each field after its name (Raffel et al., JMLR 2020,
appendix D), and writes the label as a word.

SQuAD 1.1 and 2.0 (Rajpurkar et al., EMNLP 2016, ACL 2018) are one JSON document each. T5 writes the
answer, and ``unanswerable`` where version 2.0 has none. BERT here tells two labels apart and finds
no spans, so its pairs are those of QNLI (Wang et al., ICLR 2019): does the sentence hold the answer
to the question? A question that has an answer comes with the sentence of its answer, and with the
first sentence of the paragraph that lacks it, if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.files import read_whole
from workbench.core.jsonfile import parse_json
from workbench.model.corpus import most_bytes, numbered_lines

FILES = ("train.jsonl", "train-v2.0.json", "train-v1.1.json")
"""Of a folder; the first that is there is read."""
HELD_OUT = ("val.jsonl", "dev-v2.0.json", "dev-v1.1.json")
"""For evaluations, alike."""
LINES, DOCUMENT = ".jsonl", ".json"
SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|$)", re.DOTALL)
NONE = "unanswerable"
"""What T5 is to write where a paragraph has no answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One of SuperGLUE's."""

    name: str
    fields: tuple[str, ...]
    """Texts of an example."""
    labels: tuple[Any, Any]
    """Values in the file that mean 0 and 1."""
    words: tuple[str, str] = ("False", "True")
    """Answers that mean 0 and 1."""
    first: str
    second: str
    """Fields as BERT's two sentences."""
    asked: str
    """Fields as T5's source."""


BOOLQ = Task(
    name="BoolQ", fields=("question", "passage"), labels=(False, True), first="{passage}",
    second="{question}", asked="boolq question: {question} passage: {passage}",
)  # fmt: skip
RTE = Task(
    name="RTE", fields=("premise", "hypothesis"), labels=("not_entailment", "entailment"),
    words=("not_entailment", "entailment"), first="{premise}", second="{hypothesis}",
    asked="rte hypothesis: {hypothesis} premise: {premise}",
)  # fmt: skip
WIC = Task(
    name="WiC", fields=("sentence1", "sentence2", "word"), labels=(False, True),
    first="{word}: {sentence1}", second="{sentence2}",
    asked="wic sentence1: {sentence1} sentence2: {sentence2} word: {word}",
)  # fmt: skip
MULTIRC = Task(
    name="MultiRC", fields=("paragraph", "question", "answer"), labels=(0, 1),
    first="{paragraph}", second="{question} {answer}",
    asked="multirc question: {question} answer: {answer} paragraph: {paragraph}",
)  # fmt: skip
TASKS = (BOOLQ, RTE, WIC, MULTIRC)


def examples_at(path: Path, *, held_out: bool = False) -> Path | None:
    """The file of examples that a path means: itself, or one of `FILES` in a folder; `HELD_OUT`
    are for evaluations, of which a file by itself has none."""
    if path.suffix in (LINES, DOCUMENT) and path.is_file():
        return None if held_out else path
    files = HELD_OUT if held_out else FILES
    return next((path / name for name in files if (path / name).is_file()), None)


def read_labelled(path: Path) -> list[tuple[int, str, str]]:
    """Label, first and second sentence of every pair of a file. Raises ValueError, one sentence
    with file, line and field, for what is none of the formats or has no labels."""
    if path.suffix == DOCUMENT:
        return _some(path, [pair for asked in _questions(path) for pair in _sentences(asked)])
    return _some(
        path,
        [
            (label, task.first.format(**texts), task.second.format(**texts))
            for task, label, texts in _labelled(path)
        ],
    )


def read_asked(path: Path) -> list[tuple[str, str]]:
    """Source and answer of every example of a file. Raises as `read_labelled`."""
    if path.suffix == DOCUMENT:
        return _some(path, [_told(asked) for asked in _questions(path)])
    return _some(
        path,
        [(task.asked.format(**texts), task.words[label]) for task, label, texts in _labelled(path)],
    )


def _some(path: Path, found: list[Any]) -> list[Any]:
    if not found:
        raise ValueError(f"{path.name} has no examples")
    return found


# -- SuperGLUE -------------------------------------------------------------------------------


def _labelled(path: Path) -> Iterator[tuple[Task, int, dict[str, str]]]:
    """The task, a label and the texts of each example."""
    task = None
    for number, line in numbered_lines(path):
        where = f"{path.name} line {number}"
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise ValueError(f"{where} is not a JSON object")
        task = task or _task_of(row, where)
        for part in _flat(row, where) if task is MULTIRC else [row]:
            texts = {name: _text(part, name, f"{where}, {task.name},") for name in task.fields}
            label = part.get("label")
            if label not in task.labels:
                said = f"the label {label!r}" if "label" in part else "no label"
                raise ValueError(
                    f"{where} has {said}; in {task.name} it is {task.labels[0]!r} or "
                    f"{task.labels[1]!r}"
                )
            yield task, task.labels.index(label), texts


def _task_of(row: dict[str, Any], where: str) -> Task:
    if isinstance(row.get("passage"), dict):
        return MULTIRC
    for task in TASKS:
        if set(task.fields) <= row.keys():
            return task
    raise ValueError(
        f"{where} is of no task that is read: {', '.join(task.name for task in TASKS)}; its fields "
        f"are {', '.join(row)}"
    )


def _flat(row: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """A row of MultiRC, which is a passage with all questions and answers, an answer a time."""
    passage = row.get("passage")
    for question in _list(passage, "questions", f"{where}, its passage"):
        for answer in _list(question, "answers", f"{where}, one of its questions"):
            known = {"paragraph": passage.get("text"), "question": question.get("question")}
            yield {**answer, **known, "answer": answer.get("text")}


# -- SQuAD -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question of SQuAD's."""

    text: str
    context: str
    answer: str
    """Empty where there is none."""
    start: int
    """Place of the answer in the context, in characters."""


def _questions(path: Path) -> Iterator[Question]:
    data = parse_json(read_whole(path, str(path), most_bytes()), str(path))
    for n, article in enumerate(_list(data, "data", path.name), start=1):
        for m, part in enumerate(_list(article, "paragraphs", f"{path.name} article {n}"), start=1):
            where = f"{path.name} article {n} paragraph {m}"
            _text(part, "context", where)
            for asked in _list(part, "qas", where):
                yield _question(asked, part["context"], f"{where} question {asked.get('id')!r}")


def _question(asked: dict[str, Any], context: str, where: str) -> Question:
    text, answers = _text(asked, "question", where), _list(asked, "answers", where)
    if asked.get("is_impossible", False):
        return Question(text=text, context=context, answer="", start=0)
    if not answers:
        raise ValueError(f"{where} has no answer, and is_impossible does not say so")
    _text(answers[0], "text", where)
    answer, start = answers[0]["text"], answers[0].get("answer_start")
    whole = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if not whole or not context.startswith(answer, start):
        raise ValueError(
            f"{where} has the answer_start {start!r}, where its answer {answer!r} is not"
        )
    return Question(text=text, context=context, answer=answer, start=start)


def _told(asked: Question) -> tuple[str, str]:
    source = f"question: {asked.text} context: {_line(asked.context)}"
    return source, _line(asked.answer) or NONE


def _sentences(asked: Question) -> Iterator[tuple[int, str, str]]:
    """Of a question that has an answer: with the sentence that holds it, and with one that does
    not."""
    if asked.answer:
        spans = [match.span() for match in SENTENCE.finditer(asked.context)]
        own = next((span for span in reversed(spans) if span[0] <= asked.start), spans[0])
        yield 1, asked.text, _line(asked.context[slice(*own)])
        others = (_line(asked.context[slice(*span)]) for span in spans if span != own)
        if other := next((text for text in others if _line(asked.answer) not in text), None):
            yield 0, asked.text, other


# -- what files of both hold -----------------------------------------------------------------


def _text(row: dict[str, Any], name: str, where: str) -> str:
    """A text of a row, on one line."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} has no text {name!r}")
    return _line(value)


def _list(row: Any, name: str, where: str) -> list[dict[str, Any]]:
    found = row.get(name) if isinstance(row, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{where} has no list of objects {name!r}")
    return found


def _line(text: str) -> str:
    return " ".join(text.split())
