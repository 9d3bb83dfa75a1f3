"""Conversations as the folder of a tokenizer writes them, and which of their letters are answers.

The chat template is a program of the folder's, in Jinja; transformers renders it in its sandbox,
where it reaches nothing but the messages. A template may mark what the assistant says by itself
(``{% generation %}``). Of others an answer begins where the conversation before it, with the words
that ask for one, ends, and goes on to the end that the template gave it as the last turn. Some
write an earlier turn otherwise than the last one, leave out what was thought, or end all with a
token. There the whole conversation is written once more with a letter in the answer's place: all
that changes is the answer, from the words that ask for it to those that end a turn.
"""

from __future__ import annotations

import json
import re
from os.path import commonprefix
from pathlib import Path
from typing import Any

from workbench.core.files import read_whole
from workbench.core.jsonfile import parse_json
from workbench.model.hf_config import transformers_package

TEMPLATE = "chat_template.jinja"
SETTINGS = "tokenizer_config.json"
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
ASSISTANT = "assistant"
UNSAID = "\ue000"
"""Stands in for an answer; a letter of no language."""
MARKED = re.compile(r"{%-?\s*generation\s*-?%}")

Span = tuple[int, int]
"""First letter, and the one behind the last."""


def settings_of(folder: Path) -> dict[str, Any]:
    """Settings of the tokenizer in a folder; none where it has no file of them. Raises ValueError
    for one that is no JSON object."""
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    found = parse_json(read_whole(path, str(path)), str(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object")
    return found


def special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Tokens that settings name, as they are written."""
    found = {}
    for name in NAMED:
        token = settings.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[name] = token
    return found


class Chat:
    """The chat template of a folder."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Raises ValueError where the folder has none."""
        path = folder / TEMPLATE
        template = settings.get("chat_template")
        if path.is_file():
            template = read_whole(path, str(path)).decode(errors="replace")
        if isinstance(template, list):  # several by names
            named = {each.get("name"): each.get("template") for each in template}
            template = named.get("default")
        if not isinstance(template, str):
            raise ValueError(
                f"{folder} has no chat template, which messages need: neither {TEMPLATE} nor one "
                f"in {SETTINGS}"
            )
        transformers_package()
        self._template, self._tokens = template, special_tokens(settings)
        self._marks = MARKED.search(template) is not None

    def render(self, row: dict[str, Any], where: str) -> tuple[str, list[Span]]:
        """A row's messages as text, and the spans of its answers. Raises ValueError for messages
        that are none, or that the template refuses, or in which an answer is not to be found."""
        messages = row["messages"]
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise ValueError(
                f"{where} has the messages {json.dumps(messages, default=str)[:60]}; they are a "
                "list of objects with a role"
            )
        tools = row.get("tools")
        text, marked = self._rendered(messages, where, tools, asks=False)
        if marked:
            return text, marked
        turns = [n for n, each in enumerate(messages) if each["role"] == ASSISTANT]
        return text, [self._found(messages, n, text, where, tools) for n in turns]

    def _found(self, messages: list[dict], turn: int, text: str, where: str, tools: Any) -> Span:
        """The span of a turn in the text of all."""

        def written(given: list[dict], *, asks: bool = False) -> str:
            return self._rendered(given, where, tools, asks=asks)[0]

        before, behind = messages[:turn], messages[turn + 1 :]
        asked = written(before, asks=True) if before else None
        if asked is not None:
            alone = written(messages[: turn + 1])
            if text.startswith(alone) and alone.startswith(asked):
                return len(asked), len(alone)
        stands_in = {"role": ASSISTANT, "content": UNSAID}
        head, found, tail = written([*before, stands_in, *behind]).partition(UNSAID)
        _, _, close = written([*before, stands_in]).partition(UNSAID)
        if not tail.startswith(close):  # the end of all, which some write behind any last turn
            close = close.removesuffix(self._tokens.get("eos_token", ""))
        start, end = len(head), len(text) - len(tail)
        if asked is not None:
            asks = asked[len(commonprefix([asked, written(before)])) :]
            alike = len(commonprefix([asked, head]))
            if alike >= len(asked) - len(asks):
                start = alike
            elif asks in head:
                start = head.rfind(asks) + len(asks)
        fits = text.startswith(head[:start]) and text.endswith(tail) and start <= end
        if found and fits and tail.startswith(close):
            return start, end + len(close)
        raise ValueError(
            f"{where} has an answer, its message {turn + 1}, that is not found in what the chat "
            "template writes; leave it out, or mark answers in the template with generation"
        )

    def _rendered(
        self, messages: list[dict], where: str, tools: Any, *, asks: bool
    ) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                [messages], tools=tools, chat_template=self._template,
                return_assistant_tokens_mask=self._marks,
                add_generation_prompt=asks, **self._tokens,
            )  # fmt: skip
        except Exception as error:  # whatever a template raises
            reason = str(error).split("\n")[0]
            raise ValueError(f"{where} is refused by the chat template: {reason}") from None
        return texts[0], [(first, end) for first, end in (spans[0] if spans else [])]


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)
